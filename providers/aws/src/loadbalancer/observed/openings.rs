//! The ports that this process has opened in the security groups of a Service's targets.

use std::collections::{BTreeMap, BTreeSet};

use crate::loadbalancer::types::Ports;

/// Open ports, by source and by security group. A source is the group that load balancers share, by its id, or a load
/// balancer without security groups, by the name in its rules. Nothing is known about sources that are missing here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Openings(BTreeMap<String, BTreeMap<String, Ports>>);

impl Openings {
    /// Returns the openings of ports in groups to sources.
    pub(crate) fn of(sources: &[String], groups: &BTreeSet<String>, ports: &Ports) -> Self {
        let mut openings = Self::default();
        openings.add(sources, groups, ports);
        openings
    }

    /// Returns true if all of these ports are open in all of these groups, to each of these sources.
    pub(crate) fn covers(&self, sources: &[String], groups: &BTreeSet<String>, ports: &Ports) -> bool {
        let is_open = |open: &BTreeMap<String, Ports>| {
            groups.iter().all(|group| open.get(group).is_some_and(|open| ports.is_subset(open)))
        };
        groups.is_empty() || sources.iter().all(|source| self.0.get(source).is_some_and(is_open))
    }

    /// Adds ports that were opened in groups to sources.
    pub(crate) fn add(&mut self, sources: &[String], groups: &BTreeSet<String>, ports: &Ports) {
        for source in sources {
            let open = self.0.entry(source.clone()).or_default();
            for group in groups {
                open.entry(group.clone()).or_default().extend(ports);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn ports_are_open_only_in_their_groups_and_to_their_sources() {
        let mut openings = Openings::default();
        let (http, both): (Ports, Ports) = ([("tcp", 80)].into(), [("tcp", 80), ("udp", 53)].into());
        for (sources, groups, ports) in [
            (&["sg-shared"][..], &["sg-a", "sg-b"][..], &http),
            (&["sg-shared"], &["sg-b"], &both),
            (&["old"], &["sg-a"], &http),
        ] {
            openings.add(&names(sources), &names(groups).into_iter().collect(), ports);
        }
        for (sources, groups, ports, expected) in [
            (&["sg-shared"][..], &["sg-a", "sg-b"][..], &http, true),
            (&["sg-shared"], &["sg-b"], &both, true),
            (&["sg-shared"], &["sg-a", "sg-b"], &both, false),
            (&["sg-shared"], &["sg-c"], &http, false),
            (&["old"], &["sg-a"], &http, true),
            (&["old"], &["sg-b"], &http, false),
            (&["old", "sg-shared"], &["sg-a"], &http, true),
            (&["old", "new"], &["sg-a"], &http, false),
            (&["new"], &[], &http, true),
        ] {
            let groups: BTreeSet<String> = names(groups).into_iter().collect();
            assert_eq!(openings.covers(&names(sources), &groups, ports), expected, "{sources:?} {groups:?} {ports:?}");
        }
    }
}
