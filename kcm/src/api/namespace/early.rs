//! State of namespaces that are being deleted. Those with very many objects are emptied before their grace period ends.
//!
//! Until it ends, other API servers may accept new objects. Therefore a resource that was emptied early counts only if
//! its watch shows that it is still empty afterwards; otherwise it is emptied again. A watch without any later event
//! proves nothing. Therefore the early deletions should not finish before the grace period ends.

use std::collections::HashSet;
use std::collections::hash_map::{Entry, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use kinds::namespace_deletion::TerminatingNamespace;
use kinds::{Str, Uid};
use runtime::lock::lock;
use runtime::watch::Source;
use tokio::time::Instant;

use super::GRACE;

/// Minimum number of objects of a large namespace. Below it, listing each kind a second time takes longer than the
/// deletions.
const LARGE_NAMESPACE: usize = 1000;

/// Maximum age of a count of objects, which namespaces that are deleted at about the same time share.
const COUNT_AGE: Duration = Duration::from_secs(2);

/// Minimum number of deletions from which the server's speed is measured.
const MIN_SAMPLE: usize = 100;

/// The cost of deleting a pod for the API server, in deletions of other objects.
pub const POD_COST: usize = 4;

/// Assumed speedup of deleting kinds in parallel instead of one after the other. A server with two cores had a speedup
/// of 1.8. The higher value here delays the start: if the deletions finish before the grace period ends, everything has
/// to be listed again.
const PARALLEL_SPEEDUP: f64 = 2.2;

/// Group and plural name of a resource, without its version.
pub type ResourceName = (&'static str, &'static str);

/// The deletion of one namespace.
#[derive(Debug, Clone)]
pub struct NamespaceDeletion {
    /// Time at which this process first received it.
    since: Instant,
    /// Resources that were found empty in an earlier pass. They are emptied again only once nothing else remains, so
    /// that a namespace that waits for one broken group sends requests for that group only.
    pub emptied: HashSet<ResourceName>,
    /// A resourceVersion from after the grace period, if resources were emptied before its end.
    pub after_grace: Option<u64>,
    /// The namespace as read after the grace period, at [`Self::after_grace`].
    pub read: Option<Arc<TerminatingNamespace>>,
}

/// Numbers of objects of a large namespace, by kind.
pub type ObjectCounts = Arc<[(ResourceName, usize)]>;

/// Returns the lead time: emptying kinds in parallel begins this time before the end of the grace period, so that both
/// end together. The deletion of `sample` objects took `took`, and `left` objects remain.
pub fn lead_time(sample: usize, took: Duration, left: usize) -> Duration {
    if sample < MIN_SAMPLE {
        return Duration::MAX;
    }
    took.mul_f64(left as f64 / sample as f64 / PARALLEL_SPEEDUP)
}

impl NamespaceDeletion {
    fn now() -> Self {
        Self { since: Instant::now(), emptied: HashSet::new(), after_grace: None, read: None }
    }

    /// Returns the remaining time of the grace period; `None` once it has ended.
    pub fn grace(&self) -> Option<Duration> {
        GRACE.checked_sub(self.since.elapsed()).filter(|left| !left.is_zero())
    }

    /// Records whether a resource was found empty.
    pub fn found(&mut self, resource: ResourceName, is_empty: bool) {
        if is_empty {
            self.emptied.insert(resource);
        } else {
            self.emptied.remove(&resource);
        }
    }
}

/// All namespaces that are being deleted.
#[derive(Debug, Default)]
pub struct NamespaceDeletions {
    known: Mutex<HashMap<Uid, NamespaceDeletion>>,
    large: Mutex<Option<(Instant, HashMap<Str, ObjectCounts>)>>,
}

impl NamespaceDeletions {
    fn known(&self) -> MutexGuard<'_, HashMap<Uid, NamespaceDeletion>> {
        lock(&self.known)
    }

    /// Records a namespace that is being deleted. Returns true if it is new.
    pub fn begin(&self, uid: &Uid) -> bool {
        match self.known().entry(uid.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(NamespaceDeletion::now());
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// Returns the state of a namespace.
    pub fn get(&self, uid: &Uid) -> NamespaceDeletion {
        self.known().get(uid).cloned().unwrap_or_else(NamespaceDeletion::now)
    }

    /// Changes the state of a namespace, unless the namespace was removed.
    pub fn change(&self, uid: &Uid, change: impl FnOnce(&mut NamespaceDeletion)) {
        if let Some(deletion) = self.known().get_mut(uid) {
            change(deletion);
        }
    }

    /// Removes a deleted namespace.
    pub fn forget(&self, uid: &Uid) {
        self.known().remove(uid);
    }

    /// Returns the numbers of watched objects of a namespace by kind; `None` if the namespace is not large.
    pub fn object_counts(
        &self,
        namespace: &str,
        sources: impl FnOnce() -> Vec<Arc<dyn Source>>,
    ) -> Option<ObjectCounts> {
        let mut large = lock(&self.large);
        if large.as_ref().is_none_or(|(at, _)| at.elapsed() > COUNT_AGE) {
            *large = Some((Instant::now(), count_large_namespaces(&sources())));
        }
        large.as_ref()?.1.get(namespace).cloned()
    }
}

/// Returns the large namespaces with their numbers of objects.
fn count_large_namespaces(sources: &[Arc<dyn Source>]) -> HashMap<Str, ObjectCounts> {
    let mut namespaces: HashMap<Str, Vec<(ResourceName, usize)>> = HashMap::new();
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
    let is_large =
        |kinds: &[(ResourceName, usize)]| kinds.iter().map(|(_, count)| count).sum::<usize>() >= LARGE_NAMESPACE;
    namespaces.retain(|_, kinds| is_large(kinds));
    namespaces.into_iter().map(|(namespace, kinds)| (namespace, kinds.into())).collect()
}

/// Returns true if resourceVersions of a group can be compared with those of namespaces. Aggregated API servers, such
/// as those of metrics, may have their own.
pub fn has_comparable_versions(group: &str) -> bool {
    !group.contains('.') || group.ends_with(".k8s.io") && !group.ends_with("metrics.k8s.io")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lead_time_is_the_expected_duration_of_the_deletions() {
        let seconds = |sample, took, left| lead_time(sample, Duration::from_millis(took), left).as_secs_f64();
        assert!((1.7..2.0).contains(&seconds(1000, 850, 4750)), "{}", seconds(1000, 850, 4750));
        assert!(seconds(1000, 8500, 4750) > 5.0, "with a slow server it begins immediately");
        assert_eq!(lead_time(99, Duration::ZERO, 5000), Duration::MAX, "the speed is unknown");
    }
}
