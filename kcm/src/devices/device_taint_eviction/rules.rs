//! Policy: the status of a rule about its evictions.

use kinds::device_taint_rule::{EVICTION_IN_PROGRESS, Progress};
use kinds::taint::NO_EXECUTE;
use kinds::{DeviceTaintRule, Kind, Time};
use serde_json::{Value, json};

/// The effect that only reports the evictions that NoExecute would cause.
pub const NO_EFFECT: &str = "None";

/// Numbers of a rule's devices and of their pods.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Devices that the rule selects and that slices contain; counted for [`NO_EFFECT`] only.
    pub published: usize,
    /// Devices that the rule selects and that are allocated to claims; counted for [`NO_EFFECT`] only.
    pub allocated: usize,
    /// Pods that have to be evicted because of the rule; with [`NO_EFFECT`], pods that NoExecute would evict.
    pub pods: usize,
    /// The number of their namespaces.
    pub namespaces: usize,
    /// Pods that were evicted because of the rule since this process started.
    pub evicted: u64,
}

/// Formats a number with its noun: `1 pod`, `2 pods`.
fn number(count: impl TryInto<u64>, one: &str, many: &str) -> String {
    match count.try_into().unwrap_or(u64::MAX) {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    }
}

/// Returns the status (true while pods have to be evicted), reason and message of the condition. Upstream:
/// pkg/controller/devicetainteviction, maybeUpdateRuleStatus.
pub fn progress(effect: &str, counts: &Counts) -> (bool, &'static str, String) {
    let Counts { published, allocated, pods, namespaces, evicted } = *counts;
    let spread = number(namespaces, "namespace", "different namespaces");
    let (is_in_progress, reason, mut message) = match effect {
        NO_EXECUTE if pods > 0 => {
            let message = number(pods, "pod needs to be evicted in", "pods need to be evicted in");
            (true, "PodsPendingEviction", format!("{message} {spread}."))
        }
        NO_EXECUTE if evicted > 0 => (false, "Completed", String::new()),
        NO_EXECUTE => (false, "NotStarted", String::new()),
        NO_EFFECT => {
            let published = number(published, "published device selected.", "published devices selected.");
            let allocated = number(allocated, "allocated device selected.", "allocated devices selected.");
            let pods = number(pods, "pod would be evicted in", "pods would be evicted in");
            let message = format!(
                "{published} {allocated} {pods} {spread} if the effect was NoExecute. This information will not be \
                 updated again. Recreate the DeviceTaintRule to trigger an update."
            );
            (false, "NoEffect", message)
        }
        _ => (false, "OtherEffect", "Eviction only happens for the NoExecute effect.".to_owned()),
    };
    if evicted > 0 {
        let separator = if message.is_empty() { "" } else { " " };
        let pods = number(evicted, "pod", "pods");
        message = format!("{message}{separator}{pods} evicted since starting the controller.");
    }
    (is_in_progress, reason, message)
}

/// Returns the object to apply to a rule's status; `None` if nothing changes. `now` is the time of the condition.
pub fn to_apply(rule: &DeviceTaintRule, counts: &Counts, now: &str) -> Option<Value> {
    let (is_in_progress, reason, message) = progress(&rule.taint.effect, counts);
    let status = if is_in_progress { "True" } else { "False" };
    let is_same = |current: &Progress| {
        (&*current.status, &*current.reason, &*current.message) == (status, reason, &*message)
            && current.generation == rule.meta.generation
    };
    if rule.progress.as_ref().is_some_and(is_same) {
        return None;
    }
    let condition = json!({
        "type": EVICTION_IN_PROGRESS, "status": status, "reason": reason, "message": message,
        "observedGeneration": rule.meta.generation, "lastTransitionTime": now,
    });
    Some(json!({
        "apiVersion": DeviceTaintRule::RESOURCE.api_version(),
        "kind": DeviceTaintRule::RESOURCE.kind,
        "metadata": { "name": &*rule.meta.name, "uid": rule.meta.uid.to_string() },
        "status": { "conditions": [condition] },
    }))
}

/// Returns the remaining cooldown of a rule's status in seconds; `None` if the status may be written. Without a
/// cooldown, each evicted pod would cause a write. A status of another generation has no cooldown.
pub fn cooldown_left(rule: &DeviceTaintRule, now: Time, period: i64) -> Option<i64> {
    let current = rule.progress.as_ref().filter(|current| current.generation == rule.meta.generation)?;
    let left = period.saturating_sub(now.0.saturating_sub(current.since.0));
    (left > 0).then_some(left.min(period))
}
