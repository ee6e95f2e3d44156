//! The nodes of each volume that have changed since its last reconcile.
//!
//! Thousands of nodes and pods may share one volume. What happens on one of its nodes does not depend on the others, so
//! that a change of a pod need not visit all of them. Anything that is not known to concern only some nodes leads to a
//! reconcile of all: a volume that may be attached to one node only, a failure, a time that has come, an unknown reason.

use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;

use kinds::Str;
use runtime::lock::lock;
use tokio::time::Instant;

/// The nodes of a volume that a reconcile concerns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// All.
    All,
    /// These alone. The others have not changed.
    Nodes(BTreeSet<Str>),
}

impl Scope {
    /// Returns true if a node is among them.
    pub fn contains(&self, node: &Str) -> bool {
        match self {
            Self::All => true,
            Self::Nodes(nodes) => nodes.contains(node),
        }
    }
}

#[derive(Debug, Default)]
struct Tracked {
    /// Changes since the last reconcile began; `None` if there are none.
    changed: Option<Scope>,
    /// The last reconcile of all nodes, and each one since then, has succeeded.
    is_settled: bool,
    /// A reconcile has begun. If the next one begins while this is set, it has ended by a panic: the changes that it took
    /// are lost.
    is_running: bool,
    /// When one of the nodes has to be checked again.
    next: Option<Instant>,
}

/// Changes of the volumes whose nodes do not depend on each other and that were reconciled before.
#[derive(Debug, Default)]
pub struct Changes(Mutex<HashMap<Str, Tracked>>);

impl Changes {
    /// Notes a change, before the volume is requeued. All nodes of a volume that is not tracked are reconciled.
    pub fn add(&self, volume: &Str, scope: Scope) {
        let mut tracked = lock(&self.0);
        let Some(tracked) = tracked.get_mut(volume) else { return };
        match (&mut tracked.changed, scope) {
            (Some(Scope::All), _) => {}
            (Some(Scope::Nodes(known)), Scope::Nodes(nodes)) => known.extend(nodes),
            (changed, scope) => *changed = Some(scope),
        }
    }

    /// Begins a reconcile: returns the nodes that have changed, and forgets the changes. The reconcile has to end with
    /// [`Changes::succeeded`], [`Changes::failed`], [`Changes::postponed`] or [`Changes::forget`]; after any other end, the
    /// next one concerns all nodes.
    pub fn take(&self, volume: &Str, now: Instant) -> Scope {
        let mut tracked = lock(&self.0);
        let tracked = tracked.entry(volume.clone()).or_default();
        tracked.is_settled &= !tracked.is_running;
        tracked.is_running = true;
        let changed = tracked.changed.take();
        let is_due = tracked.next.is_some_and(|next| next <= now);
        changed.filter(|_| tracked.is_settled && !is_due).unwrap_or(Scope::All)
    }

    /// Notes that a reconcile has succeeded, and when one of its nodes has to be checked again. Returns that time for all
    /// nodes.
    pub fn succeeded(&self, volume: &Str, scope: &Scope, next: Option<Instant>) -> Option<Instant> {
        let mut tracked = lock(&self.0);
        let Some(tracked) = tracked.get_mut(volume) else { return next };
        let known = if *scope == Scope::All { None } else { tracked.next };
        tracked.is_settled |= *scope == Scope::All;
        tracked.is_running = false;
        tracked.next = known.into_iter().chain(next).min();
        tracked.next
    }

    /// Notes that a reconcile has failed: the next one concerns all nodes.
    pub fn failed(&self, volume: &Str) {
        if let Some(tracked) = lock(&self.0).get_mut(volume) {
            tracked.is_settled = false;
            tracked.is_running = false;
        }
    }

    /// Notes that a reconcile has ended before it has done anything: the next one concerns its nodes again.
    pub fn postponed(&self, volume: &Str, scope: Scope) {
        if let Some(tracked) = lock(&self.0).get_mut(volume) {
            tracked.is_running = false;
        }
        self.add(volume, scope);
    }

    /// Forgets a volume that has no nodes any longer, or whose nodes depend on each other.
    pub fn forget(&self, volume: &Str) {
        lock(&self.0).remove(volume);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn nodes(names: &[&str]) -> Scope {
        Scope::Nodes(names.iter().map(|name| (*name).into()).collect())
    }

    #[tokio::test(start_paused = true)]
    async fn reconcile_concerns_all_nodes_unless_only_some_are_known_to_have_changed() {
        let (volume, now) = (Str::from("v"), Instant::now());
        for (name, changed, expected) in [
            ("some", vec![nodes(&["a"])], nodes(&["a"])),
            ("several times", vec![nodes(&["a"]), nodes(&["b"])], nodes(&["a", "b"])),
            ("all", vec![Scope::All], Scope::All),
            ("all, then some", vec![Scope::All, nodes(&["a"])], Scope::All),
            ("some, then all", vec![nodes(&["a"]), Scope::All], Scope::All),
            ("unknown", vec![], Scope::All),
        ] {
            let changes = Changes::default();
            changes.take(&volume, now);
            changes.succeeded(&volume, &Scope::All, None);
            changed.into_iter().for_each(|scope| changes.add(&volume, scope));
            assert_eq!(changes.take(&volume, now), expected, "{name}");
            changes.succeeded(&volume, &expected, None);
            assert_eq!(changes.take(&volume, now), Scope::All, "{name}: it is forgotten");
            changes.forget(&volume);
            changes.add(&volume, nodes(&["a"]));
            assert!(lock(&changes.0).is_empty(), "{name}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn reconcile_concerns_all_nodes_after_a_failure_and_when_one_has_to_be_checked_again() {
        let (changes, volume, now) = (Changes::default(), Str::from("v"), Instant::now());
        let second = Duration::from_secs(1);
        let take = |now| {
            changes.add(&volume, nodes(&["a"]));
            changes.take(&volume, now)
        };
        assert_eq!(take(now), Scope::All, "the first one");
        changes.add(&volume, Scope::All);
        changes.succeeded(&volume, &Scope::All, Some(now + 9 * second));
        assert_eq!(take(now), Scope::All, "a change during the first one");
        changes.succeeded(&volume, &Scope::All, Some(now + 9 * second));
        assert_eq!(take(now), nodes(&["a"]));
        assert_eq!(changes.succeeded(&volume, &nodes(&["a"]), Some(now + 99 * second)), Some(now + 9 * second));
        assert_eq!(take(now + 8 * second), nodes(&["a"]));
        changes.succeeded(&volume, &nodes(&["a"]), None);
        assert_eq!(take(now + 9 * second), Scope::All, "a node has to be checked again");
        assert_eq!(changes.succeeded(&volume, &Scope::All, None), None);
        assert_eq!(take(now + 9 * second), nodes(&["a"]));
        changes.failed(&volume);
        assert_eq!(take(now), Scope::All, "after a failure");
        changes.succeeded(&volume, &nodes(&["a"]), None);
        assert_eq!(take(now), Scope::All, "only a reconcile of all nodes makes up for it");
    }

    #[tokio::test(start_paused = true)]
    async fn reconcile_concerns_all_nodes_when_the_last_one_never_ended() {
        let (changes, volume, now) = (Changes::default(), Str::from("v"), Instant::now());
        let take = || {
            changes.add(&volume, nodes(&["a"]));
            changes.take(&volume, now)
        };
        let settle = || {
            changes.take(&volume, now);
            changes.succeeded(&volume, &Scope::All, None);
        };
        settle();
        changes.add(&volume, nodes(&["b"]));
        assert_eq!(changes.take(&volume, now), nodes(&["b"]));
        // It panics here: the change of b must not be lost.
        assert_eq!(take(), Scope::All);
        changes.succeeded(&volume, &Scope::All, None);
        assert_eq!(take(), nodes(&["a"]));
        changes.postponed(&volume, nodes(&["a"]));
        assert_eq!(changes.take(&volume, now), nodes(&["a"]), "a postponed reconcile loses nothing");
    }
}
