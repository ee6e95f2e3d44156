//! Evictions and disruptions of a pod; few pods have any.

use crate::value::time::Time;
use crate::wire::schema::{pod_condition, pod_status};
use crate::wire::{WireError, fields};

/// The condition of a pod that a component other than its controller is about to terminate.
pub const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// The reason in the status of a pod that the kubelet evicted.
const EVICTED: &str = "Evicted";

/// The reason in [`DISRUPTION_TARGET`] if the kubelet set it. The pod may terminate at any later time: such a condition
/// never becomes outdated.
const BY_KUBELET: &str = "TerminationByKubelet";

/// The recorded disruption of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Disruption {
    /// The kubelet evicted it.
    pub evicted: bool,
    /// Time since which the condition [`DISRUPTION_TARGET`] is true; `None` if it is not.
    pub target_since: Option<Time>,
    /// The kubelet has set that condition.
    pub by_kubelet: bool,
}

impl Disruption {
    /// Reads a pod's status; `None` if it records no disruption.
    pub(super) fn read(status: &[u8]) -> Result<Option<Box<Self>>, WireError> {
        let mut read = Self::default();
        for field in fields(status) {
            let field = field?;
            match field.number {
                pod_status::REASON => read.evicted = field.value.str() == EVICTED,
                pod_status::CONDITIONS => read.read_condition(field.value.bytes())?,
                _ => {}
            }
        }
        Ok((read != Self::default()).then(|| Box::new(read)))
    }

    fn read_condition(&mut self, message: &[u8]) -> Result<(), WireError> {
        let mut kind = "";
        let mut status = "";
        let mut reason = "";
        let mut since = Time::default();
        for field in fields(message) {
            let field = field?;
            match field.number {
                pod_condition::TYPE => kind = field.value.str(),
                pod_condition::STATUS => status = field.value.str(),
                pod_condition::REASON => reason = field.value.str(),
                pod_condition::LAST_TRANSITION_TIME => since = Time::decode(field.value.bytes())?,
                _ => {}
            }
        }
        if (kind, status) == (DISRUPTION_TARGET, "True") {
            self.target_since = Some(since);
            self.by_kubelet = reason == BY_KUBELET;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Put;

    fn condition(kind: &str, status: &str, reason: &str) -> impl FnOnce(&mut Vec<u8>) {
        move |condition| {
            condition.put_str(pod_condition::TYPE, kind);
            condition.put_str(pod_condition::STATUS, status);
            condition.put_str(pod_condition::REASON, reason);
            Time(7).put(condition, pod_condition::LAST_TRANSITION_TIME);
        }
    }

    #[test]
    fn only_recorded_disruptions_are_decoded() {
        for (kind, status, reason, expected) in [
            ("Ready", "True", "", None),
            (DISRUPTION_TARGET, "False", "", None),
            (DISRUPTION_TARGET, "True", "EvictionByEvictionAPI", Some(false)),
            (DISRUPTION_TARGET, "True", BY_KUBELET, Some(true)),
        ] {
            let mut message = Vec::new();
            message.put_message(pod_status::CONDITIONS, condition(kind, status, reason));
            let read = Disruption::read(&message).expect("well-formed");
            let expected = expected
                .map(|by_kubelet| Box::new(Disruption { evicted: false, target_since: Some(Time(7)), by_kubelet }));
            assert_eq!(read, expected, "{kind} {status} {reason}");
        }
        let mut message = Vec::new();
        message.put_str(pod_status::REASON, EVICTED);
        assert!(Disruption::read(&message).expect("well-formed").is_some_and(|read| read.evicted));
    }
}
