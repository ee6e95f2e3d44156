//! The provider of `--cloud-provider=aws`.

use std::sync::Arc;
use std::time::Duration;

use aws_credential_types::Credentials;
use providers::{
    BuildContext, CloudError, CloudProvider, ConfigError, Factory, Instances, LoadBalancers, Records, Routes, Tagging,
    async_trait,
};

use crate::config::Config;
use crate::instances;
use crate::loadbalancer::{Balancers, VISIBLE};
use crate::routes;
use crate::session::Sessions;
use crate::tagging;

/// The cloud provider for AWS.
#[derive(Debug)]
struct Aws {
    config: Config,
    /// Credentials that replace the credentials that the SDK finds.
    credentials: Option<Credentials>,
    sessions: Sessions,
    balancers: Arc<Balancers>,
}

/// Builds the provider called `aws`.
pub fn factory() -> Factory {
    Factory { name: "aws", build }
}

fn build(context: &BuildContext) -> Result<Arc<dyn CloudProvider>, ConfigError> {
    build_aws(context, None, VISIBLE)
}

/// Builds the provider with these credentials. They replace the credentials that the SDK finds in the environment, the
/// shared files, a service account's token, or the instance's metadata.
///
/// # Errors
/// Same as for [`Factory::build`](providers::Factory): the mistake in the configuration, and the fix.
pub fn build_with(context: &BuildContext, credentials: Credentials) -> Result<Arc<dyn CloudProvider>, ConfigError> {
    build_with_visibility(context, credentials, VISIBLE)
}

/// Like [`build_with`], for tests. `visible` replaces the minute after which AWS is expected to list all resources that
/// an earlier process created.
///
/// # Errors
/// Same as for [`build_with`].
pub fn build_with_visibility(
    context: &BuildContext,
    credentials: Credentials,
    visible: Duration,
) -> Result<Arc<dyn CloudProvider>, ConfigError> {
    build_aws(context, Some(credentials), visible)
}

fn build_aws(
    context: &BuildContext,
    credentials: Option<Credentials>,
    visible: Duration,
) -> Result<Arc<dyn CloudProvider>, ConfigError> {
    let (config, warnings) = Config::read(context)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let sessions = Sessions::default();
    let balancers = Arc::new(Balancers::new(context, &config, sessions.clone(), visible));
    Ok(Arc::new(Aws { config, credentials, sessions, balancers }))
}

#[async_trait]
impl CloudProvider for Aws {
    fn name(&self) -> &'static str {
        "aws"
    }

    /// Returns true if the cloud config or the tags of this process's instance name the cluster. Before `initialize`
    /// these tags are unknown, and the result is true.
    fn has_cluster_id(&self) -> bool {
        !self.config.cluster_id.is_empty() || self.sessions.get().map_or(true, |session| !session.cluster.id.is_empty())
    }

    async fn initialize(&self) -> Result<(), CloudError> {
        self.sessions.open(&self.config, self.credentials.as_ref()).await
    }

    fn instances(&self) -> Option<Arc<dyn Instances>> {
        Some(instances::instances(self.sessions.clone()))
    }

    fn load_balancers(&self) -> Option<Arc<dyn LoadBalancers>> {
        Some(self.balancers.clone())
    }

    fn routes(&self) -> Option<Arc<dyn Routes>> {
        Some(routes::routes(self.sessions.clone()))
    }

    fn tagging(&self) -> Option<Arc<dyn Tagging>> {
        Some(tagging::tagging(self.sessions.clone()))
    }

    fn keep_records(&self, records: Arc<dyn Records>) {
        self.balancers.keep_records(records);
    }

    fn metrics(&self) -> String {
        self.sessions.get().map(|session| session.api.metrics()).unwrap_or_default()
    }
}
