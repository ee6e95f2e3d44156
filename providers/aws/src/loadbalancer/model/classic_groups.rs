//! The security groups of a Classic Load Balancer: the one to which nodes are opened, and the rules that open them.

use crate::loadbalancer::model::node_rules;
use crate::loadbalancer::types::{ClassicGroups, ObservedRule, Rule, Source};

/// Returns the security group to which nodes are opened, of those that the load balancer has: the first one in the order
/// of cloud-provider-aws, which does not depend on the order in responses of AWS.
///
/// Upstream: sortELBSecurityGroupList. Differs from upstream: the cluster's tag only decides between groups that
/// annotations do not order. Upstream's order is not defined if tags and annotations contradict each other.
pub(crate) fn source<'a>(
    groups: &'a [String],
    named: &ClassicGroups,
    is_tagged: impl Fn(&str) -> bool,
) -> Option<&'a String> {
    let place = |group: &String| {
        let others = named.instead.len();
        let first = named.instead.iter().position(|one| one == group);
        let last = || named.extra.iter().position(|one| one == group).map(|place| others + 1 + place);
        first.or_else(last).unwrap_or(others)
    };
    groups.iter().min_by_key(|group| (place(group), !is_tagged(group)))
}

/// Returns the ids of the rules in a node's security group that were added here for load balancers with the group
/// `source`; also of those that cloud-provider-aws added, if it chose this group (`is_chosen`).
pub(crate) fn added(rules: &[ObservedRule], source: &str, is_chosen: bool) -> Vec<String> {
    let source = Source::Group(source.to_owned());
    let of_source = rules.iter().filter(|one| one.rule.source == source);
    let added =
        of_source.filter(|one| node_rules::is_own(&one.rule) || (is_chosen && may_be_of_cloud_provider(&one.rule)));
    added.map(|one| one.id.clone()).collect()
}

/// Returns true if cloud-provider-aws adds rules like this one: for all traffic, without a description.
fn may_be_of_cloud_provider(rule: &Rule) -> bool {
    rule.protocol == "-1" && rule.description.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(groups: &[&str]) -> Vec<String> {
        groups.iter().map(|group| (*group).to_owned()).collect()
    }

    #[test]
    fn source_does_not_depend_on_the_order_of_aws() {
        for (instead, extra, tagged, expected) in [
            (&["a", "b"][..], &[][..], &[][..], "a"),
            (&["b", "a"], &[], &[], "b"),
            (&["b", "a"], &[], &["a"], "b"),
            // The group that cloud-provider-aws made is not named.
            (&[], &["a"], &[], "b"),
            (&[], &["b"], &[], "a"),
            (&[], &["a", "b"], &[], "a"),
            (&["b"], &["a"], &["a"], "b"),
            // The annotations were removed.
            (&[], &[], &["b"], "b"),
            (&[], &[], &["a"], "a"),
        ] {
            let named = ClassicGroups { instead: list(instead), extra: list(extra) };
            for groups in [list(&["a", "b"]), list(&["b", "a"])] {
                let found = source(&groups, &named, |group| tagged.contains(&group));
                assert_eq!(found.map(String::as_str), Some(expected), "{groups:?}: {named:?}, tagged: {tagged:?}");
            }
        }
        assert_eq!(source(&[], &ClassicGroups::default(), |_| true), None);
    }

    #[test]
    fn rules_of_users_are_not_among_added_ones() {
        let rule = |id: &str, protocol: &str, source: &str, description: &str| ObservedRule {
            id: id.into(),
            rule: Rule {
                protocol: protocol.into(),
                from: -1,
                to: -1,
                source: Source::Group(source.into()),
                description: description.into(),
            },
        };
        let rules = [
            rule("own", "tcp", "a", "kubernetes.io/rule/nlb/backend"),
            rule("upstream", "-1", "a", ""),
            rule("port", "tcp", "a", ""),
            rule("described", "-1", "a", "by hand"),
            rule("other", "-1", "b", ""),
        ];
        assert_eq!(added(&rules, "a", true), ["own", "upstream"]);
        assert_eq!(added(&rules, "a", false), ["own"]);
    }
}
