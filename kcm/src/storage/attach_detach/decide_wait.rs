//! Policy: the time at which an event reports that a volume for one node is still attached to another node.
//!
//! A volume that moves with its pod is detached and attached within seconds: no event is recorded. An event reports
//! a wait that only an operator can end, or that takes longer than usual.

use std::time::Duration;

use super::decide::{Site, Step};

/// Time after which an event reports a detachment that has not ended.
///
/// Upstream: pkg/volume/csi, csiTimeout; the wait is not reported while an operation of the volume is pending.
pub const DETACH_GRACE: Duration = Duration::from_secs(2 * 60);
/// Time after which an event reports that a volume is still in use although its pod has ended. A kubelet reports the
/// unmount with its next status, within 10 seconds.
pub const UNMOUNT_GRACE: Duration = Duration::from_secs(30);

/// Returns the time until the wait for another node has to be reported; `None` if that node cannot have the volume.
pub fn time_to_report(other: &Site, step: Step, has_failed: bool) -> Option<Duration> {
    if !other.occupies() {
        return None;
    }
    let is_released = !other.is_wanted && !other.has_foreign && !has_failed;
    let grace = match step {
        Step::Unlist | Step::Detach(_) | Step::AwaitDetach if is_released => DETACH_GRACE,
        Step::AwaitUnmount(_) if is_released && other.node.is_ready => UNMOUNT_GRACE,
        _ => Duration::ZERO,
    };
    Some(grace.saturating_sub(other.unwanted_for))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::attach_detach::decide::{Attachment, ForceDetachReason, NodeState};

    const HEALTHY: NodeState = NodeState { exists: true, is_managed: true, is_ready: true, is_out_of_service: false };

    fn released() -> Site {
        Site { attachment: Attachment::Attached, node: HEALTHY, ..Site::default() }
    }

    #[test]
    fn wait_for_a_node_is_reported_after_a_grace_period_if_the_volume_leaves_it() {
        let lost = NodeState { is_ready: false, ..HEALTHY };
        let unmount = Step::AwaitUnmount(None);
        let now = Some(Duration::ZERO);
        let later = Some;
        for (name, site, step, has_failed, expected) in [
            ("a pod uses it", Site { is_wanted: true, ..released() }, Step::List, false, now),
            ("attached again", Site { is_wanted: true, ..released() }, Step::AwaitDetach, false, now),
            ("another client's", Site { has_foreign: true, ..released() }, Step::Detach(None), false, now),
            ("its kubelet attaches", released(), Step::Idle, false, now),
            ("unmounted", released(), unmount, false, later(UNMOUNT_GRACE)),
            ("on a dead node", Site { node: lost, ..released() }, unmount, false, now),
            ("unlisted", released(), Step::Unlist, false, later(DETACH_GRACE)),
            ("detached", released(), Step::Detach(None), false, later(DETACH_GRACE)),
            (
                "detached by force",
                released(),
                Step::Detach(Some(ForceDetachReason::OutOfService)),
                false,
                later(DETACH_GRACE),
            ),
            ("driver works", released(), Step::AwaitDetach, false, later(DETACH_GRACE)),
            ("not decodable", released(), Step::AwaitDecodable, false, now),
            ("driver has failed", released(), Step::AwaitDetach, true, now),
            ("not there", Site { attachment: Attachment::Absent, ..released() }, Step::Idle, false, None),
        ] {
            assert_eq!(time_to_report(&site, step, has_failed), expected, "{name}");
            let late = Site { unwanted_for: DETACH_GRACE, ..site };
            assert_eq!(time_to_report(&late, step, has_failed), expected.and(now), "{name}, too long");
        }
        let halfway = Site { unwanted_for: UNMOUNT_GRACE / 2, ..released() };
        assert_eq!(time_to_report(&halfway, unmount, false), Some(UNMOUNT_GRACE / 2));
    }
}
