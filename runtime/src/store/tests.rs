//! Stale records, and writes of several controllers to one object: none is based on a version that another one has
//! replaced.

use std::sync::atomic::{AtomicUsize, Ordering};

use kinds::{DecodeError, Meta, Resource, Sections};

use super::*;
use crate::testing::meta;

#[derive(Debug)]
struct Thing(Meta);

impl Kind for Thing {
    const RESOURCE: Resource = Resource { group: "", version: "v1", kind: "Thing", plural: "things", namespaced: true };
    fn decode(_: &Decode, _: &[u8]) -> Result<Self, DecodeError> {
        Err(DecodeError::field("thing", "is never decoded"))
    }
    fn meta(&self) -> &Meta {
        &self.0
    }
}

/// Returns the thing `ns/web` at a version.
fn thing(version: u64) -> Thing {
    Thing(meta("ns", "web", version))
}

/// Counts the waiters that were woken.
#[derive(Default)]
struct Woken(Arc<AtomicUsize>);

impl Woken {
    fn wake(&self) -> Wake {
        let count = self.0.clone();
        Wake::from(move || _ = count.fetch_add(1, Ordering::Relaxed))
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Returns a store whose watch has delivered version 5 of the thing, the thing's key, and a counter of woken waiters.
fn delivered() -> (Store<Thing>, ObjectKey, Woken) {
    let store = Store::new(Decode { interner: Arc::default(), sections: Default::default() }, Vec::new());
    store.put(thing(5));
    store.progress.advance(5);
    (store, ObjectKey::new("ns", "web"), Woken::default())
}

#[tokio::test]
async fn reconcile_that_reads_a_stale_record_is_marked() {
    type Read = fn(&Store<Thing>);
    let index: Index<Thing> = by_namespace();
    let store = Store::new(Decode { interner: Arc::default(), sections: Default::default() }, vec![index]);
    store.put(thing(5));
    store.put(Thing(meta("ns", "other", 5)));
    let (key, missing) = (ObjectKey::new("ns", "web"), ObjectKey::new("ns", "missing"));
    let reads: [(&str, Read); 6] = [
        ("get", |store| drop(store.get(&ObjectKey::new("ns", "web")))),
        ("get_with_uid", |store| drop(store.get_with_uid("ns", "web", &Uid::default()))),
        ("by_index", |store| drop(store.by_index(&by_namespace(), index_key("ns")))),
        ("by_rarest", |store| drop(store.by_rarest(&by_namespace(), [index_key("ns")].into_iter()))),
        ("all", |store| drop(store.all())),
        ("any", |store| _ = store.any(|_| false)),
    ];
    let noted = async |read: Read| {
        stale::noting(async {
            read(&store);
            stale::obstacle("")
        })
        .await
    };
    for state in ["decodable", "never decoded", "stale", "decodable again"] {
        match state {
            "never decoded" => _ = store.set_undecodable(missing.clone()),
            "stale" => _ = store.set_undecodable(key.clone()),
            "decodable again" => store.put(thing(6)),
            _ => {}
        }
        let is_stale = state == "stale";
        assert_eq!((store.is_stale(&key), store.stale()), (is_stale, usize::from(is_stale)), "{state}");
        assert!(!store.is_stale(&missing));
        for (name, read) in reads {
            let expected = is_stale.then(|| "Thing ns/web".to_owned());
            assert_eq!(noted(read).await, expected, "{state}: {name}");
        }
        assert_eq!(noted(|store| drop(store.get(&ObjectKey::new("ns", "other")))).await, None, "{state}");
    }
}

#[tokio::test]
async fn undecodable_objects_are_returned_to_the_caller_instead_of_being_noted() {
    let store = Store::new(Decode { interner: Arc::default(), sections: Default::default() }, vec![by_namespace()]);
    store.put(thing(5));
    let unreadable = [ObjectKey::new("ns", "web"), ObjectKey::new("other", "missing")];
    unreadable.iter().for_each(|key| assert!(store.set_undecodable(key.clone())));
    let (read, obstacle) = stale::noting(async {
        let read = store.by_index_and_undecodable(&by_namespace(), index_key("ns"));
        (read, stale::obstacle(""))
    })
    .await;
    assert_eq!((read.0.len(), read.1), (1, unreadable.into()));
    assert_eq!(obstacle, None);
}

#[test]
fn undecodable_objects_without_a_record_are_those_that_were_never_decoded() {
    let (store, key, _) = delivered();
    let missing = ObjectKey::new("ns", "missing");
    assert!(store.undecodable_without_record().is_empty());
    [&key, &missing].into_iter().for_each(|key| assert!(store.set_undecodable(key.clone())));
    assert_eq!(store.undecodable_without_record(), [missing].into());
    let stale = |record: Option<&Thing>| record.is_some_and(|record| *record.0.name == *key.name);
    assert!(store.any_undecodable(stale) && store.any_undecodable(|record| record.is_none()));
    assert!(!store.any_undecodable(|record| record.is_some_and(|record| &*record.0.name == "missing")));
    store.put(Thing(meta("ns", "missing", 6)));
    assert!(store.undecodable_without_record().is_empty(), "it was decoded");
}

#[test]
fn waiter_is_woken_when_the_write_ends_and_when_the_watch_delivers_it() {
    let (store, key, woken) = delivered();
    let first = store.begin_write(&key, 5).expect("no write is in progress");
    assert!(store.begin_write(&key, 5).is_none(), "only one write at a time");
    assert!(!store.is_settled(&key, woken.wake()));
    assert!(
        store.is_settled(&ObjectKey::new("ns", "other"), woken.wake()),
        "a write to one object does not affect another"
    );
    store.wrote(&key, 6);
    assert_eq!(woken.count(), 0);
    drop(first);
    assert_eq!(woken.count(), 1, "the end of the write wakes the waiter");
    assert!(!store.is_settled(&key, woken.wake()), "the watch has not delivered its version");
    assert!(store.begin_write(&key, 5).is_none(), "the record lacks the last write");
    drop(store.begin_write(&key, 6).expect("the version of the response is current"));
    store.put(thing(6));
    store.progress.advance(6);
    assert_eq!(woken.count(), 2);
    assert!(store.is_settled(&key, woken.wake()));
    assert!(store.begin_write(&key, 5).is_none(), "a version from before the write is outdated");
    assert!(store.begin_write(&key, 6).is_some());
}

#[test]
fn failed_write_leaves_no_version_to_wait_for() {
    let (store, key, woken) = delivered();
    let write = store.begin_write(&key, 5).expect("no write is in progress");
    assert!(!store.is_settled(&key, woken.wake()));
    drop(write);
    assert_eq!(woken.count(), 1);
    assert!(store.is_settled(&key, woken.wake()) && store.begin_write(&key, 5).is_some());
}

#[test]
fn written_version_is_not_awaited_after_the_server_was_restored_from_a_backup() {
    let (store, key, woken) = delivered();
    store.wrote(&key, 9);
    assert!(!store.is_settled(&key, woken.wake()));
    store.restart(3);
    assert_eq!(woken.count(), 1);
    assert!(store.is_settled(&key, woken.wake()));
    store.put(thing(3));
    assert!(store.begin_write(&key, 3).is_some());
}

#[test]
fn subscriber_panic_is_counted_and_reaches_no_other_subscriber() {
    let store: Store<Thing> =
        Store::new(Decode { interner: Arc::default(), sections: kinds::Sections::default() }, Vec::new());
    let seen = Arc::new(AtomicUsize::new(0));
    let count = seen.clone();
    store.subscribe(|_| panic!("a defect"));
    store.subscribe(move |_| _ = count.fetch_add(1, Ordering::Relaxed));
    store.put(thing(1));
    store.remove("ns", "web");
    assert_eq!((seen.load(Ordering::Relaxed), store.progress().panics()), (2, 2));
    assert_eq!(store.progress().panics_in_a_row(), 0, "the watch itself works");
}

#[test]
fn versions_of_deleted_objects_are_forgotten() {
    let decode = Decode { interner: Arc::default(), sections: Sections::default() };
    let store = Store::<Thing>::new(decode, Vec::new());
    for version in 1..=10_000 {
        // Written, and deleted before the watch delivers the write.
        store.wrote(&ObjectKey::new("ns", format!("thing-{version}")), version);
        store.progress().advance(version);
    }
    let count = lock(&store.written).len();
    assert!(count <= 2 * WRITTEN_SWEEP_SIZE, "{count} versions");
}

#[test]
fn children_are_found_in_the_namespace_of_their_controller_only() {
    let controller = thing(1).controller_ref();
    let store = Store::new(Decode { interner: Arc::default(), sections: Default::default() }, vec![by_controller()]);
    for namespace in ["ns", "tenant"] {
        let owners = kinds::Interner::default().owners(std::slice::from_ref(&controller));
        store.put(Thing(Meta { owners, ..meta(namespace, "child", 1) }));
    }
    let found = store.by_index(&by_controller(), owned_by("ns", &controller.uid));
    assert_eq!(found.iter().map(|child| child.0.key()).collect::<Vec<_>>(), [ObjectKey::new("ns", "child")]);
    assert_eq!(store.count(&by_controller(), owned_by("elsewhere", &controller.uid)), 0);
}
