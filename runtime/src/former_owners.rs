//! The owners for which the previous leader may have created or deleted children.
//!
//! These are the owners that existed when this process became leader. Creation times do not identify them: API servers
//! set these times by their own clocks, which may differ from this process's clock. The versions of a resource,
//! however, are one sequence for all servers and clients. Once the cache of the owners has reached a version that was
//! read from the API server in this leadership term, it contains all owners of previous terms; later ones are new.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use kinds::Kind;
use kinds::meta::{Meta, ObjectKey, Uid};
use tokio::sync::OnceCell;

use crate::store::Store;
use crate::write::{WriteError, Writer};

/// The owners of one controller that existed when this process became leader.
#[derive(Debug, Default)]
pub struct FormerOwners {
    /// Set once the version that the API server has reached in this leadership term was read.
    begun: OnceCell<()>,
    /// Not set before the cache of the owners has reached that version, and never if the server was restored from a
    /// backup since.
    former: Arc<OnceLock<Owners>>,
}

/// Owners that existed at a version.
#[derive(Debug, Default)]
struct Owners {
    uids: HashSet<Uid>,
    /// The owners that could not be decoded: their UIDs are unknown.
    undecodable: HashSet<ObjectKey>,
}

impl Owners {
    fn in_cache<O: Kind>(store: &Store<O>) -> Self {
        // The keys are read first: an owner that becomes decodable in between is in both sets.
        let undecodable = store.undecodable_keys();
        Self { uids: store.uids(), undecodable }
    }

    fn contains(&self, owner: &Meta) -> bool {
        self.uids.contains(&owner.uid) || !self.undecodable.is_empty() && self.undecodable.contains(&owner.key())
    }
}

impl FormerOwners {
    /// Creates the state of a controller without a previous leader.
    pub fn none() -> Self {
        Self { begun: OnceCell::new_with(Some(())), former: Arc::new(OnceLock::from(Owners::default())) }
    }

    /// Returns false if an owner was certainly created in this leadership term.
    pub fn contains(&self, owner: &Meta) -> bool {
        self.former.get().is_none_or(|former| former.contains(owner))
    }

    /// Reads the version that the API server has reached for the owners; once in a leadership term. Call it only as
    /// leader.
    ///
    /// # Errors
    /// When the request fails. The request is sent again with the next call.
    pub async fn begin<O: Kind>(&self, owners: &Arc<Store<O>>, writer: &Writer) -> Result<(), WriteError> {
        let read = async {
            let history = owners.progress().history();
            let version = writer.latest_version(&O::RESOURCE).await?;
            let (store, former) = (owners.clone(), self.former.clone());
            owners.progress().when_reached(version, move || {
                let progress = store.progress();
                // The callback also runs after a restore of the server from a backup. Then all owners count as former
                // ones during the whole term.
                if progress.history() == history && progress.version() >= version {
                    former.get_or_init(|| Owners::in_cache(&store));
                }
            });
            Ok(())
        };
        self.begun.get_or_try_init(|| read).await.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use kinds::schema::list_meta;
    use kinds::wire::Put as _;
    use kinds::{Decode, Namespace, Sections, envelope};

    use super::*;
    use crate::testing::{deliver, deliver_undecodable, filled_store, meta, writer};

    /// Returns an empty list with a version.
    fn list_response(version: u64) -> Vec<u8> {
        let mut list = Vec::new();
        list.put_message(1, |meta| meta.put_str(list_meta::RESOURCE_VERSION, &version.to_string()));
        envelope::wrap(&Namespace::RESOURCE, &list)
    }

    fn owner(name: &str, version: u64) -> Namespace {
        Namespace { meta: Meta { uid: Uid::parse(name), ..meta("", name, version) }, active: true }
    }

    fn store(owners: impl IntoIterator<Item = Namespace>) -> Arc<Store<Namespace>> {
        let decode = Decode { interner: Arc::default(), sections: Sections::default() };
        let store = Arc::new(filled_store(decode, Vec::new(), []));
        owners.into_iter().for_each(|owner| deliver(&store, owner));
        store
    }

    #[tokio::test]
    async fn owner_is_new_if_it_reaches_the_cache_after_the_version_of_the_term() {
        let owners = store([owner("cached", 5)]);
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = requests.clone();
        let writer = writer(move |_, _| {
            counted.fetch_add(1, Ordering::Relaxed);
            (200, list_response(8))
        })
        .await;
        let former = FormerOwners::default();
        let late = owner("late", 7);
        assert!(former.contains(&late.meta), "nothing was read yet");
        for _ in 0..2 {
            former.begin(&owners, &writer).await.expect("the version is read");
        }
        assert_eq!(requests.load(Ordering::Relaxed), 1, "it is read once");
        deliver(&owners, late.clone());
        assert!(former.contains(&owner("other", 6).meta), "the cache has not reached the version of the term");
        deliver(&owners, owner("cached", 9));
        // The creation time of an owner is not read: it may come from any clock.
        assert!(former.contains(&late.meta), "created before the version of the term");
        assert!(former.contains(&owner("cached", 9).meta), "changed after it");
        assert!(!former.contains(&owner("new", 10).meta));
    }

    #[tokio::test]
    async fn all_owners_are_former_ones_if_the_server_is_restored_from_a_backup() {
        let owners = store([owner("cached", 5)]);
        let writer = writer(|_, _| (200, list_response(8))).await;
        let former = FormerOwners::default();
        former.begin(&owners, &writer).await.expect("the version is read");
        owners.restart(2);
        deliver(&owners, owner("cached", 9));
        assert!(former.contains(&owner("new", 10).meta));
    }

    #[tokio::test]
    async fn owner_that_cannot_be_decoded_is_a_former_one_and_others_may_be_new() {
        let owners = store([owner("cached", 5)]);
        deliver_undecodable(&owners, ObjectKey::new("", "garbled"));
        let writer = writer(|_, _| (200, list_response(5))).await;
        let former = FormerOwners::default();
        former.begin(&owners, &writer).await.expect("the version is read");
        for (name, is_former) in [("cached", true), ("garbled", true), ("new", false)] {
            assert_eq!(former.contains(&owner(name, 6).meta), is_former, "{name}");
        }
    }

    #[tokio::test]
    async fn failed_request_is_repeated() {
        let owners = store([owner("cached", 5)]);
        let requests = Arc::new(AtomicUsize::new(0));
        let writer = writer(move |_, _| match requests.fetch_add(1, Ordering::Relaxed) {
            0 => (500, Vec::new()),
            _ => (200, list_response(5)),
        })
        .await;
        let former = FormerOwners::default();
        assert!(former.begin(&owners, &writer).await.is_err() && former.contains(&owner("new", 6).meta));
        former.begin(&owners, &writer).await.expect("the version is read");
        assert!(!former.contains(&owner("new", 6).meta));
    }
}
