//! Deletions as observed by a watch, so that the server need not be polled.

use std::sync::Arc;

use kinds::Meta;

use super::every_kind::{EveryKind, Source};

/// The watched kinds of a process, typed or as metadata.
#[derive(Clone, Default)]
pub struct Watched {
    typed: Vec<Arc<dyn Source>>,
    every: Option<Arc<EveryKind>>,
}

impl Watched {
    pub(crate) fn new(typed: Vec<Arc<dyn Source>>, every: Option<Arc<EveryKind>>) -> Self {
        Self { typed, every }
    }

    /// Returns the source of a resource, if it is watched now.
    pub fn source(&self, group: &str, plural: &str) -> Option<Arc<dyn Source>> {
        let is_wanted = |source: &&Arc<dyn Source>| {
            let resource = source.resource();
            (resource.group, resource.plural) == (group, plural)
        };
        let typed = self.typed.iter().find(is_wanted).cloned();
        typed.or_else(|| self.every.as_ref()?.source(group, plural))
    }

    /// Returns all current sources.
    pub fn sources(&self) -> Vec<Arc<dyn Source>> {
        self.every.as_ref().map_or_else(|| self.typed.clone(), |every| every.sources())
    }
}

/// Returns true if, according to a watch that has reached `version`, a namespace has no objects of the kind and no
/// object of the kind is undecodable.
pub fn is_empty_since(source: &dyn Source, namespace: &str, version: u64) -> bool {
    // The version is read before the content, so that the content is at least as new.
    let watched = source.progress().version();
    if !source.is_synced() || watched < version || source.undecodable_in(namespace) > 0 {
        return false;
    }
    !source.any(&mut |meta| *meta.namespace == *namespace)
}

/// Waits until each of `objects`, given as read from the server, is deleted according to the watch, and returns true.
/// The objects are awaited one after the other. Returns false if `is_kept` holds for the awaited object, or if no
/// decision is possible because that object is undecodable. Does not return before the watch has reached the version of
/// the awaited object, or while that object exists and `is_kept` does not hold for it.
pub async fn wait_until_deleted(source: &dyn Source, objects: &[Meta], is_kept: impl Fn(&Meta) -> bool) -> bool {
    for object in objects {
        let key = object.key();
        loop {
            let version = source.progress().version();
            // A watch that is older than the object does not prove its absence.
            if source.is_synced() && version >= object.version {
                // A stale record is not read: otherwise the Writer would refuse the other deletions of a reconcile.
                if source.is_undecodable(&key) {
                    return false;
                }
                match source.meta(&key).filter(|now| now.uid == object.uid) {
                    None => break,
                    Some(now) if is_kept(&now) => return false,
                    Some(_) => {}
                }
            }
            source.progress().reached(version + 1).await;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use futures::poll;
    use kinds::meta::ObjectKey;
    use kinds::{Decode, Sections, Time, Uid};

    use super::super::every_kind::Metadata;
    use super::*;
    use crate::store::Store;
    use crate::{stale, testing};

    fn meta(uid: &str, version: u64) -> Meta {
        Meta { uid: Uid::parse(uid), ..testing::meta("n", "a", version) }
    }

    /// Returns a store whose watch has delivered version 4 of an object.
    fn delivered() -> Store<Metadata> {
        let store = Store::new(Decode { interner: Arc::default(), sections: Sections::default() }, Vec::new());
        store.put(Metadata(meta("u", 4)));
        store.progress().advance(4);
        store.progress().set_synced();
        store
    }

    #[tokio::test]
    async fn deletion_is_observed_when_the_watch_has_delivered_it() {
        let store = delivered();
        let read = [meta("u", 6)];
        let mut waiting = Box::pin(wait_until_deleted(&store, &read, Meta::is_deleting));
        assert_eq!(poll!(&mut waiting), Poll::Pending, "the watch is older than what was read");
        store.put(Metadata(meta("u", 6)));
        store.progress().advance(6);
        assert_eq!(poll!(&mut waiting), Poll::Pending, "the object still exists");
        store.remove("n", "a");
        store.progress().advance(9);
        assert_eq!(poll!(&mut waiting), Poll::Ready(true));
        let unseen = [meta("v", 12)];
        let mut waiting = Box::pin(wait_until_deleted(&store, &unseen, Meta::is_deleting));
        assert_eq!(poll!(&mut waiting), Poll::Pending, "an object that was never delivered may still arrive");
        store.put(Metadata(meta("w", 13)));
        store.progress().advance(13);
        assert_eq!(
            poll!(&mut waiting),
            Poll::Ready(true),
            "an object with the same name and another uid does not count"
        );
    }

    #[test]
    fn namespace_is_empty_at_the_version_of_the_watch() {
        let store = delivered();
        assert!(!is_empty_since(&store, "n", 4), "there is an object");
        assert!(is_empty_since(&store, "m", 4));
        assert!(!is_empty_since(&store, "m", 5), "the watch is older");
        store.remove("n", "a");
        store.progress().advance(9);
        assert!(is_empty_since(&store, "n", 9));
        store.set_undecodable(ObjectKey::new("m", "a"));
        assert!(is_empty_since(&store, "n", 9), "an object of another namespace cannot be decoded");
        store.set_undecodable(meta("u", 4).key());
        assert!(!is_empty_since(&store, "n", 9), "an object cannot be decoded");
    }

    #[test]
    fn search_of_a_namespace_stops_at_its_first_object() {
        let store = delivered();
        store.put(Metadata(Meta { name: "b".into(), ..meta("v", 4) }));
        let mut visited = 0;
        assert!(Source::any(&store, &mut |meta| {
            visited += 1;
            *meta.namespace == *"n"
        }));
        assert_eq!(visited, 1);
    }

    #[tokio::test]
    async fn kept_object_ends_the_wait_and_an_undecodable_one_prevents_it() {
        let store = delivered();
        let read = [meta("u", 4)];
        store.put(Metadata(Meta { deletion: Time(5), ..meta("u", 7) }));
        store.progress().advance(7);
        assert_eq!(poll!(Box::pin(wait_until_deleted(&store, &read, Meta::is_deleting))), Poll::Ready(false));
        assert_eq!(poll!(Box::pin(wait_until_deleted(&store, &read, |_| false))), Poll::Pending, "not deleted yet");
        store.set_undecodable(read[0].key());
        let (waited, obstacle) = stale::noting(async {
            (poll!(Box::pin(wait_until_deleted(&store, &read, |_| false))), stale::obstacle("n"))
        })
        .await;
        assert_eq!((waited, obstacle), (Poll::Ready(false), None), "the record is stale");
        store.remove("n", "a");
        for other in [ObjectKey::new("m", "a"), ObjectKey::new("n", "b")] {
            store.set_undecodable(other);
        }
        assert_eq!(poll!(Box::pin(wait_until_deleted(&store, &read, |_| false))), Poll::Ready(true), "other objects");
        store.set_undecodable(read[0].key());
        assert_eq!(poll!(Box::pin(wait_until_deleted(&store, &read, |_| false))), Poll::Ready(false));
    }
}
