//! Random histories of pods and Service: at the end the slices equal the pods, and a further sync writes nothing.

use std::collections::BTreeSet;

use kinds::int_or_string::IntOrString;
use kinds::{Pod, Time};
use proptest::prelude::*;

use super::builders::{Fixture, labels, pod, port, service, text};
use crate::network::service_endpoints::pods::is_endpoint;

#[derive(Debug, Clone)]
enum Step {
    Add(u8),
    Remove(u8),
    Ready(u8, bool),
    Terminate(u8),
    Port(i32),
    Label(u8),
    DualStack(bool),
    /// A sync; with `false`, only its immediate writes are executed.
    Sync(bool),
    /// A sync that stops after its creations and its first update.
    PartialSync,
}

fn step() -> impl Strategy<Value = Step> {
    let pod = 0u8..20;
    prop_oneof![
        4 => pod.clone().prop_map(Step::Add),
        3 => pod.clone().prop_map(Step::Remove),
        4 => (pod.clone(), any::<bool>()).prop_map(|(pod, ready)| Step::Ready(pod, ready)),
        2 => pod.prop_map(Step::Terminate),
        1 => (80..82).prop_map(Step::Port),
        1 => (0u8..2).prop_map(Step::Label),
        1 => any::<bool>().prop_map(Step::DualStack),
        6 => any::<bool>().prop_map(Step::Sync),
        3 => Just(Step::PartialSync),
    ]
}

fn apply_step(fixture: &mut Fixture, step: &Step) {
    match step {
        Step::Add(number) => drop(fixture.pods.entry(*number).or_insert_with(|| Pod { ready: false, ..pod(*number) })),
        Step::Remove(number) => drop(fixture.pods.remove(number)),
        Step::Ready(number, ready) => {
            fixture.pods.entry(*number).and_modify(|pod| pod.ready = *ready);
        }
        Step::Terminate(number) => {
            fixture.pods.entry(*number).and_modify(|pod| pod.meta.deletion = Time(9));
        }
        Step::Port(number) => fixture.service.ports = vec![port("", IntOrString::Int(*number))],
        Step::Label(value) => fixture.service.meta.labels = labels(&[("turn", &value.to_string())]),
        Step::DualStack(both) => {
            let names = if *both { &["IPv4", "IPv6"][..] } else { &["IPv4"] };
            fixture.service.ip_families = names.iter().map(|name| (*name).into()).collect();
        }
        Step::Sync(all) => {
            let decision = fixture.decide();
            let bound = fixture.slices.len() + 2 * fixture.pods.len().div_ceil(fixture.max_endpoints) + 2;
            assert!(decision.now.writes() + decision.later.writes() <= bound, "more writes than slices");
            fixture.apply(&decision.now);
            if *all {
                fixture.apply(&decision.later);
            }
        }
        Step::PartialSync => {
            let mut plan = fixture.decide().now;
            plan.update.truncate(1);
            plan.delete.clear();
            fixture.apply(&plan);
        }
    }
}

/// Returns the desired endpoints, without duplicates.
fn desired(fixture: &Fixture) -> BTreeSet<String> {
    let mut alone = Fixture::new(fixture.service.clone(), []);
    alone.max_endpoints = 1000;
    alone.pods = fixture.pods.clone();
    alone.settle();
    alone.shown().concat().into_iter().collect()
}

proptest! {
    #[test]
    fn slices_finally_equal_the_pods(
        max in 1usize..6,
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut fixture = Fixture::new(service(), []);
        fixture.max_endpoints = max;
        for step in &steps {
            apply_step(&mut fixture, step);
        }
        fixture.settle();
        prop_assert_eq!(fixture.settle(), 0, "the second sync wrote again");
        prop_assert_eq!(fixture.counted(), fixture.slices.len());
        let shown = fixture.shown().concat();
        let unique: BTreeSet<String> = shown.iter().cloned().collect();
        prop_assert_eq!(shown.len(), unique.len(), "an endpoint is in two slices");
        prop_assert_eq!(unique, desired(&fixture));
        let families = fixture.service.ip_families.len();
        let endpoints = fixture.pods.values().filter(|pod| is_endpoint(pod)).count();
        prop_assert_eq!(shown.len(), endpoints * families);
        prop_assert!(fixture.sizes().iter().all(|size| *size <= max));
    }

    /// Immediate writes suffice to make the endpoints with traffic equal to the desired ones.
    #[test]
    fn delayed_writes_change_only_endpoints_without_traffic(steps in prop::collection::vec(step(), 1..40)) {
        let mut fixture = Fixture::new(service(), []);
        fixture.max_endpoints = 3;
        for step in &steps {
            apply_step(&mut fixture, step);
        }
        let decision = fixture.decide();
        fixture.apply(&decision.now);
        let traffic = |texts: BTreeSet<String>| -> BTreeSet<String> {
            texts.into_iter().filter(|text| text.contains(" +") || text.contains(" -+")).collect()
        };
        let shown = fixture.slices.iter().flat_map(|slice| slice.contents.endpoints.iter().map(text)).collect();
        prop_assert_eq!(traffic(shown), traffic(desired(&fixture)));
    }

    #[test]
    fn order_of_pods_does_not_matter(
        steps in prop::collection::vec(step(), 1..40),
        order in Just((0u8..20).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let mut fixture = Fixture::new(service(), []);
        fixture.max_endpoints = 3;
        for step in &steps {
            apply_step(&mut fixture, step);
        }
        let order = order.into_iter().filter(|number| fixture.pods.contains_key(number)).collect();
        let decision = fixture.decide();
        let shuffled = fixture.decide_in(order);
        fixture.apply(&decision.now);
        fixture.apply(&decision.later);
        let first = fixture.shown();
        let mut other = Fixture::new(service(), []);
        other.max_endpoints = 3;
        steps.iter().for_each(|step| apply_step(&mut other, step));
        other.apply(&shuffled.now);
        other.apply(&shuffled.later);
        prop_assert_eq!(first, other.shown());
    }
}
