//! Changes of the subnets of an existing load balancer: the order of the calls, and the change that AWS cannot make.
//!
//! AWS refuses a call that gives a zone another subnet while the load balancer is in that zone. A load balancer
//! therefore leaves the zone first. Reference: Elastic Load Balancing, Network Load Balancers, "Update the Availability
//! Zones" (subnet changes within a zone are separate actions).

use std::collections::BTreeSet;

use crate::loadbalancer::spec::annotation_reader::PREFIX;
use crate::loadbalancer::types::Mapping;

/// Returns the ids of subnets.
pub(crate) fn ids(mappings: &[Mapping]) -> BTreeSet<&str> {
    mappings.iter().map(|one| one.subnet.as_str()).collect()
}

/// Returns the sets of subnets that lead to the wanted ones, one for each call. While the subnet of a zone is replaced,
/// the load balancer has a subnet in another zone.
///
/// Returns no sets if the subnets are the wanted ones, or if AWS [cannot replace](warning) them.
pub(crate) fn steps(current: &[Mapping], wanted: &[Mapping]) -> Vec<Vec<Mapping>> {
    let mut steps: Vec<Vec<Mapping>> = Vec::new();
    for step in sets(current, wanted) {
        let before = steps.last().map_or(current, Vec::as_slice);
        if ids(before) != ids(&step) {
            steps.push(step);
        }
    }
    steps
}

/// Returns the warning about the only subnet of a load balancer, which AWS cannot replace by another one of its zone.
pub(crate) fn warning(current: &[Mapping], wanted: &[Mapping]) -> Option<String> {
    if ids(current) == ids(wanted) || !steps(current, wanted).is_empty() {
        return None;
    }
    let names = |mappings: &[Mapping]| ids(mappings).into_iter().collect::<Vec<_>>().join(", ");
    Some(format!(
        "the load balancer stays in {}: AWS cannot replace its only subnet with {} of the same zone; name a subnet of \
         another zone, too, in annotation {PREFIX}subnets, until the load balancer has both",
        names(current),
        names(wanted)
    ))
}

/// Returns the sets of subnets, which may begin with the current ones. Two sets replace the subnet of a zone: the first
/// has no subnet in the zone, and the second has the new one.
fn sets(current: &[Mapping], wanted: &[Mapping]) -> Vec<Vec<Mapping>> {
    let in_zone = |mappings: &[Mapping], zone: &str| mappings.iter().any(|one| one.zone == zone);
    let kept = |one: &Mapping| current.iter().any(|old| old.subnet == one.subnet);
    let (exchanged, others): (Vec<Mapping>, Vec<Mapping>) =
        wanted.iter().cloned().partition(|one| in_zone(current, &one.zone) && !kept(one));
    let Some((first, rest)) = exchanged.split_first() else { return vec![wanted.to_vec()] };
    if others.iter().any(kept) {
        return vec![others, wanted.to_vec()];
    }
    // A zone that is to be removed serves until the other zones have their subnets.
    let leaving: Vec<Mapping> = current.iter().filter(|old| !in_zone(wanted, &old.zone)).cloned().collect();
    if !leaving.is_empty() {
        return vec![[&leaving[..], &others].concat(), [&leaving[..], wanted].concat(), wanted.to_vec()];
    }
    // Otherwise one zone keeps its old subnet until the others have theirs.
    let new = [rest, &others].concat();
    if new.is_empty() {
        return Vec::new();
    }
    let old: Vec<Mapping> = current.iter().filter(|old| old.zone == first.zone).cloned().collect();
    vec![[&old[..], &others].concat(), [&old[..], &new].concat(), new, wanted.to_vec()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the subnets with these names; the first letter of a name is the zone.
    fn mappings(names: &str) -> Vec<Mapping> {
        let mapping = |name: &str| Mapping { subnet: name.into(), zone: name[..1].into(), ..Mapping::default() };
        names.split_whitespace().map(mapping).collect()
    }

    #[test]
    fn subnets_are_changed_in_the_steps_that_aws_allows() {
        for (current, wanted, expected) in [
            ("a1 b1", "a1 b1", &[][..]),
            ("a1 b1", "b1 a1", &[]),
            ("a1", "a1 b1", &["a1 b1"]),
            ("a1 b1", "a1", &["a1"]),
            ("a1", "b1", &["b1"]),
            // Some zone keeps its subnet.
            ("a1 b1", "a2 b1", &["b1", "a2 b1"]),
            ("a1 b1 c1", "a2 b2 c1", &["c1", "a2 b2 c1"]),
            // The load balancer leaves a zone.
            ("a1 b1", "a2", &["b1", "a2 b1", "a2"]),
            ("a1 b1 c1", "a2", &["b1 c1", "a2 b1 c1", "a2"]),
            ("a1 b1 c1", "a2 b2", &["c1", "a2 b2 c1", "a2 b2"]),
            ("a1 b1", "a2 c1", &["b1 c1", "a2 b1 c1", "a2 c1"]),
            // All zones change their subnets.
            ("a1 b1", "a2 b2", &["a1", "a1 b2", "b2", "a2 b2"]),
            ("a1", "a2 b1", &["a1 b1", "b1", "a2 b1"]),
            ("a1 b1", "a2 b2 c1", &["a1 c1", "a1 b2 c1", "b2 c1", "a2 b2 c1"]),
            ("a1", "a2", &[]),
        ] {
            let (current, wanted) = (mappings(current), mappings(wanted));
            let steps = steps(&current, &wanted);
            let names = |step: &Vec<Mapping>| ids(step).into_iter().collect::<Vec<_>>().join(" ");
            assert_eq!(steps.iter().map(names).collect::<Vec<_>>(), expected, "{current:?} to {wanted:?}");
        }
    }

    /// Returns all choices of at most one of two subnets in each of three zones.
    fn all_choices() -> Vec<Vec<Mapping>> {
        let zones = ["a", "b", "c"].map(|zone| [String::new(), format!("{zone}1"), format!("{zone}2")]);
        let choice = |number: usize| {
            let digits = [number % 3, number / 3 % 3, number / 9];
            let names: Vec<&str> = digits.iter().zip(&zones).map(|(digit, zone)| zone[*digit].as_str()).collect();
            mappings(&names.join(" "))
        };
        (1..27).map(choice).collect()
    }

    #[test]
    fn each_difference_of_subnets_leads_to_steps_or_to_a_warning() {
        let choices = all_choices();
        for (current, wanted) in choices.iter().flat_map(|one| choices.iter().map(move |other| (one, other))) {
            let steps = steps(current, wanted);
            let differs = ids(current) != ids(wanted);
            assert_eq!(warning(current, wanted).is_some(), differs && steps.is_empty(), "{current:?} to {wanted:?}");
            let mut before = current;
            for step in &steps {
                assert!(!step.is_empty(), "{current:?} to {wanted:?} leaves all zones");
                let replaced =
                    |one: &Mapping| before.iter().any(|old| old.zone == one.zone && old.subnet != one.subnet);
                assert!(!step.iter().any(replaced), "{before:?} to {step:?} replaces the subnet of a zone");
                assert_eq!(ids(step).len(), step.len(), "{step:?} has a subnet twice");
                before = step;
            }
            assert!(steps.is_empty() || ids(before) == ids(wanted), "{steps:?} does not end with {wanted:?}");
            // After each step, another process can still reach the wanted subnets.
            for step in &steps {
                assert_eq!(warning(step, wanted), None, "{step:?} to {wanted:?}");
            }
        }
    }

    #[test]
    fn warning_names_both_subnets_and_the_annotation() {
        let warning = warning(&mappings("a1"), &mappings("a2")).unwrap();
        assert!(warning.contains("stays in a1") && warning.contains("with a2"), "{warning}");
        assert!(warning.contains("service.beta.kubernetes.io/aws-load-balancer-subnets"), "{warning}");
    }
}
