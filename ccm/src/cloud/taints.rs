//! Taints of the cloud controllers, and the patches that add and remove them.
//!
//! The list of taints is replaced as a whole, so a patch is valid only for the version of the node from which it
//! was created.

use jiff::Timestamp;
use kinds::meta::Time;
use kinds::taint::Taint;
use kinds::{Node, Str};
use runtime::text::api_time;
use serde_json::{Map, Value, json};

/// The taint of a node that its cloud has not initialized yet. Upstream: cloud-provider/api,
/// TaintExternalCloudProvider.
pub const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// The taint of a node whose instance does not run. Upstream: cloud-provider/api, TaintNodeShutdown.
pub const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";

/// Returns true if the node is not initialized; effect and value of the taint do not matter.
pub fn is_uninitialized(node: &Node) -> bool {
    node.taints.iter().any(|taint| &*taint.key == UNINITIALIZED)
}

/// Returns true if the node is marked as shut down.
pub fn is_shut_down(node: &Node) -> bool {
    node.taints.iter().any(is_shutdown_taint)
}

fn is_shutdown_taint(taint: &Taint) -> bool {
    taint.is(SHUTDOWN, kinds::taint::NO_SCHEDULE)
}

/// Returns the list of these taints without [`UNINITIALIZED`], which is removed whatever its effect is.
pub fn initialized_taints(taints: &[Taint]) -> Value {
    list(taints.iter().filter(|taint| &*taint.key != UNINITIALIZED))
}

/// Returns a patch that adds the shutdown taint.
pub fn shutdown_patch(node: &Node) -> Value {
    let taint = Taint {
        key: SHUTDOWN.into(),
        value: Str::from(""),
        effect: kinds::taint::NO_SCHEDULE.into(),
        added: Time::default(),
    };
    patch_of_version(node, json!({"taints": list(node.taints.iter().chain([&taint]))}))
}

/// Returns a patch that removes the shutdown taint.
pub fn started_patch(node: &Node) -> Value {
    patch_of_version(node, json!({"taints": list(node.taints.iter().filter(|taint| !is_shutdown_taint(taint)))}))
}

/// Returns a patch of the spec that fails if the node has changed since it was read.
fn patch_of_version(node: &Node, spec: Value) -> Value {
    json!({
        "metadata": {"uid": node.meta.uid.to_string(), "resourceVersion": node.meta.version.to_string()},
        "spec": spec,
    })
}

/// Returns a list of taints as in a node's spec.
pub fn list<'a>(taints: impl Iterator<Item = &'a Taint>) -> Value {
    taints.map(to_json).collect()
}

fn to_json(taint: &Taint) -> Value {
    let mut entry = Map::new();
    entry.insert("key".into(), json!(&*taint.key));
    if !taint.value.is_empty() {
        entry.insert("value".into(), json!(&*taint.value));
    }
    entry.insert("effect".into(), json!(&*taint.effect));
    if let Some(added) =
        Some(taint.added).filter(|added| !added.is_zero()).and_then(|Time(added)| Timestamp::from_second(added).ok())
    {
        entry.insert("timeAdded".into(), json!(api_time(added)));
    }
    Value::Object(entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::node::tests::node;

    fn tainted(taints: &[(&str, &str)]) -> Node {
        let taint = |(key, effect): &(&str, &str)| Taint {
            key: (*key).into(),
            value: "".into(),
            effect: (*effect).into(),
            added: Time::default(),
        };
        let mut node = node(&[], None);
        node.taints = taints.iter().map(taint).collect();
        node
    }

    #[test]
    fn shutdown_taint_is_found_and_removed_by_key_and_effect() {
        let (own, other) = ((SHUTDOWN, "NoSchedule"), ("example.com/other", "NoSchedule"));
        let of_other_effect = (SHUTDOWN, "NoExecute");
        for (taints, is_marked, left) in [
            (&[][..], false, &[][..]),
            (&[own], true, &[]),
            (&[other], false, &[other]),
            (&[of_other_effect], false, &[of_other_effect]),
            (&[other, own, of_other_effect], true, &[other, of_other_effect]),
        ] {
            let node = tainted(taints);
            let entries = |all: &[(&str, &str)]| {
                all.iter().map(|(key, effect)| json!({"key": key, "effect": effect})).collect::<Value>()
            };
            assert_eq!(is_shut_down(&node), is_marked, "{taints:?}");
            assert_eq!(started_patch(&node)["spec"]["taints"], entries(left), "{taints:?}");
            if !is_marked {
                assert_eq!(shutdown_patch(&node)["spec"]["taints"], entries(&[taints, &[own]].concat()), "{taints:?}");
            }
        }
    }

    #[test]
    fn uninitialized_taint_is_removed_whatever_its_effect_is() {
        let other = ("example.com/other", "NoSchedule");
        for effect in ["NoSchedule", "NoExecute"] {
            let taints = tainted(&[(UNINITIALIZED, effect), other]).taints;
            assert_eq!(initialized_taints(&taints), json!([{"key": other.0, "effect": other.1}]), "{effect}");
        }
        assert_eq!(initialized_taints(&[]), json!([]));
    }
}
