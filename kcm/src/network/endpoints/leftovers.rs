//! Endpoints that are there when this process begins to lead: those without a Service are left over from one that was
//! deleted meanwhile (pkg/controller/endpoint, checkLeftoverEndpoints).

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use kinds::Endpoints;
use kinds::endpoints::LEADER;
use kinds::meta::ObjectKey;
use runtime::store::Change;

/// All Endpoints except leader election locks, until they are handed out.
#[derive(Debug)]
pub struct Leftovers(Mutex<Option<HashSet<ObjectKey>>>);

impl Default for Leftovers {
    fn default() -> Self {
        Self(Mutex::new(Some(HashSet::new())))
    }
}

impl Leftovers {
    /// Takes in a change.
    pub fn see(&self, change: &Change<'_, Endpoints>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = known.as_mut() else { return };
        match (change.old, change.new) {
            (_, Some(new)) if new.annotation(LEADER).is_none() => drop(known.insert(new.meta.key())),
            (Some(old), _) => drop(known.remove(&old.meta.key())),
            _ => {}
        }
    }

    /// Hands all out, once; from then on nothing is remembered.
    pub fn take(&self) -> HashSet<ObjectKey> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default()
    }
}
