//! Compares templates in the data of revisions semantically, even if their bytes differ.
//!
//! Another version of the API server may write a new default into every template, or omit a zero value that was written
//! before. Neither change may replace pods.
//!
//! Upstream: pkg/controller/statefulset, setMatchesLatestExistingRevision. Upstream applies the defaults to both
//! templates; this module removes the fields that have their default values.

use serde_json::{Map, Value, json};

use super::data::template_of;

/// Returns true if both patches restore templates that are equal after defaulting. Returns false for data that is not a
/// patch of a template.
pub fn are_semantically_equal(a: &[u8], b: &[u8]) -> bool {
    match (template_of(a), template_of(b)) {
        (Some(mut a), Some(mut b)) => {
            remove_defaults(&mut a, "template");
            remove_defaults(&mut b, "template");
            a == b
        }
        _ => false,
    }
}

/// Removes nulls, and fields that have their default values, at any depth. `parent` is the name of the field that
/// contains the object.
fn remove_defaults(object: &mut Map<String, Value>, parent: &str) {
    for (name, value) in object.iter_mut() {
        match value {
            Value::Object(inner) => remove_defaults(inner, name),
            Value::Array(items) => {
                items.iter_mut().filter_map(Value::as_object_mut).for_each(|inner| remove_defaults(inner, name));
            }
            _ => {}
        }
    }
    let pull_policy = object.get("image").and_then(Value::as_str).map(default_pull_policy);
    let account = object.get("serviceAccountName").cloned();
    object.retain(|name, value| {
        !(value.is_null()
            || is_default(parent, name, value)
            || is_container(parent) && name == "imagePullPolicy" && value.as_str() == pull_policy
            || parent == "spec" && name == "serviceAccount" && account.as_ref() == Some(value))
    });
}

fn is_container(parent: &str) -> bool {
    matches!(parent, "containers" | "initContainers" | "ephemeralContainers")
}

/// Returns true if a field of a pod template has its default value. Upstream: pkg/apis/core/v1, defaults.go.
fn is_default(parent: &str, name: &str, value: &Value) -> bool {
    let default = match (parent, name) {
        ("spec", "dnsPolicy") => json!("ClusterFirst"),
        ("spec", "restartPolicy") => json!("Always"),
        ("spec", "schedulerName") => json!("default-scheduler"),
        ("spec", "terminationGracePeriodSeconds") => json!(30),
        ("spec", "volumeMode") => json!("Filesystem"),
        ("spec", "securityContext") => json!({}),
        ("template" | "volumeClaimTemplate", "metadata") => json!({}),
        (parent, "terminationMessagePath") if is_container(parent) => json!("/dev/termination-log"),
        (parent, "terminationMessagePolicy") if is_container(parent) => json!("File"),
        (parent, "resources") if is_container(parent) => json!({}),
        ("ports", "protocol") => json!("TCP"),
        ("fieldRef", "apiVersion") => json!("v1"),
        ("resourceFieldRef", "divisor") => json!("0"),
        ("fileKeyRef", "optional") => json!(false),
        ("livenessProbe" | "readinessProbe" | "startupProbe", "timeoutSeconds" | "successThreshold") => json!(1),
        ("livenessProbe" | "readinessProbe" | "startupProbe", "periodSeconds") => json!(10),
        ("livenessProbe" | "readinessProbe" | "startupProbe", "failureThreshold") => json!(3),
        ("httpGet", "path") => json!("/"),
        ("httpGet", "scheme") => json!("HTTP"),
        ("grpc", "service") => json!(""),
        ("secret" | "configMap" | "downwardAPI" | "projected", "defaultMode") => json!(0o644),
        ("serviceAccountToken", "expirationSeconds") => json!(3600),
        ("hostPath", "type") => json!(""),
        ("iscsi", "iscsiInterface") => json!("default"),
        ("rbd", "pool") => json!("rbd"),
        ("rbd", "user") => json!("admin"),
        ("rbd", "keyring") => json!("/etc/ceph/keyring"),
        ("azureDisk", "cachingMode") => json!("ReadWrite"),
        ("azureDisk", "fsType") => json!("ext4"),
        ("azureDisk", "readOnly") => json!(false),
        ("azureDisk", "kind") => json!("Shared"),
        ("scaleIO", "storageMode") => json!("ThinProvisioned"),
        ("scaleIO", "fsType") => json!("xfs"),
        _ => return false,
    };
    *value == default
}

/// Returns the default pull policy: `Always` for the tag `latest` and for an image with neither tag nor digest, else
/// `IfNotPresent`.
fn default_pull_policy(image: &str) -> &'static str {
    let (name, digest) = image.split_once('@').map_or((image, false), |(name, _)| (name, true));
    let last = name.rsplit('/').next().unwrap_or(name);
    match last.split_once(':') {
        Some((_, "latest")) => "Always",
        None if !digest => "Always",
        _ => "IfNotPresent",
    }
}
