//! A Job's status: numbers of pods by result, uncounted pods, completed indexes, conditions.

use crate::decode::DecodeError;
use crate::intern::Interner;
use crate::meta::Uid;
use crate::value::condition::{Condition, ConditionFields, splice};
use crate::value::time::Time;
use crate::wire::schema::{job_condition as condition, job_status as status, uncounted_terminated_pods};
use crate::wire::{Put, WireError, fields};

/// A condition has `lastProbeTime` where other kinds have the time of the last update.
const CONDITION: ConditionFields = ConditionFields {
    kind: condition::TYPE,
    status: condition::STATUS,
    reason: condition::REASON,
    message: condition::MESSAGE,
    last_update: Some(condition::LAST_PROBE_TIME),
    last_transition: condition::LAST_TRANSITION_TIME,
};

/// Pods that have terminated and are not in the counters yet, because they may still have the tracking finalizer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UncountedPods {
    /// Uids of succeeded pods.
    pub succeeded: Vec<Uid>,
    /// Uids of failed pods.
    pub failed: Vec<Uid>,
}

/// `status` of a Job.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobStatus {
    /// `conditions`, in their order in the object.
    pub conditions: Vec<Condition>,
    /// Start time; zero before the start and while suspended.
    pub start: Time,
    /// Completion time; zero unless the Job is complete.
    pub completion: Time,
    /// Pods that have not terminated and are not being deleted.
    pub active: i32,
    /// Succeeded pods; completed indexes for an Indexed Job.
    pub succeeded: i32,
    /// Pods that failed.
    pub failed: i32,
    /// Pods that are being deleted; absent until counted once.
    pub terminating: Option<i32>,
    /// Ready pods; absent until counted once.
    pub ready: Option<i32>,
    /// Completed indexes, such as `1,3-5`.
    pub completed_indexes: Box<str>,
    /// Failed indexes; only with a limit per index.
    pub failed_indexes: Option<Box<str>>,
    /// Uncounted pods; absent until determined once.
    pub uncounted: Option<UncountedPods>,
}

impl JobStatus {
    const FIELDS: [u32; 11] = [
        status::CONDITIONS,
        status::START_TIME,
        status::COMPLETION_TIME,
        status::ACTIVE,
        status::SUCCEEDED,
        status::FAILED,
        status::COMPLETED_INDEXES,
        status::UNCOUNTED_TERMINATED_PODS,
        status::READY,
        status::FAILED_INDEXES,
        status::TERMINATING,
    ];

    /// Returns the condition of this type, if it is true.
    pub fn true_condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| &*condition.kind == kind && &*condition.status == "True")
    }

    /// Returns the condition with the Job's result. Upstream: pkg/controller/job/util, FinishedCondition.
    pub fn finished(&self) -> Option<&Condition> {
        self.conditions
            .iter()
            .find(|condition| matches!(&*condition.kind, "Complete" | "Failed") && &*condition.status == "True")
    }

    /// Reads a `JobStatus` message.
    pub(super) fn decode(interner: &Interner, message: &[u8]) -> Result<Self, DecodeError> {
        let mut status = Self::default();
        for field in fields(message) {
            let field = field?;
            match field.number {
                status::CONDITIONS => {
                    status.conditions.push(Condition::decode(interner, &CONDITION, field.value.bytes())?);
                }
                status::START_TIME => status.start = Time::decode(field.value.bytes())?,
                status::COMPLETION_TIME => status.completion = Time::decode(field.value.bytes())?,
                status::ACTIVE => status.active = field.value.i32(),
                status::SUCCEEDED => status.succeeded = field.value.i32(),
                status::FAILED => status.failed = field.value.i32(),
                status::TERMINATING => status.terminating = Some(field.value.i32()),
                status::READY => status.ready = Some(field.value.i32()),
                status::COMPLETED_INDEXES => status.completed_indexes = field.value.str().into(),
                status::FAILED_INDEXES => status.failed_indexes = Some(field.value.str().into()),
                status::UNCOUNTED_TERMINATED_PODS => status.uncounted = Some(uncounted(field.value.bytes())?),
                _ => {}
            }
        }
        Ok(status)
    }

    /// Returns this status as a message, with the unknown fields of `old`.
    pub(super) fn splice(&self, old: &[u8]) -> Vec<u8> {
        splice(old, &Self::FIELDS, |out| {
            for condition in &self.conditions {
                condition.put(out, status::CONDITIONS, &CONDITION);
            }
            for (number, time) in [(status::START_TIME, self.start), (status::COMPLETION_TIME, self.completion)] {
                if !time.is_zero() {
                    time.put(out, number);
                }
            }
            for (number, count) in
                [(status::ACTIVE, self.active), (status::SUCCEEDED, self.succeeded), (status::FAILED, self.failed)]
            {
                out.put_int(number, count.into());
            }
            for (number, count) in [(status::TERMINATING, self.terminating), (status::READY, self.ready)] {
                if let Some(count) = count {
                    out.put_int(number, count.into());
                }
            }
            out.put_str(status::COMPLETED_INDEXES, &self.completed_indexes);
            if let Some(indexes) = &self.failed_indexes {
                out.put_str(status::FAILED_INDEXES, indexes);
            }
            if let Some(pods) = &self.uncounted {
                out.put_message(status::UNCOUNTED_TERMINATED_PODS, |out| {
                    pods.succeeded
                        .iter()
                        .for_each(|uid| out.put_str(uncounted_terminated_pods::SUCCEEDED, &uid.to_string()));
                    pods.failed.iter().for_each(|uid| out.put_str(uncounted_terminated_pods::FAILED, &uid.to_string()));
                });
            }
        })
    }
}

fn uncounted(message: &[u8]) -> Result<UncountedPods, WireError> {
    let mut pods = UncountedPods::default();
    for field in fields(message) {
        let field = field?;
        match field.number {
            uncounted_terminated_pods::SUCCEEDED => pods.succeeded.push(Uid::parse(field.value.str())),
            uncounted_terminated_pods::FAILED => pods.failed.push(Uid::parse(field.value.str())),
            _ => {}
        }
    }
    Ok(pods)
}
