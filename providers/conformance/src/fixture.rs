//! The vendor's fixture: information about the cloud, and operations outside of the provider.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use ipnet::IpNet;
use providers::{InstanceRef, LoadBalancerId, SecretData, SecretName};

/// The reason why a fixture failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FixtureError {
    /// Not supported; cases that need it are skipped.
    #[error("the fixture has no {0}")]
    Unsupported(&'static str),
    /// The operation failed; so does the case.
    #[error("the fixture failed: {0}")]
    Failed(String),
}

/// The way in which the cloud refuses reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadFailure {
    /// The credentials do not allow reads.
    Denied,
    /// The cloud throttles: too many calls.
    Throttled,
    /// The cloud returns server errors.
    Outage,
}

impl ReadFailure {
    /// All failures.
    pub const ALL: [Self; 3] = [Self::Denied, Self::Throttled, Self::Outage];
}

/// The cloud, bypassing the provider. Only `cluster` is required: every other method has a default, which skips the
/// cases that need it or returns a common value.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// Returns the cluster name that the provider was built with.
    fn cluster(&self) -> String;

    /// Creates a running instance for a Node with that name, visible to the provider when this returns.
    async fn create_instance(&self, _node: &str) -> Result<InstanceRef, FixtureError> {
        Err(FixtureError::Unsupported("create_instance"))
    }

    /// Stops an instance; it is stopped when this returns.
    async fn stop_instance(&self, _instance: &InstanceRef) -> Result<(), FixtureError> {
        Err(FixtureError::Unsupported("stop_instance"))
    }

    /// Destroys an instance, which no longer exists when this returns. Succeeds if there is no such instance.
    async fn delete_instance(&self, _instance: &InstanceRef) -> Result<(), FixtureError> {
        Err(FixtureError::Unsupported("delete_instance"))
    }

    /// Returns Node annotations by which the provider finds this instance, for a Node of any name without a provider
    /// ID.
    fn identifying_annotations(&self, _instance: &InstanceRef) -> Option<BTreeMap<String, String>> {
        None
    }

    /// Adds labels and taints for the Node, with the provider's prefixes, to an instance in the cloud. If `more` is
    /// false, removes them again.
    async fn change_labels_and_taints(&self, _instance: &InstanceRef, _more: bool) -> Result<(), FixtureError> {
        Err(FixtureError::Unsupported("change_labels_and_taints"))
    }

    /// Replaces the provider's credentials in the cloud; the former ones no longer work. Returns the Secret from which
    /// the provider reads them, with the new ones.
    async fn replace_credentials(&self) -> Result<(SecretName, SecretData), FixtureError> {
        Err(FixtureError::Unsupported("replace_credentials"))
    }

    /// Returns all resources in the cloud that were created for a Service and that cost money or occupy a name, found
    /// without the provider: load balancer, addresses, firewall rules.
    async fn leaked_resources(&self, _id: &LoadBalancerId) -> Result<Vec<String>, FixtureError> {
        Err(FixtureError::Unsupported("leaked_resources"))
    }

    /// Returns the registered targets to which the cloud's firewall blocks the traffic of their load balancer, found
    /// without the provider.
    async fn blocked_targets(&self) -> Result<Vec<String>, FixtureError> {
        Err(FixtureError::Unsupported("blocked_targets"))
    }

    /// Returns the annotations that a plain load balancer needs in this cloud.
    fn annotations(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    /// Returns sets of annotations for load balancers of different types (internal and external, of different
    /// products). A load balancer is changed from each to the next.
    fn variants(&self) -> Vec<BTreeMap<String, String>> {
        Vec::new()
    }

    /// Returns the annotations of a load balancer that sends traffic to endpoints.
    fn endpoint_annotations(&self) -> Option<BTreeMap<String, String>> {
        None
    }

    /// Returns an annotation with a value that can never work.
    fn invalid_annotation(&self) -> Option<(String, String)> {
        None
    }

    /// Makes the `nth` call from now, counted from 1, that would change the cloud fail without a change.
    async fn fail_change(&self, _nth: u64) -> Result<(), FixtureError> {
        Err(FixtureError::Unsupported("fail_change"))
    }

    /// Makes the `nth` call from now, counted from 1, that changes the cloud take effect and lose its response.
    async fn lose_response(&self, _nth: u64) -> Result<(), FixtureError> {
        Err(FixtureError::Unsupported("lose_response"))
    }

    /// Returns the number of calls that `fail_change` and `lose_response` applied to since the last `restore`; `None`
    /// if that is unknown: the suite then makes all runs, even if the provider makes fewer changes.
    async fn faults_applied(&self) -> Option<u64> {
        None
    }

    /// Makes all reads from now on fail in this way.
    async fn fail_reads(&self, _failure: ReadFailure) -> Result<(), FixtureError> {
        Err(FixtureError::Unsupported("fail_reads"))
    }

    /// Makes reads omit each part of a load balancer that is created from now on, for this time after its creation.
    async fn delay_visibility(&self, _time: Duration) -> Result<(), FixtureError> {
        Err(FixtureError::Unsupported("delay_visibility"))
    }

    /// Limits the pages of lists to this number of items.
    async fn limit_pages(&self, _size: usize) -> Result<(), FixtureError> {
        Err(FixtureError::Unsupported("limit_pages"))
    }

    /// Ends the effects of `fail_change`, `lose_response`, `fail_reads`, `delay_visibility` and `limit_pages`.
    async fn restore(&self) -> Result<(), FixtureError> {
        Ok(())
    }

    /// Delays the next deletion of a load balancer by this time.
    async fn hold_deletion(&self, _time: Duration) -> Result<(), FixtureError> {
        Err(FixtureError::Unsupported("hold_deletion"))
    }

    /// Creates a load balancer with the name that the provider would use for this Service, but without the tags or
    /// labels by which the provider recognizes its own.
    async fn create_foreign_load_balancer(&self, _id: &LoadBalancerId) -> Result<(), FixtureError> {
        Err(FixtureError::Unsupported("create_foreign_load_balancer"))
    }

    /// Returns true if the load balancer of [`create_foreign_load_balancer`](Fixture::create_foreign_load_balancer)
    /// exists unchanged.
    async fn has_foreign_load_balancer(&self, _id: &LoadBalancerId) -> Result<bool, FixtureError> {
        Err(FixtureError::Unsupported("has_foreign_load_balancer"))
    }

    /// Deletes the load balancer of [`create_foreign_load_balancer`](Fixture::create_foreign_load_balancer).
    async fn delete_foreign_load_balancer(&self, _id: &LoadBalancerId) -> Result<(), FixtureError> {
        Err(FixtureError::Unsupported("delete_foreign_load_balancer"))
    }

    /// Returns networks that the suite may create routes for, at least three, of each family that the cloud can route.
    fn destinations(&self) -> Vec<IpNet> {
        (240..244).map(|third| IpNet::new_assert([10, 244, third, 0].into(), 24)).collect()
    }

    /// Creates a route that does not belong to the cluster.
    async fn create_foreign_route(&self, _destination: IpNet) -> Result<(), FixtureError> {
        Err(FixtureError::Unsupported("create_foreign_route"))
    }

    /// Returns true if the route of [`create_foreign_route`](Fixture::create_foreign_route) exists unchanged.
    async fn has_foreign_route(&self, _destination: IpNet) -> Result<bool, FixtureError> {
        Err(FixtureError::Unsupported("has_foreign_route"))
    }

    /// Deletes the route of [`create_foreign_route`](Fixture::create_foreign_route).
    async fn delete_foreign_route(&self, _destination: IpNet) -> Result<(), FixtureError> {
        Err(FixtureError::Unsupported("delete_foreign_route"))
    }

    /// Returns the maximum time for any operation of the cloud.
    fn timeout(&self) -> Duration {
        Duration::from_secs(30)
    }
}
