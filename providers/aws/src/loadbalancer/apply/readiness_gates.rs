//! Readiness gates: conditions of pods, which count as ready only once ELB reports their addresses as healthy.
//!
//! The name of a gate contains the name of a target group if the Load Balancer Controller's webhook has written it into
//! the pod. Users without a webhook write the Service's name instead; such a gate covers all target groups of the
//! Service.

use std::collections::BTreeSet;
use std::net::IpAddr;

use aws_sdk_elasticloadbalancingv2::types as elb;
use futures::future::try_join_all;
use providers::{CloudError, EndpointHealth, Health, LoadBalancerId, ReadinessGate};

use crate::client::Class;
use crate::loadbalancer::observed::balancer_state::KnownGroup;
use crate::loadbalancer::observed::{convert, report};
use crate::loadbalancer::types::{Target, TargetHealth, TargetType};
use crate::session::Session;

/// The prefix of the conditions' types. Upstream: AWS Load Balancer Controller, TargetHealthPodConditionTypePrefix.
pub(crate) const PREFIX: &str = "target-health.elbv2.k8s.aws/";

/// Reason and message for a target that ELB does not list yet. Upstream: AWS Load Balancer Controller,
/// updateTargetHealthPodCondition.
const REGISTERING: (&str, &str) = ("Elb.RegistrationInProgress", "Target registration is in progress");

/// Returns the gates of a Service, with the current health in ELB of the targets in its target groups of type `ip`.
pub(crate) async fn read_gates(
    session: &Session,
    id: &LoadBalancerId,
    groups: &[KnownGroup],
) -> Result<Vec<ReadinessGate>, CloudError> {
    let of_addresses = groups.iter().filter(|group| group.target_type == TargetType::Ip);
    let read = of_addresses.map(|group| async move {
        let request = session.api.elb.describe_target_health().target_group_arn(&group.arn);
        let send = || request.clone().send();
        let response = session.api.read(Class::ElbRead, "DescribeTargetHealth", send).await?;
        let endpoints = endpoints(&group.targets, response.target_health_descriptions());
        Ok::<_, CloudError>(ReadinessGate { condition: format!("{PREFIX}{}", group.name), endpoints })
    });
    let mut gates = try_join_all(read).await?;
    let all = gates.iter().flat_map(|gate| gate.endpoints.clone()).collect();
    gates.push(ReadinessGate { condition: format!("{PREFIX}{}", id.name), endpoints: all });
    Ok(gates)
}

/// Returns the health of a target group's addresses, including those that ELB does not list yet.
fn endpoints(registered: &BTreeSet<Target>, descriptions: &[elb::TargetHealthDescription]) -> Vec<EndpointHealth> {
    let mut listed = BTreeSet::new();
    let mut endpoints = Vec::new();
    for description in descriptions {
        let Some((target, health)) = convert::health(description) else { continue };
        let address = target.id.parse::<IpAddr>();
        let state = description.target_health();
        // A target that is being deregistered may become desired again, and is then registered again.
        if let (Ok(address), false) = (address, health == TargetHealth::Draining) {
            let word = state.and_then(|state| state.reason()).map(|reason| reason.as_str().to_owned());
            endpoints.push(EndpointHealth {
                address,
                port: target.port,
                health: report::worst(&[health]),
                reason: word.unwrap_or_default(),
                message: state.and_then(|state| state.description()).unwrap_or_default().to_owned(),
            });
            listed.insert(target);
        }
    }
    let awaited = registered.difference(&listed).filter_map(|target| {
        let (reason, message) = REGISTERING;
        Some(EndpointHealth {
            address: target.id.parse().ok()?,
            port: target.port,
            health: Health::Initial,
            reason: reason.into(),
            message: message.into(),
        })
    });
    endpoints.extend(awaited);
    endpoints
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(address: &str, state: elb::TargetHealthStateEnum) -> elb::TargetHealthDescription {
        let target = elb::TargetDescription::builder().id(address).port(8080).build();
        let health = elb::TargetHealth::builder()
            .state(state)
            .reason(elb::TargetHealthReasonEnum::InitialHealthChecking)
            .description("checks are in progress");
        elb::TargetHealthDescription::builder().target(target).target_health(health.build()).build()
    }

    #[test]
    fn target_that_elb_does_not_list_is_registering() {
        use elb::TargetHealthStateEnum::{Draining, Healthy, Initial};
        let registered = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"];
        let registered = registered.map(|id| Target { id: id.into(), port: 8080 }).into();
        let described =
            [described("10.0.0.1", Healthy), described("10.0.0.2", Initial), described("10.0.0.3", Draining)];
        let found: Vec<(String, Health, String)> = endpoints(&registered, &described)
            .into_iter()
            .map(|one| (one.address.to_string(), one.health, one.reason))
            .collect();
        let expected = [
            ("10.0.0.1", Health::Healthy, "Elb.InitialHealthChecking"),
            ("10.0.0.2", Health::Initial, "Elb.InitialHealthChecking"),
            ("10.0.0.3", Health::Initial, "Elb.RegistrationInProgress"),
            ("10.0.0.4", Health::Initial, "Elb.RegistrationInProgress"),
        ];
        assert_eq!(found, expected.map(|(address, health, reason)| (address.into(), health, reason.into())));
    }
}
