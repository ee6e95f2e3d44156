//! The door to a cloud: which halves of the contract it has, and nothing else.

use std::sync::Arc;

use async_trait::async_trait;

use crate::error::CloudError;
use crate::instance::Instances;
use crate::load_balancer::LoadBalancers;
use crate::records::Records;
use crate::route::Routes;
use crate::tagging::Tagging;

/// A cloud. Each half that it lacks is `None`, and the controllers that need it do not start.
///
/// A provider is built on every replica, leader or not, so building it calls nobody; the first calls are made by
/// [`initialize`](CloudProvider::initialize), on the leader only.
#[cfg_attr(feature = "doubles", mockall::automock)]
#[async_trait]
pub trait CloudProvider: Send + Sync {
    /// The name that `--cloud-provider` chooses it by, and the scheme of its provider ids (`name://...`).
    fn name(&self) -> &'static str;

    /// The provider knows which cluster it works for, so that what it makes can be told from other clusters'.
    /// Without, the process refuses to start unless it was told to allow it (upstream: cloud-provider, `HasClusterID`).
    fn has_cluster_id(&self) -> bool {
        true
    }

    /// Makes the calls that everything else needs: finds the network, checks the credentials. Called on the leader
    /// before any controller starts, and again after an error; a second call after a success does nothing.
    ///
    /// # Errors
    /// Any kind; the caller says it in the log and tries again, whatever the kind, since operators fix configuration
    /// and permissions while the process runs.
    async fn initialize(&self) -> Result<(), CloudError> {
        Ok(())
    }

    /// Machines, for cloud-node and cloud-node-lifecycle.
    fn instances(&self) -> Option<Arc<dyn Instances>> {
        None
    }

    /// Load balancers, for service-lb.
    fn load_balancers(&self) -> Option<Arc<dyn LoadBalancers>> {
        None
    }

    /// Routes to nodes' pod networks, for node-route.
    fn routes(&self) -> Option<Arc<dyn Routes>> {
        None
    }

    /// Tags of machines, for the tagging controller.
    fn tagging(&self) -> Option<Arc<dyn Tagging>> {
        None
    }

    /// Takes a place in the cluster for what must not be forgotten. Given before any call, once; a provider that does not
    /// need it leaves it.
    fn keep_records(&self, records: Arc<dyn Records>) {
        drop(records);
    }

    /// The provider's own metrics in the Prometheus text format, added to what `/metrics` serves. Labels must be
    /// bounded: operations and error kinds, never ids.
    fn metrics(&self) -> String {
        String::new()
    }
}
