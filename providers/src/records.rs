//! State of a provider that must survive the process and that the cloud cannot store; kept in the cluster.

use std::collections::BTreeMap;

use async_trait::async_trait;

use crate::error::CloudError;
use crate::model::LoadBalancerId;

/// Records of Services, each under a name chosen by the provider; they are deleted with their Service.
#[cfg_attr(feature = "doubles", mockall::automock)]
#[async_trait]
pub trait Records: Send + Sync {
    /// Returns the last written record, of any writer; `None` if there is none.
    ///
    /// # Errors
    /// `Denied` if this process lacks the permission, `Transient` if the request failed.
    async fn read(&self, service: &LoadBalancerId, name: &str) -> Result<Option<BTreeMap<String, String>>, CloudError>;

    /// Returns the last record that was written for this Service: none of an earlier Service with the same name, or of one
    /// in another cluster.
    ///
    /// # Errors
    /// Same as [`read`](Records::read).
    async fn read_own(
        &self,
        service: &LoadBalancerId,
        name: &str,
    ) -> Result<Option<BTreeMap<String, String>>, CloudError>;

    /// Writes a record unconditionally. After a success, other processes can read it.
    ///
    /// # Errors
    /// Same as [`read`](Records::read). The record may have been written nevertheless.
    async fn write(
        &self,
        service: &LoadBalancerId,
        name: &str,
        record: &BTreeMap<String, String>,
    ) -> Result<(), CloudError>;
}
