//! Idempotent creation: if a creation has the name and the settings of an existing resource, AWS returns that resource,
//! regardless of its owner and tags; if the settings differ, AWS returns an error. moto creates another load balancer
//! and another listener in both cases, and refuses another target group in both cases.
//!
//! Reference: Elastic Load Balancing API Reference, CreateLoadBalancer, CreateTargetGroup and CreateListener.

use anyhow::Result;

use crate::aws::Service;
use crate::call::Call;
use crate::model::{Model, Refusal};
use crate::xml::Element;

/// The existing resource with the name in a call that creates one.
pub(crate) enum Existing {
    /// No resource has the name.
    Nothing,
    /// The resource has the same settings; the response to the call.
    Same(String),
    /// The resource has other settings; the refusal of its creation.
    Other(Refusal),
}

/// Converts the response to a read to the response to a creation.
fn created(read: &str, response: &str, action: &str) -> Existing {
    Existing::Same(response.replace(read, action))
}

fn other(code: &'static str, what: &str) -> Existing {
    Existing::Other((code, format!("A {what} with the same name or port, but with different settings exists")))
}

fn sorted(mut texts: Vec<&str>) -> Vec<&str> {
    texts.sort_unstable();
    texts
}

impl Model {
    /// Finds the resource that a call would create again. Also returns the response to the deletion of an endpoint
    /// service with connected consumers.
    pub(crate) async fn existing(&self, call: &Call) -> Result<Existing> {
        match call.action() {
            _ if call.is_classic() => Ok(Existing::Nothing),
            "CreateLoadBalancer" => self.existing_balancer(call).await,
            "CreateTargetGroup" => self.existing_group(call).await,
            "CreateListener" => self.existing_listener(call).await,
            "DeleteVpcEndpointServiceConfigurations" => Ok(self.existing_connections(call)),
            _ => Ok(Existing::Nothing),
        }
    }

    async fn existing_balancer(&self, call: &Call) -> Result<Existing> {
        const READ: &str = "DescribeLoadBalancers";
        let named = [("Names.member.1", call.value("Name"))];
        let Ok(response) = self.aws.call(Service::Elb, READ, &named).await else { return Ok(Existing::Nothing) };
        let root = Element::parse(&response)?;
        let found = root.all("DescribeLoadBalancersResult/LoadBalancers/member");
        let Some(one) = found.first() else { return Ok(Existing::Nothing) };
        let given = [call.values("SubnetMappings.member.", "SubnetId"), call.values("Subnets.member.", "")].concat();
        let same = sorted(one.texts("AvailabilityZones/member/SubnetId")) == sorted(given)
            && one.text("Scheme") == call.value("Scheme");
        Ok(if same {
            created(READ, &response, "CreateLoadBalancer")
        } else {
            other("DuplicateLoadBalancerName", "load balancer")
        })
    }

    async fn existing_group(&self, call: &Call) -> Result<Existing> {
        const READ: &str = "DescribeTargetGroups";
        let named = [("Names.member.1", call.value("Name"))];
        let Ok(response) = self.aws.call(Service::Elb, READ, &named).await else { return Ok(Existing::Nothing) };
        let root = Element::parse(&response)?;
        let found = root.all("DescribeTargetGroupsResult/TargetGroups/member");
        let Some(one) = found.first() else { return Ok(Existing::Nothing) };
        let same = ["Protocol", "Port", "VpcId", "TargetType"].iter().all(|key| one.text(key) == call.value(key));
        Ok(if same {
            created(READ, &response, "CreateTargetGroup")
        } else {
            other("DuplicateTargetGroupName", "target group")
        })
    }

    async fn existing_listener(&self, call: &Call) -> Result<Existing> {
        const READ: &str = "DescribeListeners";
        let of = [("LoadBalancerArn", call.value("LoadBalancerArn"))];
        let listeners = self.aws.list(Service::Elb, READ, &of, "Listeners").await.unwrap_or_default();
        let Some(one) = listeners.iter().find(|one| one.text("Port") == call.value("Port")) else {
            return Ok(Existing::Nothing);
        };
        let forwards = sorted(one.texts("DefaultActions/member/ForwardConfig/TargetGroups/member/TargetGroupArn"));
        let requested = sorted(call.values("DefaultActions.member.1.", "TargetGroupArn"));
        if one.text("Protocol") != call.value("Protocol") || forwards != requested {
            return Ok(other("DuplicateListener", "listener"));
        }
        let response = self.aws.call(Service::Elb, READ, &[("ListenerArns.member.1", one.text("ListenerArn"))]).await?;
        Ok(created(READ, &response, "CreateListener"))
    }
}
