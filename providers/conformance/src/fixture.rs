//! What a vendor tells the suite about its cloud, and does to it outside of the provider.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use ipnet::IpNet;
use providers::{InstanceRef, LoadBalancerId};

/// Why a fixture did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FixtureError {
    /// It can't; cases that need it are skipped.
    #[error("the fixture has no {0}")]
    Unsupported(&'static str),
    /// It failed; so does the case.
    #[error("the fixture failed: {0}")]
    Failed(String),
}

/// The cloud from its other side. Only what the cases need that a vendor cares for must be there: each method but the
/// first has a default, which skips those cases or takes what is usual.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// The cluster's name that the provider was built with.
    fn cluster(&self) -> String;

    /// Makes a running machine for a Node of that name, seen by the provider when this returns.
    async fn create_instance(&self, _node: &str) -> Result<InstanceRef, FixtureError> {
        Err(FixtureError::Unsupported("create_instance"))
    }

    /// Stops a machine; it is stopped when this returns.
    async fn stop_instance(&self, _instance: &InstanceRef) -> Result<(), FixtureError> {
        Err(FixtureError::Unsupported("stop_instance"))
    }

    /// Destroys a machine; it is gone when this returns, also when it was before.
    async fn delete_instance(&self, _instance: &InstanceRef) -> Result<(), FixtureError> {
        Err(FixtureError::Unsupported("delete_instance"))
    }

    /// Everything in the cloud that was made for a Service and that costs money or a name, found without the provider:
    /// its balancer, addresses, firewall rules.
    async fn leftovers(&self, _id: &LoadBalancerId) -> Result<Vec<String>, FixtureError> {
        Err(FixtureError::Unsupported("leftovers"))
    }

    /// Annotations that a plain balancer needs in this cloud.
    fn annotations(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    /// Sets of annotations that make balancers of different types (internal and not, of one product or another): a
    /// balancer is changed from each to the next.
    fn variants(&self) -> Vec<BTreeMap<String, String>> {
        Vec::new()
    }

    /// Annotations of a balancer that sends traffic to endpoints.
    fn endpoint_annotations(&self) -> Option<BTreeMap<String, String>> {
        None
    }

    /// An annotation with a value that can never work.
    fn invalid_annotation(&self) -> Option<(String, String)> {
        None
    }

    /// The `nth` call from now, counted from 1, that would change something in the cloud fails, and changes nothing.
    async fn fail_change(&self, _nth: u64) -> Result<(), FixtureError> {
        Err(FixtureError::Unsupported("fail_change"))
    }

    /// The `nth` such call changes what it should, and its answer gets lost.
    async fn lose_answer(&self, _nth: u64) -> Result<(), FixtureError> {
        Err(FixtureError::Unsupported("lose_answer"))
    }

    /// What fails by the two methods above no longer does.
    async fn restore(&self) -> Result<(), FixtureError> {
        Ok(())
    }

    /// The next balancer that is deleted takes this long to go.
    async fn hold_deletion(&self, _time: Duration) -> Result<(), FixtureError> {
        Err(FixtureError::Unsupported("hold_deletion"))
    }

    /// Networks that the suite may make routes for, at least three, of each family that the cloud can route.
    fn destinations(&self) -> Vec<IpNet> {
        (240..244).map(|third| IpNet::new_assert([10, 244, third, 0].into(), 24)).collect()
    }

    /// Makes a route that is not the cluster's.
    async fn create_foreign_route(&self, _destination: IpNet) -> Result<(), FixtureError> {
        Err(FixtureError::Unsupported("create_foreign_route"))
    }

    /// That route is there, as it was made.
    async fn has_foreign_route(&self, _destination: IpNet) -> Result<bool, FixtureError> {
        Err(FixtureError::Unsupported("has_foreign_route"))
    }

    /// How long the cloud may take for anything at most.
    fn patience(&self) -> Duration {
        Duration::from_secs(30)
    }
}
