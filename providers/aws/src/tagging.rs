//! Adds and removes an operator's tags on instances, in batches.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use aws_sdk_ec2::types::Tag;
use providers::{CloudError, Tagging, async_trait};

use crate::client::Class;
use crate::instances::id::{self, Wanted};
use crate::session::{Session, Sessions};

/// Maximum number of instances in one call. Upstream: cloud-provider-aws, pkg/providers/v1: its batchers of CreateTags
/// and DeleteTags.
const BATCH: usize = 50;

/// The tags of EC2 instances.
#[derive(Debug)]
struct Ec2Tags {
    sessions: Sessions,
}

/// Creates the tagging of the provider.
pub(crate) fn tagging(sessions: Sessions) -> Arc<dyn Tagging> {
    Arc::new(Ec2Tags { sessions })
}

/// A change of tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TagChange {
    Add,
    Remove,
}

#[async_trait]
impl Tagging for Ec2Tags {
    /// Returns false for Fargate, which has no instances to tag. Upstream: cloud-provider-aws, pkg/controllers/tagging,
    /// process.
    fn has_tags(&self, instance: &str) -> bool {
        !matches!(id::of_provider_id(instance), Ok(Wanted::Fargate(_)))
    }

    async fn tag(&self, provider_ids: &[String], tags: &BTreeMap<String, String>) -> Vec<Result<(), CloudError>> {
        self.change(TagChange::Add, provider_ids, tags).await
    }

    async fn untag(&self, provider_ids: &[String], tags: &BTreeMap<String, String>) -> Vec<Result<(), CloudError>> {
        self.change(TagChange::Remove, provider_ids, tags).await
    }
}

impl Ec2Tags {
    async fn change(
        &self,
        change: TagChange,
        provider_ids: &[String],
        tags: &BTreeMap<String, String>,
    ) -> Vec<Result<(), CloudError>> {
        let session = match self.sessions.get() {
            Ok(session) => session,
            Err(error) => return provider_ids.iter().map(|_| Err(error.clone())).collect(),
        };
        let wanted: Vec<Result<Wanted, CloudError>> = provider_ids.iter().map(|id| id::of_provider_id(id)).collect();
        let mut ids: Vec<String> = wanted.iter().flatten().filter_map(instance).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut failed: HashMap<String, CloudError> = HashMap::new();
        let mut batches: Vec<Vec<String>> = ids.chunks(BATCH).map(<[String]>::to_vec).collect();
        while let Some(mut batch) = batches.pop() {
            match call(&session, change, &batch, tags).await {
                Ok(()) => {}
                // One instance can fail the whole call: the batch is halved until that instance is alone.
                Err(error) if batch.len() > 1 && (error.is_not_found() || error.is_invalid()) => {
                    let half = batch.split_off(batch.len() / 2);
                    batches.extend([batch, half]);
                }
                Err(error) => failed.extend(batch.into_iter().map(|id| (id, error.clone()))),
            }
        }
        let result = |wanted: Result<Wanted, CloudError>| {
            let id = instance(&wanted?);
            id.and_then(|id| failed.get(&id).cloned()).map_or(Ok(()), Err)
        };
        wanted.into_iter().map(result).collect()
    }
}

/// Returns the id of an instance; `None` for Fargate, which has no instances to tag.
fn instance(wanted: &Wanted) -> Option<String> {
    match wanted {
        Wanted::Instance(id) => Some(id.clone()),
        Wanted::Fargate(_) | Wanted::Name(_) => None,
    }
}

async fn call(
    session: &Session,
    change: TagChange,
    ids: &[String],
    tags: &BTreeMap<String, String>,
) -> Result<(), CloudError> {
    let ids = Some(ids.to_vec());
    match change {
        TagChange::Add => {
            let tags = tags.iter().map(|(key, value)| Tag::builder().key(key).value(value).build()).collect();
            let request = session.api.ec2.create_tags().set_resources(ids).set_tags(Some(tags)).send();
            session.api.change(Class::Ec2Change, "CreateTags", request).await.map(drop)
        }
        // The request has no values: tags are removed regardless of their current values.
        TagChange::Remove => {
            let tags = tags.keys().map(|key| Tag::builder().key(key).build()).collect();
            let request = session.api.ec2.delete_tags().set_resources(ids).set_tags(Some(tags)).send();
            session.api.change(Class::Ec2Change, "DeleteTags", request).await.map(drop)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_fargate_have_no_tags() {
        let tags = Ec2Tags { sessions: Sessions::default() };
        assert!(tags.has_tags("aws:///eu-west-1a/i-0123456789abcdef0"));
        assert!(!tags.has_tags("aws:///eu-west-1a/0123-ab/fargate-ip-10-0-0-1.eu-west-1.compute.internal"));
        assert!(tags.has_tags("kwok://n"), "reported as invalid by the call");
    }
}
