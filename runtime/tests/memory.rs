//! Memory per pod in a store: bytes per record with its indexes, measured by a counting allocator and limited.

use std::sync::Arc;

use kinds::schema::{
    container, container_status, env_var, object_meta, owner_reference, pod, pod_condition, pod_spec, pod_status,
    resource_requirements,
};
use kinds::wire::Put;
use kinds::{Decode, Interner, Kind, Pod, Sections, Time};
use runtime::store::{Index, Store, by_controller, by_namespace};
use runtime::testing::filled_store;

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// The cluster: ten pods per ReplicaSet, ten ReplicaSets per namespace, fifty pods per node.
const PODS: usize = 20_000;
const PODS_PER_SET: usize = 10;
const SETS_PER_NAMESPACE: usize = 10;
const NODES: usize = 400;

/// Limit for any set of indexes, in bytes per pod.
const MAX_BYTES_PER_POD: usize = 1536;

/// A row of the table: its name, the indexes of the store, and its limit in bytes per pod: the last measurement plus
/// 5 %. A section of a pod that no controller requested costs memory too: a pointer, or 16 bytes with padding.
struct Row {
    name: &'static str,
    indexes: fn() -> Vec<Index<Pod>>,
    limit_bytes: usize,
}

const ROWS: [Row; 3] = [
    Row { name: "record", indexes: Vec::new, limit_bytes: 421 },
    Row { name: "by controller", indexes: || vec![by_controller()], limit_bytes: 448 },
    Row { name: "by controller and namespace", indexes: || vec![by_controller(), by_namespace()], limit_bytes: 460 },
];

/// Returns a uid in the API server's format; it differs for each pair of kind and number.
fn uid(kind: u64, number: usize) -> String {
    let number = number as u64;
    format!("{:08x}-{:04x}-4{:03x}-a{:03x}-{:012x}", number * 2_654_435_761 % (1 << 32), kind, kind, kind, number)
}

fn time(second: usize) -> Time {
    Time(1_700_000_000 + second as i64)
}

/// Returns a pod of a web service as a kubelet reports it, as the message that the API server sends.
fn message(number: usize) -> Vec<u8> {
    let set = number / PODS_PER_SET;
    let (service, hash) = (format!("service-{set}"), format!("{:010x}", set * 7_919));
    let mut message = Vec::new();
    message.put_message(pod::METADATA, |meta| metadata(meta, number, &service, &hash));
    message.put_message(pod::SPEC, |spec| {
        spec.put_message(pod_spec::VOLUMES, |volume| volume.put_str(1, "kube-api-access-x7k2p"));
        spec.put_message(pod_spec::CONTAINERS, |main| {
            main.put_str(container::NAME, "main");
            for name in ["DATABASE_URL", "LOG_LEVEL", "POD_NAME", "REGION"] {
                main.put_message(container::ENV, |env| {
                    env.put_str(1, name);
                    env.put_message(env_var::VALUE_FROM, |from| from.put_str(1, "metadata.name"));
                });
            }
            main.put_message(container::RESOURCES, |resources| {
                resources.put_entry(resource_requirements::REQUESTS, "cpu", "250m");
                resources.put_entry(resource_requirements::LIMITS, "memory", "256Mi");
            });
        });
        spec.put_message(pod_spec::INIT_CONTAINERS, |proxy| {
            proxy.put_str(container::NAME, "proxy");
            proxy.put_str(container::RESTART_POLICY, "Always");
        });
        spec.put_str(
            pod_spec::NODE_NAME,
            &format!("ip-10-0-{}-{}.internal", number % NODES / 256, number % NODES % 256),
        );
    });
    message.put_message(pod::STATUS, |status| status_of(status, number));
    message
}

fn metadata(meta: &mut Vec<u8>, number: usize, service: &str, hash: &str) {
    let set = number / PODS_PER_SET;
    meta.put_str(object_meta::NAME, &format!("{service}-{hash}-{:05x}", number));
    meta.put_str(object_meta::GENERATE_NAME, &format!("{service}-{hash}-"));
    meta.put_str(object_meta::NAMESPACE, &format!("team-{}", set / SETS_PER_NAMESPACE));
    meta.put_str(object_meta::UID, &uid(1, number));
    meta.put_str(object_meta::RESOURCE_VERSION, &(1_000_000 + number).to_string());
    time(number).put(meta, object_meta::CREATION_TIMESTAMP);
    for (name, value) in [
        ("app.kubernetes.io/name", service),
        ("app.kubernetes.io/part-of", "shop"),
        ("app.kubernetes.io/version", "v1.42.0"),
        ("pod-template-hash", hash),
    ] {
        meta.put_entry(object_meta::LABELS, name, value);
    }
    meta.put_entry(object_meta::ANNOTATIONS, "kubectl.kubernetes.io/restartedAt", "2026-01-01T00:00:00Z");
    meta.put_message(object_meta::OWNER_REFERENCES, |owner| {
        owner.put_str(owner_reference::KIND, "ReplicaSet");
        owner.put_str(owner_reference::NAME, &format!("{service}-{hash}"));
        owner.put_str(owner_reference::UID, &uid(2, set));
        owner.put_str(owner_reference::API_VERSION, "apps/v1");
        owner.put_bool(owner_reference::CONTROLLER, true);
        owner.put_bool(owner_reference::BLOCK_OWNER_DELETION, true);
    });
    meta.put_bytes(object_meta::MANAGED_FIELDS, &[b'f'; 2_000]);
}

fn status_of(status: &mut Vec<u8>, number: usize) {
    status.put_str(pod_status::PHASE, "Running");
    for kind in ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"] {
        status.put_message(pod_status::CONDITIONS, |condition| {
            condition.put_str(pod_condition::TYPE, kind);
            condition.put_str(pod_condition::STATUS, "True");
            time(number + 5).put(condition, pod_condition::LAST_TRANSITION_TIME);
        });
    }
    for field in [pod_status::CONTAINER_STATUSES, pod_status::INIT_CONTAINER_STATUSES] {
        status.put_message(field, |container| {
            container.put_str(container_status::NAME, "main");
            container.put_int(container_status::RESTART_COUNT, (number % 3) as i64);
        });
    }
}

fn allocated() -> usize {
    dhat::HeapStats::get().curr_bytes
}

/// Returns a store with all pods, filled as a watch fills it.
fn store(indexes: Vec<Index<Pod>>, messages: &[Vec<u8>]) -> Store<Pod> {
    let decode = Decode { interner: Arc::new(Interner::default()), sections: Sections::default() };
    let pods = messages.iter().map(|message| Pod::decode(&decode, message).expect("a well-formed pod"));
    filled_store(decode.clone(), indexes, pods)
}

#[test]
fn pod_record_stays_within_its_memory_limit() {
    let messages: Vec<_> = (0..PODS).map(message).collect();
    // Counting begins here: it is slow, and the messages must not be counted.
    let _profiler = dhat::Profiler::builder().testing().trim_backtraces(Some(1)).build();
    let mut too_much = Vec::new();
    println!("{:<30}{:>12}{:>8}", "pods, 20,000 of them", "bytes each", "limit");
    for Row { name, indexes, limit_bytes } in ROWS {
        let before = allocated();
        let store = store(indexes(), &messages);
        let each = (allocated() - before).div_ceil(PODS);
        assert_eq!(store.len(), PODS, "several pods have the same name");
        println!("{name:<30}{each:>12}{limit_bytes:>8}");
        if each > limit_bytes.min(MAX_BYTES_PER_POD) {
            too_much.push(format!("{name}: {each} bytes a pod, {} are allowed", limit_bytes.min(MAX_BYTES_PER_POD)));
        }
    }
    assert!(too_much.is_empty(), "{too_much:#?}");
}
