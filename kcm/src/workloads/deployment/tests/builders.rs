//! Records for tests: a base is decoded from protobuf, and further fields are set afterwards.

use std::sync::Arc;

use kinds::condition::Condition;
use kinds::deployment::{NewReplicaSet, Strategy};
use kinds::int_or_string::IntOrString;
use kinds::meta::OwnerRef;
use kinds::raw_object::AnnotationEdits;
use kinds::schema::{
    container, deployment, deployment_spec, deployment_strategy, label_selector, object_meta, pod, pod_spec,
    pod_status, pod_template_spec, replica_set, replica_set_spec,
};
use kinds::template::Template;
use kinds::wire::{Put, copy_fields, find};
use kinds::{Decode, Deployment, Interner, Kind, Pod, ReplicaSet, Str, Time, Uid};

use crate::workloads::deployment::sets::Sets;

pub const DEADLINE: i32 = 60;
/// Time at which the first ReplicaSet is created.
pub const START: i64 = 1_000_000;

pub fn context() -> Decode {
    Decode { interner: Arc::new(Interner::default()), sections: Deployment::TEMPLATE }
}

/// Returns a template whose only container has this name.
pub fn template(name: &str) -> Template {
    let mut message = Vec::new();
    message.put_message(pod_template_spec::METADATA, |meta| meta.put_entry(object_meta::LABELS, "app", "web"));
    message.put_message(pod_template_spec::SPEC, |spec| {
        spec.put_message(pod_spec::CONTAINERS, |message| message.put_str(container::NAME, name));
    });
    Template::decode(&context(), &message).expect("well-formed")
}

/// Returns a Deployment `web` with the template `v1`, a rolling update of 25 % and 25 % (rounded), and a progress
/// deadline.
pub fn deployment(replicas: i32) -> Deployment {
    let mut message = Vec::new();
    message.put_message(deployment::METADATA, |meta| {
        meta.put_str(object_meta::NAME, "web");
        meta.put_str(object_meta::NAMESPACE, "shop");
        meta.put_str(object_meta::UID, "web-uid");
        meta.put_str(object_meta::RESOURCE_VERSION, "1");
        meta.put_int(object_meta::GENERATION, 1);
    });
    message.put_message(deployment::SPEC, |spec| {
        spec.put_int(deployment_spec::REPLICAS, replicas.into());
        spec.put_message(deployment_spec::SELECTOR, |selector| {
            selector.put_entry(label_selector::MATCH_LABELS, "app", "web");
        });
        spec.put_bytes(deployment_spec::TEMPLATE, &template("v1").encode());
        spec.put_message(deployment_spec::STRATEGY, |strategy| {
            strategy.put_str(deployment_strategy::TYPE, "Recreate");
        });
        spec.put_int(deployment_spec::PROGRESS_DEADLINE_SECONDS, DEADLINE.into());
    });
    let mut made = Deployment::decode(&context(), &message).expect("well-formed");
    assert_eq!(made.strategy, Strategy::Recreate);
    made.strategy = rolling(text("25%"), text("25%"));
    made
}

pub fn text(percentage: &str) -> Option<IntOrString> {
    Some(IntOrString::Text(percentage.into()))
}

pub fn int(count: i32) -> Option<IntOrString> {
    Some(IntOrString::Int(count))
}

pub fn rolling(max_surge: Option<IntOrString>, max_unavailable: Option<IntOrString>) -> Strategy {
    Strategy::RollingUpdate { max_unavailable, max_surge }
}

/// Returns a set of that Deployment, created `age` seconds after [`START`], with the template of this name. Its status
/// is that of a set that has all its pods, and they are available.
pub fn set(name: &str, replicas: i32, age: i64, of: &str) -> ReplicaSet {
    let mut message = Vec::new();
    message.put_message(replica_set::METADATA, |meta| {
        meta.put_str(object_meta::NAME, name);
        meta.put_str(object_meta::NAMESPACE, "shop");
        meta.put_str(object_meta::UID, &format!("{name}-uid"));
        meta.put_str(object_meta::RESOURCE_VERSION, "1");
        meta.put_int(object_meta::GENERATION, 1);
        Time(START + age).put(meta, object_meta::CREATION_TIMESTAMP);
        let owner = OwnerRef {
            api_version: "apps/v1".into(),
            kind: "Deployment".into(),
            name: "web".into(),
            uid: Uid::parse("web-uid"),
            controller: Some(true),
            block_owner_deletion: Some(true),
        };
        owner.put(meta, object_meta::OWNER_REFERENCES);
    });
    message.put_message(replica_set::SPEC, |spec| {
        spec.put_int(replica_set_spec::REPLICAS, replicas.into());
        spec.put_bytes(replica_set_spec::TEMPLATE, &template(of).encode());
    });
    let mut made = ReplicaSet::decode(&context(), &message).expect("well-formed");
    made.status.replicas = replicas;
    made.status.ready_replicas = replicas;
    made.status.available_replicas = replicas;
    made.status.observed_generation = 1;
    made
}

/// Returns a set as the server returns it after its creation, with the resourceVersion that the decoder requires.
pub fn created(deployment: &Deployment, new: &NewReplicaSet) -> ReplicaSet {
    let message = deployment.new_replica_set(new).expect("template");
    let mut whole = Vec::new();
    whole.put_message(replica_set::METADATA, |meta| {
        meta.extend_from_slice(find(&message, replica_set::METADATA));
        meta.put_str(object_meta::RESOURCE_VERSION, "1");
    });
    copy_fields(&message, &mut whole, |field| field.number != replica_set::METADATA).expect("well-formed");
    let decode = Decode { sections: ReplicaSet::TEMPLATE, ..context() };
    ReplicaSet::decode(&decode, &whole).expect("well-formed")
}

pub fn with_available(mut set: ReplicaSet, available: i32) -> ReplicaSet {
    set.status.available_replicas = available;
    set
}

pub fn annotated(mut set: ReplicaSet, annotations: &[(&str, &str)]) -> ReplicaSet {
    set.annotations = labels(annotations);
    set
}

pub fn labels(pairs: &[(&str, &str)]) -> Arc<[(Str, Str)]> {
    let mut labels: Vec<(Str, Str)> = pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    labels.sort_unstable();
    labels.into()
}

/// Returns the annotations after edits.
pub fn edited(annotations: &[(Str, Str)], edits: &AnnotationEdits) -> Arc<[(Str, Str)]> {
    let mut edited: Vec<_> =
        annotations.iter().filter(|(key, _)| edits.iter().all(|(edited, _)| edited != key)).cloned().collect();
    edited.extend(edits.iter().filter_map(|(key, value)| Some((key.clone(), value.clone()?))));
    edited.sort_unstable();
    edited.into()
}

/// Returns edits as pairs of plain strings; `None` removes.
pub fn plain(edits: &AnnotationEdits) -> Vec<(&str, Option<&str>)> {
    edits.iter().map(|(key, value)| (&**key, value.as_deref())).collect()
}

/// Returns these sets as new and old ones, regardless of their templates.
pub fn sets(new: Option<ReplicaSet>, old: Vec<ReplicaSet>) -> Sets {
    let mut old: Vec<_> = old.into_iter().map(Arc::new).collect();
    old.sort_by(|a, b| a.meta.by_creation(&b.meta));
    Sets { new: new.map(Arc::new), old }
}

pub fn condition(kind: &str, status: &str, reason: &str, at: i64) -> Condition {
    Condition {
        kind: kind.into(),
        status: status.into(),
        reason: reason.into(),
        message: Box::default(),
        last_update: Time(at),
        last_transition: Time(at),
    }
}

pub fn pod(phase: &str) -> Pod {
    let mut message = Vec::new();
    message.put_message(pod::METADATA, |meta| {
        meta.put_str(object_meta::NAME, "web-1");
        meta.put_str(object_meta::RESOURCE_VERSION, "1");
    });
    message.put_message(pod::STATUS, |status| status.put_str(pod_status::PHASE, phase));
    Pod::decode(&context(), &message).expect("well-formed")
}
