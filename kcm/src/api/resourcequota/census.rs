//! The number of objects of each watched kind in each namespace.

use std::collections::HashMap;
use std::sync::RwLock;

use kinds::{Meta, Resource, Str};
use runtime::lock::{read, write};
use runtime::watch::MetaChange;

/// A resource, regardless of its version.
type Name = (&'static str, &'static str);

/// Counts of objects, updated with each change.
#[derive(Debug, Default)]
pub struct Census {
    counts: RwLock<HashMap<Name, HashMap<Str, usize>>>,
}

impl Census {
    /// Applies one change of one object.
    pub fn apply(&self, change: &MetaChange<'_>) {
        match change {
            MetaChange::Object { resource, old: None, new: Some(new) } => self.add(resource, new),
            MetaChange::Object { resource, old: Some(old), new: None } => self.remove(resource, old),
            MetaChange::Object { .. } => {}
            MetaChange::Forgotten { resource, object } => self.remove(resource, object),
            MetaChange::Unwatched { resource } => drop(self.write().remove(&(resource.group, resource.plural))),
        }
    }

    /// Returns the number of objects of a kind in a namespace.
    pub fn count(&self, group: &str, plural: &str, namespace: &str) -> usize {
        let counts = read(&self.counts);
        counts.get(&(group, plural)).and_then(|counts| counts.get(namespace)).copied().unwrap_or(0)
    }

    fn add(&self, resource: &Resource, object: &Meta) {
        let mut counts = self.write();
        let of_kind = counts.entry((resource.group, resource.plural)).or_default();
        *of_kind.entry(object.namespace.clone()).or_default() += 1;
    }

    fn remove(&self, resource: &Resource, object: &Meta) {
        let mut counts = self.write();
        let Some(of_kind) = counts.get_mut(&(resource.group, resource.plural)) else { return };
        let left = of_kind.get(&object.namespace).map_or(0, |count| count.saturating_sub(1));
        if left == 0 {
            of_kind.remove(&object.namespace);
        } else {
            of_kind.insert(object.namespace.clone(), left);
        }
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, HashMap<Name, HashMap<Str, usize>>> {
        write(&self.counts)
    }
}
