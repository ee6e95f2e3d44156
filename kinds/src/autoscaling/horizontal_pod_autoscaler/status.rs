//! Status of a HorizontalPodAutoscaler.

use super::metric::MetricStatus;
use crate::intern::{Interner, Str};
use crate::value::condition::splice;
use crate::value::time::Time;
use crate::wire::schema::{
    horizontal_pod_autoscaler_condition as condition, horizontal_pod_autoscaler_status as status,
};
use crate::wire::{Put, WireError, fields, push};

/// `status` of a HorizontalPodAutoscaler.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AutoscalerStatus {
    /// Generation of the spec that this status refers to.
    pub observed_generation: Option<i64>,
    /// Time when the autoscaler last changed the number of pods.
    pub last_scale: Option<Time>,
    /// Number of pods that the target's spec requested when it was last read.
    pub current_replicas: i32,
    /// Number of pods on which the controller last decided.
    pub desired_replicas: i32,
    /// Measured values, in the order of the spec.
    pub current_metrics: Vec<MetricStatus>,
    /// Conditions, in the order of the object.
    pub conditions: Vec<AutoscalerCondition>,
}

/// A condition of an autoscaler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AutoscalerCondition {
    /// Type of the condition.
    pub kind: Str,
    /// `True`, `False` or `Unknown`.
    pub status: Str,
    /// Machine-readable reason.
    pub reason: Str,
    /// Human-readable message.
    pub message: Box<str>,
    /// Time of the last change of its status.
    pub last_transition: Time,
    /// Generation of the spec that the condition refers to, if another client has set it. The controller keeps it.
    pub observed_generation: Option<i64>,
}

impl AutoscalerCondition {
    fn decode(interner: &Interner, message: &[u8]) -> Result<Self, WireError> {
        let empty = interner.str("");
        let mut read = Self {
            kind: empty.clone(),
            status: empty.clone(),
            reason: empty,
            message: Box::default(),
            last_transition: Time::default(),
            observed_generation: None,
        };
        for field in fields(message) {
            let field = field?;
            match field.number {
                condition::TYPE => read.kind = interner.str(field.value.str()),
                condition::STATUS => read.status = interner.str(field.value.str()),
                condition::REASON => read.reason = interner.str(field.value.str()),
                condition::MESSAGE => read.message = field.value.str().into(),
                condition::LAST_TRANSITION_TIME => read.last_transition = Time::decode(field.value.bytes())?,
                condition::OBSERVED_GENERATION => read.observed_generation = Some(field.value.i64()),
                _ => {}
            }
        }
        Ok(read)
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.put_message(status::CONDITIONS, |message| {
            message.put_str(condition::TYPE, &self.kind);
            message.put_str(condition::STATUS, &self.status);
            self.last_transition.put(message, condition::LAST_TRANSITION_TIME);
            message.put_str(condition::REASON, &self.reason);
            message.put_str(condition::MESSAGE, &self.message);
            if let Some(generation) = self.observed_generation {
                message.put_int(condition::OBSERVED_GENERATION, generation);
            }
        });
    }
}

impl AutoscalerStatus {
    /// Returns the condition of a type, if there is one.
    pub fn condition(&self, kind: &str) -> Option<&AutoscalerCondition> {
        self.conditions.iter().find(|condition| *condition.kind == *kind)
    }

    pub(super) fn decode(interner: &Interner, message: &[u8]) -> Result<Self, WireError> {
        let mut status = Self::default();
        for field in fields(message) {
            let field = field?;
            match field.number {
                status::OBSERVED_GENERATION => status.observed_generation = Some(field.value.i64()),
                status::LAST_SCALE_TIME => status.last_scale = Some(Time::decode(field.value.bytes())?),
                status::CURRENT_REPLICAS => status.current_replicas = field.value.i32(),
                status::DESIRED_REPLICAS => status.desired_replicas = field.value.i32(),
                status::CURRENT_METRICS => {
                    let metric = MetricStatus::decode(interner, field.value.bytes())?;
                    push(&mut status.current_metrics, metric, message)?;
                }
                status::CONDITIONS => {
                    status.conditions.push(AutoscalerCondition::decode(interner, field.value.bytes())?);
                }
                _ => {}
            }
        }
        Ok(status)
    }

    /// Returns the old status with the fields of this one; unknown fields are kept.
    pub(super) fn splice(&self, old: &[u8]) -> Vec<u8> {
        let written_fields = [
            status::OBSERVED_GENERATION,
            status::LAST_SCALE_TIME,
            status::CURRENT_REPLICAS,
            status::DESIRED_REPLICAS,
            status::CURRENT_METRICS,
            status::CONDITIONS,
        ];
        splice(old, &written_fields, |status| {
            if let Some(generation) = self.observed_generation {
                status.put_int(status::OBSERVED_GENERATION, generation);
            }
            if let Some(time) = self.last_scale {
                time.put(status, status::LAST_SCALE_TIME);
            }
            status.put_int(status::CURRENT_REPLICAS, self.current_replicas.into());
            status.put_int(status::DESIRED_REPLICAS, self.desired_replicas.into());
            self.current_metrics.iter().for_each(|metric| metric.put(status, status::CURRENT_METRICS));
            self.conditions.iter().for_each(|condition| condition.put(status));
        })
    }
}
