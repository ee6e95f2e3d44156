//! Policy: the rules of a Job's spec for failed pods and completed indexes.

use kinds::job::{Action, ExitCodes, FailurePolicy, RuleCondition, SuccessRule};
use kinds::{Job, Pod};

use super::indexes::Indexes;

/// The result of a failure policy for a failed pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyVerdict {
    /// The condition's message if the whole Job fails.
    pub fail_job: Option<String>,
    /// The failure counts towards the limits.
    pub counts: bool,
    /// The action of the rule that matched.
    pub action: Option<Action>,
}

/// Returns the result of the first rule with a known action that matches a failed pod. Upstream: pkg/controller/job,
/// matchPodFailurePolicy.
pub fn failure_verdict(policy: Option<&FailurePolicy>, pod: &Pod) -> PolicyVerdict {
    let rules = policy.map_or(&[][..], |policy| &policy.rules);
    for (at, rule) in rules.iter().enumerate() {
        let Some(why) = matched(&rule.on, pod) else { continue };
        let fail_job = match rule.action {
            Action::Unknown => continue,
            Action::FailJob => Some(format!("{why} matching FailJob rule at index {at}")),
            Action::FailIndex | Action::Ignore | Action::Count => None,
        };
        return PolicyVerdict { fail_job, counts: rule.action != Action::Ignore, action: Some(rule.action) };
    }
    PolicyVerdict { fail_job: None, counts: true, action: None }
}

/// Returns the beginning of the condition's message if a rule matches; `None` if it does not.
fn matched(on: &RuleCondition, pod: &Pod) -> Option<String> {
    let ending = pod.ending.as_deref()?;
    let (namespace, name) = (&pod.meta.namespace, &pod.meta.name);
    match on {
        RuleCondition::ExitCodes(codes) => {
            let (container, code) = ending.exit_codes.iter().find(|(container, code)| fits(codes, container, *code))?;
            Some(format!("Container {container} for pod {namespace}/{name} failed with exit code {code}"))
        }
        RuleCondition::Conditions(patterns) => {
            let (kind, _) = ending.conditions.iter().find(|condition| patterns.contains(condition))?;
            Some(format!("Pod {namespace}/{name} has condition {kind}"))
        }
    }
}

fn fits(codes: &ExitCodes, container: &str, code: i32) -> bool {
    codes.container.as_deref().is_none_or(|wanted| wanted == container)
        && codes.within.is_some_and(|within| codes.values.contains(&code) == within)
}

/// Returns true if a pod counts as failed: it failed, or it is being deleted, has not succeeded, and the Job does not
/// wait until deleted pods have ended. Upstream: pkg/controller/job, isPodFailed.
pub fn is_failed(job: &Job, pod: &Pod) -> bool {
    use kinds::pod::Phase;
    pod.phase == Phase::Failed || !job.replace_only_failed && pod.meta.is_deleting() && pod.phase != Phase::Succeeded
}

/// Returns the message of the first success rule that is met. Upstream: pkg/controller/job, matchSuccessPolicy.
pub fn succeeded(rules: &[SuccessRule], completions: i32, done: &Indexes) -> Option<String> {
    if done.is_empty() {
        return None;
    }
    let met = |rule: &SuccessRule| match (&rule.indexes, rule.count) {
        (Some(text), count) => {
            let wanted = Indexes::parse(text, completions);
            let common = wanted.common(done);
            !wanted.is_empty() && (common == wanted.total() || count.is_some_and(|count| common >= count))
        }
        (None, Some(count)) => done.total() >= count,
        (None, None) => false,
    };
    rules.iter().position(met).map(|at| format!("Matched rules at index {at}"))
}
