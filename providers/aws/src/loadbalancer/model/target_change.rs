//! Changes of the targets of one target group, in which other clusters may register targets, too.
//!
//! In such a group, a cluster may deregister only its own targets. Their list is kept in the cluster, in a record: AWS
//! does not store the client that registered a target.

use std::collections::BTreeSet;

use crate::loadbalancer::types::Target;

/// The changes of a target group, in this order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TargetChanges {
    /// The record to write before any registration; `None`: it need not change.
    pub record_before: Option<BTreeSet<Target>>,
    pub register: BTreeSet<Target>,
    pub deregister: BTreeSet<Target>,
    /// The record to write after all changes; `None`: it need not change.
    pub record_after: Option<BTreeSet<Target>>,
}

/// The clusters that register targets in a group.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Sharing<'a> {
    /// Only this cluster: all targets are its own.
    Exclusive,
    /// Several clusters. The targets of this cluster are those on its record; without a record they are unknown.
    Shared(Option<&'a BTreeSet<Target>>),
}

impl<'a> Sharing<'a> {
    /// Returns the sharing of a group. `record` is ignored if the group is not shared.
    pub(crate) fn of(is_shared: bool, record: Option<&'a BTreeSet<Target>>) -> Self {
        if is_shared { Self::Shared(record) } else { Self::Exclusive }
    }
}

/// Returns the changes from the `registered` targets of a group to the wanted ones, of which at most `limit` are
/// registered. If `incomplete`, some wanted targets may be missing in the list: none is deregistered.
pub(crate) fn plan_changes(
    wanted: &BTreeSet<Target>,
    registered: &BTreeSet<Target>,
    sharing: Sharing<'_>,
    limit: Option<usize>,
    incomplete: bool,
) -> TargetChanges {
    let none = BTreeSet::new();
    let own = match sharing {
        Sharing::Exclusive => registered,
        Sharing::Shared(record) => record.unwrap_or(&none),
    };
    let kept: BTreeSet<Target> = own.intersection(registered).filter(|_| incomplete).cloned().collect();
    let wanted = &(wanted | &kept);
    let stays = registered.iter().filter(|target| wanted.contains(target) || !own.contains(target)).count();
    // Registered targets stay, so that new targets do not displace them.
    let room = limit.map_or(usize::MAX, |limit| limit.saturating_sub(stays));
    let wanted: BTreeSet<Target> =
        wanted.intersection(registered).chain(wanted.difference(registered).take(room)).cloned().collect();
    match sharing {
        Sharing::Shared(record) => shared_changes(&wanted, registered, record),
        Sharing::Exclusive => TargetChanges {
            register: wanted.difference(registered).cloned().collect(),
            deregister: registered.difference(&wanted).cloned().collect(),
            ..TargetChanges::default()
        },
    }
}

/// Compares the wanted targets with those registered by any cluster and those on record. Without a record nothing is
/// deregistered, because the owner of a target is unknown.
fn shared_changes(
    wanted: &BTreeSet<Target>,
    registered: &BTreeSet<Target>,
    record: Option<&BTreeSet<Target>>,
) -> TargetChanges {
    let none = BTreeSet::new();
    let own: BTreeSet<Target> = record.unwrap_or(&none).intersection(registered).cloned().collect();
    let register: BTreeSet<Target> = wanted.difference(registered).cloned().collect();
    let deregister: BTreeSet<Target> = own.difference(wanted).cloned().collect();
    let all: BTreeSet<Target> = wanted.union(&own).cloned().collect();
    let record_before = (record.is_none() || !register.is_empty()).then_some(all).filter(|all| Some(all) != record);
    let recorded = record_before.as_ref().or(record);
    let record_after = (recorded != Some(wanted)).then(|| wanted.clone());
    TargetChanges { record_before, register, deregister, record_after }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &str) -> BTreeSet<Target> {
        names.chars().map(|name| Target { id: name.into(), port: 80 }).collect()
    }

    fn sharing(record: Option<&BTreeSet<Target>>) -> Sharing<'_> {
        Sharing::of(record.is_some(), record)
    }

    #[test]
    fn nothing_is_deregistered_while_targets_may_be_missing() {
        for shared in [None, Some(set("ab"))] {
            let found = plan_changes(&set("c"), &set("abx"), sharing(shared.as_ref()), None, true);
            assert_eq!((found.register, found.deregister), (set("c"), set("")), "{shared:?}");
            if shared.is_some() {
                assert_eq!(
                    (found.record_before, found.record_after),
                    (Some(set("abc")), None),
                    "the record lacks a target"
                );
            }
        }
    }

    #[test]
    fn only_targets_on_record_are_deregistered() {
        // Wanted, registered, on record; the changes: record before, registrations, deregistrations, record after.
        for (wanted, registered, recorded, expected) in [
            ("ab", "", None, (Some("ab"), "ab", "", None)),
            ("ab", "xy", None, (Some("ab"), "ab", "", None)),
            ("ab", "abx", Some("ab"), (None, "", "", None)),
            ("b", "abx", Some("ab"), (None, "", "a", Some("b"))),
            ("bc", "abx", Some("ab"), (Some("abc"), "c", "a", Some("bc"))),
            ("b", "ab", None, (Some("b"), "", "", None)),
            // The process crashed after it wrote the record, before it registered the target.
            ("ab", "ax", Some("ab"), (None, "b", "", None)),
            // The process crashed after it deregistered the target, before it wrote the record.
            ("b", "bx", Some("ab"), (None, "", "", Some("b"))),
            // No target is wanted.
            ("", "abx", Some("ab"), (None, "", "ab", Some(""))),
        ] {
            let found = shared_changes(&set(wanted), &set(registered), recorded.map(set).as_ref());
            let (before, register, deregister, after) = expected;
            let expected = TargetChanges {
                record_before: before.map(set),
                register: set(register),
                deregister: set(deregister),
                record_after: after.map(set),
            };
            assert_eq!(found, expected, "{wanted:?} of {registered:?}, {recorded:?}");
        }
    }

    #[test]
    fn target_group_is_filled_up_to_its_limit() {
        for (wanted, registered, own, limit, register, deregister) in [
            ("abc", "", None, None, "abc", ""),
            ("abc", "", None, Some(2), "ab", ""),
            ("abc", "c", None, Some(2), "a", ""),
            ("abc", "abc", None, Some(2), "", ""),
            ("bc", "ab", None, Some(2), "c", "a"),
            ("abc", "xy", Some(""), Some(3), "a", ""),
            ("bc", "axy", Some("a"), Some(3), "b", "a"),
        ] {
            let own = own.map(set);
            let found = plan_changes(&set(wanted), &set(registered), sharing(own.as_ref()), limit, false);
            let expected = (set(register), set(deregister));
            assert_eq!((found.register, found.deregister), expected, "{wanted} of {registered}, at most {limit:?}");
        }
    }
}
