//! Job: completions, policies for failures and success, and the accounting of pods in its status.

mod policy;
mod status;

use crate::decode::{Decode, DecodeError, Sections};
use crate::intern::Str;
use crate::kind::{Kind, Resource};
use crate::meta::{Meta, Parts};
use crate::template::Template;
use crate::template::raw_object::Raw;
use crate::value::selector::Selector;
use crate::wire::schema::{job as object, job_spec as spec, pod_spec};
use crate::wire::{self, fields, find};

pub use policy::{Action, ExitCodes, FailurePolicy, FailureRule, RuleCondition, SuccessRule};
pub use status::{JobStatus, UncountedPods};

/// The finalizer that keeps a pod until it is counted in its Job's status.
pub const TRACKING_FINALIZER: &str = "batch.kubernetes.io/job-tracking";

/// Annotation and label of an Indexed Job's pod: its completion index.
pub const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// Annotation of a pod: number of earlier failures of its index, except those that the failure policy ignored.
pub const INDEX_FAILURE_COUNT: &str = "batch.kubernetes.io/job-index-failure-count";

/// Annotation of a pod: number of earlier failures of its index that the failure policy ignored.
pub const INDEX_IGNORED_FAILURE_COUNT: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

/// The value of `spec.managedBy` for the Job controller.
const JOB_CONTROLLER: &str = "kubernetes.io/job-controller";

/// `spec.completionMode`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CompletionMode {
    /// Any succeeded pod counts as a completion.
    #[default]
    NonIndexed,
    /// One pod for each index below `completions`.
    Indexed,
    /// A mode of a later version.
    Unknown(Str),
}

/// A Job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Metadata.
    pub meta: Meta,
    /// Pods that may run at the same time.
    pub parallelism: i32,
    /// Required number of succeeded pods. `None`: a work queue, which is complete once a pod has succeeded and no pod
    /// is active.
    pub completions: Option<i32>,
    /// Seconds for which the Job may run.
    pub active_deadline: Option<i64>,
    /// Number of tolerated failures.
    pub backoff_limit: i32,
    /// Number of tolerated failures per index.
    pub backoff_limit_per_index: Option<i32>,
    /// Number of indexes that may fail.
    pub max_failed_indexes: Option<i32>,
    /// Seconds between the end of the Job and its deletion.
    pub ttl: Option<i32>,
    /// `spec.completionMode`: `Indexed` if each pod has an index.
    pub completion_mode: CompletionMode,
    /// Its pods are deleted, and none are created.
    pub suspend: bool,
    /// A pod is replaced only after it has failed, not while it is being deleted.
    pub replace_only_failed: bool,
    /// `spec.managedBy`, if it names another controller.
    pub managed_by: Option<Str>,
    /// Selector of the pods that it may own.
    pub selector: Selector,
    /// Rules for failed pods.
    pub failure_policy: Option<FailurePolicy>,
    /// Rules of the success policy, each sufficient for success; empty without a policy.
    pub success_policy: Vec<SuccessRule>,
    /// Its pods' containers are restarted in place after a failure; false without section [`Job::TEMPLATE`].
    pub restarts_in_place: bool,
    /// Template of its pods; only with section [`Job::TEMPLATE`].
    pub template: Option<Template>,
    /// `status`, as last read.
    pub status: JobStatus,
    raw: Raw,
}

impl Job {
    /// Section: the pod template, and the raw object for a PUT of the status.
    pub const TEMPLATE: Sections = Sections(1);

    /// Returns true if pods have indexes.
    pub fn is_indexed(&self) -> bool {
        self.completion_mode == CompletionMode::Indexed
    }

    /// Returns true if the Job has ended. Upstream: pkg/controller/job/util, IsJobFinished.
    pub fn is_finished(&self) -> bool {
        self.status.finished().is_some()
    }

    /// Returns the object for a PUT of this status.
    pub fn status_update(&self, status: &JobStatus) -> Vec<u8> {
        self.raw.status_update(&Vec::new(), &status.splice(self.raw.status()))
    }

    fn read_spec(&mut self, context: &Decode, spec: &[u8]) -> Result<(), DecodeError> {
        for field in fields(spec) {
            let field = field?;
            let number = || Some(field.value.i32());
            match field.number {
                spec::PARALLELISM => self.parallelism = field.value.i32(),
                spec::COMPLETIONS => self.completions = number(),
                spec::ACTIVE_DEADLINE_SECONDS => self.active_deadline = Some(field.value.i64()),
                spec::BACKOFF_LIMIT => self.backoff_limit = field.value.i32(),
                spec::BACKOFF_LIMIT_PER_INDEX => self.backoff_limit_per_index = number(),
                spec::MAX_FAILED_INDEXES => self.max_failed_indexes = number(),
                spec::TTL_SECONDS_AFTER_FINISHED => self.ttl = number(),
                spec::COMPLETION_MODE => {
                    self.completion_mode = match field.value.str() {
                        "NonIndexed" => CompletionMode::NonIndexed,
                        "Indexed" => CompletionMode::Indexed,
                        other => CompletionMode::Unknown(context.interner.str(other)),
                    }
                }
                spec::SUSPEND => self.suspend = field.value.bool(),
                spec::POD_REPLACEMENT_POLICY => self.replace_only_failed = field.value.str() == "Failed",
                spec::MANAGED_BY => {
                    let manager = field.value.str();
                    self.managed_by = (manager != JOB_CONTROLLER).then(|| context.interner.str(manager));
                }
                spec::SELECTOR => self.selector = Selector::decode(&context.interner, field.value.bytes())?,
                spec::POD_FAILURE_POLICY => {
                    self.failure_policy = Some(FailurePolicy::decode(&context.interner, field.value.bytes())?);
                }
                spec::SUCCESS_POLICY => self.success_policy = policy::success_rules(field.value.bytes())?,
                spec::TEMPLATE if context.sections.contains(Self::TEMPLATE) => {
                    let template = Template::decode(context, field.value.bytes())?;
                    self.restarts_in_place = find(&template.spec, pod_spec::RESTART_POLICY) == b"OnFailure";
                    self.template = Some(template);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Kind for Job {
    const RESOURCE: Resource =
        Resource { group: "batch", version: "v1", kind: "Job", plural: "jobs", namespaced: true };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let Parts { meta, spec, status } = Parts::read(object)?;
        let mut raw = Raw::default();
        if context.sections.contains(Self::TEMPLATE) {
            // The server ignores the spec in a PUT of the status.
            let mut without_spec = Vec::with_capacity(meta.len() + status.len() + 16);
            wire::copy_fields(object, &mut without_spec, |field| field.number != object::SPEC)?;
            raw = Raw::keep(&without_spec)?;
        }
        let mut job = Self {
            meta: Meta::decode(&context.interner, meta, |_, _| {})?,
            parallelism: 1,
            completions: None,
            active_deadline: None,
            backoff_limit: 6,
            backoff_limit_per_index: None,
            max_failed_indexes: None,
            ttl: None,
            completion_mode: CompletionMode::default(),
            suspend: false,
            replace_only_failed: false,
            managed_by: None,
            selector: Selector::Nothing,
            failure_policy: None,
            success_policy: Vec::new(),
            restarts_in_place: false,
            template: None,
            status: JobStatus::decode(&context.interner, status)?,
            raw,
        };
        job.read_spec(context, spec)?;
        Ok(job)
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::intern::Interner;
    use crate::meta::Uid;
    use crate::wire::Put;
    use crate::wire::schema::{job_condition, job_status, object_meta};

    fn context(sections: Sections) -> Decode {
        Decode { interner: Arc::new(Interner::default()), sections }
    }

    fn object() -> Vec<u8> {
        let mut object = Vec::new();
        object.put_message(object::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "pi");
            meta.put_str(object_meta::RESOURCE_VERSION, "7");
            meta.put_entry(object_meta::ANNOTATIONS, "keep", "me");
        });
        object.put_message(object::SPEC, |spec| {
            spec.put_int(spec::PARALLELISM, 3);
            spec.put_int(spec::COMPLETIONS, 0);
            spec.put_str(spec::COMPLETION_MODE, "Indexed");
            spec.put_str(spec::MANAGED_BY, JOB_CONTROLLER);
            spec.put_message(spec::TEMPLATE, |template| {
                template.put_message(2, |pod| pod.put_str(pod_spec::RESTART_POLICY, "OnFailure"));
            });
        });
        object.put_message(object::STATUS, |status| {
            status.put_int(job_status::SUCCEEDED, 2);
            status.put_int(99, 5);
            status.put_message(job_status::UNCOUNTED_TERMINATED_PODS, |uncounted| uncounted.put_str(1, "a"));
        });
        object
    }

    #[test]
    fn job_is_decoded() {
        let job = Job::decode(&context(Job::TEMPLATE), &object()).expect("well-formed");
        assert_eq!((job.parallelism, job.completions), (3, Some(0)));
        assert!(job.is_indexed() && job.restarts_in_place && job.managed_by.is_none());
        assert_eq!(job.status.succeeded, 2);
        assert_eq!(job.status.uncounted.as_ref().map(|pods| &pods.succeeded[..]), Some(&[Uid::parse("a")][..]));
        assert!(Job::decode(&context(Sections::default()), &object()).expect("well-formed").template.is_none());
    }

    #[test]
    fn job_has_ended_only_with_a_true_condition() {
        for (conditions, expected) in [
            (&[][..], None),
            (&[("Complete", "True")], Some("Complete")),
            (&[("Complete", "False")], None),
            (&[("Complete", "Unknown")], None),
            (&[("Suspended", "False"), ("Complete", "True"), ("Failed", "False")], Some("Complete")),
            (&[("Failed", "True")], Some("Failed")),
            (&[("Failed", "False")], None),
            (&[("Failed", "Unknown")], None),
            (&[("Failed", "True"), ("Complete", "False")], Some("Failed")),
            (&[("Suspended", "False"), ("Complete", "False"), ("Failed", "False")], None),
        ] {
            let mut object = Vec::new();
            object.put_message(object::METADATA, |meta| {
                meta.put_str(object_meta::NAME, "pi");
                meta.put_str(object_meta::RESOURCE_VERSION, "7");
            });
            object.put_message(object::STATUS, |status| {
                for (kind, value) in conditions {
                    status.put_message(job_status::CONDITIONS, |condition| {
                        condition.put_str(job_condition::TYPE, kind);
                        condition.put_str(job_condition::STATUS, value);
                    });
                }
            });
            let job = Job::decode(&context(Sections::default()), &object).expect("well-formed");
            let ended = job.status.finished().map(|condition| &*condition.kind);
            assert_eq!((ended, job.is_finished()), (expected, expected.is_some()), "{conditions:?}");
        }
    }

    #[test]
    fn status_update_keeps_unknown_fields_and_omits_the_spec() {
        let job = Job::decode(&context(Job::TEMPLATE), &object()).expect("well-formed");
        let status = JobStatus { succeeded: 3, uncounted: Some(UncountedPods::default()), ..job.status.clone() };
        let update = job.status_update(&status);
        assert!(find(&update, object::SPEC).is_empty());
        assert_eq!(find(find(&update, object::METADATA), object_meta::RESOURCE_VERSION), b"7");
        let sent = find(&update, object::STATUS);
        assert_eq!(JobStatus::decode(&Interner::default(), sent).expect("well-formed"), status);
        assert!(fields(sent).flatten().any(|field| field.number == 99));
    }
}
