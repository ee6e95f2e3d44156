//! Pages of lists: AWS returns a limited number of members and a marker. moto returns everything.
//!
//! Reference: Elastic Load Balancing API Reference, DescribeLoadBalancers (`PageSize`, 1 to 400); Amazon EC2 API
//! Reference, "Pagination" (`MaxResults`, 5 to 1000).

use crate::call::Call;
use crate::model::list_of;
use crate::xml::Element;

/// Maximum number of members on a page of ELB.
const MAX_ELB_PAGE: usize = 400;
/// Maximum number of members on a page of EC2.
const MAX_EC2_PAGE: usize = 1000;
/// A read of resources that the call names; its response has no pages.
const UNPAGED: &str = "DescribeTags";
/// Parameters of paging.
const PARAMETERS: [&str; 4] = ["PageSize", "Marker", "MaxResults", "NextToken"];

/// The size of pages.
#[derive(Debug)]
pub(super) struct Pages {
    /// Maximum number of members on a page, at most that of AWS.
    pub max: usize,
}

impl Default for Pages {
    fn default() -> Self {
        Self { max: usize::MAX }
    }
}

impl Pages {
    /// Removes paging from a call, so that moto returns everything.
    pub(super) fn prepare(&self, call: &mut Call) {
        if list_of(call.action()).is_some_and(|list| list.action != UNPAGED) && !call.is_classic() {
            call.pairs.retain(|(name, _)| !PARAMETERS.contains(&name.as_str()));
            if call.action() == "DescribeLoadBalancers" {
                call.pairs.push(("PageSize".into(), "100000".into()));
            }
        }
    }

    /// Cuts the requested page out of a list of everything.
    pub(super) fn select_page(&self, requested: &Call, response: &mut Element) {
        let Some(list) = list_of(requested.action()).filter(|list| list.action != UNPAGED) else { return };
        // Without MaxResults EC2 returns everything.
        let (size, marker, next, parent) = match (requested.is_ec2(), requested.value("MaxResults").parse::<usize>()) {
            (true, Err(_)) => return,
            (true, Ok(size)) => (size.min(MAX_EC2_PAGE), "NextToken", "nextToken", ""),
            (false, _) => {
                let parent = list.path.split('/').next().unwrap_or_default();
                (
                    requested.value("PageSize").parse().unwrap_or(MAX_ELB_PAGE).min(MAX_ELB_PAGE),
                    "Marker",
                    "NextMarker",
                    parent,
                )
            }
        };
        let (size, last_read) = (size.min(self.max), requested.value(marker));
        let Some(members) = response.find_mut(list.path) else { return };
        let position = members.children.iter().position(|member| member.text(list.id) == last_read);
        let first = position.map_or(0, |position| position + 1);
        members.children.drain(..first);
        let more = members.children.len() > size;
        members.children.truncate(size);
        let last = members.children.last().map(|member| member.text(list.id).to_owned()).unwrap_or_default();
        let parent = if parent.is_empty() { Some(response) } else { response.find_mut(parent) };
        if let Some(parent) = parent {
            parent.children.retain(|child| child.name != next);
            if more {
                parent.children.push(Element::leaf(next, &last));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_hold_every_member_once() {
        let pages = Pages { max: 2 };
        let members: String = (1..=5).map(|id| format!("<item><groupId>sg-{id}</groupId></item>")).collect();
        let (mut all, mut token, mut count) = (Vec::new(), String::new(), 0);
        loop {
            let mut response =
                Element::parse(&format!("<r><securityGroupInfo>{members}</securityGroupInfo></r>")).unwrap();
            let requested = [("Version", "2016-11-15"), ("MaxResults", "1000"), ("NextToken", &*token)];
            let mut call = Call::of("DescribeSecurityGroups", &requested);
            pages.select_page(&call, &mut response);
            pages.prepare(&mut call);
            assert_eq!(call.value("NextToken"), "", "moto returns everything");
            all.extend(response.texts("securityGroupInfo/item/groupId").into_iter().map(str::to_owned));
            token = response.text("nextToken").to_owned();
            count += 1;
            if token.is_empty() {
                break;
            }
        }
        assert_eq!((all.join(","), count), ("sg-1,sg-2,sg-3,sg-4,sg-5".to_owned(), 3));
    }
}
