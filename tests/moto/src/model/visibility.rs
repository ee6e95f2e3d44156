//! Eventual consistency: a resource that was just created is missing from reads, and then has none of its tags, or only
//! some.
//!
//! Reference: Amazon EC2 API Reference, "Eventual consistency": the result of a command that changes resources might
//! not be immediately visible to all subsequent commands.

use std::collections::BTreeMap;

use crate::call::Call;
use crate::fault::is_change;
use crate::model::list_of;
use crate::xml::Element;

/// The elements with the ids of created resources in responses.
const CREATED: [(&str, &str); 4] = [
    ("CreateLoadBalancerResponse", "CreateLoadBalancerResult/LoadBalancers/member/LoadBalancerArn"),
    ("CreateTargetGroupResponse", "CreateTargetGroupResult/TargetGroups/member/TargetGroupArn"),
    ("CreateListenerResponse", "CreateListenerResult/Listeners/member/ListenerArn"),
    ("CreateSecurityGroupResponse", "groupId"),
];

/// The path of the Classic Load Balancers in a response.
const CLASSIC_LIST: &str = "DescribeLoadBalancersResult/LoadBalancerDescriptions";

/// The resources and tags that are not visible yet.
#[derive(Debug, Default)]
pub(super) struct Visibility {
    /// Number of reads that miss a created resource, and of further reads that miss some or all of its tags.
    delay: u64,
    hidden: BTreeMap<String, u64>,
    untagged: BTreeMap<String, u64>,
    /// Resources that are missing from this number of lists.
    unlisted: BTreeMap<String, u64>,
    /// Names of Classic Load Balancers that are missing from this number of reads.
    hidden_classic: BTreeMap<String, u64>,
}

impl Visibility {
    /// Sets the delay, in reads, of resources that are created later. With 0, delayed resources and tags become visible
    /// immediately, but not resources omitted from lists and hidden Classic Load Balancers.
    pub(super) fn set(&mut self, delay: u64) {
        self.delay = delay;
        if delay == 0 {
            self.hidden.clear();
            self.untagged.clear();
        }
    }

    /// Omits a resource from the next `lists` that do not name it.
    pub(super) fn omit_from_lists(&mut self, id: &str, lists: u64) {
        self.unlisted.insert(id.to_owned(), lists);
    }

    /// Removes the omitted members from the response to a call that does not name them.
    pub(super) fn remove_unlisted(&mut self, call: &Call, response: &mut Element) {
        let Some(list) = list_of(call.action()) else { return };
        let Some(members) = response.find_mut(list.path) else { return };
        members.children.retain(|member| match self.unlisted.get_mut(member.text(list.id)) {
            Some(remaining) if *remaining > 0 && !call.pairs.iter().any(|(_, value)| value == member.text(list.id)) => {
                *remaining -= 1;
                false
            }
            _ => true,
        });
    }

    /// Hides a Classic Load Balancer from the next reads.
    pub(super) fn hide_classic(&mut self, name: &str, reads: u64) {
        self.hidden_classic.insert(name.to_owned(), reads);
    }

    /// Removes hidden Classic Load Balancers from the response to a call that describes some or all.
    pub(super) fn filter_classic(&mut self, response: &mut Element) {
        let Some(members) = response.find_mut(CLASSIC_LIST) else { return };
        members.children.retain(|member| match self.hidden_classic.get_mut(member.text("LoadBalancerName")) {
            Some(remaining) if *remaining > 0 => {
                *remaining -= 1;
                false
            }
            _ => true,
        });
    }

    /// Records the resources that a response reports as created.
    pub(super) fn created(&mut self, response: &Element) {
        let Some((_, path)) = CREATED.iter().find(|(name, _)| *name == response.name) else { return };
        let id = response.text(path);
        if self.delay > 0 && !id.is_empty() && !self.untagged.contains_key(id) {
            self.hidden.insert(id.to_owned(), self.delay);
            self.untagged.insert(id.to_owned(), self.delay);
        }
    }

    /// Replaces hidden ids in a call by ids that do not exist: in each read, and in changes of EC2.
    pub(super) fn replace_hidden(&mut self, call: &mut Call) {
        if is_change(call.action()) && !call.is_ec2() {
            return;
        }
        for (_, value) in &mut call.pairs {
            if let Some(remaining) = self.hidden.get_mut(value.as_str()).filter(|remaining| **remaining > 0) {
                *remaining -= 1;
                value.push('0');
            }
        }
    }

    /// Removes hidden members, and tags that are not visible yet, from a list.
    pub(super) fn filter(&mut self, action: &str, response: &mut Element) {
        let Some(list) = list_of(action) else { return };
        let Some(members) = response.find_mut(list.path) else { return };
        members.children.retain(|member| match self.hidden.get_mut(member.text(list.id)) {
            Some(remaining) if *remaining > 0 => {
                *remaining -= 1;
                false
            }
            _ => true,
        });
        let tags = match action {
            "DescribeTags" => "Tags",
            "DescribeSecurityGroups" => "tagSet",
            _ => return,
        };
        for member in &mut members.children {
            let Some(remaining) = self.untagged.get_mut(member.text(list.id)).filter(|remaining| **remaining > 0)
            else {
                continue;
            };
            *remaining -= 1;
            let hides_all = *remaining > 0;
            if let Some(tags) = member.find_mut(tags) {
                tags.children.truncate(if hides_all { 0 } else { tags.children.len() / 2 });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(xml: &str) -> Element {
        Element::parse(xml).unwrap()
    }

    fn delayed(reads: u64) -> Visibility {
        let mut visibility = Visibility { delay: reads, ..Visibility::default() };
        let result = "<member><TargetGroupArn>arn:1</TargetGroupArn></member>";
        let result =
            format!("<CreateTargetGroupResult><TargetGroups>{result}</TargetGroups></CreateTargetGroupResult>");
        visibility.created(&parse(&format!("<CreateTargetGroupResponse>{result}</CreateTargetGroupResponse>")));
        visibility
    }

    #[test]
    fn resource_is_left_out_of_lists_that_do_not_name_it() {
        let mut visibility = Visibility::default();
        visibility.omit_from_lists("sg-1", 1);
        let mut is_listed = |parameters: &[(&str, &str)]| {
            let mut response =
                parse("<r><securityGroupInfo><item><groupId>sg-1</groupId></item></securityGroupInfo></r>");
            visibility.remove_unlisted(&Call::of("DescribeSecurityGroups", parameters), &mut response);
            !response.texts("securityGroupInfo/item/groupId").is_empty()
        };
        assert!(is_listed(&[("GroupId.1", "sg-1")]), "the call names it");
        assert_eq!([is_listed(&[]), is_listed(&[])], [false, true]);
    }

    #[test]
    fn classic_load_balancer_is_missing_from_reads_for_a_while() {
        let mut visibility = Visibility::default();
        visibility.hide_classic("a1", 1);
        let members = ["a1", "a2"].map(|name| format!("<member><LoadBalancerName>{name}</LoadBalancerName></member>"));
        let list = format!("<LoadBalancerDescriptions>{}</LoadBalancerDescriptions>", members.concat());
        let mut listed = || {
            let mut response =
                parse(&format!("<r><DescribeLoadBalancersResult>{list}</DescribeLoadBalancersResult></r>"));
            visibility.filter_classic(&mut response);
            response.texts(&format!("{CLASSIC_LIST}/member/LoadBalancerName")).join(",")
        };
        assert_eq!([listed(), listed()], ["a2", "a1,a2"]);
    }

    #[test]
    fn created_target_group_is_missing_from_reads_for_a_while() {
        let mut visibility = delayed(2);
        let member = |arn: &str| format!("<member><TargetGroupArn>{arn}</TargetGroupArn></member>");
        let members = member("arn:0") + &member("arn:1");
        let list =
            format!("<DescribeTargetGroupsResult><TargetGroups>{members}</TargetGroups></DescribeTargetGroupsResult>");
        let mut listed = || {
            let mut response = parse(&format!("<r>{list}</r>"));
            visibility.filter("DescribeTargetGroups", &mut response);
            response.all("DescribeTargetGroupsResult/TargetGroups/member").len()
        };
        assert_eq!([listed(), listed(), listed()], [1, 1, 2]);
    }

    #[test]
    fn hidden_resource_cannot_be_named() {
        let mut visibility = delayed(1);
        let mut named = || {
            let mut call = Call::of("DescribeTargetHealth", &[("TargetGroupArn", "arn:1")]);
            visibility.replace_hidden(&mut call);
            call.value("TargetGroupArn").to_owned()
        };
        assert_eq!([named(), named()], ["arn:10", "arn:1"]);
    }

    #[test]
    fn tags_become_visible_one_after_the_other() {
        let mut visibility = delayed(2);
        let tags = "<member><Key>a</Key></member><member><Key>b</Key></member>";
        let one = format!("<member><ResourceArn>arn:1</ResourceArn><Tags>{tags}</Tags></member>");
        let list = format!("<DescribeTagsResult><TagDescriptions>{one}</TagDescriptions></DescribeTagsResult>");
        visibility.hidden.clear();
        let mut tags = || {
            let mut response = parse(&format!("<r>{list}</r>"));
            visibility.filter("DescribeTags", &mut response);
            response.all("DescribeTagsResult/TagDescriptions/member/Tags/member").len()
        };
        assert_eq!([tags(), tags(), tags()], [0, 1, 2]);
    }
}
