//! The session: the client, and the data that the first call reads (the network, and the cluster's id in tags).

use std::sync::{Arc, OnceLock};

use aws_credential_types::Credentials;
use providers::{CloudError, ErrorKind};

use crate::client::{Api, Class};
use crate::config::Config;
use crate::tags::{self, ClusterTags};

/// The data that all calls need.
#[derive(Debug)]
pub(crate) struct Session {
    pub api: Api,
    pub config: Config,
    pub vpc: String,
    /// A subnet of the cluster: the one in the cloud config, or the subnet of the instance that this process runs on;
    /// empty if neither is known.
    pub subnet: String,
    pub cluster: ClusterTags,
}

/// The session; empty until the provider is initialized.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sessions(Arc<OnceLock<Arc<Session>>>);

impl Sessions {
    /// Returns the session.
    ///
    /// # Errors
    /// `Transient` before the provider is initialized.
    pub(crate) fn get(&self) -> Result<Arc<Session>, CloudError> {
        let not_initialized = || CloudError::new(ErrorKind::Transient, "Initialize", "AWS has not been reached yet");
        self.0.get().cloned().ok_or_else(not_initialized)
    }

    /// Connects to AWS, unless that was done before.
    pub(crate) async fn open(&self, config: &Config, credentials: Option<&Credentials>) -> Result<(), CloudError> {
        if self.0.get().is_none() {
            let session = open(config, credentials).await?;
            // If two calls run concurrently, both have the same data, so one result can be dropped.
            let _ = self.0.set(Arc::new(session));
        }
        Ok(())
    }
}

async fn open(config: &Config, credentials: Option<&Credentials>) -> Result<Session, CloudError> {
    let api = Api::connect(config, credentials).await?;
    if config.can_run_outside_aws() {
        let cluster = ClusterTags::new(&config.cluster_id, config.legacy_tag);
        let vpc = config.vpc.clone();
        let subnet = config.subnet_id.clone();
        // This call checks the credentials at the start, when an operator reads the log, instead of at the first Node.
        let request = || api.ec2.describe_vpcs().vpc_ids(&vpc).send();
        api.read(Class::Ec2Read, "DescribeVpcs", request).await?;
        return Ok(Session { api, config: config.clone(), vpc, subnet, cluster });
    }
    let id = api.metadata.get("/latest/meta-data/instance-id").await.map_err(|error| {
        let fix = "set VPC, SubnetID and KubernetesClusterID in [Global] to run outside of AWS";
        CloudError::new(ErrorKind::Transient, "GetMetadata", format!("{error}; {fix}"))
    })?;
    let id: String = id.into();
    let request = || api.ec2.describe_instances().instance_ids(&id).send();
    let response = api.read(Class::Ec2Read, "DescribeInstances", request).await?;
    let own = response.reservations().iter().flat_map(|reservation| reservation.instances()).next();
    let own = own.ok_or_else(|| {
        CloudError::new(ErrorKind::Transient, "DescribeInstances", format!("instance {id} is not listed yet"))
    })?;
    let cluster = if config.cluster_id.is_empty() {
        tags::cluster_of_instance(own.tags())?
    } else {
        ClusterTags::new(&config.cluster_id, config.legacy_tag)
    };
    let first_set = |given: &str, found: Option<&str>| {
        if given.is_empty() { found.unwrap_or_default().to_owned() } else { given.to_owned() }
    };
    let vpc = first_set(&config.vpc, own.vpc_id());
    let subnet = first_set(&config.subnet_id, own.subnet_id());
    Ok(Session { api, config: config.clone(), vpc, subnet, cluster })
}
