//! What a manager leaves behind in a namespace, without what differs from run to run: names, uids, times, versions.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::space::Space;

/// Objects by kind and name without chance in them; equal ones share an entry and are counted.
pub type Trace = BTreeMap<String, BTreeMap<String, usize>>;

/// Kinds whose objects are compared, but for events.
const KINDS: &[&str] = &["deployments", "replicasets", "pods"];

/// Fields that say when and as which version, not what; and how often, which depends on the time that steps take.
const CHANCE: &[&str] = &[
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

/// Who else tells of things: the scheduler's only word is an event of the other kind, without a source.
const OTHERS: &[&str] = &["", "default-scheduler", "kubelet", "kwok"];

/// Reads a namespace as the admin.
///
/// # Errors
/// When kubectl fails.
pub async fn traces(space: &Space) -> Result<Trace> {
    let mut lists = BTreeMap::new();
    for kind in KINDS.iter().chain(&["events"]) {
        let text = space.kubectl(&["get", kind, "--output=json", "--show-managed-fields"]).await?;
        let list: Value = serde_json::from_str(&text)?;
        let items = list["items"].as_array().cloned().with_context(|| format!("{kind} without items"))?;
        lists.insert(*kind, items);
    }
    if let Some(events) = lists.get_mut("events") {
        events.retain(|event| !OTHERS.contains(&event["source"]["component"].as_str().unwrap_or_default()));
    }
    Ok(trace(&lists, &space.namespace))
}

/// The trace of a namespace's lists by kind.
fn trace(lists: &BTreeMap<&str, Vec<Value>>, namespace: &str) -> Trace {
    let mut names = names(lists);
    names.push((namespace.to_owned(), "<namespace>".to_owned()));
    let mut trace = Trace::new();
    for (kind, items) in lists {
        let told = trace.entry((*kind).to_owned()).or_default();
        for item in items {
            let lines = match *kind {
                "events" => vec![event(item)],
                "pods" => fields(&of_pod(item)),
                _ => fields(item),
            };
            for line in lines {
                *told.entry(without_names(&line, &names)).or_default() += 1;
            }
        }
        if *kind == "events" {
            told.values_mut().for_each(|count| *count = 1);
        }
    }
    trace
}

/// Names made by chance, and what stands for them: a ReplicaSet's hash by its revision, longest names first.
fn names(lists: &BTreeMap<&str, Vec<Value>>) -> Vec<(String, String)> {
    let mut names = Vec::new();
    for set in lists.get("replicasets").into_iter().flatten() {
        if let Some(hash) = set["metadata"]["labels"]["pod-template-hash"].as_str() {
            let revision = set["metadata"]["annotations"]["deployment.kubernetes.io/revision"].as_str();
            names.push((hash.to_owned(), format!("<hash {}>", revision.unwrap_or("none"))));
        }
    }
    for pod in lists.get("pods").into_iter().flatten() {
        let (name, prefix) = (&pod["metadata"]["name"], &pod["metadata"]["generateName"]);
        if let (Some(name), Some(prefix)) = (name.as_str(), prefix.as_str()) {
            names.push((name.to_owned(), format!("{prefix}<pod>")));
        }
    }
    names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    names
}

fn without_names(text: &str, names: &[(String, String)]) -> String {
    let pods_first = names.iter().fold(text.to_owned(), |text, (name, stands)| text.replace(name, stands));
    names.iter().fold(pods_first, |text, (name, stands)| text.replace(name, stands))
}

/// What a controller decides about a pod; the rest is the scheduler's, admission's and the kubelet's.
fn of_pod(pod: &Value) -> Value {
    let meta = &pod["metadata"];
    serde_json::json!({
        "generateName": meta["generateName"], "labels": meta["labels"], "annotations": meta["annotations"],
        "ownerReferences": meta["ownerReferences"], "finalizers": meta["finalizers"],
        "deleted": !meta["deletionTimestamp"].is_null(),
    })
}

/// What an event says; not how often, and not between which of several steps.
fn event(event: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let about = &event["involvedObject"];
    let mut words: Vec<String> = text(&event["message"]).split(' ').map(ToOwned::to_owned).collect();
    for word in &mut words {
        if !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit()) {
            *word = "<n>".into();
        }
    }
    // Names of pods that are gone are in no list.
    if let Some(last) =
        words.last_mut().filter(|_| ["SuccessfulCreate", "SuccessfulDelete"].contains(&&*text(&event["reason"])))
    {
        let cut = last.rfind('-').map_or(last.len(), |dash| dash + 1);
        last.replace_range(cut.., "<pod>");
    }
    let from = [&event["source"]["component"], &event["reportingComponent"]].map(text).join(" ");
    let what =
        [&about["kind"], &about["apiVersion"], &about["name"], &event["type"], &event["reason"]].map(text).join(" ");
    format!("{from}: {what}: {}", words.join(" "))
}

/// Lines `name /path = value` for each field of an object.
fn fields(object: &Value) -> Vec<String> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let mut object = object.clone();
    for list in ["/status/conditions"] {
        if let Some(conditions) = object.pointer_mut(list).and_then(Value::as_array_mut) {
            conditions.sort_by_key(|condition| condition["type"].as_str().map(ToOwned::to_owned));
        }
    }
    if let Some(managers) = object.pointer_mut("/metadata/managedFields").and_then(Value::as_array_mut) {
        managers.sort_by_key(|entry| format!("{} {} {}", entry["manager"], entry["operation"], entry["subresource"]));
    }
    let mut lines = Vec::new();
    walk(&object, &mut String::new(), &mut |path, value| lines.push(format!("{name} {path} = {value}")));
    lines
}

fn walk(value: &Value, path: &mut String, tell: &mut impl FnMut(&str, &Value)) {
    let mut enter = |name: &str, value: &Value, path: &mut String| {
        let length = path.len();
        path.push('/');
        path.push_str(name);
        walk(value, path, tell);
        path.truncate(length);
    };
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter().filter(|(name, _)| !CHANCE.contains(&name.as_str())) {
                enter(name, value, path);
            }
        }
        Value::Array(items) => items.iter().enumerate().for_each(|(at, item)| enter(&at.to_string(), item, path)),
        value => tell(path, value),
    }
}

/// What two traces do not share, a sentence each.
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
    fn only_what_is_no_chance_differs() {
        let one = trace(&lists("abc", "x1", "u1", 2), "ns-1");
        assert_eq!(difference(&one, &trace(&lists("def9", "zz", "u2", 2), "ns-2")), Vec::<String>::new());
        let other = difference(&one, &trace(&lists("def9", "zz", "u2", 3), "ns-2"));
        assert_eq!(other.len(), 2, "{other:?}");
        assert!(other[0].contains("replicasets: web-<hash 1> /status/readyReplicas = 2: 1 times under upstream, 0"));
        assert!(one["events"].keys().any(|line| line.ends_with("Created pod: web-<hash 1>-<pod>")), "{one:?}");
    }
}
