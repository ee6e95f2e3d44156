//! ReplicationController: the predecessor of ReplicaSet. A ReplicaSet has all of its fields; only the selector differs:
//! here it is a map of labels.

use crate::apps::replicaset::ReplicaSet;
use crate::decode::{Decode, DecodeError};
use crate::intern::Interner;
use crate::kind::{Kind, Resource};
use crate::meta::Meta;
use crate::value::selector::Selector;
use crate::wire::schema::{
    replica_set, replica_set_condition, replica_set_spec, replica_set_status, replication_controller as object,
    replication_controller_condition as condition, replication_controller_spec as spec,
    replication_controller_status as status,
};
use crate::wire::{WireError, fields, map_entry};

/// A ReplicationController.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicationController {
    /// Its contents as a ReplicaSet; a ReplicaSet's sections apply to it, too.
    pub set: ReplicaSet,
}

/// A ReplicaSet has all fields of a ReplicationController, under the same numbers. Only the selector's type differs.
const _: () = {
    assert!(
        object::METADATA == replica_set::METADATA
            && object::SPEC == replica_set::SPEC
            && object::STATUS == replica_set::STATUS
    );
    assert!(spec::REPLICAS == replica_set_spec::REPLICAS && spec::SELECTOR == replica_set_spec::SELECTOR);
    assert!(
        spec::TEMPLATE == replica_set_spec::TEMPLATE && spec::MIN_READY_SECONDS == replica_set_spec::MIN_READY_SECONDS
    );
    assert!(
        status::REPLICAS == replica_set_status::REPLICAS
            && status::READY_REPLICAS == replica_set_status::READY_REPLICAS
    );
    assert!(status::FULLY_LABELED_REPLICAS == replica_set_status::FULLY_LABELED_REPLICAS);
    assert!(status::AVAILABLE_REPLICAS == replica_set_status::AVAILABLE_REPLICAS);
    assert!(status::OBSERVED_GENERATION == replica_set_status::OBSERVED_GENERATION);
    assert!(status::CONDITIONS == replica_set_status::CONDITIONS);
    assert!(condition::TYPE == replica_set_condition::TYPE && condition::STATUS == replica_set_condition::STATUS);
    assert!(condition::LAST_TRANSITION_TIME == replica_set_condition::LAST_TRANSITION_TIME);
    assert!(condition::REASON == replica_set_condition::REASON && condition::MESSAGE == replica_set_condition::MESSAGE);
};

/// Reads the selector, a map of labels. An empty map selects nothing.
fn selector(interner: &Interner, spec: &[u8]) -> Result<Selector, WireError> {
    let mut labels = Vec::new();
    for field in fields(spec) {
        let field = field?;
        if field.number == spec::SELECTOR {
            labels.push(map_entry(field.value.bytes())?);
        }
    }
    labels.sort_unstable();
    Ok(if labels.is_empty() { Selector::Nothing } else { Selector::of_labels(interner, labels) })
}

impl Kind for ReplicationController {
    const RESOURCE: Resource = Resource {
        group: "",
        version: "v1",
        kind: "ReplicationController",
        plural: "replicationcontrollers",
        namespaced: true,
    };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self { set: ReplicaSet::decode_with(context, object, selector)? })
    }

    fn meta(&self) -> &Meta {
        &self.set.meta
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Put;
    use crate::wire::schema::object_meta;

    fn with_selector(labels: &[(&str, &str)]) -> ReplicationController {
        let mut object = Vec::new();
        object.put_message(object::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "web");
            meta.put_str(object_meta::RESOURCE_VERSION, "7");
        });
        object.put_message(object::SPEC, |spec| {
            spec.put_int(spec::REPLICAS, 3);
            labels.iter().for_each(|(key, value)| spec.put_entry(spec::SELECTOR, key, value));
        });
        object.put_message(object::STATUS, |status| status.put_int(status::READY_REPLICAS, 2));
        let context = Decode { interner: Default::default(), sections: ReplicaSet::TEMPLATE };
        ReplicationController::decode(&context, &object).expect("well-formed")
    }

    #[test]
    fn label_map_selects_objects_with_all_its_labels() {
        let controller = with_selector(&[("tier", "front"), ("app", "web")]);
        assert_eq!((controller.set.replicas, controller.set.status.ready_replicas), (3, 2));
        assert_eq!(controller.set.status.terminating_replicas, None);
        let label = |key: &str, value: &str| (key.into(), value.into());
        assert!(controller.set.selector.matches(&[label("app", "web"), label("tier", "front")]));
        assert!(!controller.set.selector.matches(&[label("app", "web")]));
        assert_eq!(controller.set.selector.query().as_deref(), Some("app=web,tier=front"));
        assert_eq!(with_selector(&[]).set.selector, Selector::Nothing, "no selector selects nothing");
    }
}
