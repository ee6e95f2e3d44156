//! The index compared with a plain search of all volumes, and the requeue of waiting claims.

use std::sync::Arc;
use std::time::Duration;

use kinds::resource_list::Amount;
use kinds::{Decode, PersistentVolume, PersistentVolumeClaim, Sections};
use proptest::prelude::*;
use runtime::store::Change;
use runtime::testing::{CpuTime, deliver, deliver_restore, filled_store};

use super::builders::{ClaimSpec, VolumeSpec, claim, volume};
use crate::storage::binder::decide_claim::Search;
use crate::storage::binder::matcher::Matcher;
use crate::storage::binder::volume_index::{VolumeIndex, is_free};

const SIZES: [&str; 4] = ["1Gi", "2Gi", "5Gi", "10Gi"];
const MODES: [&[&str]; 4] = [
    &["ReadWriteOnce"],
    &["ReadWriteOnce", "ReadOnlyMany"],
    &["ReadWriteMany"],
    &["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"],
];
const CLASSES: [&str; 2] = ["", "gold"];
const PHASES: [&str; 3] = ["Available", "Available", "Released"];

fn volumes() -> impl Strategy<Value = Vec<VolumeSpec>> {
    let one = (0usize..4, 0usize..4, 0usize..2, 0usize..3, 0u8..4, any::<[bool; 3]>());
    proptest::collection::vec(one, 0..12).prop_map(|all| {
        all.into_iter()
            .enumerate()
            .map(|(at, (size, modes, class, phase, claim, [block, deleting, label]))| {
                let spec = volume(&format!("pv-{at:02}")).phase(PHASES[phase]).with(|volume| {
                    volume.capacity = SIZES[size];
                    volume.modes = MODES[modes];
                    volume.class = CLASSES[class];
                    volume.is_block = block && at % 3 == 0;
                    volume.head.is_deleting = deleting && at % 4 == 0;
                    volume.head.labels = if label { vec![("disk", "ssd")] } else { vec![] };
                });
                match claim {
                    0 => spec.of("data", ""),
                    1 => spec.of("logs", "uid-logs"),
                    _ => spec,
                }
            })
            .collect()
    })
}

fn claims() -> impl Strategy<Value = ClaimSpec> {
    (0usize..4, 0usize..4, 0usize..2, any::<bool>()).prop_map(|(size, modes, class, selector)| {
        claim("data").with(|claim| {
            claim.request = SIZES[size];
            claim.modes = MODES[modes];
            claim.class = Some(CLASSES[class]);
            claim.selector = selector.then_some(("disk", "ssd"));
        })
    })
}

/// Returns the name of the best volume for a claim, by a search of all volumes.
fn search(all: &[Arc<PersistentVolume>], claim: &PersistentVolumeClaim, is_limited: bool) -> Option<String> {
    let request = claim.requested().unwrap_or(Amount::ZERO);
    let fits = |volume: &&Arc<PersistentVolume>| {
        volume.storage().is_some_and(|size| size >= request)
            && volume.modes().contains(claim.modes())
            && volume.volume_mode == claim.volume_mode
            && volume.attributes_class == claim.attributes_class
            && !volume.meta.is_deleting()
    };
    let is_own = |volume: &PersistentVolume| volume.refers_to(&claim.meta);
    let is_usable = |volume: &&Arc<PersistentVolume>| {
        is_own(volume)
            || !is_limited
                && is_free(volume)
                && volume.class() == claim.class()
                && claim.selector.as_ref().is_none_or(|selector| selector.matches(&volume.meta.labels))
    };
    let order = |volume: &&Arc<PersistentVolume>| {
        let size = if is_own(volume) { None } else { volume.storage() };
        (volume.modes().len(), volume.modes(), size, volume.meta.name.clone())
    };
    all.iter().filter(fits).filter(is_usable).min_by_key(order).map(|volume| volume.meta.name.to_string())
}

proptest! {
    #[test]
    fn index_agrees_with_a_full_search(
        before in volumes(), after in volumes(), claim in claims(), is_limited: bool,
    ) {
        let mut index = VolumeIndex::default();
        let (before, after): (Vec<_>, Vec<_>) =
            (before.iter().map(VolumeSpec::record).collect(), after.iter().map(VolumeSpec::record).collect());
        before.iter().for_each(|volume| index.apply(None, Some(volume)));
        for at in 0..before.len().max(after.len()) {
            index.apply(before.get(at), after.get(at));
        }
        let claim = claim.record();
        let found = index.find(&claim, is_limited).map(|volume| volume.meta.name.to_string());
        prop_assert_eq!(found, search(&after, &claim, is_limited));
        for (old, _) in after.iter().zip(0..) {
            index.apply(Some(old), None);
        }
        prop_assert!(index.find(&claim, is_limited).is_none());
    }
}

#[test]
fn held_volume_is_hidden_until_the_written_version_arrives() {
    let mut index = VolumeIndex::default();
    let old = volume("a").record();
    let claim = claim("data").record();
    index.apply(None, Some(&old));
    let key = claim.meta.key();
    let other = kinds::meta::ObjectKey::new("shop", "logs");
    assert!(index.hold(&old.meta.name, &key) && !index.hold(&old.meta.name, &other) && index.is_holder(&key));
    assert!(index.find(&claim, false).is_none(), "another bind writes it");
    index.release((&old.meta.name, &other), Some(7), Some(old.meta.version));
    assert!(index.is_holder(&key), "another claim cannot end the hold");
    index.release((&old.meta.name, &key), Some(7), Some(old.meta.version));
    assert!(index.find(&claim, false).is_none(), "the record is outdated");
    let at = |version| volume("a").with(|volume| volume.head.version = version).record();
    let outdated = at(5);
    index.apply(Some(&old), Some(&outdated));
    assert!(index.find(&claim, false).is_none(), "still outdated");
    index.apply(Some(&outdated), Some(&at(7)));
    assert!(index.find(&claim, false).is_some() && !index.is_holder(&key));
    assert!(index.hold(&old.meta.name, &key));
    index.release((&old.meta.name, &key), None, Some(7));
    assert!(index.find(&claim, false).is_some(), "nothing was written");
}

#[test]
fn volume_that_becomes_free_wakes_the_largest_claim_that_fits() {
    let matcher = Matcher::default();
    let apply = |old: Option<&Arc<PersistentVolume>>, new: Option<&Arc<PersistentVolume>>| {
        matcher.apply(&Change { old, new }).map(|key| key.name.to_string())
    };
    for (name, request) in [("small", "1Gi"), ("large", "5Gi"), ("huge", "50Gi")] {
        assert!(matcher.find(&claim(name).with(|claim| claim.request = request).record(), false) == Search::Nothing);
    }
    let delayed = claim("delayed").with(|claim| claim.request = "5Gi").record();
    assert!(matcher.find(&delayed, true) == Search::Nothing);
    let sized = |name: &str| volume(name).with(|volume| volume.capacity = "10Gi");
    let pending = sized("a").phase("Pending").record();
    assert_eq!(apply(None, Some(&pending)), None, "not free yet");
    let free = sized("a").record();
    assert_eq!(apply(Some(&pending), Some(&free)).as_deref(), Some("large"));
    assert_eq!(apply(Some(&free), Some(&free)), None, "nothing changed");
    assert_eq!(apply(None, Some(&sized("b").record())).as_deref(), Some("small"), "the large one was woken before");
    assert_eq!(apply(None, Some(&sized("c").record())), None, "no other claim fits");
    matcher.stop_waiting(&delayed.meta.key());
    assert_eq!(matcher.waiting_in("").len(), 3);
}

#[test]
fn ten_thousand_claims_find_their_volumes_without_scans() {
    const COUNT: usize = 10_000;
    let matcher = Matcher::default();
    let volumes: Vec<_> = (0..COUNT).map(|at| volume(&format!("pv-{at}")).record()).collect();
    let claims: Vec<_> = (0..COUNT).map(|at| claim(&format!("data-{at}")).record()).collect();
    let started = CpuTime::now();
    assert!(claims.iter().all(|claim| matcher.find(claim, false) == Search::Nothing));
    let woken =
        volumes.iter().filter(|volume| matcher.apply(&Change { old: None, new: Some(volume) }).is_some()).count();
    assert_eq!(woken, COUNT, "each volume wakes one claim");
    let mut found = std::collections::BTreeSet::new();
    for claim in &claims {
        let Search::Found(volume) = matcher.find(claim, false) else { panic!("there is one for each") };
        assert!(found.insert(volume.meta.name.clone()), "{} was found twice", volume.meta.name);
        let bound = super::builders::volume(&volume.meta.name).of("data", "uid").phase("Bound").record();
        matcher.apply(&Change { old: Some(&volume), new: Some(&bound) });
        matcher.release((&volume.meta.name, &claim.meta.key()), Some(bound.meta.version), || Some(bound.clone()));
    }
    // A scan of all volumes for each claim would take minutes in a debug build.
    assert!(started.elapsed() < Duration::from_secs(20), "took {:?}", started.elapsed());
}

#[test]
fn claim_finds_no_second_volume_before_its_binding_is_in_the_cache() {
    let matcher = Matcher::default();
    let (first, second) = (volume("a").record(), volume("b").record());
    for volume in [&first, &second] {
        matcher.apply(&Change { old: None, new: Some(volume) });
    }
    let claim = claim("data").record();
    assert_eq!(matcher.find(&claim, false), Search::Found(first.clone()));
    assert_eq!(matcher.find(&claim, false), Search::Busy, "a bind is in progress");
    // The volume was written at version 7, then the bind failed.
    matcher.release((&first.meta.name, &claim.meta.key()), Some(7), || Some(first.clone()));
    assert_eq!(matcher.find(&claim, false), Search::Busy, "the record of the volume is outdated");
    let bound = volume("a").of("data", "uid-data").with(|volume| volume.head.version = 7).record();
    matcher.apply(&Change { old: Some(&first), new: Some(&bound) });
    assert_eq!(matcher.find(&claim, false), Search::Found(bound));
}

/// The restored server has the volume in the same version as the cache, so no later version arrives.
#[test]
fn volume_whose_binding_was_lost_in_a_restore_of_the_server_is_found_again() {
    let decode = Decode { interner: Arc::default(), sections: Sections::default() };
    let store = filled_store::<PersistentVolume>(decode, Vec::new(), []);
    let matcher = Arc::new(Matcher::default());
    let (volume, claim) = (volume("a").record(), claim("data").record());
    matcher.apply(&Change { old: None, new: Some(&volume) });
    assert_eq!(matcher.find(&claim, false), Search::Found(volume.clone()));
    let written = volume.meta.version + 10;
    matcher.release((&volume.meta.name, &claim.meta.key()), Some(written), || Some(volume.clone()));
    matcher.expire_hold(store.progress(), &volume.meta.name, written);
    matcher.apply(&Change { old: Some(&volume), new: Some(&volume) });
    assert_eq!(matcher.find(&claim, false), Search::Busy, "the written version may still arrive");
    deliver_restore(&store, volume.meta.version + 1);
    assert_eq!(matcher.find(&claim, false), Search::Found(volume));
}

#[test]
fn new_hold_of_a_volume_survives_the_end_of_an_earlier_one() {
    let decode = Decode { interner: Arc::default(), sections: Sections::default() };
    let store = filled_store::<PersistentVolume>(decode, Vec::new(), []);
    let matcher = Arc::new(Matcher::default());
    let (old, claim) = (volume("a").record(), claim("data").record());
    let (name, key) = (&old.meta.name, claim.meta.key());
    matcher.apply(&Change { old: None, new: Some(&old) });
    let written = old.meta.version + 10;
    assert!(matcher.hold(name, &key));
    matcher.release((name, &key), Some(written), || Some(old.clone()));
    matcher.expire_hold(store.progress(), name, written);
    let new = volume("a").with(|volume| volume.head.version = written).record();
    matcher.apply(&Change { old: Some(&old), new: Some(&new) });
    assert!(matcher.hold(name, &key), "the written version has arrived");
    deliver(&store, Arc::unwrap_or_clone(new));
    assert!(!matcher.hold(name, &key), "the second write is in progress");
}
