//! Effects of changes of the graph, also with contradicting references.

use kinds::meta::Meta;
use kinds::{Resource, Uid};

use super::super::graph::{Blocking, Effect, Graph, State};
use super::super::identity::{AbsentOwners, Identity};
use super::{A, B, C, blocking, deleting, object, owner, uid};

fn graph(objects: &[(Resource, Meta)]) -> Graph {
    let mut graph = Graph::default();
    for (resource, meta) in objects {
        graph.observe(resource, meta);
    }
    graph
}

/// Returns the uids of the objects to check, sorted, without duplicates.
fn checks(effects: &[Effect]) -> Vec<u128> {
    let mut checks: Vec<u128> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Check(Uid::Uuid(number)) | Effect::CheckLater(Uid::Uuid(number)) => {
                Some(u128::from_be_bytes(*number))
            }
            _ => None,
        })
        .collect();
    checks.sort_unstable();
    checks.dedup();
    checks
}

fn identity(resource: &Resource, number: u128, namespace: &str) -> Identity {
    Identity::of_owner(&owner(resource, number), &namespace.into())
}

#[test]
fn dependents_are_checked_when_their_owner_is_deleted() {
    let mut graph = graph(&[(A, object(1, "n", vec![])), (A, object(2, "n", vec![owner(&A, 1)]))]);
    assert!(graph.view(&uid(2)).expect("known").settled);
    assert_eq!(checks(&graph.remove_deleted(&uid(1))), [2]);
    assert!(graph.absent.contains(&identity(&A, 1, "n")));
    assert!(!graph.view(&uid(2)).expect("known").settled);
    assert!(graph.remove_deleted(&uid(9)).is_empty());
}

#[test]
fn absence_of_an_owner_without_dependents_is_not_recorded() {
    let mut graph = graph(&[(A, object(1, "n", vec![]))]);
    assert!(graph.remove_deleted(&uid(1)).is_empty() && !graph.absent.contains(&identity(&A, 1, "n")));
}

#[test]
fn check_of_a_virtual_owner_is_requested_once_and_a_watch_can_deliver_the_owner() {
    let mut graph = Graph::default();
    assert_eq!(checks(&graph.observe(&A, &object(2, "n", vec![owner(&A, 1)]))), [1]);
    assert_eq!(graph.len(), (2, 1));
    assert!(graph.observe(&A, &object(3, "n", vec![owner(&A, 1)])).is_empty(), "its verification is queued already");
    assert!(graph.observe(&A, &object(1, "n", vec![])).is_empty());
    assert!(graph.view(&uid(2)).expect("known").settled);
    assert_eq!(graph.len(), (3, 0));
    assert_eq!(
        checks(&graph.observe_absent(&identity(&A, 1, "n"))),
        [2, 3],
        "the response of the API server overrides the watch"
    );
    assert_eq!(checks(&graph.unsettled()), [2, 3]);
}

#[test]
fn virtual_owner_without_references_is_removed() {
    let mut graph = graph(&[(A, object(2, "n", vec![owner(&A, 1)]))]);
    graph.observe(&A, &object(2, "n", vec![]));
    assert_eq!(graph.len(), (1, 0));
    assert_eq!(graph.view(&uid(1)), None);
}

/// A search of one list for each entry of the other would take seconds at each change of such an object.
#[test]
fn change_of_one_owner_among_many_checks_only_the_new_one() {
    let mut many: Vec<_> = (1..=20_000).map(|number| owner(&A, number)).collect();
    let mut graph = Graph::default();
    assert_eq!(checks(&graph.observe(&A, &object(50_000, "n", many.clone()))).len(), 20_000);
    for number in 30_000..30_010 {
        many.rotate_left(1);
        many[0] = owner(&A, number);
        assert_eq!(checks(&graph.observe(&A, &object(50_000, "n", many.clone()))), [number]);
    }
    assert_eq!(graph.len(), (20_001, 20_000));
}

#[test]
fn deletion_begins_once() {
    let mut graph = graph(&[(A, object(1, "n", vec![])), (A, object(2, "n", vec![blocking(&A, 1)]))]);
    let waits = deleting(object(1, "n", vec![]), &["foregroundDeletion"]);
    assert_eq!(checks(&graph.observe(&A, &waits)), [1, 2]);
    assert!(graph.observe(&A, &waits).is_empty());
    let held = Blocking { uid: uid(2), deleting: false };
    assert_eq!(graph.blocking(&uid(1)), [held]);
    assert!(!graph.view(&uid(2)).expect("known").settled);
    assert_eq!(
        checks(&graph.observe(&A, &object(3, "n", vec![owner(&A, 1)]))),
        [3],
        "a dependent that was added later"
    );
    assert_eq!(
        checks(&graph.observe(&A, &object(2, "n", vec![owner(&A, 1)]))),
        [1, 2],
        "the dependent no longer blocks"
    );
    assert_eq!(graph.blocking(&uid(1)), []);
    assert_eq!(checks(&graph.remove_deleted(&uid(2))), [1]);
    assert_eq!(checks(&graph.unsettled()), [1, 3]);

    let orphans = deleting(object(1, "n", vec![]), &["orphan"]);
    assert_eq!(graph.observe(&A, &orphans), [Effect::Orphan(uid(1))], "the policy was changed");
    assert!(graph.unsettled().contains(&Effect::Orphan(uid(1))));
    assert_eq!(graph.dependents(&uid(1)), [identity(&A, 3, "n")]);
    let state = graph.view(&uid(1)).expect("known").state;
    assert_eq!(state, State { observed: true, deleting: true, foreground: false, orphaning: true });
}

#[test]
fn dependent_that_waits_for_its_own_dependents_may_be_in_a_cycle() {
    let mut graph = graph(&[(A, object(1, "n", vec![owner(&A, 2)])), (A, object(2, "n", vec![blocking(&A, 1)]))]);
    assert!(!graph.may_be_in_cycle(&uid(2)));
    graph.observe(&A, &deleting(object(1, "n", vec![owner(&A, 2)]), &["foregroundDeletion"]));
    assert!(graph.may_be_in_cycle(&uid(2)) && graph.has_dependents(&uid(2)));
}

/// The conflict, the owner, the dependent, and the events.
type Case = (&'static str, Resource, Meta, Resource, Meta, Vec<Effect>);

/// Upstream's table of conflicting data, in both orders.
#[test]
fn conflicting_references_are_checked_and_reported() {
    let strange_kind = || object(5, "n", vec![owner(&B, 1)]);
    let other_namespace = || object(5, "m", vec![owner(&A, 1)]);
    let no_namespace = || object(5, "", vec![owner(&A, 1)]);
    let wrong_namespace = |dependent: Identity, namespace: &str| {
        vec![Effect::WrongNamespace { dependent, owner: identity(&A, 1, namespace) }]
    };
    let table: [Case; 4] = [
        ("right", A, object(1, "n", vec![]), A, object(5, "n", vec![owner(&A, 1)]), vec![]),
        ("kind", A, object(1, "n", vec![]), A, strange_kind(), vec![]),
        ("namespace", A, object(1, "n", vec![]), A, other_namespace(), wrong_namespace(identity(&A, 5, "m"), "m")),
        ("cluster-scoped", A, object(1, "n", vec![]), C, no_namespace(), wrong_namespace(identity(&C, 5, ""), "")),
    ];
    for (name, owner_kind, owner, kind, dependent, events) in table {
        let fits = name == "right";
        let expected: Vec<u128> = if fits { vec![] } else { vec![5] };
        for owner_first in [true, false] {
            let mut graph = Graph::default();
            let effects = if owner_first {
                graph.observe(&owner_kind, &owner);
                graph.observe(&kind, &dependent)
            } else {
                graph.observe(&kind, &dependent);
                graph.observe(&owner_kind, &owner)
            };
            assert_eq!(checks(&effects), expected, "{name}, owner first: {owner_first}");
            let other: Vec<Effect> =
                effects.into_iter().filter(|effect| matches!(effect, Effect::WrongNamespace { .. })).collect();
            assert_eq!(other, events, "{name}, owner first: {owner_first}");
            assert_eq!(graph.view(&uid(5)).expect("known").settled, fits, "{name}, owner first: {owner_first}");
            let again: Vec<Effect> = graph.unsettled();
            assert_eq!(checks(&again), expected, "{name}: a restart finds it again");
        }
    }
}

#[test]
fn cluster_scoped_owner_may_have_dependents_in_all_namespaces() {
    let graph = graph(&[
        (C, object(1, "", vec![])),
        (A, object(2, "n", vec![owner(&C, 1)])),
        (A, object(3, "m", vec![owner(&C, 1)])),
        (C, object(4, "", vec![owner(&C, 1)])),
    ]);
    assert!(graph.unsettled().is_empty());
}

#[test]
fn wrong_reference_does_not_make_an_existing_owner_absent() {
    let mut graph = graph(&[
        (A, object(1, "n", vec![])),
        (A, object(2, "n", vec![owner(&A, 1)])),
        (A, object(3, "n", vec![owner(&B, 1)])),
    ]);
    let effects = graph.observe_absent(&identity(&B, 1, "n"));
    assert_eq!(checks(&effects), [3]);
    assert!(graph.absent.contains(&identity(&B, 1, "n")) && !graph.absent.contains(&identity(&A, 1, "n")));
    assert!(graph.view(&uid(2)).expect("known").settled);
}

#[test]
fn coordinates_of_all_disagreeing_dependents_are_verified() {
    // A bad reference first, then a good one, and one from another namespace. No watch has delivered the owner yet.
    let mut graph = graph(&[
        (A, object(2, "n", vec![owner(&B, 1)])),
        (A, object(3, "n", vec![owner(&A, 1)])),
        (A, object(4, "m", vec![owner(&A, 1)])),
    ]);
    let tried = |graph: &Graph| graph.view(&uid(1)).expect("virtual").identity;
    assert_eq!(tried(&graph), identity(&B, 1, "n"));
    let effects = graph.observe_absent(&identity(&B, 1, "n"));
    assert_eq!(effects, [Effect::Check(uid(2)), Effect::CheckLater(uid(1))]);
    assert_eq!(tried(&graph), identity(&A, 1, "m"), "none follows, so the first in order is next");
    graph.observe_absent(&identity(&A, 1, "m"));
    assert_eq!(tried(&graph), identity(&A, 1, "n"), "the next in order");
    let effects = graph.observe(&A, &object(1, "n", vec![]));
    assert!(effects.is_empty(), "the watch confirms the coordinates: {effects:?}");
    assert!(graph.view(&uid(3)).expect("known").settled && !graph.view(&uid(4)).expect("known").settled);
}

#[test]
fn objects_of_an_unwatched_kind_are_unknown_and_not_deleted() {
    let mut graph = graph(&[
        (A, deleting(object(1, "n", vec![]), &["foregroundDeletion"])),
        (B, object(2, "n", vec![blocking(&A, 1)])),
        (B, object(3, "n", vec![])),
        (A, object(4, "n", vec![owner(&B, 3)])),
    ]);
    assert_eq!(checks(&graph.forget_kind(&B)), [1]);
    assert_eq!((graph.len(), graph.view(&uid(2))), ((3, 1), None));
    assert!(!graph.absent.contains(&identity(&B, 3, "n")) && !graph.view(&uid(4)).expect("known").settled);
    graph.observe(&B, &object(3, "n", vec![]));
    assert!(graph.view(&uid(4)).expect("known").settled, "the kind is served again");
}

#[test]
fn forgotten_owner_is_unknown_and_read_from_the_api_server() {
    let mut graph = graph(&[
        (A, object(1, "n", vec![])),
        (A, object(2, "n", vec![owner(&A, 1)])),
        (A, deleting(object(3, "n", vec![]), &["foregroundDeletion"])),
        (A, object(4, "n", vec![blocking(&A, 3)])),
    ]);
    assert_eq!(graph.forget_object(&uid(1)), [Effect::CheckLater(uid(1))]);
    assert!(!graph.absent.contains(&identity(&A, 1, "n")), "no dependent is deleted because of it");
    assert_eq!((graph.len(), graph.view(&uid(2)).expect("known").settled), ((4, 1), false));
    graph.observe(&A, &object(1, "n", vec![]));
    assert!(graph.view(&uid(2)).expect("known").settled, "a watch delivers it again");
    assert_eq!(graph.forget_object(&uid(4)), [Effect::Check(uid(3))], "it has no dependents");
    assert_eq!((graph.view(&uid(4)), graph.forget_object(&uid(9))), (None, vec![]));
}

#[test]
fn number_of_recorded_absent_owners_is_limited() {
    let mut absent = AbsentOwners::default();
    for number in 0..5000 {
        absent.add(identity(&A, number, "n"));
        absent.add(identity(&A, number, "n"));
    }
    assert!(!absent.contains(&identity(&A, 0, "n")) && absent.contains(&identity(&A, 4999, "n")));
    assert!(!absent.contains(&identity(&A, 4999, "m")), "elsewhere it may exist");
}
