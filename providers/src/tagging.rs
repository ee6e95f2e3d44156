//! Tags that an operator wants on machines, in clouds that have tags.

use std::collections::BTreeMap;

use async_trait::async_trait;

use crate::error::CloudError;

/// The tags of a cloud's machines.
#[cfg_attr(feature = "doubles", mockall::automock)]
#[async_trait]
pub trait Tagging: Send + Sync {
    /// Puts all of the tags onto each of the machines, which are given by their provider ids; a tag that is there gets
    /// the new value, and others stay. As many answers as machines, in their order, with as few calls as the cloud's
    /// batches allow: a machine that spoils its batch costs the others nothing but a few more calls.
    ///
    /// An answer is `NotFound` for a machine that is not there, or not shown yet, and `Invalid` for an id that is none. A
    /// machine of a kind that has no tags is a success.
    async fn tag(&self, machines: &[String], tags: &BTreeMap<String, String>) -> Vec<Result<(), CloudError>>;

    /// Takes the tags off each of the machines, whatever their values; otherwise as [`Tagging::tag`].
    async fn untag(&self, machines: &[String], tags: &BTreeMap<String, String>) -> Vec<Result<(), CloudError>>;
}
