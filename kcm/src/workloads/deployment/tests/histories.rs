//! Random histories: the bounds hold at every sync, every unfinished state has an action, and the final state does not
//! depend on the order of events.

use kinds::deployment::Strategy;
use proptest::prelude::*;

use super::builders::{int, rolling, text};
use super::model::{Cluster, ClusterEvent, UserAction};
use crate::workloads::deployment::decide_status::{NEW_SET_AVAILABLE, PROGRESSING, condition};

fn strategy() -> impl Generator<Value = Strategy> {
    let bound = || prop_oneof![(0..5).prop_map(int), (0..=100).prop_map(|percent| text(&format!("{percent}%")))];
    prop_oneof![
        1 => Just(Strategy::Recreate),
        4 => (bound(), bound()).prop_map(|(surge, unavailable)| rolling(surge, unavailable)),
    ]
}

use proptest::strategy::Strategy as Generator;

fn user_action() -> impl Generator<Value = UserAction> {
    prop_oneof![
        (0..12).prop_map(UserAction::Scale),
        (0u8..4).prop_map(UserAction::Template),
        strategy().prop_map(UserAction::Strategy),
        any::<bool>().prop_map(UserAction::Pause),
        (0i64..6).prop_map(UserAction::RollBack),
        (any::<usize>(), 0..12).prop_map(|(at, desired)| UserAction::EditScaleAnnotation(at, desired)),
    ]
}

/// Generates an event that does not come from the user.
fn event() -> impl Generator<Value = ClusterEvent> {
    prop_oneof![
        4 => Just(ClusterEvent::Sync),
        2 => any::<usize>().prop_map(ClusterEvent::Follow),
        2 => (any::<usize>(), 1..6).prop_map(|(at, pods)| ClusterEvent::Ready(at, pods)),
        1 => (any::<usize>(), 1..6).prop_map(|(at, pods)| ClusterEvent::Unready(at, pods)),
    ]
}

fn history() -> impl Generator<Value = Vec<ClusterEvent>> {
    prop::collection::vec(prop_oneof![6 => event(), 1 => user_action().prop_map(ClusterEvent::User)], 0..120)
}

/// Syncs while all pods become ready, until the rollout is complete and a sync writes nothing.
fn finish(cluster: &mut Cluster) {
    cluster.user_action(&UserAction::Pause(false));
    // Each round except the last one writes a set or the status, and there are few sets.
    for _ in 0..200 {
        cluster.now.0 += 1;
        cluster.settle_pods();
        let done = cluster.sync();
        let acted = done.writes + done.status_writes > 0;
        assert!(acted || cluster.is_complete(), "no action, and not complete: {}", cluster.summary());
        if !acted {
            return;
        }
    }
    panic!("did not settle: {}", cluster.summary());
}

/// Returns desired and available replicas of each set that has any.
fn outcome(cluster: &Cluster) -> Vec<(i32, i32)> {
    cluster
        .sets
        .iter()
        .filter(|set| set.replicas > 0)
        .map(|set| (set.replicas, set.status.available_replicas))
        .collect()
}

fn assert_finished(cluster: &Cluster) {
    let replicas = cluster.deployment.replicas;
    let wanted = if replicas == 0 { vec![] } else { vec![(replicas, replicas)] };
    assert_eq!(outcome(cluster), wanted);
    let progress = condition(&cluster.deployment.status, PROGRESSING).expect("it is set");
    assert_eq!((&*progress.status, &*progress.reason), ("True", NEW_SET_AVAILABLE));
    assert!(cluster.sets.len() <= 3, "the new set and two old ones are kept");
    assert_eq!(cluster.deployment.status.unavailable_replicas, 0);
}

#[test]
fn first_rollout_takes_one_write_and_two_status_writes() {
    let mut cluster = Cluster::new(3, rolling(int(1), int(0)));
    let first = cluster.sync();
    assert_eq!((first.writes, first.status_writes), (1, 1), "created, with one event");
    let again = cluster.sync();
    assert_eq!((again.writes, again.status_writes), (0, 0), "nothing changed");
    cluster.settle_pods();
    let last = cluster.sync();
    assert_eq!((last.writes, last.status_writes), (0, 1));
    assert!(cluster.is_complete());
    assert_finished(&cluster);
}

#[test]
fn a_scale_down_between_two_steps_does_not_block_a_rollout() {
    // Five pods, maxSurge 0: one old pod is removed first, and then the user scales to four.
    let mut cluster = Cluster::new(5, rolling(int(0), int(1)));
    finish(&mut cluster);
    cluster.user_action(&UserAction::Template(2));
    cluster.sync();
    cluster.user_action(&UserAction::Scale(4));
    assert_eq!(cluster.sets.iter().map(|set| set.replicas).collect::<Vec<_>>(), [4, 0]);
    finish(&mut cluster);
    assert_finished(&cluster);
}

#[test]
fn a_change_to_recreate_and_another_scale_does_not_block_a_rollout() {
    let mut cluster = Cluster::new(10, rolling(int(1), int(1)));
    finish(&mut cluster);
    cluster.user_action(&UserAction::Template(2));
    cluster.sync();
    assert!(cluster.sets.iter().all(|set| set.replicas > 0), "two sets with pods");
    cluster.user_action(&UserAction::Strategy(Strategy::Recreate));
    cluster.user_action(&UserAction::Scale(11));
    finish(&mut cluster);
    assert_finished(&cluster);
}

proptest! {
    #[test]
    fn every_history_ends_complete_and_without_further_writes(replicas in 0..12, strategy in strategy(), history in history()) {
        let mut cluster = Cluster::new(replicas, strategy);
        for event in &history {
            cluster.apply_event(event);
        }
        finish(&mut cluster);
        assert_finished(&cluster);
    }

    #[test]
    fn final_state_does_not_depend_on_the_order(
        strategy in strategy(),
        actions in prop::collection::vec(
            prop_oneof![(0..12).prop_map(UserAction::Scale), (0u8..4).prop_map(UserAction::Template)],
            1..6,
        ),
        between in prop::collection::vec(prop::collection::vec(event(), 0..12), 2),
    ) {
        let final_states = between.iter().map(|between| {
            let mut cluster = Cluster::new(3, strategy.clone());
            for user_action in &actions {
                cluster.user_action(user_action);
                between.iter().for_each(|event| cluster.apply_event(event));
            }
            finish(&mut cluster);
            let template = cluster.deployment.template.clone().expect("decoded");
            let new = cluster.sets.iter().filter(|set| {
                set.template.as_ref().is_some_and(|other| other.equal_ignoring_hash(&template))
            }).count();
            (outcome(&cluster), template, new)
        });
        let final_states: Vec<_> = final_states.collect();
        prop_assert_eq!(&final_states[0], &final_states[1]);
        prop_assert_eq!(final_states[0].2, 1, "one set has the newest template");
    }
}
