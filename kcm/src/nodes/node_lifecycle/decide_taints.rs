//! Policy: the taints that follow from a node's conditions and `spec.unschedulable`, and the beta labels that follow
//! from its stable labels.

use std::sync::Arc;

use kinds::intern::label;
use kinds::meta::Time;
use kinds::taint::{NO_EXECUTE, NO_SCHEDULE, Taint};
use kinds::{Node, Str};
use runtime::text::api_time;
use serde_json::{Map, Value, json};

/// Taint key of a node that reports that it is not ready.
pub const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// Taint key of an unresponsive node.
pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Condition, its status, and the key of the `NoSchedule` taint that follows.
const CONDITION_TAINTS: [(&str, &str, &str); 6] = [
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
];

/// A label, and the older label that must have the same value.
const LABELS: [(&str, &str); 2] =
    [("kubernetes.io/os", "beta.kubernetes.io/os"), ("kubernetes.io/arch", "beta.kubernetes.io/arch")];

fn taint(key: &str, effect: &str, now: Time) -> Taint {
    Taint { key: key.into(), value: "".into(), effect: effect.into(), added: now }
}

/// Returns the node's taints with the `NoSchedule` taints that follow from its conditions and `spec.unschedulable`, and
/// without those that no longer follow; `None` if nothing changes. New ones are last, in the order of the conditions.
/// Taints with other keys or effects are kept. Upstream: pkg/controller/nodelifecycle, doNoScheduleTaintingPass.
pub fn no_schedule(node: &Node, now: Time) -> Option<Vec<Taint>> {
    let of_conditions = node.conditions.iter().filter_map(|condition| {
        let found = CONDITION_TAINTS
            .iter()
            .find(|(kind, status, _)| (*kind, *status) == (&*condition.kind, &*condition.status));
        found.map(|(_, _, key)| *key)
    });
    let wanted: Vec<&str> = of_conditions.chain(node.unschedulable.then_some(UNSCHEDULABLE)).collect();
    let ours = |taint: &Taint| {
        &*taint.effect == NO_SCHEDULE
            && (&*taint.key == UNSCHEDULABLE || CONDITION_TAINTS.iter().any(|(_, _, key)| *key == &*taint.key))
    };
    changed(node, |taint| !ours(taint) || wanted.contains(&&*taint.key), &wanted, NO_SCHEDULE, now)
}

/// Returns the node's taints after an update of the `NoExecute` taints [`NOT_READY`] and [`UNREACHABLE`]: the node gets
/// the one with the key `wanted` and loses the other one, or both if `wanted` is `None`. Returns `None` if nothing
/// changes.
pub fn no_execute(node: &Node, wanted: Option<&str>, now: Time) -> Option<Vec<Taint>> {
    let ours = |taint: &Taint| taint.is(NOT_READY, NO_EXECUTE) || taint.is(UNREACHABLE, NO_EXECUTE);
    let keep = |taint: &Taint| !ours(taint) || Some(&*taint.key) == wanted;
    changed(node, keep, wanted.as_slice(), NO_EXECUTE, now)
}

/// Returns the taints for which `keep` is true, and the missing ones of `wanted`; `None` if nothing changes.
fn changed(node: &Node, keep: impl Fn(&Taint) -> bool, wanted: &[&str], effect: &str, now: Time) -> Option<Vec<Taint>> {
    let mut taints: Vec<Taint> = node.taints.iter().filter(|taint| keep(taint)).cloned().collect();
    let kept = taints.len();
    for key in wanted {
        if !taints.iter().any(|taint| taint.is(key, effect)) {
            taints.push(taint(key, effect, now));
        }
    }
    (kept != node.taints.len() || kept != taints.len()).then_some(taints)
}

/// Returns the key of the `NoExecute` taint for the status of a Ready condition; `None` if the status requires none.
pub fn no_execute_key(ready: &str) -> Option<&'static str> {
    match ready {
        "False" => Some(NOT_READY),
        "Unknown" => Some(UNREACHABLE),
        _ => None,
    }
}

/// Returns the labels to set: the label with the older name gets the value of the newer one, if that exists. Upstream:
/// pkg/controller/nodelifecycle, reconcileNodeLabels.
pub fn labels(node: &Node) -> Vec<(&'static str, &str)> {
    let labels = &node.meta.labels;
    LABELS
        .into_iter()
        .filter_map(|(primary, secondary)| Some((secondary, label(labels, primary)?)))
        .filter(|(secondary, value)| label(labels, secondary) != Some(value))
        .collect()
}

/// Returns a strategic merge patch of a node, valid for the version that the decision is based on.
pub fn patch(node: &Node, taints: Option<&[Taint]>, labels: &[(&'static str, &str)]) -> Value {
    let mut patch = json!({ "metadata": { "resourceVersion": node.meta.version.to_string() } });
    if let Some(taints) = taints {
        // The list is replaced as a whole; an empty one is removed.
        let taints: Vec<Value> = taints.iter().map(as_json).collect();
        patch["spec"] = json!({ "taints": if taints.is_empty() { Value::Null } else { taints.into() } });
    }
    if !labels.is_empty() {
        let labels: Map<String, Value> =
            labels.iter().map(|(key, value)| ((*key).to_owned(), Value::from(*value))).collect();
        patch["metadata"]["labels"] = labels.into();
    }
    patch
}

fn as_json(taint: &Taint) -> Value {
    let mut json = json!({ "key": &*taint.key, "effect": &*taint.effect });
    if !taint.value.is_empty() {
        json["value"] = (*taint.value).into();
    }
    if let (false, Ok(added)) = (taint.added.is_zero(), jiff::Timestamp::from_second(taint.added.0)) {
        json["timeAdded"] = api_time(added).into();
    }
    json
}

/// Returns the key of a node's zone: region and zone, from the beta labels or else from the stable ones; empty if the
/// node has neither region nor zone. Upstream: component-helpers/node/topology, GetZoneKey.
pub fn zone(node: &Node) -> Str {
    let labels = &node.meta.labels;
    let either = |older: &str, newer: &str| label(labels, older).or_else(|| label(labels, newer)).unwrap_or_default();
    let region = either("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region");
    let zone = either("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone");
    if region.is_empty() && zone.is_empty() { Arc::from("") } else { format!("{region}:\0:{zone}").into() }
}

/// Returns true if the node is not counted when the disruption of its zone is evaluated.
pub fn is_excluded(node: &Node) -> bool {
    label(&node.meta.labels, "node.kubernetes.io/exclude-disruption").is_some()
}
