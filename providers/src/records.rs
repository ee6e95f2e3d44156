//! What a provider must not forget when its process ends and the cloud can't hold: kept in the cluster.

use std::collections::BTreeMap;

use async_trait::async_trait;

use crate::error::CloudError;
use crate::model::LoadBalancerId;

/// Records of Services, each under a name of the provider's choice; they go with their Service.
#[cfg_attr(feature = "doubles", mockall::automock)]
#[async_trait]
pub trait Records: Send + Sync {
    /// What was written last; `None` if nothing was.
    ///
    /// # Errors
    /// `Denied` if this process may not read it, `Transient` if it could not.
    async fn read(&self, service: &LoadBalancerId, name: &str) -> Result<Option<BTreeMap<String, String>>, CloudError>;

    /// Writes a record, whatever was there. Once that went well, another process reads it.
    ///
    /// # Errors
    /// As [`read`](Records::read). It may have been written all the same.
    async fn write(
        &self,
        service: &LoadBalancerId,
        name: &str,
        record: &BTreeMap<String, String>,
    ) -> Result<(), CloudError>;
}
