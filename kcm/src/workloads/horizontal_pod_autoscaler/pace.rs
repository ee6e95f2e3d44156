//! Policy: limits of the rate of scaling. Upstream: pkg/controller/podautoscaler, normalizeDesiredReplicas and
//! normalizeDesiredReplicasWithBehaviors.

use std::time::Duration;

use kinds::horizontal_pod_autoscaler::{Behavior, Policy, Rules, Select};

/// Reason and message of a condition.
pub type ConditionText = (&'static str, &'static str);

/// The state of an autoscaler between syncs. Times are relative to the start of the process, so that a change of the
/// clock has no effect.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memory {
    /// Recommendations of metrics before stabilization, with their times.
    recommendations: Vec<(i32, Duration)>,
    /// Numbers of added pods, with the times.
    ups: Vec<(i32, Duration)>,
    /// Numbers of removed pods, with the times.
    downs: Vec<(i32, Duration)>,
}

/// A number of pods after stabilization and limits, and the conditions that report these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacedReplicas {
    /// The number of pods.
    pub replicas: i32,
    /// The text of the condition `AbleToScale`.
    pub able_text: ConditionText,
    /// A limit changed the number: the status of the condition `ScalingLimited`.
    pub is_limited: bool,
    /// The text of the condition `ScalingLimited`.
    pub limit_text: ConditionText,
}

/// The bounds of an autoscaler's spec, and the current number of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Minimum number of pods.
    pub min: i32,
    /// Maximum number of pods.
    pub max: i32,
    /// Number of pods that the target requests now.
    pub current: i32,
}

const READY: ConditionText = ("ReadyForNewScale", "recommended size matches current size");
const UP_STABILIZED: ConditionText = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);
const DOWN_STABILIZED: ConditionText = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
);
const WITHIN: ConditionText = ("DesiredWithinRange", "the desired count is within the acceptable range");
const TOO_MANY: ConditionText = ("TooManyReplicas", "the desired replica count is more than the maximum replica count");
const TOO_FEW: ConditionText = ("TooFewReplicas", "the desired replica count is less than the minimum replica count");
const UP_LIMIT: ConditionText =
    ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate");
const DOWN_LIMIT: ConditionText =
    ("ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate");

impl Memory {
    /// Records the current number as a recommendation if there is none, so that pods are not removed immediately after
    /// a restart of the process.
    pub fn begin(&mut self, replicas: i32, now: Duration) {
        if self.recommendations.is_empty() {
            self.recommendations.push((replicas, now));
        }
    }

    /// Returns the number of pods that the target gets if metrics propose `wanted`. `window` is the default
    /// stabilization window of scaling down.
    pub fn pace(
        &mut self,
        wanted: i32,
        range: Range,
        behavior: Option<&Behavior>,
        window: Duration,
        now: Duration,
    ) -> PacedReplicas {
        let (stable, slowed) = match behavior {
            None => self.highest(wanted, window, now),
            Some(behavior) => self.stable(wanted, range.current, behavior, window, now),
        };
        let (replicas, limit_text) = match behavior {
            None => default_limits(stable, range),
            Some(behavior) => self.rate_limits(stable, range, behavior, now),
        };
        PacedReplicas {
            replicas,
            able_text: if stable == wanted { READY } else { slowed },
            is_limited: replicas != stable,
            limit_text,
        }
    }

    /// Records that the target was scaled. Only autoscalers with a `behavior` need this.
    ///
    /// Differs from upstream: a change is kept for the longest period of both directions' policies, since policies of
    /// both directions count it.
    pub fn scaled(&mut self, from: i32, to: i32, behavior: Option<&Behavior>, now: Duration) {
        let Some(behavior) = behavior else { return };
        let periods = behavior.up.policies.iter().chain(&behavior.down.policies).map(|policy| policy.period);
        let longest = seconds(periods.max().unwrap_or(0));
        for events in [&mut self.ups, &mut self.downs] {
            events.retain(|(_, at)| now.saturating_sub(*at) <= longest);
        }
        let change = (to.saturating_sub(from).saturating_abs(), now);
        if to > from { self.ups.push(change) } else { self.downs.push(change) }
    }

    /// Records a recommendation, and returns the highest one of the window.
    fn highest(&mut self, wanted: i32, window: Duration, now: Duration) -> (i32, ConditionText) {
        self.recommendations.retain(|(_, at)| now.saturating_sub(*at) <= window);
        self.recommendations.push((wanted, now));
        let highest = self.recommendations.iter().map(|(replicas, _)| *replicas).max();
        (highest.unwrap_or(wanted), DOWN_STABILIZED)
    }

    /// Records a recommendation. Returns the number nearest to the current one within two bounds: the lowest
    /// recommendation of the window for scaling up, and the highest of the window for scaling down.
    fn stable(
        &mut self,
        wanted: i32,
        current: i32,
        behavior: &Behavior,
        window: Duration,
        now: Duration,
    ) -> (i32, ConditionText) {
        let up = behavior.up.window.map_or(Duration::ZERO, seconds);
        let down = behavior.down.window.map_or(window, seconds);
        let (mut lowest, mut highest) = (wanted, wanted);
        self.recommendations.retain(|(replicas, at)| {
            let age = now.saturating_sub(*at);
            if age < up {
                lowest = lowest.min(*replicas);
            }
            if age < down {
                highest = highest.max(*replicas);
            }
            age <= up || age <= down
        });
        self.recommendations.push((wanted, now));
        let slowed = if wanted >= current { UP_STABILIZED } else { DOWN_STABILIZED };
        (current.max(lowest).min(highest), slowed)
    }

    /// Limits the number to the bounds of the spec and to the change that the policies allow.
    fn rate_limits(&self, wanted: i32, range: Range, behavior: &Behavior, now: Duration) -> (i32, ConditionText) {
        let Range { min, max, current } = range;
        if wanted > current {
            let limit = self.limit(current, &behavior.up, true, now).max(current);
            let (ceiling, why) = if max > limit { (limit, UP_LIMIT) } else { (max, TOO_MANY) };
            if wanted > ceiling {
                return (ceiling, why);
            }
        } else if wanted < current {
            let limit = self.limit(current, &behavior.down, false, now).min(current);
            let (floor, why) = if min < limit { (limit, DOWN_LIMIT) } else { (min, TOO_FEW) };
            if wanted < floor {
                return (floor, why);
            }
        }
        (wanted, WITHIN)
    }

    /// Returns the maximum number of pods that policies allow now if `up`, otherwise the minimum.
    fn limit(&self, current: i32, rules: &Rules, up: bool, now: Duration) -> i32 {
        let allowed = rules.policies.iter().map(|policy| {
            let added = changed(&self.ups, policy.period, now);
            let removed = changed(&self.downs, policy.period, now);
            let start = current.saturating_sub(added).saturating_add(removed);
            policy_limit(start, policy, up)
        });
        // `Max` selects the policy with the largest change: the highest limit when scaling up, the lowest when scaling
        // down.
        let limit = match (rules.select, up) {
            (Select::Disabled, _) => None,
            (Select::Max, true) | (Select::Min, false) => allowed.max(),
            (Select::Max, false) | (Select::Min, true) => allowed.min(),
        };
        limit.unwrap_or(current)
    }
}

/// Returns the maximum number of pods that a policy allows if `up`, otherwise the minimum. `start` is the number at the
/// beginning of the policy's period. A change by a percentage is rounded up to whole pods.
fn policy_limit(start: i32, policy: &Policy, up: bool) -> i32 {
    match (policy.percent, up) {
        (false, true) => start.saturating_add(policy.value),
        (false, false) => start.saturating_sub(policy.value),
        (true, true) => (f64::from(start) * (1.0 + f64::from(policy.value) / 100.0)).ceil() as i32,
        (true, false) => (f64::from(start) * (1.0 - f64::from(policy.value) / 100.0)) as i32,
    }
}

/// Returns the number of pods added or removed in the period that ends now.
fn changed(events: &[(i32, Duration)], period: i32, now: Duration) -> i32 {
    let recent = events.iter().filter(|(_, at)| now.saturating_sub(*at) < seconds(period));
    recent.fold(0, |sum, (change, _)| sum.saturating_add(*change))
}

/// Limits the number without a `behavior`: a target may double, or grow to four pods.
fn default_limits(wanted: i32, Range { min, max, current }: Range) -> (i32, ConditionText) {
    let limit = current.saturating_mul(2).max(4);
    let (ceiling, why) = if max > limit { (limit, UP_LIMIT) } else { (max, TOO_MANY) };
    if wanted < min {
        (min, TOO_FEW)
    } else if wanted > ceiling {
        (ceiling, why)
    } else {
        (wanted, WITHIN)
    }
}

fn seconds(seconds: i32) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}
