//! Paths of owners that are read, and the lifetime of the results.

use std::time::Duration;

use tokio::time::Instant;

use super::super::decide::OwnerState;
use super::super::graph::Graph;
use super::super::identity::Identity;
use super::super::owner_path::{Target, target};
use super::super::owner_reads::OwnerReads;
use super::{A, B, C, blocking, deleting, object, owner, uid};

#[test]
fn owner_name_is_resolved_to_one_object_or_nothing() {
    let object = Target::Object;
    for (name, expected) in [
        ("web", object("web")),
        ("a b?watch=true#x&y", object("a b?watch=true#x&y")),
        ("\u{0}\n\u{7f}ß語", object("\u{0}\n\u{7f}ß語")),
        ("...", object("...")),
        // The client of upstream drops empty and dot segments.
        ("web/", object("web")),
        ("./web", object("web")),
        ("a/b/../../web", object("web")),
        ("../as/web", object("web")),
        // A part of an object, or nothing.
        ("web/status", Target::Nothing),
        ("a/b", Target::Nothing),
        // Another object.
        ("..", Target::Nothing),
        ("../secrets/token", Target::Nothing),
        ("../../m/as/web", Target::Nothing),
        ("../../../nodes/node", Target::Nothing),
        ("../../../../../apis/apps/v1/namespaces/m/deployments/web", Target::Nothing),
        // A list, or a document that describes the API.
        ("", Target::Undecidable),
        (".", Target::Undecidable),
        ("/", Target::Undecidable),
        ("a/..", Target::Undecidable),
        ("../secrets", Target::Undecidable),
        ("../..", Target::Undecidable),
        ("../../..", Target::Undecidable),
        ("../../../nodes", Target::Undecidable),
        ("../../../../../../../..", Target::Undecidable),
        ("../../../../../healthz", Target::Undecidable),
        // A name that the API server refuses.
        ("%", Target::Undecidable),
        ("%2e%2e%2f", Target::Undecidable),
        ("web/%00", Target::Undecidable),
    ] {
        assert_eq!(target(&A, "n", name), expected, "{name:?}");
    }
    assert_eq!(target(&B, "n", "../../../v2/bs/x"), Target::Nothing);
    assert_eq!(target(&C, "", ".."), Target::Undecidable);
    assert_eq!(target(&C, "", "../as/x"), Target::Nothing);
    assert_eq!(target(&A, "n", &"x".repeat(100_000)), Target::Undecidable);
}

#[test]
fn owner_read_is_used_for_a_second_and_for_the_same_coordinates() {
    let now = Instant::now();
    let read = Identity::of_owner(&owner(&A, 1), &"n".into());
    let mut reads = OwnerReads::default();
    let ticket = reads.begin();
    reads.add(ticket, read.clone(), OwnerState::Solid, now);
    assert_eq!(reads.get(&read, now + Duration::from_millis(999)), Some(OwnerState::Solid));
    assert_eq!(reads.get(&read, now + Duration::from_secs(1)), None);
    assert_eq!(reads.get(&Identity::of_owner(&owner(&B, 1), &"n".into()), now), None);
}

#[test]
fn owner_read_is_discarded_when_the_owner_changes_during_the_read() {
    let now = Instant::now();
    let read = Identity::of_owner(&owner(&A, 1), &"n".into());
    let mut reads = OwnerReads::default();
    let ticket = reads.begin();
    reads.forget(&uid(1));
    reads.add(ticket, read.clone(), OwnerState::Solid, now);
    assert_eq!(reads.get(&read, now), None);
}

/// The next check of a dependent must read the changed owner again.
#[test]
fn owner_read_is_discarded_when_the_owner_changes_in_the_graph() {
    let other_version = Identity { api_version: "v1beta1".into(), ..Identity::of_owner(&owner(&A, 1), &"n".into()) };
    let read = Identity::of_owner(&owner(&A, 1), &"n".into());
    let waits = || deleting(object(1, "n", vec![]), &["foregroundDeletion"]);
    type Change = (&'static str, fn(&mut Graph, &Identity, kinds::meta::Meta));
    let changes: [Change; 4] = [
        ("foreground deletion", |graph, _, waits| drop(graph.observe(&A, &waits))),
        ("deleted", |graph, _, _| drop(graph.remove_deleted(&uid(1)))),
        ("found absent", |graph, read, _| drop(graph.observe_absent(read))),
        ("kind no longer served", |graph, _, _| drop(graph.forget_kind(&A))),
    ];
    for (what, change) in changes {
        for read in [&read, &other_version] {
            let mut graph = Graph::default();
            graph.observe(&A, &object(1, "n", vec![]));
            graph.observe(&B, &object(2, "n", vec![blocking(&A, 1)]));
            let ticket = graph.owner_reads.begin();
            let now = Instant::now();
            graph.owner_reads.add(ticket, read.clone(), OwnerState::Solid, now);
            change(&mut graph, read, waits());
            assert_eq!(graph.owner_reads.get(read, now), None, "{what}");
        }
    }
}
