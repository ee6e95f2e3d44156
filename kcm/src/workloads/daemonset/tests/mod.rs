//! Tables and random histories of decisions about a DaemonSet's pods.

mod histories;
mod reconcile;
mod tables;
mod unknown_nodes;

use std::sync::Arc;

use jiff::Timestamp;
use kinds::daemonset::{REVISION_HASH_LABEL, Strategy};
use kinds::int_or_string::IntOrString;
use kinds::meta::{OwnerRef, Uid};
use kinds::pod::Phase;
use kinds::schema::{daemon_set, daemon_set_spec, label_selector, object_meta, pod, pod_template_spec, time};
use kinds::wire::Put;
use kinds::{DaemonSet, Decode, Interner, Kind, Meta, Node, Pod, Sections, Taint, Time};

use super::decide::Revision;
use super::decide_place::{Fit, Place};

const NOW: i64 = 1_000_000;
const NEW: &str = "new";
const REVISION: Revision<'static> = Revision { hash: NEW, generation: None };

fn now() -> Timestamp {
    Timestamp::from_second(NOW).expect("in range")
}

/// Returns an object with metadata only.
fn bare<K: Kind>(name: &str, labels: &[(&str, &str)]) -> K {
    let mut object = Vec::new();
    object.put_message(pod::METADATA, |meta| {
        meta.put_str(object_meta::NAME, name);
        meta.put_str(object_meta::NAMESPACE, "ns");
        meta.put_str(object_meta::UID, name);
        meta.put_str(object_meta::RESOURCE_VERSION, "1");
        meta.put_message(object_meta::CREATION_TIMESTAMP, |time| time.put_int(time::SECONDS, NOW - 5000));
        labels.iter().for_each(|(key, value)| meta.put_entry(object_meta::LABELS, key, value));
    });
    let context = Decode { interner: Arc::new(Interner::default()), sections: Sections::default() };
    K::decode(&context, &object).expect("well-formed")
}

fn meta(name: &str, labels: &[(&str, &str)]) -> Meta {
    bare::<Pod>(name, labels).meta
}

fn node(name: &str, labels: &[(&str, &str)], taints: &[(&str, &str)]) -> Node {
    let taint = |(key, effect): &(&str, &str)| Taint {
        key: (*key).into(),
        value: "".into(),
        effect: (*effect).into(),
        added: Time(0),
    };
    let mut node: Node = bare(name, labels);
    node.taints = taints.iter().map(taint).collect();
    node
}

/// Returns a running pod of a revision, ready for a long time, bound to `node-1`.
fn pod(name: &str, hash: &str) -> Pod {
    let mut pod: Pod = bare(name, &[(REVISION_HASH_LABEL, hash)]);
    pod.node = "node-1".into();
    pod.phase = Phase::Running;
    pod.ready = true;
    pod.ready_since = Time(NOW - 4000);
    pod
}

fn unready(pod: Pod) -> Pod {
    Pod { ready: false, ready_since: Time(0), ..pod }
}

fn ended(pod: Pod, phase: Phase) -> Pod {
    Pod { phase, ..unready(pod) }
}

fn deleting(mut pod: Pod) -> Pod {
    pod.meta.deletion = Time(NOW);
    pod
}

fn born(mut pod: Pod, seconds_ago: i64) -> Pod {
    pod.meta.created = Time(NOW - seconds_ago);
    pod
}

fn owner(kind: &str) -> OwnerRef {
    OwnerRef {
        api_version: "apps/v1".into(),
        kind: kind.into(),
        name: "agent".into(),
        uid: Uid::parse("agent"),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

const RUNS: Fit = Fit { runs: true, stays: true };
const STAYS: Fit = Fit { runs: false, stays: true };

fn place(fit: Option<Fit>, pods: Vec<Pod>) -> Place {
    named(1, fit, pods)
}

fn named(number: usize, fit: Option<Fit>, pods: Vec<Pod>) -> Place {
    Place { node: format!("node-{number}").into(), fit, pods: pods.into_iter().map(Arc::new).collect() }
}

/// Returns a DaemonSet named `agent` whose template has this spec.
fn set_with(min_ready_seconds: i32, spec: impl FnOnce(&mut Vec<u8>)) -> DaemonSet {
    let mut object = Vec::new();
    object.put_message(daemon_set::METADATA, |meta| {
        meta.put_str(object_meta::NAME, "agent");
        meta.put_str(object_meta::NAMESPACE, "ns");
        meta.put_str(object_meta::UID, "agent");
        meta.put_str(object_meta::RESOURCE_VERSION, "7");
        meta.put_int(object_meta::GENERATION, 3);
    });
    object.put_message(daemon_set::SPEC, |out| {
        out.put_message(daemon_set_spec::SELECTOR, |selector| {
            selector.put_entry(label_selector::MATCH_LABELS, "app", "agent");
        });
        out.put_int(daemon_set_spec::MIN_READY_SECONDS, min_ready_seconds.into());
        out.put_message(daemon_set_spec::TEMPLATE, |template| {
            template
                .put_message(pod_template_spec::METADATA, |meta| meta.put_entry(object_meta::LABELS, "app", "agent"));
            template.put_message(pod_template_spec::SPEC, spec);
        });
    });
    let context = Decode { interner: Arc::new(Interner::default()), sections: Sections(u32::MAX) };
    DaemonSet::decode(&context, &object).expect("well-formed")
}

fn rolling(unavailable: i32, surge: i32) -> Strategy {
    let bound = |count| Some(IntOrString::Int(count));
    Strategy::RollingUpdate { max_unavailable: bound(unavailable), max_surge: bound(surge) }
}

fn set(strategy: Strategy) -> DaemonSet {
    let mut set = set_with(0, |_| {});
    set.strategy = strategy;
    set
}

fn names<'a>(pods: impl IntoIterator<Item = &'a Arc<Pod>>) -> Vec<String> {
    let mut names: Vec<String> = pods.into_iter().map(|pod| pod.meta.name.to_string()).collect();
    names.sort();
    names
}
