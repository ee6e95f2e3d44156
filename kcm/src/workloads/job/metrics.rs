//! Metrics of the controller, under upstream's names. Upstream: pkg/controller/job/metrics.

use std::time::Duration;

use kinds::job::{Action, JobStatus};
use kinds::{Job, Pod};
use runtime::metrics::{Counts, Histograms, Metrics, powers_of_two};
use runtime::store::Change;

use super::decide::{COMPLETE, has_finalizer};
use super::indexes::Indexes;
use crate::pods::control::CreateError;

// Upstream's texts, with its line breaks and tabs.
const FAILURE_POLICY_HELP: &str = "The number of failed Pods handled by failure policy with\n\t\t\trespect to the failure policy \
                           action applied based on the matched\n\t\t\trule. Possible values of the action label \
                           correspond to the\n\t\t\tpossible values for the failure policy rule action, which \
                           are:\n\t\t\t\"FailJob\", \"Ignore\" and \"Count\".";
const TRACKED_PODS_HELP: &str = "The number of terminated pods (phase=Failed|Succeeded)\nthat have the finalizer \
                         batch.kubernetes.io/job-tracking\nThe event label can be \"add\" or \"delete\".";
const INDEXES_HELP: &str = "The number of finished indexes. Possible values for the\n\t\t\tstatus label are: \
                            \"succeeded\", \"failed\". Possible values for the\n\t\t\tbackoffLimit label are: \
                            \"perIndex\" and \"global\"";
const CREATIONS_HELP: &str = "The number of Pods created by the Job controller labelled with a reason for the Pod \
                         creation.\nThis metric also distinguishes between Pods created using different \
                         PodReplacementPolicy settings.\nPossible values of the \"reason\" label are:\n\"new\", \
                         \"recreate_terminating_or_failed\", \"recreate_failed\".\nPossible values of the \
                         \"status\" label are:\n\"succeeded\", \"failed\".";

/// The action of a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncAction {
    /// The Job ends or is being deleted, or the cache lacks deletions: pods were not compared with the desired number.
    Reconciling,
    /// No pod had to be created or deleted.
    Tracking,
    /// There were too few pods.
    Created,
    /// There were too many pods, or the Job is suspended.
    Deleted,
}

/// The reason why a pod is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// No pod has failed or is terminating.
    New,
    /// Other pods failed or are terminating.
    TerminatingOrFailed,
    /// Other pods failed, and the Job replaces only failed pods.
    Failed,
}

impl Need {
    /// Returns the reason for a Job with these numbers of failed and of terminating pods.
    pub fn of(job: &Job, failed: i32, terminating: i32) -> Self {
        match (job.replace_only_failed, failed > 0) {
            (true, true) => Self::Failed,
            (false, true) => Self::TerminatingOrFailed,
            (_, false) if terminating > 0 => Self::TerminatingOrFailed,
            (_, false) => Self::New,
        }
    }
}

fn result(good: bool) -> String {
    if good { "succeeded" } else { "failed" }.to_owned()
}

fn mode(job: &Job) -> String {
    if job.is_indexed() { "Indexed" } else { "NonIndexed" }.to_owned()
}

/// The metrics.
#[derive(Debug)]
pub struct JobMetrics {
    took: Histograms<3>,
    syncs: Counts<3>,
    finished: Counts<3>,
    external: Counts<1>,
    pods_finished: Counts<2>,
    matched_rules: Counts<1>,
    held: Counts<1>,
    indexes: Counts<2>,
    made: Counts<2>,
}

impl JobMetrics {
    /// Creates empty metrics and registers them.
    pub fn new(metrics: &Metrics) -> Self {
        let name = |name: &str| format!("job_controller_{name}");
        Self {
            took: metrics.histograms(
                &name("job_sync_duration_seconds"),
                "The time it took to sync a job",
                powers_of_two(0.004, 15),
            ),
            syncs: metrics.counts(&name("job_syncs"), "The number of job syncs"),
            finished: metrics.counts(&name("jobs_finished"), "The number of finished jobs"),
            external: metrics
                .counts(&name("jobs_by_external_controller"), "The number of Jobs managed by an external controller"),
            pods_finished: metrics
                .counts(&name("job_pods_finished"), "The number of finished Pods that are fully tracked"),
            matched_rules: metrics.counts(&name("pod_failures_handled_by_failure_policy"), FAILURE_POLICY_HELP),
            held: metrics.counts(&name("terminated_pods_tracking_finalizer"), TRACKED_PODS_HELP),
            indexes: metrics.counts(&name("job_finished_indexes"), INDEXES_HELP),
            made: metrics.counts(&name("job_pods_creation"), CREATIONS_HELP),
        }
    }

    /// Records a finished sync.
    pub fn synced(&self, job: &Job, action: SyncAction, good: bool, took: Duration) {
        let action = match action {
            SyncAction::Reconciling => "reconciling",
            SyncAction::Tracking => "tracking",
            SyncAction::Created => "pods_created",
            SyncAction::Deleted => "pods_deleted",
        };
        let result = if good { "success" } else { "error" };
        let labels = [("completion_mode", mode(job)), ("result", result.to_owned()), ("action", action.to_owned())];
        self.took.observe(labels.clone(), took.as_secs_f64());
        self.syncs.add(labels);
    }

    /// Records that a Job finished with a condition of this kind, for this reason.
    pub fn finished(&self, job: &Job, kind: &str, reason: &str) {
        let result = result(kind == COMPLETE);
        self.finished.add([("completion_mode", mode(job)), ("result", result), ("reason", reason.to_owned())]);
    }

    /// Records the pods and indexes that a written status counts and the previous one did not. Upstream:
    /// pkg/controller/job, recordJobPodFinished.
    pub fn counted(&self, job: &Job, before: &JobStatus, after: &JobStatus) {
        let pods = |good, count: i32| {
            let labels = [("completion_mode", mode(job)), ("result", result(good))];
            self.pods_finished.add_many(labels, u64::try_from(count).unwrap_or(0));
        };
        pods(false, after.failed - before.failed);
        if !job.is_indexed() {
            return pods(true, after.succeeded - before.succeeded);
        }
        let completions = job.completions.unwrap_or(0);
        let total = |text: &str| Indexes::parse(text, completions).total();
        let completed = total(&after.completed_indexes) - total(&before.completed_indexes);
        pods(true, completed);
        let each = job.backoff_limit_per_index.is_some();
        let limit = if each { "perIndex" } else { "global" };
        let indexes = |good, count: i32| {
            let labels = [("status", result(good)), ("backoffLimit", limit.to_owned())];
            self.indexes.add_many(labels, u64::try_from(count).unwrap_or(0));
        };
        indexes(true, completed);
        if each {
            let failed = |status: &JobStatus| total(status.failed_indexes.as_deref().unwrap_or_default());
            let new = failed(after) - failed(before);
            // Unlike the other series, that of failed indexes does not exist before the first index has failed.
            if new > 0 {
                indexes(false, new);
            }
        }
    }

    /// Records that a rule with this action matched a failed pod.
    pub fn rule_matched(&self, action: Action) {
        self.matched_rules.add([("action", format!("{action:?}"))]);
    }

    /// Records that a pod was created, or that its creation failed. A creation in a namespace that is being deleted
    /// does not count. Upstream: pkg/controller/job, manageJob.
    ///
    /// Differs from upstream: a failed creation is not also counted as a successful one.
    pub fn record_creation(&self, need: Need, created: &Result<(), CreateError>) {
        let reason = match need {
            Need::New => "new",
            Need::TerminatingOrFailed => "recreate_terminating_or_failed",
            Need::Failed => "recreate_failed",
        };
        if !matches!(created, Err(CreateError::NamespaceTerminating)) {
            self.made.add([("reason", reason.to_owned()), ("status", result(created.is_ok()))]);
        }
    }

    /// Records a new Job that another controller manages.
    pub fn job_changed(&self, change: &Change<'_, Job>) {
        let manager = change.new.filter(|_| change.old.is_none()).and_then(|new| new.managed_by.as_ref());
        if let Some(manager) = manager {
            self.external.add([("controller_name", manager.to_string())]);
        }
    }

    /// Records that a pod with the tracking finalizer finished, or that a finished one lost the finalizer or was
    /// deleted.
    pub fn pod_changed(&self, change: &Change<'_, Pod>) {
        let is_held = |pod: &Pod| pod.is_terminal() && has_finalizer(pod);
        let (was, is) = (change.old.is_some_and(|pod| is_held(pod)), change.new.is_some_and(|pod| is_held(pod)));
        if was != is {
            self.held.add([("event", if is { "add" } else { "delete" }.to_owned())]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kinds::envelope::ApiStatus;
    use kinds::job::CompletionMode;
    use runtime::write::WriteError;

    use super::*;
    use crate::workloads::job::tests::builders::{a_job, a_pod, with};

    fn encoded(act: impl FnOnce(&JobMetrics)) -> String {
        let metrics = Metrics::default();
        act(&JobMetrics::new(&metrics));
        metrics.text().replace("job_controller_", "")
    }

    fn has(text: &str, line: &str) {
        assert!(text.lines().any(|encoded| encoded == line), "{line} is not in\n{text}");
    }

    #[test]
    fn only_new_counts_of_a_status_are_recorded() {
        let status = |succeeded, failed, completed: &str, failed_indexes: Option<&str>| JobStatus {
            succeeded,
            failed,
            completed_indexes: completed.into(),
            failed_indexes: failed_indexes.map(Into::into),
            ..JobStatus::default()
        };
        let plain = encoded(|tally| {
            tally.counted(&a_job(1, None), &status(1, 0, "", None), &status(3, 1, "", None));
        });
        has(&plain, "job_pods_finished_total{completion_mode=\"NonIndexed\",result=\"succeeded\"} 2");
        has(&plain, "job_pods_finished_total{completion_mode=\"NonIndexed\",result=\"failed\"} 1");
        assert!(!plain.contains("job_finished_indexes_total{"), "{plain}");

        let mut job = with(a_job(1, Some(5)), |job| job.completion_mode = CompletionMode::Indexed);
        let before = status(4, 0, "0,1,8-9", Some("2"));
        let after = status(3, 2, "0,1,3", Some("2,4"));
        let global = encoded(|tally| tally.counted(&job, &before, &after));
        has(&global, "job_pods_finished_total{completion_mode=\"Indexed\",result=\"succeeded\"} 1");
        has(&global, "job_finished_indexes_total{status=\"succeeded\",backoffLimit=\"global\"} 1");
        assert!(!global.contains("status=\"failed\""), "{global}");
        job.backoff_limit_per_index = Some(1);
        let none_failed = encoded(|tally| tally.counted(&job, &before, &JobStatus { failed: 1, ..before.clone() }));
        assert!(!none_failed.contains("status=\"failed\""), "{none_failed}");
        let each = encoded(|tally| tally.counted(&job, &before, &after));
        has(&each, "job_finished_indexes_total{status=\"failed\",backoffLimit=\"perIndex\"} 1");
    }

    #[test]
    fn reason_of_a_creation_follows_from_failed_and_terminating_pods() {
        for (only_failed, failed, terminating, need) in [
            (false, 0, 0, Need::New),
            (false, 1, 0, Need::TerminatingOrFailed),
            (false, 0, 1, Need::TerminatingOrFailed),
            (true, 0, 0, Need::New),
            (true, 1, 0, Need::Failed),
            (true, 0, 1, Need::TerminatingOrFailed),
        ] {
            let job = with(a_job(1, None), |job| job.replace_only_failed = only_failed);
            assert_eq!(Need::of(&job, failed, terminating), need, "{only_failed} {failed} {terminating}");
        }
    }

    #[test]
    fn pods_count_when_they_finish_with_the_finalizer_and_when_they_lose_it() {
        use kinds::pod::Phase::{Failed, Pending, Running, Succeeded};
        let pod = |phase, is_tracked: bool| {
            let mut pod = a_pod("p", phase, None);
            if !is_tracked {
                pod.meta.finalizers = Arc::new([]);
            }
            Some(Arc::new(pod))
        };
        for (name, old, new, expected) in [
            ("new and pending", None, pod(Pending, true), None),
            ("fails", pod(Running, true), pod(Failed, true), Some("add")),
            ("succeeds", pod(Running, true), pod(Succeeded, true), Some("add")),
            ("finished, and changes", pod(Failed, true), pod(Failed, true), None),
            ("loses the finalizer", pod(Succeeded, true), pod(Succeeded, false), Some("delete")),
            ("deleted with the finalizer", pod(Failed, true), None, Some("delete")),
            ("deleted without the finalizer", pod(Succeeded, false), None, None),
        ] {
            let text = encoded(|tally| tally.pod_changed(&Change { old: old.as_ref(), new: new.as_ref() }));
            for event in ["add", "delete"] {
                let line = format!("terminated_pods_tracking_finalizer_total{{event=\"{event}\"}} 1");
                assert_eq!(text.contains(&line), expected == Some(event), "{name}: {line} in\n{text}");
            }
        }
    }

    #[test]
    fn creation_in_a_namespace_that_is_being_deleted_does_not_count() {
        let refused = || CreateError::Failed(WriteError::Refused(ApiStatus { code: 403, ..ApiStatus::default() }));
        for (created, succeeded, failed) in [
            (Ok(()), true, false),
            (Err(refused()), false, true),
            (Err(CreateError::NamespaceTerminating), false, false),
        ] {
            let text = encoded(|tally| tally.record_creation(Need::Failed, &created));
            for (status, expected) in [("succeeded", succeeded), ("failed", failed)] {
                let line = format!("job_pods_creation_total{{reason=\"recreate_failed\",status=\"{status}\"}} 1");
                assert_eq!(text.contains(&line), expected, "{created:?}: {line} in\n{text}");
            }
        }
    }

    #[test]
    fn help_texts_are_those_of_upstream() {
        let job = with(a_job(1, Some(1)), |job| job.completion_mode = CompletionMode::Indexed);
        let text = encoded(|tally| {
            tally.synced(&job, SyncAction::Tracking, true, Duration::ZERO);
            tally.finished(&job, COMPLETE, "CompletionsReached");
            tally.counted(&job, &JobStatus::default(), &JobStatus::default());
            tally.rule_matched(Action::Count);
            tally.record_creation(Need::New, &Ok(()));
            tally.external.add([("controller_name", "other".to_owned())]);
            tally.held.add([("event", "add".to_owned())]);
        });
        for (name, help) in [
            ("job_sync_duration_seconds", "The time it took to sync a job"),
            ("job_syncs_total", "The number of job syncs"),
            ("jobs_finished_total", "The number of finished jobs"),
            ("jobs_by_external_controller_total", "The number of Jobs managed by an external controller"),
            ("job_pods_finished_total", "The number of finished Pods that are fully tracked"),
            (
                "pod_failures_handled_by_failure_policy_total",
                "The number of failed Pods handled by failure policy with\\n\t\t\trespect to the failure policy action \
                 applied based on the matched\\n\t\t\trule. Possible values of the action label correspond to the\\n\
                 \t\t\tpossible values for the failure policy rule action, which are:\\n\t\t\t\"FailJob\", \"Ignore\" \
                 and \"Count\".",
            ),
            (
                "terminated_pods_tracking_finalizer_total",
                "The number of terminated pods (phase=Failed|Succeeded)\\nthat have the finalizer \
                 batch.kubernetes.io/job-tracking\\nThe event label can be \"add\" or \"delete\".",
            ),
            (
                "job_finished_indexes_total",
                "The number of finished indexes. Possible values for the\\n\t\t\tstatus label are: \"succeeded\", \
                 \"failed\". Possible values for the\\n\t\t\tbackoffLimit label are: \"perIndex\" and \"global\"",
            ),
            (
                "job_pods_creation_total",
                "The number of Pods created by the Job controller labelled with a reason for the Pod creation.\\nThis \
                 metric also distinguishes between Pods created using different PodReplacementPolicy settings.\\n\
                 Possible values of the \"reason\" label are:\\n\"new\", \"recreate_terminating_or_failed\", \
                 \"recreate_failed\".\\nPossible values of the \"status\" label are:\\n\"succeeded\", \"failed\".",
            ),
        ] {
            has(&text, &format!("# HELP {name} {help}"));
        }
    }

    #[test]
    fn names_and_labels_are_those_of_upstream() {
        let job = a_job(1, None);
        let text = encoded(|tally| {
            tally.synced(&job, SyncAction::Created, true, Duration::from_millis(5));
            tally.synced(&job, SyncAction::Tracking, false, Duration::ZERO);
            tally.finished(&job, COMPLETE, "CompletionsReached");
            tally.finished(&job, "Failed", "DeadlineExceeded");
            tally.rule_matched(Action::FailJob);
            tally.record_creation(Need::New, &Ok(()));
        });
        let created = "completion_mode=\"NonIndexed\",result=\"success\",action=\"pods_created\"";
        for line in [
            format!("job_syncs_total{{{created}}} 1").as_str(),
            &format!("job_sync_duration_seconds_bucket{{le=\"0.004\",{created}}} 0"),
            &format!("job_sync_duration_seconds_bucket{{le=\"0.008\",{created}}} 1"),
            "job_syncs_total{completion_mode=\"NonIndexed\",result=\"error\",action=\"tracking\"} 1",
            "jobs_finished_total{completion_mode=\"NonIndexed\",result=\"succeeded\",reason=\"CompletionsReached\"} 1",
            "jobs_finished_total{completion_mode=\"NonIndexed\",result=\"failed\",reason=\"DeadlineExceeded\"} 1",
            "pod_failures_handled_by_failure_policy_total{action=\"FailJob\"} 1",
            "job_pods_creation_total{reason=\"new\",status=\"succeeded\"} 1",
        ] {
            has(&text, line);
        }
    }
}
