//! The scale that objects of any kind serve, found by what the server says that it has.

use std::sync::Arc;
use std::time::Duration;

use kinds::Resource;
use kinds::meta::ObjectKey;
use runtime::discovery::{Discovery, DiscoveryError, Served, Snapshot};
use runtime::watch::Watched;
use runtime::write::{Scale, WriteError, Writer};

/// For how long what the server serves is taken as known (cmd/kube-controller-manager/app, the REST mapper's reset).
const KNOWN_FOR: Duration = Duration::from_secs(30);

/// For how long it is taken as known that the server does not serve something.
const MISSED_FOR: Duration = Duration::from_secs(5);

/// Reads and changes scales on behalf of one controller.
pub struct Scales {
    /// What the server has.
    pub discovery: Arc<Discovery>,
    /// What is watched.
    pub watched: Watched,
    /// The controller's requests.
    pub writer: Writer,
}

impl Scales {
    /// What `find` finds among what the server has; that is asked for again where it finds nothing.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn find<T>(&self, find: impl Fn(&Snapshot) -> Option<T>) -> Result<Option<T>, DiscoveryError> {
        match find(&*self.discovery.at_most_old(KNOWN_FOR).await?) {
            Some(found) => Ok(Some(found)),
            None => Ok(find(&*self.discovery.at_most_old(MISSED_FOR).await?)),
        }
    }

    /// What a kind is served as.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn of_kind(&self, api_version: &str, kind: &str) -> Result<Option<Served>, DiscoveryError> {
        self.find(|snapshot| snapshot.of_kind(api_version, kind)).await
    }

    /// What a kind is served as in its group's preferred version.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn of_group_kind(&self, group: &str, kind: &str) -> Result<Option<Served>, DiscoveryError> {
        self.find(|snapshot| snapshot.of_group_kind(group, kind)).await
    }

    /// An object's scale.
    ///
    /// # Errors
    /// As [`Writer::get_scale`].
    pub async fn get(&self, resource: &Resource, key: &ObjectKey) -> Result<Scale, WriteError> {
        self.writer.get_scale(resource, key).await
    }

    /// Whether a scale that was read before is still that of the object, as its watch shows it: a scale is made of
    /// nothing but the object. False where it is not watched.
    pub fn is_current(&self, resource: &Resource, key: &ObjectKey, scale: &Scale) -> bool {
        let shown = self.watched.source(resource.group, resource.plural).and_then(|source| source.meta(key));
        shown.is_some_and(|shown| (&shown.uid, shown.version) == (&scale.uid, scale.version))
    }
}

/// `resource.group`, or the resource alone in the core group (apimachinery, GroupResource.String).
pub fn qualified(resource: &Resource) -> String {
    if resource.group.is_empty() {
        resource.plural.to_owned()
    } else {
        format!("{}.{}", resource.plural, resource.group)
    }
}
