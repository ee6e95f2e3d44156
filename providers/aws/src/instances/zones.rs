//! The ids of the region's zones, asked for once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::client::{Api, Class};

/// After a failure nobody asks for so long.
const PAUSE: Duration = Duration::from_secs(60);

/// Names to ids.
#[derive(Debug, Default)]
pub(crate) struct Zones(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    known: Arc<HashMap<String, String>>,
    not_before: Option<Instant>,
}

impl Zones {
    /// The ids by the zones' names, as far as they are known; asks AWS if somebody `wants` them and nobody did before.
    pub(crate) async fn ids(&self, api: &Api, wants: bool) -> Arc<HashMap<String, String>> {
        if !wants {
            return Arc::default();
        }
        // A tokio lock: those who come meanwhile wait for the one answer.
        let mut state = self.0.lock().await;
        let now = Instant::now();
        if state.known.is_empty() && state.not_before.is_none_or(|not_before| now >= not_before) {
            let request = || api.ec2.describe_availability_zones().send();
            match api.read(Class::Ec2Read, "DescribeAvailabilityZones", request).await {
                Ok(answer) => {
                    let zones = answer.availability_zones.unwrap_or_default().into_iter();
                    state.known = Arc::new(zones.filter_map(|zone| Some((zone.zone_name?, zone.zone_id?))).collect());
                }
                Err(error) => {
                    tracing::warn!(%error, "the zones' ids are not known; Nodes get no label of them for now");
                    state.not_before = Some(now + PAUSE);
                }
            }
        }
        state.known.clone()
    }
}
