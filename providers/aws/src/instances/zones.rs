//! Zone ids of the region, read when an unknown zone appears.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::client::{Api, Class};

/// The shortest time between two reads.
const PAUSE: Duration = Duration::from_secs(60);

/// Zone ids by zone names.
#[derive(Debug, Default)]
pub(crate) struct Zones(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    known: Arc<HashMap<String, String>>,
    not_before: Option<Instant>,
}

impl State {
    fn needs_read(&self, wanted: &BTreeSet<&str>, now: Instant) -> bool {
        let unknown = wanted.iter().any(|zone| !self.known.contains_key(*zone));
        unknown && self.not_before.is_none_or(|not_before| now >= not_before)
    }
}

impl Zones {
    /// Returns the known ids of zones by the zones' names. Reads from AWS if one of the `wanted` zones is not known: a
    /// Local Zone can be enabled at any time.
    pub(crate) async fn ids(&self, api: &Api, wanted: BTreeSet<&str>) -> Arc<HashMap<String, String>> {
        if wanted.is_empty() {
            return Arc::default();
        }
        // A tokio lock: concurrent callers wait for the same response.
        let mut state = self.0.lock().await;
        let now = Instant::now();
        if state.needs_read(&wanted, now) {
            state.not_before = Some(now + PAUSE);
            let request = || api.ec2.describe_availability_zones().send();
            match api.read(Class::Ec2Read, "DescribeAvailabilityZones", request).await {
                Ok(response) => {
                    let zones = response.availability_zones.unwrap_or_default().into_iter();
                    state.known = Arc::new(zones.filter_map(|zone| Some((zone.zone_name?, zone.zone_id?))).collect());
                }
                Err(error) => {
                    tracing::warn!(
                        %error,
                        "cannot read zone ids; Nodes in new zones get no label topology.k8s.aws/zone-id for now"
                    );
                }
            }
        }
        state.known.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_zone_is_read_at_most_once_per_pause() {
        let now = Instant::now();
        let known = Arc::new(HashMap::from([("eu-west-1a".to_owned(), "euw1-az1".to_owned())]));
        let state = State { known, not_before: Some(now) };
        assert!(!state.needs_read(&["eu-west-1a"].into(), now));
        assert!(state.needs_read(&["eu-west-1a", "eu-west-1-lhr-1a"].into(), now));
        let paused = State { not_before: Some(now + PAUSE), ..state };
        assert!(!paused.needs_read(&["eu-west-1-lhr-1a"].into(), now));
        assert!(paused.needs_read(&["eu-west-1-lhr-1a"].into(), now + PAUSE));
    }
}
