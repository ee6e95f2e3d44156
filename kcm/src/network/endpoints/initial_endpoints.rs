//! Endpoints that exist when this process becomes leader. Those without a Service are deleted: their Service may have
//! been deleted while no leader was running. Upstream: pkg/controller/endpoint, checkLeftoverEndpoints.

use std::collections::HashSet;
use std::sync::Mutex;

use kinds::Endpoints;
use kinds::endpoints::LEADER;
use kinds::meta::ObjectKey;
use runtime::lock::lock;
use runtime::store::Change;

/// The keys of all Endpoints except leader election locks, until [`InitialEndpoints::take`] is called.
#[derive(Debug)]
pub struct InitialEndpoints(Mutex<Option<HashSet<ObjectKey>>>);

impl Default for InitialEndpoints {
    fn default() -> Self {
        Self(Mutex::new(Some(HashSet::new())))
    }
}

impl InitialEndpoints {
    /// Applies a change.
    pub fn apply(&self, change: &Change<'_, Endpoints>) {
        let mut known = lock(&self.0);
        let Some(known) = known.as_mut() else { return };
        match (change.old, change.new) {
            (_, Some(new)) if new.annotation(LEADER).is_none() => drop(known.insert(new.meta.key())),
            (Some(old), _) => drop(known.remove(&old.meta.key())),
            _ => {}
        }
    }

    /// Returns the recorded keys; none when called again. Later changes are not recorded.
    pub fn take(&self) -> HashSet<ObjectKey> {
        lock(&self.0).take().unwrap_or_default()
    }
}
