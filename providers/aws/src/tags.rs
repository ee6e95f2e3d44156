//! Tags that identify the owner of a resource. Upstream: cloud-provider-aws, pkg/providers/v1/tags.go.

use std::collections::BTreeMap;

use aws_sdk_ec2::types::{Filter, Tag};
use providers::{CloudError, ErrorKind};

/// Prefix of the cluster's tag, followed by the cluster's id; the value is [`OWNED`] or [`SHARED`].
const PREFIX: &str = "kubernetes.io/cluster/";
/// The value of the tag on resources that this cluster created.
pub(crate) const OWNED: &str = "owned";
/// The value of the tag on resources of others that this cluster may use.
pub(crate) const SHARED: &str = "shared";
/// The legacy tag; its value is the cluster's id.
const LEGACY: &str = "KubernetesCluster";

/// The tags of this cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClusterTags {
    /// The cluster's id.
    pub id: String,
    legacy: bool,
}

impl ClusterTags {
    pub(crate) fn new(id: &str, legacy: bool) -> Self {
        Self { id: id.to_owned(), legacy }
    }

    /// Returns the key of the cluster's tag.
    pub(crate) fn key(&self) -> String {
        format!("{PREFIX}{}", self.id)
    }

    /// Returns a filter for the cluster's keys; `None` without an id, because then all resources count as the
    /// cluster's.
    pub(crate) fn filter(&self) -> Option<Filter> {
        let keys = vec![self.key(), LEGACY.to_owned()];
        (!self.id.is_empty()).then(|| Filter::builder().name("tag-key").set_values(Some(keys)).build())
    }

    /// Returns the cluster's tags that each created resource gets.
    pub(crate) fn owned(&self) -> Vec<(String, String)> {
        let legacy = self.legacy.then(|| (LEGACY.to_owned(), self.id.clone()));
        std::iter::once((self.key(), OWNED.to_owned())).chain(legacy).collect()
    }

    /// Returns true if the cluster uses a resource: owned, shared, or with the legacy tag. Without an id, this is true
    /// for every resource.
    pub(crate) fn marks<'a>(&self, tags: impl IntoIterator<Item = (&'a str, &'a str)>) -> bool {
        let key = self.key();
        self.id.is_empty() || tags.into_iter().any(|(name, value)| name == key || (name == LEGACY && value == self.id))
    }
}

/// Returns the pairs of EC2's tags.
pub(crate) fn pairs(tags: &[Tag]) -> impl Iterator<Item = (&str, &str)> {
    tags.iter().filter_map(|tag| Some((tag.key()?, tag.value().unwrap_or_default())))
}

/// Returns EC2's tags as a map.
pub(crate) fn by_key(tags: &[Tag]) -> BTreeMap<String, String> {
    pairs(tags).map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Returns the cluster's id from the tags of the instance that this process runs on.
///
/// # Errors
/// `Invalid` if the instance is tagged for two clusters. An instance without the tag belongs to no cluster.
pub(crate) fn cluster_of_instance(tags: &[Tag]) -> Result<ClusterTags, CloudError> {
    let mut ids: Vec<&str> = pairs(tags).filter_map(|(key, _)| key.strip_prefix(PREFIX)).collect();
    let legacy = pairs(tags).find(|(key, _)| *key == LEGACY).map(|(_, value)| value);
    ids.extend(legacy);
    ids.sort_unstable();
    ids.dedup();
    match ids[..] {
        [] => Ok(ClusterTags::new("", false)),
        [id] => Ok(ClusterTags::new(id, legacy.is_some())),
        _ => {
            let fix = "keep only one of the tags, or set KubernetesClusterID in [Global]";
            let message = format!("this instance has the tags of several clusters, {}: {fix}", ids.join(", "));
            Err(CloudError::new(ErrorKind::Invalid, "FindCluster", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(key: &str, value: &str) -> Tag {
        Tag::builder().key(key).value(value).build()
    }

    #[test]
    fn instance_tags_identify_the_cluster() {
        for (tags, expected) in [
            (vec![], Some(("", false))),
            (vec![tag("Name", "x"), tag("kubernetes.io/cluster/a", "owned")], Some(("a", false))),
            (vec![tag("KubernetesCluster", "a")], Some(("a", true))),
            (vec![tag("KubernetesCluster", "a"), tag("kubernetes.io/cluster/a", "shared")], Some(("a", true))),
            (vec![tag("KubernetesCluster", "a"), tag("kubernetes.io/cluster/b", "shared")], None),
        ] {
            let found = cluster_of_instance(&tags).ok();
            assert_eq!(found, expected.map(|(id, legacy)| ClusterTags::new(id, legacy)), "{tags:?}");
        }
    }

    #[test]
    fn tagged_resources_belong_to_the_cluster() {
        let cluster = ClusterTags::new("a", true);
        assert_eq!(
            cluster.owned(),
            [("kubernetes.io/cluster/a".into(), "owned".into()), ("KubernetesCluster".into(), "a".into())]
        );
        for (tags, expected) in [
            (vec![("kubernetes.io/cluster/a", "shared")], true),
            (vec![("KubernetesCluster", "a")], true),
            (vec![("KubernetesCluster", "b"), ("kubernetes.io/cluster/b", "owned")], false),
            (vec![], false),
        ] {
            assert_eq!(cluster.marks(tags.clone()), expected, "{tags:?}");
        }
        assert!(ClusterTags::new("", false).marks([]), "without an id everything counts");
    }
}
