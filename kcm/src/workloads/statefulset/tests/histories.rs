//! Random histories of StatefulSets: order and bounds are kept, and every update completes.

use std::collections::BTreeMap;
use std::sync::Arc;

use kinds::int_or_string::IntOrString;
use kinds::pod::Phase;
use kinds::{Pod, StatefulSet, Time};
use proptest::prelude::*;

use super::{GATES, NOW, plan, pod, rolling, set};
use crate::workloads::statefulset::decide::{PodRevision, Step, max_unavailable};
use crate::workloads::statefulset::identity::{self, Member};

/// An event of a pod between two plans.
#[derive(Debug, Clone, Copy)]
enum Event {
    Starts(usize),
    Breaks(usize),
    Fails(usize),
    Deleted(usize),
    Plan,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    prop::collection::vec(
        prop_oneof![
            3 => (0..8usize).prop_map(Event::Starts),
            1 => (0..8usize).prop_map(Event::Breaks),
            1 => (0..8usize).prop_map(Event::Fails),
            3 => (0..8usize).prop_map(Event::Deleted),
            4 => Just(Event::Plan),
        ],
        1..80,
    )
}

type Pods = BTreeMap<i32, Pod>;

fn members(pods: &Pods) -> Vec<Member> {
    pods.iter().map(|(ordinal, pod)| Member { ordinal: *ordinal, pod: Arc::new(pod.clone()) }).collect()
}

fn is_up(pod: Option<&Pod>) -> bool {
    pod.is_some_and(|pod| pod.phase == Phase::Running && pod.ready && !pod.meta.is_deleting())
}

/// Makes and executes a plan, and checks the invariants. Returns true if the plan has steps.
fn execute(set: &StatefulSet, pods: &mut Pods) -> bool {
    let wanted = 0..set.replicas;
    let plan = plan(set, &members(pods), GATES);
    let bound = max_unavailable(set).expect("a bound");
    let down = |pods: &Pods| wanted.clone().filter(|ordinal| !is_up(pods.get(ordinal))).count();
    let before = down(pods);
    let mut acted = false;
    let mut lost = 0;
    for step in plan.stages.into_iter().flat_map(|stage| stage.steps) {
        acted = true;
        match step {
            Step::Create(ordinal, made) => {
                assert!(!pods.contains_key(&ordinal), "a second pod at {ordinal}");
                assert!(wanted.contains(&ordinal), "a surplus pod at {ordinal}");
                if !set.parallel {
                    assert!((0..ordinal).all(|lower| is_up(pods.get(&lower))), "{ordinal} is created out of order");
                }
                let mut new = pod(ordinal, if made == PodRevision::Current { "a" } else { "b" });
                new.ready = false;
                new.phase = Phase::Pending;
                pods.insert(ordinal, new);
            }
            Step::Delete(victim) => {
                let ordinal = identity::parse(&victim.meta.name).expect("an ordinal").1;
                if wanted.contains(&ordinal) && is_up(pods.get(&ordinal)) {
                    assert_ne!(identity::revision(&victim), "b", "a good pod is deleted");
                    lost += 1;
                }
                if !set.parallel && !wanted.contains(&ordinal) {
                    assert!(pods.keys().all(|other| *other <= ordinal), "{ordinal} is deleted out of order");
                }
                pods.get_mut(&ordinal).expect("it exists").meta.deletion = Time(NOW);
            }
            Step::Repair(..) => unreachable!("nothing is wrong"),
        }
    }
    assert!(lost == 0 || before + lost <= bound, "{before} down, {lost} more, {bound} at most");
    acted
}

proptest! {
    #[test]
    fn updates_keep_order_and_bounds_and_complete(
        replicas in 0..6i32,
        is_parallel: bool,
        partition in 0..4i32,
        bound in 1..4i32,
        first in 0..8i32,
        history in events(),
    ) {
        let mut set = rolling(set(replicas), partition, IntOrString::Int(bound));
        set.parallel = is_parallel;
        let mut pods: Pods = (0..first).map(|ordinal| (ordinal, pod(ordinal, "a"))).collect();
        for event in history {
            let pick = |at: usize, pods: &Pods| pods.keys().nth(at % pods.len().max(1)).copied();
            match event {
                Event::Plan => { execute(&set, &mut pods); }
                Event::Starts(at) => if let Some(ordinal) = pick(at, &pods) {
                    let pod = pods.get_mut(&ordinal).expect("it exists");
                    if !pod.is_terminal() { (pod.ready, pod.phase) = (true, Phase::Running); }
                },
                Event::Breaks(at) => if let Some(ordinal) = pick(at, &pods) {
                    pods.get_mut(&ordinal).expect("it exists").ready = false;
                },
                Event::Fails(at) => if let Some(ordinal) = pick(at, &pods) {
                    let pod = pods.get_mut(&ordinal).expect("it exists");
                    pod.ready = false;
                    pod.phase = Phase::Failed;
                },
                Event::Deleted(at) => {
                    let deleted = pick(at, &pods).filter(|at| pods[at].meta.is_deleting());
                    if let Some(ordinal) = deleted { pods.remove(&ordinal); }
                }
            }
        }
        // From here on nothing fails: the update has to complete with the right pods.
        let mut rounds = 0;
        loop {
            let acted = execute(&set, &mut pods);
            let terminating = pods.values().any(|pod| pod.meta.is_deleting());
            let starting = pods.values().any(|pod| !pod.is_terminal() && !pod.ready);
            if !acted && !terminating && !starting { break; }
            pods.retain(|_, pod| !pod.meta.is_deleting());
            for pod in pods.values_mut().filter(|pod| !pod.is_terminal()) {
                pod.ready = true;
                pod.phase = Phase::Running;
            }
            rounds += 1;
            prop_assert!(rounds < 100, "the update does not complete: {pods:?}");
        }
        let end: Vec<(i32, String, bool)> =
            pods.iter().map(|(at, pod)| (*at, identity::revision(pod).to_owned(), is_up(Some(pod)))).collect();
        let updated = end.iter().filter(|(at, ..)| *at >= partition).all(|(_, revision, _)| revision == "b");
        prop_assert!(end.len() == usize::try_from(replicas).expect("positive") && end.iter().all(|(.., up)| *up), "{end:?}");
        prop_assert!(updated && end.iter().all(|(at, ..)| *at < replicas), "{end:?}");
    }
}
