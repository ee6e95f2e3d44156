//! Whether objects are gone, as their watch shows it: the server need not be asked again.

use std::sync::Arc;

use kinds::Meta;
use tokio::sync::oneshot;

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

    /// The source of a resource, if it is watched now.
    pub fn source(&self, group: &str, plural: &str) -> Option<Arc<dyn Source>> {
        let is_wanted = |source: &&Arc<dyn Source>| {
            let resource = source.resource();
            (resource.group, resource.plural) == (group, plural)
        };
        let typed = self.typed.iter().find(is_wanted).cloned();
        typed.or_else(|| self.every.as_ref()?.source(group, plural))
    }

    /// All sources of now.
    pub fn sources(&self) -> Vec<Arc<dyn Source>> {
        self.every.as_ref().map_or_else(|| self.typed.clone(), |every| every.sources())
    }
}

/// Whether the watch shows a namespace without objects of the kind, and as the server had it at `version` or later.
pub fn is_empty_since(source: &dyn Source, namespace: &str, version: u64) -> bool {
    // First: what is shown later is no older.
    let shown = source.progress().version();
    if !source.is_synced() || shown < version || source.undecodable() > 0 {
        return false;
    }
    let mut is_empty = true;
    source.each(&mut |meta| is_empty &= *meta.namespace != *namespace);
    is_empty
}

/// Waits until the watch has shown that each of `objects`, as they were read from the server, is gone, and answers true.
/// Answers false as soon as it shows one that `stays`, or when it cannot be told for certain because objects of the kind
/// cannot be decoded. It may wait for ever: while the watch stands still, or while an object is kept.
pub async fn gone(source: &dyn Source, objects: &[Meta], stays: impl Fn(&Meta) -> bool) -> bool {
    for object in objects {
        loop {
            let version = source.progress().version();
            // A watch that is older than the object says nothing of it.
            if source.is_synced() && version >= object.version {
                match source.meta(&object.key()).filter(|now| now.uid == object.uid) {
                    None if source.undecodable() > 0 => return false,
                    None => break,
                    Some(now) if stays(&now) => return false,
                    Some(_) => {}
                }
            }
            let (moved, wait) = oneshot::channel::<()>();
            source.progress().when_reached(version + 1, move || drop(moved));
            // It is dropped when the watch moves.
            let _ = wait.await;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use futures::poll;
    use kinds::{Decode, Sections, Time, Uid};

    use super::super::every_kind::Metadata;
    use super::*;
    use crate::store::Store;
    use crate::testing;

    fn meta(uid: &str, version: u64) -> Meta {
        Meta { uid: Uid::parse(uid), ..testing::meta("n", "a", version) }
    }

    /// A store whose watch has delivered version 4 of an object.
    fn delivered() -> Store<Metadata> {
        let store = Store::new(Decode { interner: Arc::default(), sections: Sections::default() }, Vec::new());
        store.put(Metadata(meta("u", 4)));
        store.progress().advance(4);
        store.progress().set_synced();
        store
    }

    #[tokio::test]
    async fn gone_is_what_was_shown_and_is_shown_no_more() {
        let store = delivered();
        let read = [meta("u", 6)];
        let mut waiting = Box::pin(gone(&store, &read, Meta::is_deleting));
        assert_eq!(poll!(&mut waiting), Poll::Pending, "the watch is older than what was read");
        store.put(Metadata(meta("u", 6)));
        store.progress().advance(6);
        assert_eq!(poll!(&mut waiting), Poll::Pending, "it is still there");
        store.remove("n", "a");
        store.progress().advance(9);
        assert_eq!(poll!(&mut waiting), Poll::Ready(true));
        let unseen = [meta("v", 12)];
        let mut waiting = Box::pin(gone(&store, &unseen, Meta::is_deleting));
        assert_eq!(poll!(&mut waiting), Poll::Pending, "what was never shown may still come");
        store.put(Metadata(meta("w", 13)));
        store.progress().advance(13);
        assert_eq!(poll!(&mut waiting), Poll::Ready(true), "another object of the name is another object");
    }

    #[test]
    fn a_namespace_is_empty_as_far_as_the_watch_has_come() {
        let store = delivered();
        assert!(!is_empty_since(&store, "n", 4), "there is an object");
        assert!(is_empty_since(&store, "m", 4));
        assert!(!is_empty_since(&store, "m", 5), "the watch is older");
        store.remove("n", "a");
        store.progress().advance(9);
        assert!(is_empty_since(&store, "n", 9));
        store.set_undecodable(meta("u", 4).key());
        assert!(!is_empty_since(&store, "n", 9), "one cannot be read");
    }

    #[tokio::test]
    async fn what_is_kept_is_told_at_once_and_what_cannot_be_read_is_not_gone() {
        let store = delivered();
        let read = [meta("u", 4)];
        store.put(Metadata(Meta { deletion: Time(5), ..meta("u", 7) }));
        store.progress().advance(7);
        assert_eq!(poll!(Box::pin(gone(&store, &read, Meta::is_deleting))), Poll::Ready(false));
        assert_eq!(poll!(Box::pin(gone(&store, &read, |_| false))), Poll::Pending, "it is waited for");
        store.remove("n", "a");
        store.set_undecodable(read[0].key());
        assert_eq!(poll!(Box::pin(gone(&store, &read, |_| false))), Poll::Ready(false));
    }
}
