//! The mock cloud, with a crash of the process after any call that changes a load balancer. Reads and the audit's calls
//! do not crash the process.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use providers::{
    CloudError, Deletion, Ensured, Features, Followed, LoadBalancerId, LoadBalancerSpec, LoadBalancers, Observed,
    Owned, ReadinessGate, Targeting, Targets, async_trait,
};
use runtime::lock::lock;

use super::simulation::Simulation;

/// The mock cloud as one process uses it; that process may crash after a call that changes a load balancer.
pub struct CrashingCloud {
    pub cloud: Arc<dyn LoadBalancers>,
    pub sim: Arc<Simulation>,
}

/// The names of the Services that processes reported.
#[derive(Default)]
pub struct Reports {
    /// Services that are new to the cloud.
    pub started_empty: Vec<String>,
    /// Services that existed when a process began its work.
    pub existed: Vec<String>,
}

/// The provider's additions to the results of the mock cloud.
#[derive(Default)]
pub struct Answers {
    /// The delay after which a settled load balancer is checked again.
    pub check_after: Option<Duration>,
    /// The warnings of an `ensure`.
    pub warnings: Vec<String>,
    /// The refusal of a change that the targets of an invalid Service need.
    pub refused: Option<CloudError>,
}

#[async_trait]
impl LoadBalancers for CrashingCloud {
    fn features(&self) -> Features {
        self.cloud.features()
    }
    fn targeting(&self, spec: &LoadBalancerSpec) -> Result<Targeting, CloudError> {
        self.cloud.targeting(spec)
    }
    fn others(&self, spec: &LoadBalancerSpec) -> BTreeSet<String> {
        self.cloud.others(spec)
    }
    async fn follow_targets(&self, spec: &LoadBalancerSpec, targets: &Targets) -> Result<Followed, CloudError> {
        let refused = lock(&self.sim.answers).refused.clone();
        let result = self.cloud.follow_targets(spec, targets).await;
        let result = result.map(|followed| Followed { refused, ..followed });
        self.sim.called(&result).await;
        result
    }
    fn existed(&self, spec: &LoadBalancerSpec) {
        lock(&self.sim.reports).existed.push(spec.id.name.clone());
    }
    fn starts_empty(&self, id: &LoadBalancerId) {
        lock(&self.sim.reports).started_empty.push(id.name.clone());
    }
    async fn observe(&self, id: &LoadBalancerId) -> Result<Observed, CloudError> {
        self.cloud.observe(id).await
    }
    async fn ensure(&self, spec: &LoadBalancerSpec, targets: &Targets) -> Result<Ensured, CloudError> {
        let (check_after, more) = {
            let answers = lock(&self.sim.answers);
            (answers.check_after, answers.warnings.clone())
        };
        let result = self.cloud.ensure(spec, targets).await.map(|mut ensured| {
            ensured.warnings.extend(more);
            Ensured { check_after, ..ensured }
        });
        self.sim.called(&result).await;
        result
    }
    async fn set_targets(&self, spec: &LoadBalancerSpec, targets: &Targets) -> Result<(), CloudError> {
        let result = self.cloud.set_targets(spec, targets).await;
        self.sim.called(&result).await;
        result
    }
    async fn gates(&self, spec: &LoadBalancerSpec) -> Result<Vec<ReadinessGate>, CloudError> {
        self.cloud.gates(spec).await
    }
    async fn delete(&self, id: &LoadBalancerId) -> Result<Deletion, CloudError> {
        self.delete_last(id, None).await
    }
    async fn delete_last(
        &self,
        id: &LoadBalancerId,
        last: Option<Arc<LoadBalancerSpec>>,
    ) -> Result<Deletion, CloudError> {
        let result = self.cloud.delete_last(id, last).await;
        self.sim.called(&result).await;
        result
    }
    async fn list_owned(&self) -> Result<Vec<Owned>, CloudError> {
        self.cloud.list_owned().await
    }
    fn may_be_owned_by(&self, owned: &Owned, service: &LoadBalancerId) -> bool {
        self.cloud.may_be_owned_by(owned, service)
    }
    async fn collect(&self, owned: &Owned) -> Result<Deletion, CloudError> {
        self.cloud.collect(owned).await
    }
}
