//! Changes of the targets of one group, which other clusters may register in too.

use std::collections::BTreeSet;

use crate::loadbalancer::types::Target;

/// The changes of a target group, in this order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    /// The record before any registration.
    pub before: Option<BTreeSet<Target>>,
    pub add: BTreeSet<Target>,
    pub gone: BTreeSet<Target>,
    /// The record after all changes.
    pub after: Option<BTreeSet<Target>>,
}

/// Returns the changes from a target group's targets to the wanted ones, with `most` as the maximum. With `shared`
/// other clusters register in it too, and it contains this cluster's record. With `incomplete` other targets may be
/// wanted, so nothing is deregistered.
pub(crate) fn plan_changes(
    wanted: &BTreeSet<Target>,
    live: &BTreeSet<Target>,
    shared: Option<Option<&BTreeSet<Target>>>,
    most: Option<usize>,
    incomplete: bool,
) -> Change {
    let none = BTreeSet::new();
    let own = shared.map_or(live, |recorded| recorded.unwrap_or(&none));
    let kept: BTreeSet<Target> = own.intersection(live).filter(|_| incomplete).cloned().collect();
    let wanted = &(wanted | &kept);
    let stays = live.iter().filter(|target| wanted.contains(target) || !own.contains(target)).count();
    // Registered targets stay, so that new targets do not displace them.
    let room = most.map_or(usize::MAX, |most| most.saturating_sub(stays));
    let wanted: BTreeSet<Target> =
        wanted.intersection(live).chain(wanted.difference(live).take(room)).cloned().collect();
    match shared {
        Some(recorded) => change(&wanted, live, recorded),
        None => Change {
            add: wanted.difference(live).cloned().collect(),
            gone: live.difference(&wanted).cloned().collect(),
            ..Change::default()
        },
    }
}

/// Compares the wanted targets with those registered by any cluster and those on record. Without a record nothing is
/// deregistered, because the owner of a target is unknown.
fn change(wanted: &BTreeSet<Target>, live: &BTreeSet<Target>, recorded: Option<&BTreeSet<Target>>) -> Change {
    let none = BTreeSet::new();
    let own: BTreeSet<Target> = recorded.unwrap_or(&none).intersection(live).cloned().collect();
    let add: BTreeSet<Target> = wanted.difference(live).cloned().collect();
    let gone: BTreeSet<Target> = own.difference(wanted).cloned().collect();
    let all: BTreeSet<Target> = wanted.union(&own).cloned().collect();
    let before = (recorded.is_none() || !add.is_empty()).then_some(all).filter(|all| Some(all) != recorded);
    let then = before.as_ref().or(recorded);
    let after = (then != Some(wanted)).then(|| wanted.clone());
    Change { before, add, gone, after }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &str) -> BTreeSet<Target> {
        names.chars().map(|name| Target { id: name.into(), port: 80 }).collect()
    }

    #[test]
    fn nothing_is_deregistered_while_targets_may_be_missing() {
        for shared in [None, Some(set("ab"))] {
            let found = plan_changes(&set("c"), &set("abx"), shared.as_ref().map(Some), None, true);
            assert_eq!((found.add, found.gone), (set("c"), set("")), "{shared:?}");
            if shared.is_some() {
                assert_eq!((found.before, found.after), (Some(set("abc")), None), "the record lacks a target");
            }
        }
    }

    #[test]
    fn only_targets_on_record_are_deregistered() {
        // Wanted, registered, on record; on record before, registered, deregistered, on record after.
        for (wanted, live, recorded, expected) in [
            ("ab", "", None, (Some("ab"), "ab", "", None)),
            ("ab", "xy", None, (Some("ab"), "ab", "", None)),
            ("ab", "abx", Some("ab"), (None, "", "", None)),
            ("b", "abx", Some("ab"), (None, "", "a", Some("b"))),
            ("bc", "abx", Some("ab"), (Some("abc"), "c", "a", Some("bc"))),
            ("b", "ab", None, (Some("b"), "", "", None)),
            // Crashed before it registered, and before it deregistered.
            ("ab", "ax", Some("ab"), (None, "b", "", None)),
            ("b", "bx", Some("ab"), (None, "", "", Some("b"))),
            ("", "abx", Some("ab"), (None, "", "ab", Some(""))),
        ] {
            let found = change(&set(wanted), &set(live), recorded.map(set).as_ref());
            let (before, add, gone, after) = expected;
            let expected = Change { before: before.map(set), add: set(add), gone: set(gone), after: after.map(set) };
            assert_eq!(found, expected, "{wanted:?} of {live:?}, {recorded:?}");
        }
    }

    #[test]
    fn target_group_is_filled_up_to_its_limit() {
        for (wanted, live, own, most, add, gone) in [
            ("abc", "", None, None, "abc", ""),
            ("abc", "", None, Some(2), "ab", ""),
            ("abc", "c", None, Some(2), "a", ""),
            ("abc", "abc", None, Some(2), "", ""),
            ("bc", "ab", None, Some(2), "c", "a"),
            ("abc", "xy", Some(""), Some(3), "a", ""),
            ("bc", "axy", Some("a"), Some(3), "b", "a"),
        ] {
            let own = own.map(set);
            let found = plan_changes(&set(wanted), &set(live), own.as_ref().map(Some), most, false);
            assert_eq!((found.add, found.gone), (set(add), set(gone)), "{wanted} of {live}, at most {most:?}");
        }
    }
}
