//! Instances, described in batches.

use std::time::Duration;

use providers::{CloudError, ErrorKind, InstanceFeatures, InstanceRef, InstanceState, Instances, async_trait};

use crate::cloud::MockCloud;
use crate::fault::Operation;
use crate::state::INSTANCE_ANNOTATION;

/// Maximum number of instances per call.
const BATCH: usize = 100;

/// Prefix of the labels and taints that follow an instance.
pub const NODE_PREFIX: &str = "node.mock.cloud/";

/// Returns the features of the mock's instances.
pub(crate) fn features() -> InstanceFeatures {
    InstanceFeatures {
        annotations: vec![INSTANCE_ANNOTATION.to_owned()],
        labels: Some(NODE_PREFIX),
        taints: Some(NODE_PREFIX),
    }
}

pub(crate) struct MockInstances(pub MockCloud);

impl MockInstances {
    async fn describe_batch(&self, batch: &[InstanceRef]) -> Vec<InstanceState> {
        let effects: Vec<_> =
            batch.iter().map(|wanted| self.0.decide_part(Operation::DescribeInstance, &wanted.node)).collect();
        let slowest = effects.iter().map(|effect| effect.latency).max().unwrap_or(Duration::ZERO);
        if !slowest.is_zero() {
            tokio::time::sleep(slowest).await;
        }
        let described = self.0.call(Operation::DescribeInstances, "", |state, _, now| {
            let states = batch.iter().zip(&effects).map(|(wanted, effect)| match effect.refusal {
                Some((kind, message)) => {
                    InstanceState::Unknown(CloudError::new(kind, Operation::DescribeInstance.as_str(), message))
                }
                None => match state.find_instance(wanted, now) {
                    Some(record) if record.running => InstanceState::Running(Box::new(record.instance.clone())),
                    Some(_) => InstanceState::Stopped,
                    None => absent(wanted),
                },
            });
            Ok(states.collect())
        });
        match described.await {
            Ok(states) => states,
            Err(error) => vec![InstanceState::Unknown(error); batch.len()],
        }
    }
}

/// Returns the state of an instance that was not found: `Gone`, or `Unknown` if its ID belongs to another cloud.
fn absent(wanted: &InstanceRef) -> InstanceState {
    match wanted.provider_id.as_deref() {
        Some(id) if !id.starts_with("mock://") => InstanceState::Unknown(CloudError::new(
            ErrorKind::Invalid,
            Operation::DescribeInstance.as_str(),
            format!("spec.providerID is {id:?}, which belongs to another cloud: IDs of this one begin with mock://"),
        )),
        _ => InstanceState::Gone,
    }
}

#[async_trait]
impl Instances for MockInstances {
    fn instance_features(&self) -> InstanceFeatures {
        features()
    }

    async fn describe(&self, instances: &[InstanceRef]) -> Vec<InstanceState> {
        let mut states = Vec::with_capacity(instances.len());
        for batch in instances.chunks(BATCH) {
            states.extend(self.describe_batch(batch).await);
        }
        states
    }
}
