//! Network topology of instances. The API is optional: if it is missing, forbidden or slow, Nodes are delayed by a few
//! seconds at most, and lack the labels of the topology.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use providers::{CloudError, ErrorKind};
use tokio::time::{Instant, timeout};

use crate::client::Class;
use crate::session::Session;

/// Maximum number of ids in one call.
const IDS_PER_CALL: usize = 100;
/// Maximum delay of Nodes by this API.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Time for which an instance without topology is not read again, and for which nothing is read after a denied or
/// invalid call. Upstream: cloud-provider-aws, instanceTopologyManager.
const SKIP_TIME: Duration = Duration::from_secs(24 * 60 * 60);
/// Time for which nothing is read after a failure that a retry may fix.
const FAILURE_PAUSE: Duration = Duration::from_secs(60);

/// Reads of the network layers above instances. Stores the pause after a failure and the instances without topology,
/// not the layers.
#[derive(Debug, Default)]
pub(crate) struct Topology(Mutex<Skipped>);

#[derive(Debug, Default)]
struct Skipped {
    /// No reads until this time.
    paused_until: Option<Instant>,
    /// Instances without topology, by id.
    ///
    /// A whole type is never skipped: an instance that was just launched may be missing from a response.
    instances: HashMap<String, Instant>,
}

impl Skipped {
    fn is_due(&self, id: &str, instance_type: &str, now: Instant) -> bool {
        let has_passed = |until: &Instant| now >= *until;
        !instance_type.is_empty()
            && self.paused_until.as_ref().is_none_or(has_passed)
            && self.instances.get(id).is_none_or(has_passed)
    }

    fn skip(&mut self, ids: impl Iterator<Item = String>, now: Instant) {
        self.instances.retain(|_, until| now < *until);
        self.instances.extend(ids.map(|id| (id, now + SKIP_TIME)));
    }
}

/// Returns the time until the next read after an error.
fn pause_after(error: &CloudError) -> Duration {
    match error.kind {
        ErrorKind::Denied | ErrorKind::Invalid => SKIP_TIME,
        _ => FAILURE_PAUSE,
    }
}

impl Topology {
    /// Returns the layers of instances, given as ids and instance types. Instances without layers are left out.
    pub(crate) async fn layers(
        &self,
        session: &Session,
        instances: BTreeMap<String, String>,
    ) -> HashMap<String, Vec<String>> {
        let now = Instant::now();
        let due: Vec<(String, String)> = {
            let skipped = self.skipped();
            instances.into_iter().filter(|(id, instance_type)| skipped.is_due(id, instance_type, now)).collect()
        };
        let responses = join_all(due.chunks(IDS_PER_CALL).map(|instances| {
            let ids = instances.iter().map(|(id, _)| id.clone()).collect();
            let request = session.api.ec2.describe_instance_topology().set_instance_ids(Some(ids));
            // Not `Api::read`, which repeats a failed call: Nodes would wait for labels that they do not need.
            timeout(TIMEOUT, session.api.change(Class::Ec2Read, "DescribeInstanceTopology", request.send()))
        }));
        let mut layers = HashMap::new();
        for (instances, response) in due.chunks(IDS_PER_CALL).zip(responses.await) {
            match response {
                Ok(Ok(response)) => {
                    let found = response.instances.unwrap_or_default().into_iter();
                    let found: HashMap<String, Vec<String>> =
                        found.filter_map(|one| Some((one.instance_id?, one.network_nodes?))).collect();
                    let skipped = instances.iter().map(|(id, _)| id).filter(|id| !found.contains_key(*id));
                    self.skipped().skip(skipped.cloned(), now);
                    layers.extend(found);
                }
                Ok(Err(error)) => {
                    let pause = pause_after(&error);
                    tracing::info!(%error, ?pause, "network topology not read; Nodes get no topology labels for now");
                    self.skipped().paused_until = Some(now + pause);
                }
                Err(_) => {
                    let limit = TIMEOUT;
                    let pause = FAILURE_PAUSE;
                    tracing::info!(
                        ?limit,
                        ?pause,
                        "network topology not read in time; Nodes get no topology labels for now"
                    );
                    self.skipped().paused_until = Some(now + pause);
                }
            }
        }
        layers
    }

    fn skipped(&self) -> std::sync::MutexGuard<'_, Skipped> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instance_without_topology_is_not_read_again_but_others_of_its_type_are() {
        let now = Instant::now();
        let mut skipped = Skipped::default();
        skipped.skip(["i-1".to_owned()].into_iter(), now);
        assert!(!skipped.is_due("i-2", "", now), "Fargate");
        assert!(!skipped.is_due("i-1", "p5.48xlarge", now));
        assert!(skipped.is_due("i-2", "p5.48xlarge", now));
        assert!(skipped.is_due("i-1", "p5.48xlarge", now + SKIP_TIME));
        skipped.skip(["i-3".to_owned()].into_iter(), now + SKIP_TIME);
        assert_eq!(skipped.instances.len(), 1, "expired entries are removed");
        let skipped = Skipped { paused_until: Some(now + FAILURE_PAUSE), ..skipped };
        assert!(!skipped.is_due("i-2", "p5.48xlarge", now));
    }

    #[test]
    fn pause_after_refusals_is_longer_than_after_failures() {
        for (kind, pause) in [
            (ErrorKind::Denied, SKIP_TIME),
            (ErrorKind::Invalid, SKIP_TIME),
            (ErrorKind::Transient, FAILURE_PAUSE),
            (ErrorKind::Throttled { after: None }, FAILURE_PAUSE),
        ] {
            assert_eq!(pause_after(&CloudError::new(kind, "DescribeInstanceTopology", "")), pause, "{kind:?}");
        }
    }
}
