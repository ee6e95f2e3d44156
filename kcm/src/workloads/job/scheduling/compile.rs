//! Workload and PodGroup of a Job, compiled from its `spec.scheduling`. All objects are JSON in the form of the API.
//!
//! Upstream: pkg/controller/job, job_scheduling_manager.go; component-helpers/scheduling/schedulingv1/workloadbuilder.

use kinds::pod_group_workload::ControllerRef;
use kinds::template::{fnv1a_32, safe_name};
use serde_json::{Value, json};

/// API version of Workloads and PodGroups.
pub const API_VERSION: &str = "scheduling.k8s.io/v1beta1";

/// The annotation with which a parent delegates the PodGroup to the Job: the name of a template in the parent's
/// Workload.
const GROUP_TEMPLATE: &str = "scheduling.k8s.io/group-template-name";

/// Maximum length of an object's name in bytes.
const MAX_NAME_BYTES: usize = 253;

/// The objects that the Job controller manages for a Job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// No objects: the user named a PodGroup, or the Job has a parent that does not delegate the PodGroup to it.
    None,
    /// Workload and PodGroup, because the Job has no parent.
    Both,
    /// Only the PodGroup, from a template with this name in the parent's Workload.
    GroupOnly(String),
}

/// Returns the objects to manage for a Job.
pub fn mode(job: &Value) -> Mode {
    if !job["spec"]["template"]["spec"]["schedulingGroup"].is_null() {
        return Mode::None;
    }
    let template = job["metadata"]["annotations"][GROUP_TEMPLATE].as_str();
    match (controller(job), template) {
        (None, _) => Mode::Both,
        (Some(_), Some(template)) => Mode::GroupOnly(template.to_owned()),
        (Some(_), None) => Mode::None,
    }
}

/// Returns true if a Job has never started and was never suspended. Objects are created only for such Jobs: a Job that
/// started before the gate was enabled gets none.
pub fn is_new(job: &Value, has_pods: bool) -> bool {
    let status = &job["status"];
    let has = |field: &str| status[field].as_i64().unwrap_or(0) != 0;
    let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let was_suspended = conditions.iter().any(|condition| condition["type"] == "Suspended");
    !(has_pods || !status["startTime"].is_null() || has("succeeded") || has("failed") || was_suspended)
}

/// Returns the reference of an object to its controller.
pub fn controller(object: &Value) -> Option<&Value> {
    object["metadata"]["ownerReferences"].as_array()?.iter().find(|owner| owner["controller"] == true)
}

/// Returns true if an object is controlled by the Job itself, and not by another one with its name.
pub fn is_controlled_by(object: &Value, job: &Value) -> bool {
    controller(object).is_some_and(|owner| owner["uid"] == job["metadata"]["uid"])
}

/// Returns the reference to a Job's parent, in the form of a Workload's `controllerRef`.
pub fn parent(job: &Value) -> Option<ControllerRef> {
    let parent = controller(job)?;
    let group = parent["apiVersion"].as_str().and_then(|version| version.split_once('/')).map_or("", |parts| parts.0);
    Some(ControllerRef { group: group.to_owned(), kind: text(&parent["kind"]), name: text(&parent["name"]) })
}

/// Returns true if a Workload belongs to a Job's parent.
pub fn is_of_parent(workload: &Value, parent: &ControllerRef) -> bool {
    let reference = &workload["spec"]["controllerRef"];
    let found = ControllerRef {
        group: text(&reference["apiGroup"]),
        kind: text(&reference["kind"]),
        name: text(&reference["name"]),
    };
    !reference.is_null() && found == *parent
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Returns the name of a Job's Workload.
pub fn workload_name(job: &str, uid: &str) -> String {
    let hash = safe_name(fnv1a_32(format!("(types.UID){uid}").bytes()));
    format!("{}-{hash}", cut(job, MAX_NAME_BYTES - hash.len() - 1))
}

/// Returns the name of the PodGroup from a Workload's template.
pub fn group_name(workload: &str, template: &str) -> String {
    let hash = safe_name(fnv1a_32(workload.bytes().chain(template.bytes())));
    let room = MAX_NAME_BYTES - hash.len() - 2;
    let half = room / 2;
    let (workload, template) = match (workload.len(), template.len()) {
        (long, short) if long + short <= room => (workload, template),
        (short, _) if short <= half => (workload, cut(template, room - short)),
        (_, short) if short <= half => (cut(workload, room - short), template),
        _ => (cut(workload, room - half), cut(template, half)),
    };
    format!("{workload}-{template}-{hash}")
}

fn cut(text: &str, length: usize) -> &str {
    &text[..text.floor_char_boundary(length)]
}

/// Returns the desired number of pods that are scheduled together, if the Job requests a gang.
pub fn gang_size(job: &Value) -> Option<i64> {
    let gang = &job["spec"]["scheduling"]["schedulingPolicy"]["gang"];
    if gang.is_null() {
        return None;
    }
    let parallelism = job["spec"]["parallelism"].as_i64().unwrap_or(1);
    Some(gang["minCount"].as_i64().unwrap_or_else(|| parallelism.max(1)))
}

/// Returns the Workload of a Job.
pub fn workload(job: &Value, name: &str) -> Value {
    let scheduling = &job["spec"]["scheduling"];
    let job_name = job["metadata"]["name"].as_str().unwrap_or_default();
    let policy = gang_size(job).map_or(json!({"basic": {}}), |size| json!({"gang": {"minCount": size}}));
    let mut template = json!({"name": format!("{job_name}-pgt-0"), "schedulingPolicy": policy});
    let mut put = |field: &str, value: &Value| {
        if !value.is_null() && value != "" {
            template[field] = value.clone();
        }
    };
    put("priorityClassName", &job["spec"]["template"]["spec"]["priorityClassName"]);
    put("disruptionMode", &scheduling["disruptionMode"]);
    let is_filled = |list: &Value| list.as_array().is_some_and(|list| !list.is_empty());
    if is_filled(&scheduling["schedulingConstraints"]["topology"]) {
        put("schedulingConstraints", &scheduling["schedulingConstraints"]);
    }
    if is_filled(&scheduling["resourceClaims"]) {
        put("resourceClaims", &scheduling["resourceClaims"]);
    }
    json!({
        "apiVersion": API_VERSION, "kind": "Workload",
        "metadata": {"name": name, "namespace": job["metadata"]["namespace"], "ownerReferences": [owner(job)]},
        "spec": {
            "controllerRef": {"apiGroup": "batch", "kind": "Job", "name": job_name},
            "podGroupTemplates": [template],
        },
    })
}

/// Returns the PodGroup of a Job, from a Workload's template. The Workload is an owner too if it is the Job's own.
pub fn group(job: &Value, workload: &Value, template: &Value, is_own: bool) -> Value {
    let (workload_name, template_name) = (text(&workload["metadata"]["name"]), text(&template["name"]));
    let mut spec = json!({"workloadRef": {"workloadName": workload_name, "templateName": template_name}});
    const COPIED: [&str; 6] = [
        "schedulingPolicy",
        "schedulingConstraints",
        "disruptionMode",
        "priorityClassName",
        "resourceClaims",
        "priority",
    ];
    for field in COPIED {
        if !template[field].is_null() {
            spec[field] = template[field].clone();
        }
    }
    let mut owners = vec![owner(job)];
    if is_own {
        owners.push(json!({
            "apiVersion": API_VERSION, "kind": "Workload", "name": workload_name, "uid": workload["metadata"]["uid"],
        }));
    }
    json!({
        "apiVersion": API_VERSION, "kind": "PodGroup",
        "metadata": {
            "name": group_name(&workload_name, &template_name),
            "namespace": job["metadata"]["namespace"], "ownerReferences": owners,
        },
        "spec": spec,
    })
}

fn owner(job: &Value) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"],
        "controller": true, "blockOwnerDeletion": true,
    })
}

/// Returns the patch that sets the gang size of a Workload; `None` if the Workload has that size, no gang, or more than
/// one template.
pub fn workload_resize(workload: &Value, size: i64) -> Option<Value> {
    let templates = workload["spec"]["podGroupTemplates"].as_array().filter(|templates| templates.len() == 1)?;
    let mut templates = templates.clone();
    resize(&mut templates[0]["schedulingPolicy"], size)?;
    Some(json!({"spec": {"podGroupTemplates": templates}}))
}

/// Returns the patch that sets the gang size of a PodGroup; `None` if the PodGroup has that size or no gang.
pub fn group_resize(group: &Value, size: i64) -> Option<Value> {
    let mut policy = group["spec"]["schedulingPolicy"].clone();
    resize(&mut policy, size)?;
    Some(json!({"spec": {"schedulingPolicy": {"gang": policy["gang"]}}}))
}

fn resize(policy: &mut Value, size: i64) -> Option<()> {
    let count = policy.get_mut("gang")?.get_mut("minCount")?;
    (*count != size).then(|| *count = size.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(spec: Value) -> Value {
        json!({"metadata": {"name": "j", "namespace": "ns", "uid": "u"}, "spec": spec})
    }

    fn owned(mut job: Value, annotations: Value) -> Value {
        let parent =
            json!({"apiVersion": "example.com/v1", "kind": "Set", "name": "s", "uid": "p", "controller": true});
        job["metadata"]["ownerReferences"] = json!([parent]);
        job["metadata"]["annotations"] = annotations;
        job
    }

    #[test]
    fn parent_and_pod_template_determine_the_managed_objects() {
        let grouped = json!({"template": {"spec": {"schedulingGroup": {"podGroupName": "g"}}}});
        for (name, job, expected) in [
            ("root", job(json!({})), Mode::Both),
            ("group of the user", job(grouped), Mode::None),
            ("of a CronJob", owned(job(json!({})), json!({})), Mode::None),
            ("delegated", owned(job(json!({})), json!({GROUP_TEMPLATE: "t"})), Mode::GroupOnly("t".to_owned())),
            (
                "delegated without a name",
                owned(job(json!({})), json!({GROUP_TEMPLATE: ""})),
                Mode::GroupOnly(String::new()),
            ),
        ] {
            assert_eq!(mode(&job), expected, "{name}");
        }
    }

    #[test]
    fn only_jobs_that_never_started_are_new() {
        for (name, status, has_pods, expected) in [
            ("new", json!({}), false, true),
            ("has pods", json!({}), true, false),
            ("has started", json!({"startTime": "2026-01-01T00:00:00Z"}), false, false),
            ("has succeeded pods", json!({"succeeded": 1}), false, false),
            ("has failed pods", json!({"failed": 1}), false, false),
            ("was suspended", json!({"conditions": [{"type": "Suspended", "status": "False"}]}), false, false),
            ("zeros", json!({"succeeded": 0, "failed": 0, "conditions": []}), false, true),
        ] {
            assert_eq!(is_new(&json!({"status": status}), has_pods), expected, "{name}");
        }
    }

    #[test]
    fn names_are_those_of_upstream() {
        assert_eq!(workload_name("my-job", "uid-123"), "my-job-795ddf89fd");
        assert_eq!(group_name("my-workload", "my-template"), "my-workload-my-template-67bd6bbcc4");
        let long = "x".repeat(253);
        assert_eq!(workload_name(&long, "u").len(), MAX_NAME_BYTES);
        for (workload, template) in [(&*long, "t"), ("w", &*long), (&long, &long)] {
            assert_eq!(group_name(workload, template).len(), MAX_NAME_BYTES, "{workload} {template}");
        }
    }

    #[test]
    fn gang_size_defaults_to_the_parallelism() {
        let gang = |gang: Value, parallelism: Value| {
            job(json!({"parallelism": parallelism, "scheduling": {"schedulingPolicy": {"gang": gang}}}))
        };
        for (name, job, expected) in [
            ("basic", job(json!({})), None),
            ("given", gang(json!({"minCount": 3}), json!(5)), Some(3)),
            ("parallelism", gang(json!({}), json!(5)), Some(5)),
            ("no parallelism", gang(json!({}), Value::Null), Some(1)),
            ("zero", gang(json!({}), json!(0)), Some(1)),
        ] {
            assert_eq!(gang_size(&job), expected, "{name}");
        }
    }

    #[test]
    fn workload_and_group_contain_the_jobs_request() {
        let job = job(json!({
            "parallelism": 2, "template": {"spec": {"priorityClassName": "high"}},
            "scheduling": {
                "schedulingPolicy": {"gang": {}}, "disruptionMode": {"all": {}},
                "schedulingConstraints": {"topology": [{"key": "zone"}]}, "resourceClaims": [],
            },
        }));
        let mut made = workload(&job, "w");
        let template = json!({
            "name": "j-pgt-0", "priorityClassName": "high", "schedulingPolicy": {"gang": {"minCount": 2}},
            "disruptionMode": {"all": {}}, "schedulingConstraints": {"topology": [{"key": "zone"}]},
        });
        assert_eq!(made["spec"]["podGroupTemplates"], json!([template]));
        assert_eq!(made["spec"]["controllerRef"], json!({"apiGroup": "batch", "kind": "Job", "name": "j"}));
        assert!(is_controlled_by(&made, &job));
        made["metadata"]["uid"] = "w-uid".into();
        let own = group(&job, &made, &template, true);
        assert_eq!(own["spec"]["workloadRef"], json!({"workloadName": "w", "templateName": "j-pgt-0"}));
        assert_eq!(own["spec"]["schedulingPolicy"], template["schedulingPolicy"]);
        assert_eq!(own["metadata"]["ownerReferences"].as_array().map(Vec::len), Some(2));
        assert_eq!(own["metadata"]["ownerReferences"][1]["controller"], Value::Null);
        let delegated = group(&job, &made, &template, false);
        assert_eq!(delegated["metadata"]["ownerReferences"], json!([owner(&job)]));
    }

    #[test]
    fn gangs_are_resized_only_when_their_size_differs() {
        let job = job(json!({"parallelism": 2, "scheduling": {"schedulingPolicy": {"gang": {}}}}));
        let workload = workload(&job, "w");
        let template = &workload["spec"]["podGroupTemplates"][0];
        let group = group(&job, &workload, template, true);
        assert_eq!((workload_resize(&workload, 2), group_resize(&group, 2)), (None, None));
        let patched = workload_resize(&workload, 5).expect("another size");
        assert_eq!(patched["spec"]["podGroupTemplates"][0]["schedulingPolicy"], json!({"gang": {"minCount": 5}}));
        assert_eq!(patched["spec"]["podGroupTemplates"][0]["name"], "j-pgt-0", "the whole list is replaced");
        let patched = group_resize(&group, 5).expect("another size");
        assert_eq!(patched, json!({"spec": {"schedulingPolicy": {"gang": {"minCount": 5}}}}));
        let basic = json!({"spec": {"schedulingPolicy": {"basic": {}}}});
        assert_eq!(group_resize(&basic, 5), None);
    }

    #[test]
    fn parents_workload_is_found_by_its_reference() {
        let parent = parent(&owned(job(json!({})), json!({}))).expect("a parent");
        for (name, reference, expected) in [
            ("same", json!({"apiGroup": "example.com", "kind": "Set", "name": "s"}), true),
            ("other group", json!({"apiGroup": "apps", "kind": "Set", "name": "s"}), false),
            ("other kind", json!({"apiGroup": "example.com", "kind": "Job", "name": "s"}), false),
            ("other name", json!({"apiGroup": "example.com", "kind": "Set", "name": "t"}), false),
            ("none", Value::Null, false),
        ] {
            assert_eq!(is_of_parent(&json!({"spec": {"controllerRef": reference}}), &parent), expected, "{name}");
        }
    }
}
