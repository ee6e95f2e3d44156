//! Nodes and pods that have changed since the last reconcile of their volume.
//!
//! Thousands of nodes and pods may share one volume, so the reconcile after a change of one pod must not visit all of
//! them. The steps for one node do not depend on the other nodes, unless the volume may be attached to one node only.
//! A reconcile for a due recheck, as after a failure, or for an unknown reason covers all nodes and pods.

use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;

use kinds::Str;
use kinds::meta::ObjectKey;
use runtime::lock::lock;
use tokio::time::Instant;

/// The nodes that a reconcile of a volume covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// All nodes.
    All,
    /// Only these nodes. The others have not changed.
    Nodes(BTreeSet<Str>),
}

impl Scope {
    /// Returns true if a node is in the scope.
    pub fn contains(&self, node: &Str) -> bool {
        match self {
            Self::All => true,
            Self::Nodes(nodes) => nodes.contains(node),
        }
    }
}

/// The pods that a reconcile of a volume covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pods {
    /// All pods on the nodes.
    All,
    /// Only these pods. The others use the volume as before.
    Some(BTreeSet<ObjectKey>),
}

/// The nodes and pods that a reconcile of a volume covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// The nodes.
    pub nodes: Scope,
    /// The pods that may have begun or ceased to use the volume.
    pub pods: Pods,
}

impl Extent {
    /// All nodes and pods.
    pub const ALL: Self = Self { nodes: Scope::All, pods: Pods::All };

    /// Returns the extent of a change of nodes that affects no pod's use of the volume.
    pub fn of_nodes(nodes: impl IntoIterator<Item = Str>) -> Self {
        Self { nodes: Scope::Nodes(nodes.into_iter().collect()), pods: Pods::Some(BTreeSet::new()) }
    }

    fn extend(&mut self, other: Self) {
        match (&mut self.nodes, other.nodes) {
            (Scope::Nodes(known), Scope::Nodes(nodes)) => known.extend(nodes),
            (known, _) => *known = Scope::All,
        }
        match (&mut self.pods, other.pods) {
            (Pods::Some(known), Pods::Some(pods)) => known.extend(pods),
            (known, _) => *known = Pods::All,
        }
    }
}

#[derive(Debug, Default)]
struct Tracked {
    /// Changes since the last reconcile began; `None` if there are none.
    changed: Option<Extent>,
    /// A reconcile of all nodes and pods, and each one since then, has ended. Nodes where it failed are checked again.
    is_settled: bool,
    /// At the last reconcile, the volume's nodes did not depend on each other.
    is_independent: bool,
    /// A reconcile has begun and not ended. If this is set when the next reconcile begins, the previous one has
    /// panicked, and its changes have to be processed again.
    is_running: bool,
    /// Time at which one of the nodes has to be checked again.
    next: Option<Instant>,
}

/// Changes of the volumes that were reconciled before.
#[derive(Debug, Default)]
pub struct Changes(Mutex<HashMap<Str, Tracked>>);

impl Changes {
    /// Records a change, before the volume is requeued. A volume that is not tracked is reconciled on all nodes.
    pub fn add(&self, volume: &Str, extent: Extent) {
        let mut tracked = lock(&self.0);
        let Some(tracked) = tracked.get_mut(volume) else { return };
        match &mut tracked.changed {
            Some(changed) => changed.extend(extent),
            changed => *changed = Some(extent),
        }
    }

    /// Begins a reconcile: returns the nodes and pods that have changed, and clears the recorded changes. Returns all
    /// nodes if they depend on each other, that is, `is_independent` is false. Returns [`Extent::ALL`] if no change is
    /// recorded, a recheck is due, `is_independent` has changed, or no reconcile of all nodes and pods has ended. The
    /// reconcile has to end with [`Changes::ended`], [`Changes::postponed`] or [`Changes::forget`]; otherwise the next
    /// one covers all nodes and pods.
    pub fn take(&self, volume: &Str, is_independent: bool, now: Instant) -> Extent {
        let mut tracked = lock(&self.0);
        let tracked = tracked.entry(volume.clone()).or_default();
        tracked.is_settled &= !tracked.is_running;
        tracked.is_running = true;
        let changed = tracked.changed.take();
        let is_due = tracked.next.is_some_and(|next| next <= now);
        let is_same = std::mem::replace(&mut tracked.is_independent, is_independent) == is_independent;
        let Some(changed) = changed.filter(|_| tracked.is_settled && is_same && !is_due) else { return Extent::ALL };
        if is_independent { changed } else { Extent { nodes: Scope::All, ..changed } }
    }

    /// Records that a reconcile has ended, and the time at which one of its nodes has to be checked again. Returns
    /// the earliest such time of all nodes.
    pub fn ended(&self, volume: &Str, extent: &Extent, next: Option<Instant>) -> Option<Instant> {
        let mut tracked = lock(&self.0);
        let Some(tracked) = tracked.get_mut(volume) else { return next };
        let known = if extent.nodes == Scope::All { None } else { tracked.next };
        tracked.is_settled |= *extent == Extent::ALL;
        tracked.is_running = false;
        tracked.next = known.into_iter().chain(next).min();
        tracked.next
    }

    /// Records that a reconcile has ended before it has done anything: the next one covers the same nodes and pods.
    pub fn postponed(&self, volume: &Str, extent: Extent) {
        if let Some(tracked) = lock(&self.0).get_mut(volume) {
            tracked.is_running = false;
        }
        self.add(volume, extent);
    }

    /// Removes the state of a volume that no longer has nodes.
    pub fn forget(&self, volume: &Str) {
        lock(&self.0).remove(volume);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn nodes(names: &[&str]) -> Extent {
        Extent::of_nodes(names.iter().map(|name| Str::from(*name)))
    }

    fn pod(name: &str, node: &str) -> Extent {
        Extent { pods: Pods::Some([ObjectKey::new("shop", name)].into()), ..nodes(&[node]) }
    }

    /// Returns the changes of a volume that was reconciled on all nodes.
    fn settled(volume: &Str, is_independent: bool, now: Instant) -> Changes {
        let changes = Changes::default();
        changes.take(volume, is_independent, now);
        changes.ended(volume, &Extent::ALL, None);
        changes
    }

    #[tokio::test(start_paused = true)]
    async fn reconcile_covers_all_nodes_unless_only_some_are_known_to_have_changed() {
        let (volume, now) = (Str::from("v"), Instant::now());
        let both = Pods::Some(["web", "db"].map(|name| ObjectKey::new("shop", name)).into());
        let all_pods = Extent { pods: Pods::All, ..nodes(&["b"]) };
        for (name, changed, expected) in [
            ("some", vec![nodes(&["a"])], nodes(&["a"])),
            ("several times", vec![nodes(&["a"]), nodes(&["b"])], nodes(&["a", "b"])),
            ("a pod", vec![pod("web", "a")], pod("web", "a")),
            ("pods", vec![pod("web", "a"), pod("db", "b")], Extent { pods: both, ..nodes(&["a", "b"]) }),
            ("a pod, then its node", vec![pod("web", "a"), nodes(&["a"])], pod("web", "a")),
            (
                "a pod, then all of a node",
                vec![pod("web", "a"), all_pods],
                Extent { pods: Pods::All, ..nodes(&["a", "b"]) },
            ),
            ("all", vec![Extent::ALL], Extent::ALL),
            ("all, then some", vec![Extent::ALL, pod("web", "a")], Extent::ALL),
            ("some, then all", vec![pod("web", "a"), Extent::ALL], Extent::ALL),
            ("unknown", vec![], Extent::ALL),
        ] {
            let changes = settled(&volume, true, now);
            changed.into_iter().for_each(|extent| changes.add(&volume, extent));
            assert_eq!(changes.take(&volume, true, now), expected, "{name}");
            changes.ended(&volume, &expected, None);
            assert_eq!(changes.take(&volume, true, now), Extent::ALL, "{name}: the change counts once");
            changes.forget(&volume);
            changes.add(&volume, nodes(&["a"]));
            assert!(lock(&changes.0).is_empty(), "{name}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn reconcile_of_dependent_nodes_covers_all_nodes_but_only_the_changed_pods() {
        let (volume, now) = (Str::from("v"), Instant::now());
        let changes = settled(&volume, false, now);
        changes.add(&volume, pod("web", "a"));
        let all_nodes = Extent { nodes: Scope::All, ..pod("web", "a") };
        assert_eq!(changes.take(&volume, false, now), all_nodes);
        changes.ended(&volume, &all_nodes, None);
        changes.add(&volume, pod("web", "a"));
        assert_eq!(changes.take(&volume, true, now), Extent::ALL, "another node may have waited");
        changes.ended(&volume, &Extent::ALL, None);
        changes.add(&volume, pod("web", "a"));
        assert_eq!(changes.take(&volume, true, now), pod("web", "a"));
    }

    #[tokio::test(start_paused = true)]
    async fn reconcile_covers_all_nodes_when_one_has_to_be_checked_again() {
        let (changes, volume, now) = (Changes::default(), Str::from("v"), Instant::now());
        let second = Duration::from_secs(1);
        let take = |now| {
            changes.add(&volume, nodes(&["a"]));
            changes.take(&volume, true, now)
        };
        assert_eq!(take(now), Extent::ALL, "the first one");
        changes.add(&volume, Extent::ALL);
        changes.ended(&volume, &Extent::ALL, Some(now + 9 * second));
        assert_eq!(take(now), Extent::ALL, "a change during the first one");
        changes.ended(&volume, &Extent::ALL, Some(now + 9 * second));
        assert_eq!(take(now), nodes(&["a"]));
        assert_eq!(changes.ended(&volume, &nodes(&["a"]), Some(now + 99 * second)), Some(now + 9 * second));
        assert_eq!(take(now + 8 * second), nodes(&["a"]));
        changes.ended(&volume, &nodes(&["a"]), None);
        assert_eq!(take(now + 9 * second), Extent::ALL, "a node has to be checked again");
        assert_eq!(changes.ended(&volume, &Extent::ALL, None), None);
        assert_eq!(take(now + 9 * second), nodes(&["a"]));
    }

    #[tokio::test(start_paused = true)]
    async fn reconcile_covers_all_nodes_when_the_last_one_never_ended() {
        let (changes, volume, now) = (Changes::default(), Str::from("v"), Instant::now());
        let take = || {
            changes.add(&volume, nodes(&["a"]));
            changes.take(&volume, true, now)
        };
        let settle = || {
            changes.take(&volume, true, now);
            changes.ended(&volume, &Extent::ALL, None);
        };
        settle();
        changes.add(&volume, nodes(&["b"]));
        assert_eq!(changes.take(&volume, true, now), nodes(&["b"]));
        // The reconcile panics, and does not call `ended`: the change of b must not be lost.
        assert_eq!(take(), Extent::ALL);
        changes.ended(&volume, &Extent::ALL, None);
        assert_eq!(take(), nodes(&["a"]));
        changes.postponed(&volume, nodes(&["a"]));
        assert_eq!(changes.take(&volume, true, now), nodes(&["a"]), "a postponed reconcile loses nothing");
    }
}
