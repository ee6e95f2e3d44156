//! What is known of namespaces that are being deleted, and which of them hold so much that they are emptied within their
//! grace already.
//!
//! Until that is over other API servers may let new objects in. So whatever was emptied early counts only if its watch
//! shows that afterwards there is still nothing; else it is emptied once more. A watch that brings nothing new shows
//! nothing of what came afterwards, so it is best not to be done before the grace ends.

use std::collections::HashSet;
use std::collections::hash_map::{Entry, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kinds::namespace_ending::NamespaceEnding;
use kinds::{Str, Uid};
use runtime::watch::Source;
use tokio::time::Instant;

use super::GRACE;

/// Deleting a namespace with this many objects takes the server longer than listing each of its kinds once more.
const MANY: usize = 1000;

/// Namespaces that are deleted at about the same time share one count of what there is.
const COUNT_AGE: Duration = Duration::from_secs(2);

/// This many deletions are enough to measure the server's speed.
const A_SAMPLE: usize = 100;

/// The deletion of a pod costs the server as much as that of this many other objects.
pub const LIKE_A_POD: usize = 4;

/// How much faster kinds are deleted in parallel than one after the other: 1.8 times where the server has two cores. It
/// is better to begin a little late than to be done too early, and to list everything again.
const SIDE_BY_SIDE: f64 = 2.2;

/// A resource, whatever its version.
pub type Name = (&'static str, &'static str);

/// A namespace that is being deleted.
#[derive(Debug, Clone)]
pub struct Ending {
    /// Since when this process knows of it.
    since: Instant,
    /// Resources that were found empty in an earlier pass: they are listed again only once nothing else is left, so
    /// that what waits for one broken group asks for nothing but that.
    pub emptied: HashSet<Name>,
    /// A version that the server had after the grace, if resources were emptied before.
    pub after_grace: Option<u64>,
    /// The namespace as it was read then.
    pub read: Option<Arc<NamespaceEnding>>,
}

/// A namespace with very many objects: how many of each kind that has some.
pub type Crowd = Arc<[(Name, usize)]>;

/// Returns how long before a moment to begin with kinds that are emptied side by side, so that it lasts until then:
/// `sample` objects took `took`, and `left` are left.
pub fn begin_before(sample: usize, took: Duration, left: usize) -> Duration {
    if sample < A_SAMPLE {
        return Duration::MAX;
    }
    took.mul_f64(left as f64 / sample as f64 / SIDE_BY_SIDE)
}

impl Ending {
    fn now() -> Self {
        Self { since: Instant::now(), emptied: HashSet::new(), after_grace: None, read: None }
    }

    /// Returns what is left of the grace.
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
    crowded: Mutex<Option<(Instant, HashMap<Str, Crowd>)>>,
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

    /// Returns what is known of a namespace.
    pub fn get(&self, uid: &Uid) -> Ending {
        self.known().get(uid).cloned().unwrap_or_else(Ending::now)
    }

    /// Changes what is known of a namespace, if that is not forgotten.
    pub fn change(&self, uid: &Uid, change: impl FnOnce(&mut Ending)) {
        if let Some(ending) = self.known().get_mut(uid) {
            change(ending);
        }
    }

    /// Forgets a deleted namespace.
    pub fn forget(&self, uid: &Uid) {
        self.known().remove(uid);
    }

    /// Returns what a namespace with very many objects has, as far as they are watched.
    pub fn crowd(&self, namespace: &str, sources: impl FnOnce() -> Vec<Arc<dyn Source>>) -> Option<Crowd> {
        let mut crowded = self.crowded.lock().unwrap_or_else(PoisonError::into_inner);
        if crowded.as_ref().is_none_or(|(at, _)| at.elapsed() > COUNT_AGE) {
            *crowded = Some((Instant::now(), crowds(&sources())));
        }
        crowded.as_ref()?.1.get(namespace).cloned()
    }
}

/// Returns the namespaces that have very many objects.
fn crowds(sources: &[Arc<dyn Source>]) -> HashMap<Str, Crowd> {
    let mut namespaces: HashMap<Str, Vec<(Name, usize)>> = HashMap::new();
    for source in sources.iter().filter(|source| source.resource().namespaced) {
        let mut counts: HashMap<Str, usize> = HashMap::new();
        source.each(&mut |meta| match counts.get_mut(&meta.namespace) {
            Some(count) => *count += 1,
            None => {
                counts.insert(meta.namespace.clone(), 1);
            }
        });
        let name = (source.resource().group, source.resource().plural);
        counts.into_iter().for_each(|(namespace, count)| namespaces.entry(namespace).or_default().push((name, count)));
    }
    let is_crowded = |kinds: &[(Name, usize)]| kinds.iter().map(|(_, count)| count).sum::<usize>() >= MANY;
    namespaces.retain(|_, kinds| is_crowded(kinds));
    namespaces.into_iter().map(|(namespace, kinds)| (namespace, kinds.into())).collect()
}

/// Reports whether objects of a group get their versions where namespaces get theirs, so that they can be compared:
/// those of API servers of other people may count by themselves.
pub fn counts_alike(group: &str) -> bool {
    !group.contains('.') || group.ends_with(".k8s.io")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_begins_so_late_that_it_lasts_until_the_grace_ends() {
        let seconds = |sample, took, left| begin_before(sample, Duration::from_millis(took), left).as_secs_f64();
        assert!((1.7..2.0).contains(&seconds(1000, 850, 4750)), "{}", seconds(1000, 850, 4750));
        assert!(seconds(1000, 8500, 4750) > 5.0, "a slow server is begun with at once");
        assert_eq!(begin_before(99, Duration::ZERO, 5000), Duration::MAX, "nobody knows");
    }
}
