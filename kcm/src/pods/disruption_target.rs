//! The condition of a pod that a controller evicts: `DisruptionTarget`.

use jiff::Timestamp;
use kinds::Uid;
use kinds::schema::{object_meta, pod, pod_condition, pod_status};
use kinds::wire::{WireError, fields, find};
use runtime::text::api_time;
use serde_json::{Value, json};

const TYPE: &str = "DisruptionTarget";

/// The field of a strategic merge patch of a status that orders the conditions.
pub const ORDER: &str = "$setElementOrder/conditions";

/// Returns a strategic merge patch of a pod's status that sets the condition to true; `None` if the pod already has the
/// condition with this reason and message. `object` is the encoded pod from an uncached read. The patch contains `uid`,
/// the UID of the evicted pod, as a precondition: another pod with the same name must not get the condition.
///
/// Upstream: pkg/api/v1/pod, UpdatePodCondition; pkg/util/pod, PatchPodStatus.
///
/// # Errors
/// When `object` is not well-formed.
pub fn patch(
    object: &[u8],
    uid: &Uid,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Result<Option<Value>, WireError> {
    let mut generation = 0;
    for field in fields(find(object, pod::METADATA)) {
        let field = field?;
        if field.number == object_meta::GENERATION {
            generation = field.value.i64();
        }
    }
    let mut condition = json!({
        "type": TYPE, "status": "True", "reason": reason, "message": message,
        "lastTransitionTime": api_time(now),
    });
    if generation > 0 {
        condition["observedGeneration"] = generation.into();
    }
    let mut last = None;
    let mut is_present = false;
    for field in fields(find(object, pod::STATUS)) {
        let field = field?;
        if field.number != pod_status::CONDITIONS {
            continue;
        }
        let is = |number, text: &str| find(field.value.bytes(), number) == text.as_bytes();
        let is_target = is(pod_condition::TYPE, TYPE);
        is_present |= is_target;
        last = Some(find(field.value.bytes(), pod_condition::TYPE));
        if !is_target || !is(pod_condition::STATUS, "True") {
            continue;
        }
        if is(pod_condition::REASON, reason) && is(pod_condition::MESSAGE, message) {
            return Ok(None);
        }
        // The condition is true already: another reason is not a transition.
        condition.as_object_mut().expect("an object").remove("lastTransitionTime");
    }
    let mut status = json!({ "conditions": [condition] });
    if let Some(last) = last.filter(|_| !is_present) {
        status[ORDER] = order_after(&String::from_utf8_lossy(last));
    }
    Ok(Some(json!({ "metadata": { "uid": uid.to_string() }, "status": status })))
}

/// Returns the value of [`ORDER`] that places a new condition after the condition of type `kind`. Without it, the API
/// server places new conditions first; upstream's are last. It has no effect if the pod has no condition of this type.
pub fn order_after(kind: &str) -> Value {
    json!([{ "type": kind }, { "type": TYPE }])
}

#[cfg(test)]
mod tests {
    use super::*;
    use kinds::wire::Put;

    fn pod_with(condition: Option<(&str, &str)>) -> Vec<u8> {
        let mut object = Vec::new();
        object.put_message(pod::METADATA, |meta| {
            meta.put_str(object_meta::UID, "u");
            meta.put_int(object_meta::GENERATION, 3);
        });
        object.put_message(pod::STATUS, |status| {
            if let Some((set, reason)) = condition {
                status.put_message(pod_status::CONDITIONS, |message| {
                    message.put_str(pod_condition::TYPE, TYPE);
                    message.put_str(pod_condition::STATUS, set);
                    message.put_str(pod_condition::REASON, reason);
                    message.put_str(pod_condition::MESSAGE, "what");
                });
            }
        });
        object
    }

    #[test]
    fn new_condition_is_placed_last_and_a_known_one_stays_in_its_place() {
        for (conditions, expected) in [
            (&[][..], None),
            (&["Ready", "PodScheduled"], Some("PodScheduled")),
            (&["DisruptionTarget", "PodScheduled"], None),
        ] {
            let mut object = Vec::new();
            object.put_message(pod::STATUS, |status| {
                for kind in conditions {
                    status.put_message(pod_status::CONDITIONS, |message| {
                        message.put_str(pod_condition::TYPE, kind);
                        message.put_str(pod_condition::STATUS, "False");
                    });
                }
            });
            let patch = patch(&object, &Uid::parse("evicted"), "why", "what", Timestamp::UNIX_EPOCH);
            let patch = patch.expect("well-formed").expect("a change");
            assert_eq!(patch["status"].get(ORDER), expected.map(order_after).as_ref(), "{conditions:?}");
        }
        assert_eq!(order_after("Ready"), json!([{ "type": "Ready" }, { "type": "DisruptionTarget" }]));
    }

    #[test]
    fn condition_is_set_only_once_and_only_for_the_evicted_pod() {
        for (before, written, moved) in [
            (None, true, true),
            (Some(("False", "why")), true, true),
            (Some(("True", "other")), true, false),
            (Some(("True", "why")), false, false),
        ] {
            let patch = patch(&pod_with(before), &Uid::parse("evicted"), "why", "what", Timestamp::UNIX_EPOCH)
                .expect("well-formed");
            assert_eq!(patch.is_some(), written, "{before:?}");
            let Some(patch) = patch else { continue };
            assert_eq!(patch["metadata"]["uid"], "evicted", "not the uid of the pod that has the name now");
            let condition = &patch["status"]["conditions"][0];
            assert_eq!((&condition["observedGeneration"], &condition["reason"]), (&json!(3), &json!("why")));
            assert_eq!(condition.get("lastTransitionTime").is_some(), moved, "{before:?}");
        }
    }
}
