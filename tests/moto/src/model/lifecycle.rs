//! The states of load balancers: provisioning takes minutes, and the setup can fail.
//!
//! Reference: Elastic Load Balancing API Reference, LoadBalancerState: `provisioning`, `active`, `active_impaired`,
//! `failed`. In moto each load balancer is active.

use std::collections::BTreeMap;

use crate::model::list_of;
use crate::xml::Element;

/// The state of a load balancer that is not active.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// For this number of further listings.
    Provisioning(u64),
    Failed,
}

/// The load balancers that are not active.
#[derive(Debug, Default)]
pub(super) struct Lifecycle {
    /// Number of listings in which a new load balancer is being provisioned.
    provisioning: u64,
    /// Number of further load balancers whose setup fails.
    pub failing: u64,
    states: BTreeMap<String, State>,
}

impl Lifecycle {
    /// Sets the number of listings in which a new load balancer is being provisioned.
    pub(super) fn delay_provisioning(&mut self, listings: u64) {
        self.provisioning = listings;
        if listings == 0 {
            self.states.retain(|_, state| *state == State::Failed);
        }
    }

    /// Records a created load balancer, and sets its state. Returns true if the response changed.
    pub(super) fn created(&mut self, action: &str, response: &mut Element) -> bool {
        let Some(one) = response.find_mut("CreateLoadBalancerResult/LoadBalancers/member") else { return false };
        if action != "CreateLoadBalancer" {
            return false;
        }
        let arn = one.text("LoadBalancerArn").to_owned();
        if self.failing > 0 && !self.states.contains_key(&arn) {
            self.failing -= 1;
            self.states.insert(arn, State::Failed);
        } else if self.provisioning > 0 {
            self.states.entry(arn).or_insert(State::Provisioning(self.provisioning));
        }
        set(one, "provisioning");
        true
    }

    /// Sets the states of listed load balancers.
    pub(super) fn set_listed_states(&mut self, action: &str, response: &mut Element) {
        let Some(list) = list_of(action).filter(|_| action == "DescribeLoadBalancers") else { return };
        for member in response.find_mut(list.path).into_iter().flat_map(|members| &mut members.children) {
            match self.states.get_mut(member.text(list.id)) {
                Some(State::Failed) => set(member, "failed"),
                Some(State::Provisioning(remaining)) if *remaining > 0 => {
                    *remaining -= 1;
                    set(member, "provisioning");
                }
                _ => {}
            }
        }
    }
}

fn set(balancer: &mut Element, state: &str) {
    if let Some(code) = balancer.find_mut("State/Code") {
        state.clone_into(&mut code.text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(action: &str) -> Element {
        let one = "<member><LoadBalancerArn>arn:1</LoadBalancerArn><State><Code>active</Code></State></member>";
        let text = format!("<r><{action}Result><LoadBalancers>{one}</LoadBalancers></{action}Result></r>");
        Element::parse(&text).unwrap()
    }

    fn listed(lifecycle: &mut Lifecycle) -> String {
        let mut response = response("DescribeLoadBalancers");
        lifecycle.set_listed_states("DescribeLoadBalancers", &mut response);
        response.text("DescribeLoadBalancersResult/LoadBalancers/member/State/Code").to_owned()
    }

    #[test]
    fn load_balancer_is_provisioned_before_it_is_active() {
        let mut lifecycle = Lifecycle { provisioning: 2, ..Lifecycle::default() };
        assert!(lifecycle.created("CreateLoadBalancer", &mut response("CreateLoadBalancer")));
        let states = [(); 3].map(|()| listed(&mut lifecycle));
        assert_eq!(states, ["provisioning", "provisioning", "active"]);
    }

    #[test]
    fn failed_load_balancer_stays_failed() {
        let mut lifecycle = Lifecycle { failing: 1, ..Lifecycle::default() };
        assert!(lifecycle.created("CreateLoadBalancer", &mut response("CreateLoadBalancer")));
        assert_eq!([(); 2].map(|()| listed(&mut lifecycle)), ["failed", "failed"]);
        assert_eq!(lifecycle.failing, 0);
    }
}
