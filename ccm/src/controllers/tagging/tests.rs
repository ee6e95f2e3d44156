//! Work that follows from changes of Nodes, and retries.

use std::collections::BTreeMap;
use std::sync::Arc;

use kinds::Node;
use providers::{CloudError, ErrorKind, MockTagging};
use runtime::store::Change;

use super::checksum;
use super::sync::{Pending, TAGS_LABEL, is_retried};

fn node(instance: &str, checksum: Option<&str>) -> Arc<Node> {
    let mut node = crate::controllers::node::tests::node(&[], None);
    if let Some(cloud) = node.cloud.as_mut() {
        cloud.provider_id = instance.into();
    }
    let labels: Vec<_> = checksum.map(|checksum| (TAGS_LABEL.into(), checksum.into())).into_iter().collect();
    node.meta.labels = Arc::from(labels);
    Arc::new(node)
}

/// Returns the pending work for a cloud whose instances can have tags, except for those of Fargate.
fn pending() -> Pending {
    let mut tagging = MockTagging::new();
    tagging.expect_has_tags().returning(|id| !id.contains("fargate"));
    Pending::new("sum".into(), Arc::new(tagging))
}

#[test]
fn checksum_equals_that_of_upstream() {
    let tags = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    // md5 of "a=1,b=2"
    assert_eq!(checksum(&tags(&[("b", "2"), ("a", "1")])), "9dc867b7f2bf1e40160f90e46628512e");
    assert_ne!(checksum(&tags(&[("b", "2")])), checksum(&tags(&[("b", "3")])));
}

#[test]
fn changes_lead_to_work_only_when_needed() {
    for (old, new, expected) in [
        (None, Some(node("aws:///z/i-1", None)), true),
        (None, Some(node("aws:///z/i-1", Some("sum"))), false),
        (None, Some(node("aws:///z/i-1", Some("another"))), true),
        (None, Some(node("", None)), false),
        (Some(node("", None)), Some(node("aws:///z/i-1", None)), true),
        (Some(node("aws:///z/i-1", Some("sum"))), None, true),
        (Some(node("", None)), None, false),
        (None, Some(node("aws:///z/fargate-10.0.0.1", None)), false),
        (Some(node("aws:///z/fargate-10.0.0.1", None)), None, false),
    ] {
        let pending = pending();
        let is_work = pending.apply(&Change { old: old.as_ref(), new: new.as_ref() });
        assert_eq!(is_work, expected, "{:?} -> {:?}", old.map(|n| n.meta.clone()), new.map(|n| n.meta.clone()));
    }
}

#[test]
fn heartbeat_of_a_pending_node_is_no_new_work() {
    let pending = pending();
    let mut other = (*node("aws:///z/i-1", None)).clone();
    other.meta.uid = kinds::Uid::parse("other");
    let (first, second, other) = (node("aws:///z/i-1", None), node("aws:///z/i-2", None), Arc::new(other));
    for (old, new, expected) in [
        (None, &first, true),
        (Some(&first), &first, false),
        (Some(&first), &second, true),
        (Some(&second), &second, false),
        (Some(&second), &first, true),
        (Some(&first), &other, true),
        (Some(&other), &other, false),
    ] {
        assert_eq!(pending.apply(&Change { old, new: Some(new) }), expected);
    }
}

#[test]
fn terminal_failure_is_ignored_until_the_instance_changes() {
    let pending = pending();
    let (bad, good) = (node("aws:///z/i-1", None), node("aws:///z/i-2", None));
    assert!(pending.apply(&Change { old: None, new: Some(&bad) }));
    pending.give_up(bad.meta.key(), "aws:///z/i-1".into());
    assert!(!pending.apply(&Change { old: Some(&bad), new: Some(&bad) }), "a heartbeat");
    assert!(pending.apply(&Change { old: Some(&bad), new: Some(&good) }));
}

#[test]
fn only_temporary_failures_are_retried() {
    for (kind, is_new_node, expected) in [
        (ErrorKind::NotFound, true, true),
        (ErrorKind::NotFound, false, false),
        (ErrorKind::Invalid, true, false),
        (ErrorKind::Transient, false, true),
        (ErrorKind::Throttled { after: None }, false, true),
        (ErrorKind::Denied, false, true),
    ] {
        let error = CloudError::new(kind, "CreateTags", "");
        assert_eq!(is_retried(&error, is_new_node), expected, "{kind:?} {is_new_node}");
    }
}
