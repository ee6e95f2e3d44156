//! Endpoint services: a load balancer that an endpoint service uses cannot be deleted, and neither can an endpoint
//! service with connected consumers.
//!
//! Reference: Elastic Load Balancing API Reference, DeleteLoadBalancer (`ResourceInUse`); Amazon EC2 API Reference,
//! DeleteVpcEndpointServiceConfigurations: the response names those that were not deleted.

use anyhow::Result;

use crate::aws::Service;
use crate::call::Call;
use crate::model::names::Existing;
use crate::model::{Model, Refusal};

impl Model {
    /// Returns the refusal to delete a load balancer that an endpoint service uses.
    pub(super) async fn used_by_endpoint_service(&self, call: &Call) -> Result<Option<Refusal>> {
        if call.is_classic() {
            return Ok(None);
        }
        let (balancer, list) = (call.value("LoadBalancerArn"), "serviceConfigurationSet");
        let all = self.aws.list(Service::Ec2, "DescribeVpcEndpointServiceConfigurations", &[], list).await?;
        let mut users = all.iter().filter(|one| one.texts("networkLoadBalancerArnSet/item").contains(&balancer));
        let refusal = |id: &str| {
            let message =
                format!("Load balancer '{balancer}' cannot be deleted because it is currently associated with {id}");
            ("ResourceInUse", message)
        };
        Ok(users.next().map(|one| refusal(one.text("serviceId"))))
    }

    /// Returns the response to the deletion of endpoint services, if consumers are connected to them.
    pub(super) fn existing_connections(&self, call: &Call) -> Existing {
        if !self.state().consumers {
            return Existing::Nothing;
        }
        let item = |id: &str| {
            format!(
                "<item><resourceId>{id}</resourceId><error><code>ExistingVpcEndpointConnections</code><message>{id} has \
                 existing active VPC Endpoint connections!</message></error></item>"
            )
        };
        let items: String = call.values("ServiceId.", "").into_iter().map(item).collect();
        let action = call.action();
        Existing::Same(format!("<{action}Response><unsuccessful>{items}</unsuccessful></{action}Response>"))
    }
}
