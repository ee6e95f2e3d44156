//! Policy: the remaining content of a namespace that is being deleted, its conditions, and the time of the next check.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use kinds::condition::Condition;
use kinds::{Resource, Str, Time};
use runtime::worker::Outcome;

/// The finalizer of namespaces that this controller removes.
pub const FINALIZER: &str = "kubernetes";

/// The expected time until objects with finalizers are deleted, in seconds. Upstream:
/// pkg/controller/namespace/deletion, finalizerEstimateSeconds.
const FINALIZER_ESTIMATE: i64 = 15;

/// Types of the conditions, with the reason and message for the case without problems, in upstream's order.
const CONDITIONS: [(&str, &str, &str); 5] = [
    (DISCOVERY, "ResourcesDiscovered", "All resources successfully discovered"),
    ("NamespaceDeletionGroupVersionParsingFailure", "ParsedGroupVersions", "All legacy kube types successfully parsed"),
    (CONTENT, "ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
    (REMAINING, "ContentRemoved", "All content successfully removed"),
    (FINALIZERS, "ContentHasNoFinalizers", "All content-preserving finalizers finished"),
];

const DISCOVERY: &str = "NamespaceDeletionDiscoveryFailure";
const CONTENT: &str = "NamespaceDeletionContentFailure";
const REMAINING: &str = "NamespaceContentRemaining";
const FINALIZERS: &str = "NamespaceFinalizersRemaining";

/// The outcome of deleting the objects of one resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CleanupResult {
    /// Objects that still exist.
    pub objects: usize,
    /// The number of these objects by finalizer.
    pub finalizers: BTreeMap<Str, usize>,
    /// Expected seconds until these objects are deleted.
    pub estimate_seconds: i64,
    /// The reason why the deletion failed, or why objects remain unexpectedly.
    pub problem: Option<String>,
}

impl CleanupResult {
    /// Returns the result for a resource whose objects could not be deleted or listed.
    pub fn failed(problem: impl ToString) -> Self {
        Self { problem: Some(problem.to_string()), ..Self::default() }
    }

    /// Returns the result for a number of objects that still exist after the deletion of all was requested, and for the
    /// number of them with each finalizer. Upstream: pkg/controller/namespace/deletion,
    /// deleteAllContentForGroupVersionResource.
    pub fn of(
        resource: &Resource,
        namespace: &str,
        objects: usize,
        finalizers: BTreeMap<Str, usize>,
        estimate_seconds: i64,
    ) -> Self {
        let mut result = Self { objects, finalizers, ..Self::default() };
        if result.objects == 0 {
            return result;
        }
        if estimate_seconds > 0 {
            result.estimate_seconds = estimate_seconds;
        } else if !result.finalizers.is_empty() {
            result.estimate_seconds = FINALIZER_ESTIMATE;
        } else {
            let Resource { group, version, plural, .. } = resource;
            result.problem = Some(format!(
                "unexpected items still remain in namespace: {namespace} for gvr: {group}/{version}, Resource={plural}"
            ));
        }
        result
    }
}

/// Returns the grace period of the pods in seconds, or zero if it has passed. Upstream:
/// pkg/controller/namespace/deletion, estimateGracefulTermination.
pub fn pods_estimate(max_grace: i64, deleted_at: Time, now: Timestamp) -> i64 {
    if now.as_second() - deleted_at.0 >= max_grace { 0 } else { max_grace }
}

/// The results of one pass.
#[derive(Debug, Default)]
pub struct Findings {
    /// The reason why not all resources are known.
    discovery: Option<String>,
    /// The number of remaining objects, by resource and group.
    remaining: BTreeMap<(Str, Str), usize>,
    finalizers: BTreeMap<Str, usize>,
    problems: Vec<String>,
    estimate_seconds: i64,
}

impl Findings {
    /// Returns empty findings; `discovery` is the reason why not all resources are known.
    pub fn after_discovery(discovery: Option<String>) -> Self {
        Self { discovery, ..Self::default() }
    }

    /// Adds the remaining objects of one resource.
    pub fn add(&mut self, resource: &Resource, result: &CleanupResult) {
        self.estimate_seconds = self.estimate_seconds.max(result.estimate_seconds);
        self.problems.extend(result.problem.clone());
        if result.objects > 0 {
            *self.remaining.entry((resource.plural.into(), resource.group.into())).or_default() += result.objects;
        }
        for (finalizer, count) in &result.finalizers {
            *self.finalizers.entry(finalizer.clone()).or_default() += count;
        }
    }

    /// Returns true if the namespace may be deleted according to these findings.
    pub fn is_clean(&self) -> bool {
        self.discovery.is_none() && self.problems.is_empty() && self.estimate_seconds == 0
    }

    /// Returns all failures as one text.
    pub fn problem(&self) -> Option<String> {
        let all: Vec<&str> = self.discovery.iter().chain(&self.problems).map(String::as_str).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Returns the delay before the next check of the remaining objects. Upstream: pkg/controller/namespace, worker.
    pub fn recheck_delay(&self) -> Duration {
        Duration::from_secs(u64::try_from(self.estimate_seconds / 2 + 1).unwrap_or(1))
    }

    /// Returns the reason and message of a condition that is true; `None` if it is false.
    fn failing(&self, reports_remaining: bool, kind: &str) -> Option<(&'static str, String)> {
        match kind {
            DISCOVERY => self.discovery.clone().map(|problem| ("DiscoveryFailed", problem)),
            CONTENT if !self.problems.is_empty() => {
                let mut problems = self.problems.clone();
                problems.sort();
                let count = problems.len();
                let problems = problems.join(", ");
                let message = format!("Failed to delete all resource types, {count} remaining: {problems}");
                Some(("ContentDeletionFailed", message))
            }
            REMAINING if reports_remaining && !self.remaining.is_empty() => {
                let counts = self.remaining.iter();
                let mut counts: Vec<String> = counts
                    .map(|((plural, group), count)| format!("{plural}.{group} has {count} resource instances"))
                    .collect();
                counts.sort();
                Some(("SomeResourcesRemain", format!("Some resources are remaining: {}", counts.join(", "))))
            }
            FINALIZERS if reports_remaining && !self.finalizers.is_empty() => {
                let counts = self.finalizers.iter();
                let mut counts: Vec<String> =
                    counts.map(|(finalizer, count)| format!("{finalizer} in {count} resource instances")).collect();
                counts.sort();
                let message = format!("Some content in the namespace has finalizers remaining: {}", counts.join(", "));
                Some(("SomeFinalizersRemain", message))
            }
            _ => None,
        }
    }

    /// Returns the conditions after this pass, if they changed. `reports_remaining` is false while pods delay the
    /// deletion of all other objects: then remaining objects are not reported. Upstream:
    /// pkg/controller/namespace/deletion, deleteAllContent.
    pub fn conditions(&self, before: &[Condition], reports_remaining: bool, now: Timestamp) -> Option<Vec<Condition>> {
        let mut after = before.to_vec();
        for (kind, good_reason, message) in CONDITIONS {
            let failing = self.failing(reports_remaining, kind);
            let status = if failing.is_some() { "True" } else { "False" };
            let (reason, message) = failing.unwrap_or((good_reason, message.to_owned()));
            let known = after.iter_mut().find(|condition| &*condition.kind == kind);
            match known {
                Some(known) => {
                    if &*known.status != status {
                        known.last_transition = Time(now.as_second());
                    }
                    known.status = status.into();
                    known.reason = reason.into();
                    known.message = message.into();
                }
                None => after.push(Condition {
                    kind: kind.into(),
                    status: status.into(),
                    reason: reason.into(),
                    message: message.into(),
                    last_update: Time::default(),
                    last_transition: Time(now.as_second()),
                }),
            }
        }
        (after != before).then_some(after)
    }
}

/// Returns the discovery condition's text about groups that do not respond. Upstream: client-go/discovery,
/// ErrGroupDiscoveryFailed.
pub fn discovery_problem(failed: &BTreeMap<String, String>) -> Option<String> {
    if failed.is_empty() {
        return None;
    }
    let groups: Vec<String> = failed.iter().map(|(group, problem)| format!("{group}: {problem}")).collect();
    Some(format!(
        "Discovery failed for some groups, {} failing: unable to retrieve the complete list of server APIs: {}",
        groups.len(),
        groups.join(", ")
    ))
}

/// Returns the namespace's finalizers without `kubernetes`, sorted and without duplicates.
pub fn without_own(finalizers: &[Str]) -> Vec<Str> {
    let mut others: Vec<Str> = finalizers.iter().filter(|finalizer| &***finalizer != FINALIZER).cloned().collect();
    others.sort();
    others.dedup();
    others
}

/// Returns the outcome for a namespace that waits for the finalizers of other controllers. A period of zero means no
/// resync, as for upstream's informers; a requeue without delay would read the namespace in a loop.
pub fn resync(period: Duration) -> Outcome {
    if period.is_zero() { Outcome::Done } else { Outcome::RequeueAfter(period) }
}
