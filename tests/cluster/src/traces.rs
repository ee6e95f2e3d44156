//! The effects of a manager in a namespace, without values that differ from run to run: names, uids, times, versions.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::space::Space;

/// The numbers of equal lines by kind, without values that vary. A line is one field of an object, or an event;
/// repeated events count once.
pub type Trace = BTreeMap<String, BTreeMap<String, usize>>;

/// Kinds whose objects are compared, in addition to events.
const KINDS: &[&str] = &["deployments", "replicasets", "pods"];

/// Fields whose values differ from run to run.
const VARYING_FIELDS: &[&str] = &[
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "lastUpdateTime",
    "lastTransitionTime",
    "deletionTimestamp",
    "startTime",
    "nodeName",
    "time",
];

/// Sources of events that are not compared, because no controller manager records them. The scheduler's events can have
/// an empty source.
const OTHER_SOURCES: &[&str] = &["", "default-scheduler", "kubelet", "kwok"];

/// Reads the trace of a namespace.
///
/// # Errors
/// When kubectl fails.
pub async fn read_trace(space: &Space) -> Result<Trace> {
    let mut lists = BTreeMap::new();
    for kind in KINDS.iter().chain(&["events"]) {
        let text = space.kubectl(&["get", kind, "--output=json", "--show-managed-fields"]).await?;
        let list: Value = serde_json::from_str(&text)?;
        let items = list["items"].as_array().cloned().with_context(|| format!("{kind} without items"))?;
        lists.insert(*kind, items);
    }
    if let Some(events) = lists.get_mut("events") {
        events.retain(|event| !OTHER_SOURCES.contains(&event["source"]["component"].as_str().unwrap_or_default()));
    }
    Ok(trace(&lists, &space.namespace))
}

/// Returns the trace of a namespace from its objects, listed by kind.
fn trace(lists: &BTreeMap<&str, Vec<Value>>, namespace: &str) -> Trace {
    let (mut names, sets) = (names(lists), sets(lists));
    names.push((namespace.to_owned(), "<namespace>".to_owned()));
    let mut trace = Trace::new();
    for (kind, items) in lists {
        let counts = trace.entry((*kind).to_owned()).or_default();
        for item in items {
            let lines = match *kind {
                "events" => vec![event(item)],
                "pods" => fields(&controller_fields(item)),
                _ => fields(item),
            };
            for line in lines {
                let line = sets.iter().fold(line, |line, set| without_pods(&line, set));
                *counts.entry(without_names(&line, &names)).or_default() += 1;
            }
        }
        if *kind == "events" {
            counts.values_mut().for_each(|count| *count = 1);
        }
    }
    trace
}

/// Returns names of existing and of deleted ReplicaSets; the latter are known from events.
fn sets(lists: &BTreeMap<&str, Vec<Value>>) -> BTreeSet<String> {
    let names = |kind: &str, at: &str| {
        let items = lists.get(kind).into_iter().flatten();
        items.filter_map(|item| item.pointer(at)?.as_str().map(ToOwned::to_owned)).collect::<Vec<_>>()
    };
    let in_events = lists.get("events").into_iter().flatten().map(|event| &event["involvedObject"]);
    let in_events = in_events.filter(|about| about["kind"] == "ReplicaSet").filter_map(|about| about["name"].as_str());
    names("replicasets", "/metadata/name").into_iter().chain(in_events.map(ToOwned::to_owned)).collect()
}

/// Replaces all names of a ReplicaSet's pods by the same word, including those that were never created.
fn without_pods(text: &str, set: &str) -> String {
    const RANDOM: usize = 5;
    let prefix = format!("{set}-");
    let mut parts = text.split(&prefix);
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let random = part.bytes().take_while(u8::is_ascii_alphanumeric).count() == RANDOM;
        kept.push_str(&prefix);
        kept.push_str(if random { "<pod>" } else { "" });
        kept.push_str(if random { &part[RANDOM..] } else { part });
    }
    kept
}

/// Returns generated names with their replacements, the longest names first. The replacement of a ReplicaSet's hash
/// contains its revision.
fn names(lists: &BTreeMap<&str, Vec<Value>>) -> Vec<(String, String)> {
    let mut names = Vec::new();
    for set in lists.get("replicasets").into_iter().flatten() {
        if let Some(hash) = set["metadata"]["labels"]["pod-template-hash"].as_str() {
            let revision = set["metadata"]["annotations"]["deployment.kubernetes.io/revision"].as_str();
            names.push((hash.to_owned(), format!("<hash {}>", revision.unwrap_or("none"))));
        }
    }
    // Events outlive their objects: the hash of a deleted set is the end of its name, after its Deployment's.
    let is_known = |set: &str| names.iter().any(|(hash, _)| set.ends_with(hash));
    let deleted = sets(lists).into_iter().filter(|set| !is_known(set));
    let deleted: Vec<_> = deleted.filter_map(|set| Some(set.rsplit_once('-')?.1.to_owned())).collect();
    names.extend(deleted.into_iter().map(|hash| (hash, "<hash deleted>".to_owned())));
    names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    names
}

fn without_names(text: &str, names: &[(String, String)]) -> String {
    names.iter().fold(text.to_owned(), |text, (name, replacement)| text.replace(name, replacement))
}

/// Returns the fields of a pod that a controller decides; the others belong to the scheduler, admission and the
/// kubelet.
fn controller_fields(pod: &Value) -> Value {
    let meta = &pod["metadata"];
    serde_json::json!({
        "generateName": meta["generateName"], "labels": meta["labels"], "annotations": meta["annotations"],
        "ownerReferences": meta["ownerReferences"], "finalizers": meta["finalizers"],
        "deleted": !meta["deletionTimestamp"].is_null(),
    })
}

/// Returns the content of an event, without its count and with `<n>` instead of numbers in its message.
fn event(event: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let about = &event["involvedObject"];
    let mut words: Vec<String> = text(&event["message"]).split(' ').map(ToOwned::to_owned).collect();
    for word in &mut words {
        if !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit()) {
            *word = "<n>".into();
        }
    }
    let from = [&event["source"]["component"], &event["reportingComponent"]].map(text).join(" ");
    let what =
        [&about["kind"], &about["apiVersion"], &about["name"], &event["type"], &event["reason"]].map(text).join(" ");
    format!("{from}: {what}: {}", words.join(" "))
}

/// Returns lines `name /path = value` for each field of an object except [`VARYING_FIELDS`].
fn fields(object: &Value) -> Vec<String> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let mut object = object.clone();
    if let Some(conditions) = object.pointer_mut("/status/conditions").and_then(Value::as_array_mut) {
        conditions.sort_by_key(|condition| condition["type"].as_str().map(ToOwned::to_owned));
    }
    if let Some(managers) = object.pointer_mut("/metadata/managedFields").and_then(Value::as_array_mut) {
        managers.sort_by_key(|entry| format!("{} {} {}", entry["manager"], entry["operation"], entry["subresource"]));
    }
    let mut lines = Vec::new();
    walk(&object, &mut String::new(), &mut |path, value| lines.push(format!("{name} {path} = {value}")));
    lines
}

fn walk(value: &Value, path: &mut String, visit: &mut impl FnMut(&str, &Value)) {
    let mut enter = |name: &str, value: &Value, path: &mut String| {
        let length = path.len();
        path.push('/');
        path.push_str(name);
        walk(value, path, visit);
        path.truncate(length);
    };
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter().filter(|(name, _)| !VARYING_FIELDS.contains(&name.as_str())) {
                enter(name, value, path);
            }
        }
        Value::Array(items) => items.iter().enumerate().for_each(|(at, item)| enter(&at.to_string(), item, path)),
        value => visit(path, value),
    }
}

/// Returns the differences of two traces, one line each.
pub fn difference(upstream: &Trace, ours: &Trace) -> Vec<String> {
    let none = BTreeMap::new();
    let mut found = Vec::new();
    for kind in upstream.keys().chain(ours.keys()).collect::<BTreeSet<_>>() {
        let (theirs, ours) = (upstream.get(kind).unwrap_or(&none), ours.get(kind).unwrap_or(&none));
        for line in theirs.keys().chain(ours.keys()).collect::<BTreeSet<_>>() {
            let (upstream, ours) = (theirs.get(line).unwrap_or(&0), ours.get(line).unwrap_or(&0));
            if upstream != ours {
                found.push(format!("{kind}: {line}: {upstream} times under upstream, {ours} under ours"));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lists(hash: &str, pod: &str, uid: &str, ready: i32) -> BTreeMap<&'static str, Vec<Value>> {
        let set = json!({
            "metadata": {
                "name": format!("web-{hash}"), "uid": uid, "labels": {"pod-template-hash": hash},
                "annotations": {"deployment.kubernetes.io/revision": "1"},
            },
            "status": {"readyReplicas": ready},
        });
        let pod = format!("web-{hash}-{pod}");
        let one = json!({"metadata": {"name": pod, "generateName": format!("web-{hash}-"), "labels": {"a": hash}}});
        let event = json!({
            "involvedObject": {"kind": "ReplicaSet", "name": format!("web-{hash}")}, "type": "Normal",
            "reason": "SuccessfulCreate", "message": format!("Created pod: {pod}"), "count": ready,
        });
        [("replicasets", vec![set]), ("pods", vec![one]), ("events", vec![event])].into()
    }

    #[test]
    fn pods_are_named_by_their_sets_and_deleted_sets_by_events() {
        for (text, wanted) in [
            ("pods \"alone-x2k4z\" is forbidden", "pods \"alone-<pod>\" is forbidden"),
            ("alone-x2k4z, alone-b1111", "alone-<pod>, alone-<pod>"),
            ("alone-longer and alone- and alone", "alone-longer and alone- and alone"),
        ] {
            assert_eq!(without_pods(text, "alone"), wanted);
        }
        let mut lists = lists("abc", "x1k2z", "u1", 2);
        lists.insert("replicasets", Vec::new());
        let events = &trace(&lists, "ns")["events"];
        assert!(events.keys().any(|line| line.contains("web-<hash deleted> Normal")), "{events:?}");
    }

    #[test]
    fn random_values_are_not_differences() {
        let one = trace(&lists("abc", "x1k2z", "u1", 2), "ns-1");
        assert_eq!(difference(&one, &trace(&lists("def9", "zz9bb", "u2", 2), "ns-2")), Vec::<String>::new());
        let other = difference(&one, &trace(&lists("def9", "zz9bb", "u2", 3), "ns-2"));
        assert_eq!(other.len(), 2, "{other:?}");
        assert!(other[0].contains("replicasets: web-<hash 1> /status/readyReplicas = 2: 1 times under upstream, 0"));
        assert!(one["events"].keys().any(|line| line.ends_with("Created pod: web-<hash 1>-<pod>")), "{one:?}");
    }
}
