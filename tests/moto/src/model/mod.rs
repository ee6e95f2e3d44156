//! Behaviour of AWS that moto lacks: idempotent creation, delays and limits. Each rule is in its own file, with its
//! reference.
//!
//! By default, names, interfaces, pages and some quotas are as in AWS. Tests switch on late visibility, other quotas,
//! slow or failed load balancers, and connected consumers of endpoint services.

mod endpoint_services;
mod interfaces;
mod lifecycle;
mod names;
mod pages;
mod quotas;
mod visibility;

use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Result;

use crate::aws::Aws;
use crate::call::Call;
use crate::fault::is_change;
use crate::xml::Element;

use interfaces::Interfaces;
use lifecycle::Lifecycle;
pub(crate) use names::Existing;
use pages::Pages;
pub use quotas::Quota;
use quotas::Quotas;
use visibility::Visibility;

/// A call that AWS refuses: its code and its message.
pub(crate) type Refusal = (&'static str, String);

/// A list in a response.
struct List {
    action: &'static str,
    /// Its path below the root element.
    path: &'static str,
    /// The element with the id of a member.
    id: &'static str,
}

const LISTS: [List; 10] = [
    List { action: "DescribeLoadBalancers", path: "DescribeLoadBalancersResult/LoadBalancers", id: "LoadBalancerArn" },
    List { action: "DescribeTargetGroups", path: "DescribeTargetGroupsResult/TargetGroups", id: "TargetGroupArn" },
    List { action: "DescribeListeners", path: "DescribeListenersResult/Listeners", id: "ListenerArn" },
    List { action: "DescribeTags", path: "DescribeTagsResult/TagDescriptions", id: "ResourceArn" },
    List { action: "DescribeSecurityGroups", path: "securityGroupInfo", id: "groupId" },
    List { action: "DescribeSecurityGroupRules", path: "securityGroupRuleSet", id: "securityGroupRuleId" },
    List { action: "DescribeNetworkInterfaces", path: "networkInterfaceSet", id: "networkInterfaceId" },
    List { action: "DescribeSubnets", path: "subnetSet", id: "subnetId" },
    List { action: "DescribeRouteTables", path: "routeTableSet", id: "routeTableId" },
    List { action: "DescribeInstances", path: "reservationSet", id: "reservationId" },
];

/// Returns the list in the responses of an action.
fn list_of(action: &str) -> Option<&'static List> {
    LISTS.iter().find(|list| list.action == action)
}

/// The rules of one account.
pub(crate) struct Model {
    aws: Aws,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    interfaces: Interfaces,
    lifecycle: Lifecycle,
    pages: Pages,
    quotas: Quotas,
    visibility: Visibility,
    /// Consumers are connected to endpoint services.
    consumers: bool,
}

impl Model {
    pub(crate) fn new(aws: Aws) -> Self {
        Self { aws, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delays the visibility of each resource that is created from now on. The first `reads` responses that should
    /// contain it omit it; as many later ones omit some or all of its tags. 0 ends all delays.
    pub(crate) fn delay_visibility(&self, reads: u64) {
        self.state().visibility.set(reads);
    }

    /// Omits a resource from the next `lists` that do not name it.
    pub(crate) fn omit_from_lists(&self, id: &str, lists: u64) {
        self.state().visibility.omit_from_lists(id, lists);
    }

    /// Hides a Classic Load Balancer from the next reads.
    pub(crate) fn hide_classic(&self, name: &str, reads: u64) {
        self.state().visibility.hide_classic(name, reads);
    }

    /// Keeps new load balancers in the state provisioning for this number of listings. With 0 all are active, except
    /// failed ones.
    pub(crate) fn delay_provisioning(&self, listings: u64) {
        self.state().lifecycle.delay_provisioning(listings);
    }

    /// Makes the setup of the next load balancers fail, this number of times.
    pub(crate) fn fail_setup(&self, count: u64) {
        self.state().lifecycle.failing = count;
    }

    /// Keeps the network interfaces of a deleted load balancer for this number of calls that read them.
    pub(crate) fn keep_interfaces(&self, calls: u64) {
        self.state().interfaces.calls_after_deletion = calls;
    }

    /// Sets whether consumers are connected to all endpoint services.
    pub(crate) fn connect_consumers(&self, connected: bool) {
        self.state().consumers = connected;
    }

    /// Sets a quota of the account.
    pub(crate) fn set_quota(&self, quota: Quota, limit: usize) {
        self.state().quotas.set(quota, limit);
    }

    /// Limits the members of a page.
    pub(crate) fn limit_pages(&self, members: usize) {
        self.state().pages.max = members;
    }

    /// Returns the error of AWS if a rule refuses the call.
    pub(crate) async fn refusal(&self, call: &Call) -> Result<Option<Refusal>> {
        match call.action() {
            "DeleteSecurityGroup" => self.group_in_use(call).await,
            "DeleteLoadBalancer" => {
                self.record_interfaces(call).await?;
                self.used_by_endpoint_service(call).await
            }
            _ => self.over_quota(call).await,
        }
    }

    /// Changes a call before it is sent to moto: hides resources that are not visible yet, and removes paging.
    pub(crate) fn prepare(&self, call: &mut Call) {
        let mut state = self.state();
        state.visibility.replace_hidden(call);
        state.pages.prepare(call);
    }

    /// Converts moto's response to the response of AWS.
    pub(crate) fn rewrite(&self, call: &Call, response: String) -> String {
        let action = call.action();
        let lists_classic = call.is_classic() && action == "DescribeLoadBalancers";
        let lists = list_of(action).is_some() && (lists_classic || !call.is_classic());
        let Some(mut root) = (lists || is_change(action)).then(|| Element::parse(&response).ok()).flatten() else {
            return response;
        };
        let mut state = self.state();
        if is_change(action) {
            state.visibility.created(&root);
            state.interfaces.record_deletion(call);
            return if state.lifecycle.created(action, &mut root) { root.write() } else { response };
        }
        if lists_classic {
            state.visibility.filter_classic(&mut root);
            return root.write();
        }
        state.visibility.filter(action, &mut root);
        state.visibility.remove_unlisted(call, &mut root);
        state.lifecycle.set_listed_states(action, &mut root);
        state.interfaces.add_to_list(call, &mut root);
        state.pages.select_page(call, &mut root);
        root.write()
    }
}
