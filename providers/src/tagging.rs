//! Tags for instances, in clouds with tags.

use std::collections::BTreeMap;

use async_trait::async_trait;

use crate::error::CloudError;

/// The tags of a cloud's instances.
#[cfg_attr(feature = "doubles", mockall::automock)]
#[async_trait]
pub trait Tagging: Send + Sync {
    /// Returns true if an instance, given by its provider ID, is of a kind that has tags. Nodes of other instances are
    /// ignored.
    fn has_tags(&self, _instance: &str) -> bool {
        true
    }

    /// Adds all tags to each of the instances, given by their provider IDs. An existing tag gets the new value, and
    /// other tags are kept. Returns as many results as instances, in their order, with as few calls as the cloud's
    /// batches allow: an instance that fails its batch costs the others only a few more calls.
    ///
    /// A result is `NotFound` for an instance that does not exist or is not visible yet, and `Invalid` for an invalid
    /// ID.
    async fn tag(&self, instances: &[String], tags: &BTreeMap<String, String>) -> Vec<Result<(), CloudError>>;

    /// Removes the tags from each of the instances, regardless of their values; otherwise as [`Tagging::tag`].
    async fn untag(&self, instances: &[String], tags: &BTreeMap<String, String>) -> Vec<Result<(), CloudError>>;
}
