//! What is known of namespaces that are being deleted, and which of them hold so much that they are emptied within their
//! grace already.
//!
//! Until that is over other API servers may let new objects in. So whatever was emptied early counts only if its watch
//! shows that afterwards there is still nothing; else it is emptied once more.

use std::collections::HashSet;
use std::collections::hash_map::{Entry, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kinds::{Str, Uid};
use runtime::watch::Source;
use tokio::time::Instant;

use super::GRACE;

/// A namespace with so many objects takes the server longer than looking at each of its kinds once more.
const MANY: usize = 1000;

/// Namespaces that are deleted at about the same time share one count of what there is.
const COUNT_AGE: Duration = Duration::from_secs(2);

/// A resource, whatever its version.
pub type Name = (&'static str, &'static str);

/// A namespace that is being deleted.
#[derive(Debug, Clone)]
pub struct Ending {
    /// Since when this process knows of it.
    since: Instant,
    /// Resources that were found empty in an earlier pass: they are looked at again only once nothing else is left, so
    /// that what waits for one broken group asks for nothing but that.
    pub emptied: HashSet<Name>,
    /// A version that the server had after the grace, if resources were emptied before.
    pub after_grace: Option<u64>,
}

impl Ending {
    fn now() -> Self {
        Self { since: Instant::now(), emptied: HashSet::new(), after_grace: None }
    }

    /// What is left of the grace.
    pub fn grace(&self) -> Option<Duration> {
        GRACE.checked_sub(self.since.elapsed()).filter(|left| !left.is_zero())
    }

    /// Takes note of whether a resource was found empty.
    pub fn found(&mut self, resource: Name, is_empty: bool) {
        if is_empty {
            self.emptied.insert(resource);
        } else {
            self.emptied.remove(&resource);
        }
    }
}

/// All of them.
#[derive(Debug, Default)]
pub struct Endings {
    known: Mutex<HashMap<Uid, Ending>>,
    crowded: Mutex<Option<(Instant, HashSet<Str>)>>,
}

impl Endings {
    fn known(&self) -> MutexGuard<'_, HashMap<Uid, Ending>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of a namespace that is being deleted; true if it is new.
    pub fn begin(&self, uid: &Uid) -> bool {
        match self.known().entry(uid.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(Ending::now());
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// What is known of a namespace.
    pub fn get(&self, uid: &Uid) -> Ending {
        self.known().get(uid).cloned().unwrap_or_else(Ending::now)
    }

    /// Changes what is known of a namespace, if that is not forgotten.
    pub fn change(&self, uid: &Uid, change: impl FnOnce(&mut Ending)) {
        if let Some(ending) = self.known().get_mut(uid) {
            change(ending);
        }
    }

    /// Forgets a namespace that is gone.
    pub fn forget(&self, uid: &Uid) {
        self.known().remove(uid);
    }

    /// Whether a namespace has very many objects, as far as they are watched.
    pub fn is_crowded(&self, namespace: &str, sources: impl FnOnce() -> Vec<Arc<dyn Source>>) -> bool {
        let mut crowded = self.crowded.lock().unwrap_or_else(PoisonError::into_inner);
        if crowded.as_ref().is_none_or(|(at, _)| at.elapsed() > COUNT_AGE) {
            *crowded = Some((Instant::now(), crowds(&sources())));
        }
        crowded.as_ref().is_some_and(|(_, crowds)| crowds.contains(namespace))
    }
}

/// The namespaces that have very many objects.
fn crowds(sources: &[Arc<dyn Source>]) -> HashSet<Str> {
    let mut counts: HashMap<Str, usize> = HashMap::new();
    for source in sources.iter().filter(|source| source.resource().namespaced) {
        source.each(&mut |meta| match counts.get_mut(&meta.namespace) {
            Some(count) => *count += 1,
            None => {
                counts.insert(meta.namespace.clone(), 1);
            }
        });
    }
    counts.into_iter().filter(|(_, count)| *count >= MANY).map(|(namespace, _)| namespace).collect()
}

/// Whether objects of a group get their versions where namespaces get theirs, so that they can be compared: those of
/// API servers of other people may count by themselves.
pub fn counts_alike(group: &str) -> bool {
    !group.contains('.') || group.ends_with(".k8s.io")
}
