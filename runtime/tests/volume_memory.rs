//! Memory per bound claim and volume in a store: bytes per record with an index, measured by a counting allocator and
//! limited.

use std::sync::Arc;

use kinds::persistent_volume::{BOUND_BY_CONTROLLER, PROVISIONED_BY};
use kinds::persistent_volume_claim::{BETA_STORAGE_PROVISIONER, BIND_COMPLETED, STORAGE_PROVISIONER};
use kinds::schema::{
    csi_persistent_volume_source as csi, object_meta, object_reference, persistent_volume_claim_condition as condition,
    persistent_volume_claim_spec as claim_spec, persistent_volume_claim_status as claim_status,
    persistent_volume_source as source, persistent_volume_spec as volume_spec,
    persistent_volume_status as volume_status, quantity, volume_resources,
};
use kinds::wire::Put;
use kinds::{Decode, Interner, Kind, PersistentVolume, PersistentVolumeClaim, Time};
use runtime::store::{Index, Store, index_key};
use runtime::testing::filled_store;

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const CLAIMS: usize = 10_000;
const CLAIMS_PER_NAMESPACE: usize = 100;
const DRIVER: &str = "ebs.csi.aws.com";

/// Maximum number of bytes per claim: 5 % more than the last measurement.
const MAX_CLAIM_BYTES: usize = 423;
/// Maximum number of bytes per volume: 5 % more than the last measurement.
const MAX_VOLUME_BYTES: usize = 381;

/// The field numbers of metadata, spec and status in both kinds.
const METADATA: u32 = 1;
const SPEC: u32 = 2;
const STATUS: u32 = 3;

fn uid(kind: u64, number: usize) -> String {
    format!("{:08x}-{kind:04x}-4000-a000-{number:012x}", number * 2_654_435_761 % (1 << 32))
}

fn volume_name(number: usize) -> String {
    format!("pvc-{}", uid(1, number))
}

fn put_storage(out: &mut Vec<u8>, field: u32) {
    out.put_message(field, |entry| {
        entry.put_str(1, "storage");
        entry.put_message(2, |amount| amount.put_str(quantity::STRING, "10Gi"));
    });
}

fn put_meta(meta: &mut Vec<u8>, name: &str, number: usize, annotations: &[&str]) {
    meta.put_str(object_meta::NAME, name);
    meta.put_str(object_meta::RESOURCE_VERSION, &(1_000_000 + number).to_string());
    Time(1_700_000_000 + number as i64).put(meta, object_meta::CREATION_TIMESTAMP);
    for name in annotations {
        meta.put_entry(object_meta::ANNOTATIONS, name, DRIVER);
    }
    meta.put_bytes(object_meta::MANAGED_FIELDS, &[b'f'; 2_000]);
}

/// Returns a bound claim of a StatefulSet's pod.
fn claim(number: usize) -> Vec<u8> {
    let mut object = Vec::new();
    let annotations = [BIND_COMPLETED, BOUND_BY_CONTROLLER, STORAGE_PROVISIONER, BETA_STORAGE_PROVISIONER];
    object.put_message(METADATA, |meta| {
        put_meta(meta, &format!("data-database-{number}"), number, &annotations);
        meta.put_str(object_meta::UID, &uid(1, number));
        meta.put_str(object_meta::FINALIZERS, "kubernetes.io/pvc-protection");
        meta.put_str(object_meta::NAMESPACE, &format!("team-{}", number / CLAIMS_PER_NAMESPACE));
    });
    object.put_message(SPEC, |spec| {
        spec.put_str(claim_spec::ACCESS_MODES, "ReadWriteOnce");
        spec.put_message(claim_spec::RESOURCES, |resources| put_storage(resources, volume_resources::REQUESTS));
        spec.put_str(claim_spec::VOLUME_NAME, &volume_name(number));
        spec.put_str(claim_spec::STORAGE_CLASS_NAME, "gp3");
        spec.put_str(claim_spec::VOLUME_MODE, "Filesystem");
    });
    object.put_message(STATUS, |status| {
        status.put_str(claim_status::PHASE, "Bound");
        status.put_str(claim_status::ACCESS_MODES, "ReadWriteOnce");
        put_storage(status, claim_status::CAPACITY);
        status.put_message(claim_status::CONDITIONS, |out| {
            out.put_str(condition::TYPE, "Unused");
            out.put_str(condition::STATUS, "False");
        });
    });
    object
}

/// Returns the volume of a claim.
fn volume(number: usize) -> Vec<u8> {
    let mut object = Vec::new();
    object.put_message(METADATA, |meta| {
        put_meta(meta, &volume_name(number), number, &[PROVISIONED_BY]);
        meta.put_str(object_meta::UID, &uid(2, number));
        meta.put_str(object_meta::FINALIZERS, "kubernetes.io/pv-protection");
    });
    object.put_message(SPEC, |spec| {
        put_storage(spec, volume_spec::CAPACITY);
        spec.put_message(volume_spec::SOURCE, |out| {
            out.put_message(source::CSI, |out| {
                out.put_str(csi::DRIVER, DRIVER);
                out.put_str(csi::VOLUME_HANDLE, &format!("vol-{number:017x}"));
            });
        });
        spec.put_str(volume_spec::ACCESS_MODES, "ReadWriteOnce");
        spec.put_message(volume_spec::CLAIM_REF, |claim| {
            claim.put_str(object_reference::NAMESPACE, &format!("team-{}", number / CLAIMS_PER_NAMESPACE));
            claim.put_str(object_reference::NAME, &format!("data-database-{number}"));
            claim.put_str(object_reference::UID, &uid(1, number));
        });
        spec.put_str(volume_spec::RECLAIM_POLICY, "Delete");
        spec.put_str(volume_spec::STORAGE_CLASS_NAME, "gp3");
        spec.put_str(volume_spec::VOLUME_MODE, "Filesystem");
    });
    object.put_message(STATUS, |status| status.put_str(volume_status::PHASE, "Bound"));
    object
}

fn allocated() -> usize {
    dhat::HeapStats::get().curr_bytes
}

/// Returns a store that is filled as by a watch, and its bytes per record.
fn filled<K: Kind>(decode: &Decode, index: Index<K>, messages: &[Vec<u8>]) -> (Store<K>, usize) {
    let before = allocated();
    let records = messages.iter().map(|message| K::decode(decode, message).expect("well-formed"));
    let store = filled_store(decode.clone(), vec![index], records);
    let each = (allocated() - before).div_ceil(messages.len());
    assert_eq!(store.len(), messages.len(), "several objects have the same name");
    (store, each)
}

#[test]
fn claim_and_volume_records_stay_within_their_memory_limits() {
    let (claims, volumes): (Vec<_>, Vec<_>) = (0..CLAIMS).map(|number| (claim(number), volume(number))).unzip();
    let sections = PersistentVolume::WHOLE_WHILE_PENDING;
    let of_volumes = Decode { interner: Arc::new(Interner::default()), sections };
    let of_claims = Decode { sections: PersistentVolumeClaim::WHOLE_WHILE_PENDING, ..of_volumes.clone() };
    let by_volume =
        Index { name: "volume", keys: |claim: &PersistentVolumeClaim, emit| emit(index_key(&claim.volume_name)) };
    let by_handle =
        Index { name: "handle", keys: |volume: &PersistentVolume, emit| emit(index_key(volume.source.csi())) };
    // The allocator counts only after this line: counting is slow, and the messages must not be counted.
    let _profiler = dhat::Profiler::builder().testing().trim_backtraces(Some(1)).build();
    // The records of volumes share names with those of the claims.
    let (_claims, of_claim) = filled(&of_claims, by_volume, &claims);
    let (_volumes, of_volume) = filled(&of_volumes, by_handle, &volumes);
    let rows = [("claim", of_claim, MAX_CLAIM_BYTES), ("volume", of_volume, MAX_VOLUME_BYTES)];
    println!("{:<10}{:>12}{:>8}", "record", "bytes each", "limit");
    rows.iter().for_each(|(name, each, limit)| println!("{name:<10}{each:>12}{limit:>8}"));
    let too_much: Vec<_> = rows.iter().filter(|(_, each, limit)| each > limit).collect();
    assert!(too_much.is_empty(), "{too_much:#?}");
}
