//! Objects as users write them, and accessors for tests.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use kube::ResourceExt as _;
use serde_json::{Value, json};

/// Returns a pod template with the label `app=<app>`, an image, and annotations.
pub fn template(app: &str, image: &str, annotations: &Value) -> Value {
    json!({
        "metadata": {"labels": {"app": app}, "annotations": annotations},
        "spec": {"containers": [{"name": "main", "image": image}]},
    })
}

/// Returns a ReplicaSet of pods with the label `app=<name>`.
pub fn replica_set(name: &str, replicas: i32) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": template(name, "example.com/image:1", &json!({})),
        },
    })
}

/// Returns a Deployment of pods with the label `app=<name>`.
pub fn deployment(name: &str, replicas: i32) -> Value {
    replica_set(name, replicas)
}

/// Returns a pod with the label `app=<app>`.
pub fn pod(name: &str, app: &str) -> Value {
    let mut pod = template(app, "example.com/image:1", &json!({}));
    pod["metadata"]["name"] = name.into();
    pod
}

/// Returns an object with `fields` merged over it. Unlike in a merge patch, null is stored and removes no field.
pub fn with(mut object: Value, fields: Value) -> Value {
    merge(&mut object, fields);
    object
}

fn merge(object: &mut Value, fields: Value) {
    match fields {
        Value::Object(fields) if object.is_object() => {
            for (name, value) in fields {
                merge(&mut object[&name], value);
            }
        }
        value => *object = value,
    }
}

/// Returns true if a pod has neither finished nor is being deleted.
pub fn is_active(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() && !matches!(phase(pod), "Failed" | "Succeeded")
}

/// Returns the pod's phase.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Returns true if the pod's Ready condition is True.
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Returns names of objects, sorted.
pub fn names<K: kube::Resource>(objects: &[K]) -> Vec<String> {
    let mut names: Vec<String> = objects.iter().map(|object| object.name_any()).collect();
    names.sort();
    names
}

/// Returns uids of objects, sorted.
pub fn uids<K: kube::Resource>(objects: &[K]) -> Vec<String> {
    let mut uids: Vec<String> = objects.iter().filter_map(|object| object.uid()).collect();
    uids.sort();
    uids
}

/// Returns the name in an object's controller reference; empty if it has none.
pub fn owner<K: kube::Resource>(object: &K) -> String {
    let owner = object.owner_references().iter().find(|owner| owner.controller == Some(true));
    owner.map(|owner| owner.name.clone()).unwrap_or_default()
}

/// Returns the numbers of a ReplicaSet's status: replicas, fully labelled, ready, available, terminating.
pub fn counts(set: &ReplicaSet) -> [i32; 5] {
    let status = set.status.clone().unwrap_or_default();
    [
        status.replicas,
        status.fully_labeled_replicas.unwrap_or(0),
        status.ready_replicas.unwrap_or(0),
        status.available_replicas.unwrap_or(0),
        status.terminating_replicas.unwrap_or(0),
    ]
}

/// Returns conditions as `<type>=<status> <reason>`, sorted by type.
pub fn conditions(deployment: &Deployment) -> Vec<String> {
    let conditions = deployment.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let mut conditions: Vec<String> = conditions
        .iter()
        .map(|condition| {
            let text = |field: &Option<String>| field.clone().unwrap_or_default();
            format!("{}={} {}", text(&condition.type_), text(&condition.status), text(&condition.reason))
        })
        .collect();
    conditions.sort();
    conditions
}

/// Returns the image of a template's first container.
pub fn image(template: Option<&PodTemplateSpec>) -> &str {
    let spec = template.and_then(|template| template.spec.as_ref());
    spec.and_then(|spec| spec.containers.first()?.image.as_deref()).unwrap_or_default()
}
