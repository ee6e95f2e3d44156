//! The scale subresource of objects of any kind, found through discovery.

use std::sync::Arc;
use std::time::Duration;

use kinds::Resource;
use kinds::meta::ObjectKey;

use crate::discovery::{Discovery, DiscoveryError, Served, Snapshot};
use crate::watch::Watched;
use crate::write::{Scale, WriteError, Writer};

/// Maximum age of the discovery cache for a resource that was found. Upstream: cmd/kube-controller-manager/app, the
/// reset of the REST mapper.
const FOUND_MAX_AGE: Duration = Duration::from_secs(30);

/// Maximum age of the discovery cache for a resource that was not found.
const MISSING_MAX_AGE: Duration = Duration::from_secs(5);

/// Reads and updates scales for one controller.
pub struct Scales {
    /// The resources that the API server serves.
    pub discovery: Arc<Discovery>,
    /// The watched kinds.
    pub watched: Watched,
    /// The controller's requests.
    pub writer: Writer,
}

impl Scales {
    /// Returns the result of `find` on the served resources; on `None`, retries once with discovery documents that are
    /// at most five seconds old.
    ///
    /// # Errors
    /// When discovery cannot be read.
    pub async fn find<T>(&self, find: impl Fn(&Snapshot) -> Option<T>) -> Result<Option<T>, DiscoveryError> {
        match find(&*self.discovery.no_older_than(FOUND_MAX_AGE).await?) {
            Some(found) => Ok(Some(found)),
            None => Ok(find(&*self.discovery.no_older_than(MISSING_MAX_AGE).await?)),
        }
    }

    /// Returns the served resource of a kind.
    ///
    /// # Errors
    /// When discovery cannot be read.
    pub async fn of_kind(&self, api_version: &str, kind: &str) -> Result<Option<Served>, DiscoveryError> {
        self.find(|snapshot| snapshot.of_kind(api_version, kind)).await
    }

    /// Returns the served resource of a kind in the most preferred version of the group that contains it.
    ///
    /// # Errors
    /// When discovery cannot be read.
    pub async fn of_group_kind(&self, group: &str, kind: &str) -> Result<Option<Served>, DiscoveryError> {
        self.find(|snapshot| snapshot.of_group_kind(group, kind)).await
    }

    /// Reads an object's scale from the API server.
    ///
    /// # Errors
    /// Same as [`Writer::get_scale`].
    pub async fn get(&self, resource: &Resource, key: &ObjectKey) -> Result<Scale, WriteError> {
        self.writer.get_scale(resource, key).await
    }

    /// Returns true if a scale that was read before is current: the cached object has the same uid and resourceVersion.
    /// Returns false if the kind is not watched.
    pub fn is_current(&self, resource: &Resource, key: &ObjectKey, scale: &Scale) -> bool {
        let cached = self.watched.source(resource.group, resource.plural).and_then(|source| source.meta(key));
        cached.is_some_and(|meta| (&meta.uid, meta.version) == (&scale.uid, scale.version))
    }
}
