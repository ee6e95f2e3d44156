//! New pods of a StatefulSet: from the template in the spec, or from the template in a previous revision.

use std::collections::HashSet;

use kinds::meta::OwnerRef;
use kinds::pod_edit::{PodEdits, pod_from};
use kinds::template::Template;
use kinds::{Kind, StatefulSet};
use serde_json::{Map, Value, json};

use super::identity::{self, REVISION_LABEL};

fn labels(set: &StatefulSet, ordinal: i32, revision: &str) -> Vec<(&'static str, String)> {
    let mut labels = identity::labels(set, ordinal);
    labels.push((REVISION_LABEL, revision.to_owned()));
    labels
}

/// Returns the value of `generateName`: pods have this field, although their names are not generated.
fn prefix(set: &StatefulSet) -> String {
    format!("{}-", set.meta.name)
}

/// Returns a pod from the template in the spec, encoded as the protobuf message `Pod`. Upstream:
/// pkg/controller/statefulset, newStatefulSetPod.
pub fn from_template(set: &StatefulSet, template: &Template, ordinal: i32, revision: &str) -> Vec<u8> {
    let name = identity::pod_name(set, ordinal);
    let edits = PodEdits {
        generate_name: prefix(set),
        labels: labels(set, ordinal, revision),
        hostname: Some(name.clone()),
        name: Some(name),
        subdomain: Some(&set.service),
        claims: identity::claims(set, ordinal),
        ..PodEdits::default()
    };
    pod_from(template, &set.meta.key(), &set.controller_ref(), &edits)
}

/// Returns a pod as JSON from the template in a previous revision.
pub fn from_previous(set: &StatefulSet, template: &Map<String, Value>, ordinal: i32, revision: &str) -> Value {
    let name = identity::pod_name(set, ordinal);
    let own = |field: &str| template.get("metadata").map_or(Value::Null, |meta| meta[field].clone());
    let mut all_labels = own("labels").as_object().cloned().unwrap_or_default();
    all_labels.extend(labels(set, ordinal, revision).into_iter().map(|(key, value)| (key.to_owned(), value.into())));
    let mut spec = template.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
    spec.insert("hostname".to_owned(), name.clone().into());
    spec.insert("subdomain".to_owned(), (*set.service).into());
    let claims = identity::claims(set, ordinal);
    let kept = spec.get("volumes").and_then(Value::as_array).cloned().unwrap_or_default().into_iter();
    let replaced: HashSet<&str> = claims.iter().map(|(name, _)| name.as_str()).collect();
    let kept = kept.filter(|volume| volume["name"].as_str().is_none_or(|name| !replaced.contains(name)));
    let mounted =
        claims.iter().map(|(name, claim)| json!({"name": name, "persistentVolumeClaim": {"claimName": claim}}));
    let volumes: Vec<Value> = mounted.chain(kept).collect();
    spec.insert("volumes".to_owned(), volumes.into());
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": prefix(set),
            "name": name,
            "namespace": *set.meta.namespace,
            "labels": all_labels,
            "annotations": own("annotations"),
            "finalizers": own("finalizers"),
            "ownerReferences": [reference(&set.controller_ref())],
        },
        "spec": spec,
    })
}

fn reference(owner: &OwnerRef) -> Value {
    json!({
        "apiVersion": *owner.api_version, "kind": *owner.kind, "name": *owner.name, "uid": owner.uid.to_string(),
        "controller": owner.controller, "blockOwnerDeletion": owner.block_owner_deletion,
    })
}
