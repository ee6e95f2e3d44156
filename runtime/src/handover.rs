//! The check after a takeover: before the first creation or deletion, an owner's cached children are compared with the
//! API server's.
//!
//! The last creations and deletions of the previous leader may be missing in this process's cache when it becomes
//! leader. A decision that is based on such a cache creates surplus pods, or deletes more pods than allowed. The same
//! check follows a write whose response was lost.
//!
//! A child counts as missing only if its cached record matches the owner's selector, is not terminating, is not newer
//! than the list, and is not in the list. Any other difference proves nothing: a child whose labels were changed is not
//! in a list by labels, but is not being deleted either. The owner waits for a missing child until its record in the
//! cache is removed, terminating, has other labels, or is newer than the list; after [`RECHECK_DELAY`], the children
//! are compared again.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use kinds::meta::{Meta, ObjectKey, Uid};
use kinds::selector::Selector;
use kinds::{Kind, Str};
use tokio::time::Instant;

use crate::consistency::{Consistency, Observed};
use crate::former_owners::FormerOwners;
use crate::lock::lock;
use crate::store::{Store, by_controller, owned_by};
use crate::write::{MetaList, WriteError, Writer};

/// Maximum time that a key waits for a deletion to reach the cache. The change itself requeues the key earlier.
pub const RECHECK_DELAY: Duration = Duration::from_secs(5);

/// A child that the API server no longer lists although the cache contains it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Missing {
    name: Str,
    uid: Uid,
    /// The version of the list. A newer record of the object would prove that it still exists.
    listed_at: u64,
}

/// The state of the check for one owner.
#[derive(Debug, Default)]
struct Check {
    uid: Uid,
    /// Its children were compared in this leadership term.
    is_compared: bool,
    /// A write for the owner may have been executed although its response was lost: compare before the next decision.
    is_required: bool,
    missing: Vec<Missing>,
    compared_at: Option<Instant>,
}

/// The checked owners of one controller.
#[derive(Debug, Default)]
pub struct Handover {
    former: FormerOwners,
    checks: Mutex<HashMap<ObjectKey, Check>>,
}

/// An owner, the selector of its children, and their cache.
#[derive(Clone, Copy)]
pub struct Children<'a, C: Kind> {
    /// The owner's metadata.
    pub owner: &'a Meta,
    /// The owner's selector.
    pub selector: &'a Selector,
    /// The children's cache, indexed by controller.
    pub store: &'a Arc<Store<C>>,
    /// The controller's writes that the caches may not contain yet.
    pub consistency: &'a Consistency,
    /// The controller's client.
    pub writer: &'a Writer,
}

impl Handover {
    /// Creates the state of a controller without a previous leader.
    pub fn without_former_owners() -> Self {
        Self { former: FormerOwners::none(), checks: Mutex::default() }
    }

    /// Returns true if an owner's children have to be compared before anything is created or deleted for it.
    pub fn is_due(&self, owner: &Meta) -> bool {
        let checks = self.lock();
        let known = checks.get(&owner.key()).filter(|check| check.uid == owner.uid);
        let (is_required, is_compared) = known.map_or((false, false), |check| (check.is_required, check.is_compared));
        is_required || !is_compared && self.former.contains(owner)
    }

    /// Requires a comparison before the next creation or deletion for an owner, because the response to a write was
    /// lost.
    pub fn require(&self, owner: &Meta) {
        self.update(owner, |check| check.is_required = true);
    }

    /// Compares the children with the API server's. Returns those that the server no longer has, or has with labels
    /// that the selector does not match. `owners` is the cache of all owners.
    ///
    /// The children have to be read again afterwards ([`Handover::observe`]): what was read before may be outdated.
    ///
    /// # Errors
    /// When a list fails. The comparison is still due then.
    pub async fn compare<O: Kind, C: Kind>(
        &self,
        owners: &Arc<Store<O>>,
        children: &Children<'_, C>,
    ) -> Result<Vec<Arc<C>>, WriteError> {
        let Children { owner, store, consistency, .. } = children;
        let Some(selector) = children.selector.query() else {
            self.update(owner, |check| check.record(Vec::new()));
            return Ok(Vec::new());
        };
        self.former.begin(owners, children.writer).await?;
        let list = children.writer.list_metadata(&C::RESOURCE, &owner.namespace, &selector).await?;
        if let Some(newest) = newest_of(owner, &list.items) {
            consistency.wrote(&owner.key(), store, newest);
        }
        let stored = store.by_index(&by_controller(), owned_by(&owner.namespace, &owner.uid));
        let missing = missing(&stored, children.selector, &list);
        let awaited = missing.iter().map(|child| Missing {
            name: child.meta().name.clone(),
            uid: child.meta().uid.clone(),
            listed_at: list.version,
        });
        self.update(owner, |check| check.record(awaited.collect()));
        Ok(missing)
    }

    /// Reads children, and reports whether the cache already contained all earlier deletions: those of this process and
    /// those that the last comparison found. If it did not, the caller has to requeue the key after [`RECHECK_DELAY`].
    pub fn observe<C: Kind, T>(&self, children: &Children<'_, C>, read: impl FnOnce(&Store<C>) -> T) -> Observed<T> {
        let Children { owner, selector, store, consistency, .. } = children;
        let is_settled = self.is_settled(owner, selector, store);
        let observed = consistency.observe(&owner.key(), store, read);
        Observed { are_deletions_cached: observed.are_deletions_cached && is_settled, ..observed }
    }

    /// Returns the delay of the next reconcile after a comparison: zero if the cache is up to date.
    pub fn delay_after_compare<C: Kind>(&self, children: &Children<'_, C>, is_caught_up: bool) -> Duration {
        let Children { owner, selector, store, .. } = children;
        if is_caught_up && self.is_settled(owner, selector, store) { Duration::ZERO } else { RECHECK_DELAY }
    }

    /// Returns true if the store is up to date for all children that were missing in the last comparison.
    ///
    /// If the store is still not up to date after [`RECHECK_DELAY`], the children are compared again: returns true, and
    /// [`Handover::is_due`] is true, too.
    fn is_settled<C: Kind>(&self, owner: &Meta, selector: &Selector, store: &Store<C>) -> bool {
        let mut checks = self.lock();
        let Some(check) = checks.get_mut(&owner.key()).filter(|check| check.uid == owner.uid) else { return true };
        check.missing.retain(|missing| {
            let record = store.get_with_uid(&owner.namespace, &missing.name, &missing.uid);
            record.is_some_and(|record| {
                let meta = record.meta();
                !meta.is_deleting() && meta.version <= missing.listed_at && selector.matches(&meta.labels)
            })
        });
        let is_overdue = check.compared_at.is_some_and(|at| at.elapsed() >= RECHECK_DELAY);
        if is_overdue && !check.missing.is_empty() {
            check.missing.clear();
            check.is_required = true;
        }
        check.missing.is_empty()
    }

    /// Removes an owner that no longer exists.
    pub fn forget(&self, key: &ObjectKey) {
        self.lock().remove(key);
    }

    /// Changes an owner's entry; a new object with the same name starts with an empty one.
    fn update<T>(&self, owner: &Meta, change: impl FnOnce(&mut Check) -> T) -> T {
        let mut checks = self.lock();
        let check = checks.entry(owner.key()).or_default();
        if check.uid != owner.uid {
            *check = Check { uid: owner.uid.clone(), ..Check::default() };
        }
        change(check)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, Check>> {
        lock(&self.checks)
    }
}

impl Check {
    fn record(&mut self, missing: Vec<Missing>) {
        self.missing = missing;
        self.is_compared = true;
        self.is_required = false;
        self.compared_at = Some(Instant::now());
    }
}

/// Returns the newest version among an owner's listed children.
fn newest_of(owner: &Meta, listed: &[Meta]) -> Option<u64> {
    listed.iter().filter(|child| child.is_controlled_by(&owner.uid)).map(|child| child.version).max()
}

/// Returns the cached children that should be in a list by this selector but are not.
fn missing<C: Kind>(stored: &[Arc<C>], selector: &Selector, list: &MetaList) -> Vec<Arc<C>> {
    let listed: HashSet<&Uid> = list.items.iter().map(|known| &known.uid).collect();
    let is_missing = |child: &&Arc<C>| {
        let meta = child.meta();
        meta.version <= list.version
            && !meta.is_deleting()
            && selector.matches(&meta.labels)
            && !listed.contains(&meta.uid)
    };
    stored.iter().filter(is_missing).cloned().collect()
}

#[cfg(test)]
mod tests {
    use kinds::meta::OwnerRef;
    use kinds::{Decode, Interner, Namespace, Time};

    use super::*;
    use crate::testing::{filled_store, meta};

    fn owner() -> Meta {
        Meta { uid: Uid::parse("web"), ..meta("ns", "web", 1) }
    }

    /// Returns a child of the owner, by name, version and value of the label `app`.
    fn child(name: &str, version: u64, app: &str) -> Meta {
        let interner = Interner::default();
        let owners = [OwnerRef {
            api_version: "apps/v1".into(),
            kind: "ReplicaSet".into(),
            name: "web".into(),
            uid: Uid::parse("web"),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }];
        Meta {
            uid: Uid::parse(name),
            labels: interner.labels(vec![("app".into(), app.into())]),
            owners: interner.owners(&owners),
            ..meta("ns", name, version)
        }
    }

    /// Returns a record of any kind: only its metadata matters here.
    fn record(meta: Meta) -> Namespace {
        Namespace { meta, active: true }
    }

    fn store(children: Vec<Meta>) -> Store<Namespace> {
        let decode = Decode { interner: Arc::default(), sections: kinds::Sections::default() };
        filled_store(decode, vec![by_controller()], children.into_iter().map(record))
    }

    fn app_web() -> Selector {
        Selector::of_labels(&Interner::default(), [("app", "web")])
    }

    fn names(children: &[Arc<Namespace>]) -> Vec<&str> {
        children.iter().map(|child| &*child.meta.name).collect()
    }

    #[test]
    fn child_is_missing_only_if_the_list_should_have_it() {
        let deleting = Meta { deletion: Time(5), ..child("deleting", 3, "web") };
        let rows = [
            ("not listed", child("a", 3, "web"), vec![], true),
            ("listed", child("a", 3, "web"), vec![child("a", 4, "web")], false),
            ("listed under its name with another uid", child("a", 3, "web"), vec![child("b", 4, "web")], true),
            ("labels changed, not released yet", child("a", 3, "debug"), vec![], false),
            ("newer than the list", child("a", 11, "web"), vec![], false),
            ("already being deleted", deleting, vec![], false),
        ];
        for (name, stored, listed, expected) in rows {
            let stored = [Arc::new(record(stored))];
            let list = MetaList { version: 10, items: listed };
            assert_eq!(!missing(&stored, &app_web(), &list).is_empty(), expected, "{name}");
        }
    }

    /// Records a comparison in which child `a` was missing.
    fn record_missing(handover: &Handover, owner: &Meta, store: &Store<Namespace>, listed_at: u64) {
        let stored = store.by_index(&by_controller(), owned_by(&owner.namespace, &owner.uid));
        let missing = missing(&stored, &app_web(), &MetaList { version: listed_at, items: Vec::new() });
        assert_eq!(names(&missing), ["a"]);
        let awaited = Missing { name: "a".into(), uid: Uid::parse("a"), listed_at };
        handover.update(owner, |check| check.record(vec![awaited]));
    }

    #[tokio::test(start_paused = true)]
    async fn missing_child_is_awaited_until_its_record_is_removed_or_changed() {
        let later = [
            ("deleted", None),
            ("being deleted", Some(Meta { deletion: Time(5), ..child("a", 11, "web") })),
            ("changed after the list", Some(child("a", 11, "web"))),
            ("with other labels", Some(child("a", 9, "debug"))),
            ("recreated under its name", Some(Meta { uid: Uid::parse("other"), ..child("a", 11, "web") })),
        ];
        for (name, now) in later {
            let (handover, owner, store) = (Handover::default(), owner(), store(vec![child("a", 3, "web")]));
            record_missing(&handover, &owner, &store, 10);
            assert!(!handover.is_settled(&owner, &app_web(), &store), "{name}: no change received yet");
            store.put(record(child("a", 4, "web")));
            assert!(!handover.is_settled(&owner, &app_web(), &store), "{name}: a change from before the list");
            match now {
                Some(now) => store.put(record(now)),
                None => store.remove("ns", "a"),
            }
            assert!(handover.is_settled(&owner, &app_web(), &store), "{name}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn child_that_stays_missing_is_compared_again_and_does_not_block_its_owner() {
        let (handover, owner, store) = (Handover::default(), owner(), store(vec![child("a", 3, "web")]));
        record_missing(&handover, &owner, &store, 10);
        assert!(!handover.is_settled(&owner, &app_web(), &store) && !handover.is_due(&owner));
        tokio::time::advance(RECHECK_DELAY).await;
        assert!(handover.is_settled(&owner, &app_web(), &store) && handover.is_due(&owner));
    }

    #[test]
    fn check_is_due_once_per_term_and_after_each_lost_response() {
        for (handover, is_former) in [(Handover::default(), true), (Handover::without_former_owners(), false)] {
            let owner = owner();
            assert_eq!(handover.is_due(&owner), is_former);
            handover.require(&owner);
            assert!(handover.is_due(&owner), "a response was lost");
            handover.update(&owner, |check| check.record(Vec::new()));
            assert!(!handover.is_due(&owner), "compared");
            handover.require(&owner);
            assert!(handover.is_due(&owner), "a response was lost after the comparison");
            let successor = Meta { uid: Uid::parse("successor"), ..owner.clone() };
            assert_eq!(handover.is_due(&successor), is_former, "another object with the same name");
            handover.forget(&owner.key());
            assert_eq!(handover.is_due(&owner), is_former);
        }
    }
}
