//! Limits of the rate of scaling (cases of pkg/controller/podautoscaler, horizontal_test.go).

use std::time::Duration;

use kinds::horizontal_pod_autoscaler::{Behavior, Policy, Rules, Select};
use proptest::prelude::*;

use super::super::pace::{Memory, Range};

const WINDOW: Duration = Duration::from_secs(300);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(1000 + seconds)
}

fn range(min: i32, max: i32, current: i32) -> Range {
    Range { min, max, current }
}

fn policy(percent: bool, value: i32, period: i32) -> Policy {
    Policy { percent, value, period }
}

fn rules(window: Option<i32>, select: Select, policies: &[Policy]) -> Rules {
    Rules { window, select, policies: policies.into(), tolerance: None }
}

#[test]
fn target_without_behavior_at_most_doubles_or_grows_to_four() {
    for (wanted, range, replicas, limited, reason) in [
        (3, range(1, 10, 2), 3, false, "DesiredWithinRange"),
        (9, range(1, 10, 3), 6, true, "ScaleUpLimit"),
        (9, range(1, 10, 1), 4, true, "ScaleUpLimit"),
        (12, range(1, 10, 8), 10, true, "TooManyReplicas"),
        (0, range(2, 10, 3), 2, true, "TooFewReplicas"),
        (0, range(0, 10, 3), 0, false, "DesiredWithinRange"),
        (i32::MAX, range(1, i32::MAX, i32::MAX - 1), i32::MAX, false, "DesiredWithinRange"),
    ] {
        let limits = Memory::default().pace(wanted, range, None, WINDOW, at(0));
        let seen = (limits.replicas, limits.is_limited, limits.limit_text.0);
        assert_eq!(seen, (replicas, limited, reason), "{wanted} in {range:?}");
    }
}

#[test]
fn scaling_down_waits_for_the_stabilization_window() {
    let mut memory = Memory::default();
    memory.begin(5, at(0));
    memory.begin(9, at(1));
    for (second, wanted, replicas, reason) in [
        (10, 2, 5, "ScaleDownStabilized"),
        (20, 7, 7, "ReadyForNewScale"),
        (200, 2, 7, "ScaleDownStabilized"),
        (320, 2, 7, "ScaleDownStabilized"),
        (321, 2, 2, "ReadyForNewScale"),
    ] {
        let limits = memory.pace(wanted, range(1, 10, 5), None, WINDOW, at(second));
        assert_eq!((limits.replicas, limits.able_text.0), (replicas, reason), "after {second} s");
    }
}

#[test]
fn behavior_limits_both_directions() {
    let mut memory = Memory::default();
    let behavior = Behavior {
        up: rules(Some(60), Select::Max, &[policy(false, 4, 60)]),
        down: rules(None, Select::Max, &[policy(true, 50, 60)]),
    };
    for (second, wanted, current, replicas, able, limit) in [
        (0, 2, 2, 2, "ReadyForNewScale", "DesiredWithinRange"),
        (10, 8, 2, 2, "ScaleUpStabilized", "DesiredWithinRange"),
        (65, 9, 2, 6, "ScaleUpStabilized", "ScaleUpLimit"),
        (71, 9, 6, 9, "ReadyForNewScale", "DesiredWithinRange"),
        (80, 1, 9, 9, "ScaleDownStabilized", "DesiredWithinRange"),
        (400, 1, 9, 4, "ReadyForNewScale", "ScaleDownLimit"),
    ] {
        let limits = memory.pace(wanted, range(1, 20, current), Some(&behavior), WINDOW, at(second));
        assert_eq!(
            (limits.replicas, limits.able_text.0, limits.limit_text.0),
            (replicas, able, limit),
            "after {second} s"
        );
    }
}

#[test]
fn policies_count_the_changes_of_their_period() {
    let up = |select, policies: &[Policy]| Behavior { up: rules(Some(0), select, policies), ..Behavior::default() };
    let down = |select, policies: &[Policy]| Behavior { down: rules(Some(0), select, policies), ..Behavior::default() };
    let (pods, percent) = (policy(false, 4, 60), policy(true, 100, 60));
    for (case, behavior, done, current, wanted, expected) in [
        ("the larger", up(Select::Max, &[pods, percent]), None, 10, 100, 20),
        ("the smaller", up(Select::Min, &[pods, percent]), None, 10, 100, 14),
        ("none", up(Select::Disabled, &[pods, percent]), None, 10, 100, 10),
        ("part is used up", up(Select::Max, &[pods]), Some((7, 10, 30)), 10, 100, 11),
        ("all is used up", up(Select::Max, &[pods]), Some((5, 10, 30)), 10, 100, 10),
        ("the change was before the period", up(Select::Max, &[pods]), Some((5, 10, 61)), 10, 100, 14),
        ("removed pods may be added again", up(Select::Max, &[pods]), Some((12, 10, 30)), 10, 100, 16),
        ("a fraction of a pod rounds up", up(Select::Max, &[policy(true, 10, 60)]), None, 3, 100, 4),
        ("down, the larger", down(Select::Max, &[pods, policy(true, 50, 60)]), None, 10, 1, 5),
        ("down, the smaller", down(Select::Min, &[pods, policy(true, 50, 60)]), None, 10, 1, 6),
        ("down, none", down(Select::Disabled, &[pods]), None, 10, 1, 10),
        ("down, part is used up", down(Select::Max, &[pods]), Some((12, 10, 30)), 10, 1, 8),
        ("down, all is used up", down(Select::Max, &[pods]), Some((20, 10, 30)), 10, 1, 10),
    ] {
        let mut memory = Memory::default();
        if let Some((from, to, ago)) = done {
            memory.scaled(from, to, Some(&behavior), at(100 - ago));
        }
        let limits = memory.pace(wanted, range(1, 1000, current), Some(&behavior), WINDOW, at(100));
        assert_eq!(limits.replicas, expected, "{case}");
    }
}

prop_compose! {
    fn any_rules()(
        window in 0i32..400,
        select in prop::sample::select(vec![Select::Max, Select::Min, Select::Disabled]),
        policies in prop::collection::vec((any::<bool>(), 1i32..150, 1i32..120), 1..3),
    ) -> Rules {
        let policies: Vec<Policy> = policies.iter().map(|(percent, value, period)| policy(*percent, *value, *period)).collect();
        rules(Some(window), select, &policies)
    }
}

proptest! {
    /// For any proposals, the number stays within the bounds. Without a `behavior` it at most doubles or grows to four,
    /// and is not below recent recommendations. With one it never moves in a disabled direction. If scaling down is
    /// disabled, it grows in a period by no more than a lone policy of pods allows.
    #[test]
    fn random_histories_keep_the_limits(
        up in any_rules(), down in any_rules(), has_rules in any::<bool>(),
        (min, span) in (0i32..5, 0i32..60),
        steps in prop::collection::vec((0i32..80, 1u64..60), 1..40),
    ) {
        let max = (min + span).max(1);
        let behavior = has_rules.then_some(Behavior { up, down });
        let mut memory = Memory::default();
        let mut current = min.max(1).min(max);
        let mut second = 0;
        memory.begin(current, at(0));
        let mut history = vec![(0, current)];
        let mut grown = Vec::<(u64, i32)>::new();
        for (wanted, wait) in steps {
            second += wait;
            let limits = memory.pace(wanted, range(min, max, current), behavior.as_ref(), WINDOW, at(second));
            let to = limits.replicas;
            prop_assert!((min..=max).contains(&to), "{to} is out of bounds");
            match &behavior {
                None => {
                    prop_assert!(to <= (current * 2).max(4));
                    let recent = history.iter().filter(|(at, _)| second - at <= 300).map(|(_, wanted)| *wanted);
                    let highest = recent.chain([wanted]).max().unwrap_or(wanted);
                    prop_assert!(to >= highest.min(max).min((current * 2).max(4)), "below a recent recommendation");
                }
                Some(behavior) => {
                    prop_assert!(to <= current || behavior.up.select != Select::Disabled);
                    prop_assert!(to >= current || behavior.down.select != Select::Disabled);
                    let lone = (behavior.up.policies.len() == 1).then(|| behavior.up.policies[0]);
                    if to > current { grown.push((second, to - current)); }
                    if let Some(policy) = lone.filter(|policy| !policy.percent)
                        && behavior.down.select == Select::Disabled
                    {
                        let period = u64::try_from(policy.period).unwrap_or(0);
                        let sum: i32 = grown.iter().filter(|(at, _)| second - at < period).map(|(_, by)| by).sum();
                        prop_assert!(sum <= policy.value, "{sum} in {period} s");
                    }
                }
            }
            history.push((second, wanted));
            if to != current {
                memory.scaled(current, to, behavior.as_ref(), at(second));
                current = to;
            }
        }
    }
}
