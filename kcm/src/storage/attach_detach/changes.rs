//! The nodes of each volume that have changed since its last reconcile.
//!
//! Thousands of nodes and pods may share one volume. What happens on one of its nodes does not depend on the others, so
//! that a change of a pod costs no look at all of them. Anything that is not known to concern only some nodes leads to a
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
struct State {
    changed: HashMap<Str, Scope>,
    /// Volumes whose last reconcile of all nodes, and each one since then, has succeeded; with the time at which one of the
    /// nodes has to be checked again.
    settled: HashMap<Str, Option<Instant>>,
}

/// Changes of all volumes.
#[derive(Debug, Default)]
pub struct Changes(Mutex<State>);

impl Changes {
    /// Notes a change, before the volume is requeued.
    pub fn add(&self, volume: &Str, scope: Scope) {
        let mut state = lock(&self.0);
        match (state.changed.get_mut(volume), scope) {
            (Some(Scope::Nodes(known)), Scope::Nodes(nodes)) => known.extend(nodes),
            (_, scope) => {
                let is_all = state.changed.get(volume) == Some(&Scope::All);
                state.changed.insert(volume.clone(), if is_all { Scope::All } else { scope });
            }
        }
    }

    /// Returns the nodes that have changed, and forgets the changes.
    pub fn take(&self, volume: &Str, now: Instant) -> Scope {
        let mut state = lock(&self.0);
        let changed = state.changed.remove(volume).unwrap_or(Scope::All);
        let is_settled = state.settled.get(volume).is_some_and(|next| next.is_none_or(|next| now < next));
        if is_settled { changed } else { Scope::All }
    }

    /// Notes that a reconcile has succeeded, and when one of its nodes has to be checked again. Returns that time for all
    /// nodes.
    pub fn succeeded(&self, volume: &Str, scope: &Scope, next: Option<Instant>) -> Option<Instant> {
        let mut state = lock(&self.0);
        let known = match scope {
            Scope::All => None,
            Scope::Nodes(_) => state.settled.get(volume).copied().flatten(),
        };
        let next = known.into_iter().chain(next).min();
        state.settled.insert(volume.clone(), next);
        next
    }

    /// Forgets that the nodes of a volume are known to be right: the next reconcile concerns all. Also for a volume that has
    /// no nodes any longer.
    pub fn unsettle(&self, volume: &Str) {
        lock(&self.0).settled.remove(volume);
    }

    /// Returns true if nothing is remembered.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        let state = lock(&self.0);
        state.changed.is_empty() && state.settled.is_empty()
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
        let (second, now) = (Duration::from_secs(1), Instant::now());
        for (name, changed, expected) in [
            ("some", vec![nodes(&["a"])], nodes(&["a"])),
            ("several times", vec![nodes(&["a"]), nodes(&["b"])], nodes(&["a", "b"])),
            ("all", vec![Scope::All], Scope::All),
            ("all, then some", vec![Scope::All, nodes(&["a"])], Scope::All),
            ("some, then all", vec![nodes(&["a"]), Scope::All], Scope::All),
            ("unknown", vec![], Scope::All),
        ] {
            let (changes, volume) = (Changes::default(), Str::from("v"));
            changes.succeeded(&volume, &Scope::All, None);
            changed.into_iter().for_each(|scope| changes.add(&volume, scope));
            assert_eq!(changes.take(&volume, now), expected, "{name}");
            assert_eq!(changes.take(&volume, now), Scope::All, "{name}: it is forgotten");
            changes.unsettle(&volume);
            assert!(changes.is_empty(), "{name}");
        }
        let (changes, volume) = (Changes::default(), Str::from("v"));
        let take = |now| {
            changes.add(&volume, nodes(&["a"]));
            changes.take(&volume, now)
        };
        assert_eq!(take(now), Scope::All, "the first one");
        changes.succeeded(&volume, &Scope::All, Some(now + 9 * second));
        assert_eq!(take(now), nodes(&["a"]));
        assert_eq!(changes.succeeded(&volume, &nodes(&["a"]), Some(now + 99 * second)), Some(now + 9 * second));
        assert_eq!(take(now + 8 * second), nodes(&["a"]));
        assert_eq!(take(now + 9 * second), Scope::All, "a node has to be checked again");
        changes.unsettle(&volume);
        assert_eq!(take(now), Scope::All, "after a failure");
    }
}
