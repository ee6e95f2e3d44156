//! Network topology of instances: an optional API that may be missing, forbidden or slow. It never delays a Node for
//! long.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use providers::{CloudError, ErrorKind};
use tokio::time::{Instant, timeout};

use crate::client::Class;
use crate::session::Session;

/// Ids that one call may name.
const IDS: usize = 100;
/// The longest delay of Nodes by this API.
const PATIENCE: Duration = Duration::from_secs(5);
/// An instance without topology is not read again for this time (cloud-provider-aws, instanceTopologyManager).
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// After any other failure nothing is read for this time.
const PAUSE: Duration = Duration::from_secs(60);

/// The network layers above instances; remembers the instances without topology.
#[derive(Debug, Default)]
pub(crate) struct Topology(Mutex<Silent>);

#[derive(Debug, Default)]
struct Silent {
    /// No reads until this time.
    region: Option<Instant>,
    /// Instances without topology, by id.
    ///
    /// A whole type is never skipped: an instance that was just launched may be missing from a response.
    instances: HashMap<String, Instant>,
}

impl Silent {
    fn worth_asking(&self, id: &str, kind: &str, now: Instant) -> bool {
        let over = |until: &Instant| now >= *until;
        !kind.is_empty() && self.region.as_ref().is_none_or(over) && self.instances.get(id).is_none_or(over)
    }

    fn silence(&mut self, ids: impl Iterator<Item = String>, now: Instant) {
        self.instances.retain(|_, until| now < *until);
        self.instances.extend(ids.map(|id| (id, now + DAY)));
    }
}

/// Returns the time in which a retry cannot succeed.
fn pause_after(error: &CloudError) -> Duration {
    match error.kind {
        ErrorKind::Denied | ErrorKind::Invalid => DAY,
        _ => PAUSE,
    }
}

impl Topology {
    /// Returns the layers of instances, given as ids and instance types. Instances without layers are left out.
    pub(crate) async fn layers(
        &self,
        session: &Session,
        machines: BTreeMap<String, String>,
    ) -> HashMap<String, Vec<String>> {
        let now = Instant::now();
        let asked: Vec<(String, String)> = {
            let silent = self.silent();
            machines.into_iter().filter(|(id, kind)| silent.worth_asking(id, kind, now)).collect()
        };
        let answers = join_all(asked.chunks(IDS).map(|machines| {
            let ids = machines.iter().map(|(id, _)| id.clone()).collect();
            let request = session.api.ec2.describe_instance_topology().set_instance_ids(Some(ids));
            timeout(PATIENCE, session.api.change(Class::Ec2Read, "DescribeInstanceTopology", request.send()))
        }));
        let mut layers = HashMap::new();
        for (machines, answer) in asked.chunks(IDS).zip(answers.await) {
            match answer {
                Ok(Ok(answer)) => {
                    let found = answer.instances.unwrap_or_default().into_iter();
                    let found: HashMap<String, Vec<String>> =
                        found.filter_map(|one| Some((one.instance_id?, one.network_nodes?))).collect();
                    let silent = machines.iter().map(|(id, _)| id).filter(|id| !found.contains_key(*id));
                    self.silent().silence(silent.cloned(), now);
                    layers.extend(found);
                }
                Ok(Err(error)) => {
                    let pause = pause_after(&error);
                    tracing::info!(%error, ?pause, "Nodes get no labels of the network's topology for now");
                    self.silent().region = Some(now + pause);
                }
                Err(_) => self.silent().region = Some(now + PAUSE),
            }
        }
        layers
    }

    fn silent(&self) -> std::sync::MutexGuard<'_, Silent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instance_without_topology_is_not_read_again_but_others_of_its_type_are() {
        let now = Instant::now();
        let mut silent = Silent::default();
        silent.silence(["i-1".to_owned()].into_iter(), now);
        assert!(!silent.worth_asking("i-2", "", now), "Fargate");
        assert!(!silent.worth_asking("i-1", "p5.48xlarge", now));
        assert!(silent.worth_asking("i-2", "p5.48xlarge", now));
        assert!(silent.worth_asking("i-1", "p5.48xlarge", now + DAY));
        silent.silence(["i-3".to_owned()].into_iter(), now + DAY);
        assert_eq!(silent.instances.len(), 1, "what is over is forgotten");
        let silent = Silent { region: Some(now + PAUSE), ..silent };
        assert!(!silent.worth_asking("i-2", "p5.48xlarge", now));
    }

    #[test]
    fn pause_after_refusals_is_longer_than_after_failures() {
        for (kind, pause) in [
            (ErrorKind::Denied, DAY),
            (ErrorKind::Invalid, DAY),
            (ErrorKind::Transient, PAUSE),
            (ErrorKind::Throttled { after: None }, PAUSE),
        ] {
            assert_eq!(pause_after(&CloudError::new(kind, "DescribeInstanceTopology", "")), pause, "{kind:?}");
        }
    }
}
