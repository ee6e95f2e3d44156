//! Node: identity, conditions, taints, and address ranges of its pods.

use crate::core::node_cloud::{NodeCloud, PROVIDED_NODE_IP};
use crate::core::node_volumes::{CONTROLLER_ATTACHES, NodeVolumes};
use crate::decode::{Decode, DecodeError, Sections};
use crate::intern::{Interner, Str};
use crate::kind::{Kind, Resource};
use crate::meta::Meta;
use crate::scheduling::taint::Taint;
use crate::value::quantity;
use crate::value::time::Time;
use crate::wire::schema::{node as object, node_condition, node_spec, node_status, quantity as quantity_message};
use crate::wire::splice::edited;
use crate::wire::{Put, WireError, copy_fields, fields, find, find_str};

/// Label: the zone that a node is in (core/v1, LabelTopologyZone).
pub const ZONE: &str = "topology.kubernetes.io/zone";

/// Annotation: seconds for which the kubelet may cache Secrets and ConfigMaps.
pub const TTL: &str = "node.alpha.kubernetes.io/ttl";

/// The condition that reports whether a node can run pods.
pub const READY: &str = "Ready";

/// One entry of `status.conditions`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeCondition {
    /// Type, such as [`READY`].
    pub kind: Str,
    /// `True`, `False` or `Unknown`.
    pub status: Str,
    /// Time of the kubelet's last heartbeat.
    pub heartbeat: Time,
    /// Time of the last change of the status.
    pub transition: Time,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Metadata.
    pub meta: Meta,
    /// The value of the annotation [`TTL`], if it is a number.
    pub ttl_seconds: Option<i64>,
    /// Cordoned: no new pods are scheduled.
    pub unschedulable: bool,
    /// `spec.taints`.
    pub taints: Box<[Taint]>,
    /// Address ranges of its pods; the first is also `spec.podCIDR`.
    pub pod_cidrs: Box<[Str]>,
    /// `conditions`, in their order in the object.
    pub conditions: Box<[NodeCondition]>,
    /// Its link to a cloud instance; only with section [`Node::CLOUD`].
    pub cloud: Option<Box<NodeCloud>>,
    /// Allocatable CPU in thousandths of a core; zero without [`Node::CPU`].
    pub cpu_millis: i64,
    /// Its attached volumes; only with section [`Node::VOLUMES`].
    pub volumes: Option<Box<NodeVolumes>>,
    /// Its annotations, ordered by key; only with section [`Node::ANNOTATIONS`].
    pub annotations: Box<[(Str, Str)]>,
}

impl Node {
    /// Section: the link to a cloud instance, [`Node::cloud`].
    pub const CLOUD: Sections = Sections(1);
    /// Section: allocatable CPU.
    pub const CPU: Sections = Sections(1 << 1);
    /// Section: the volumes that are attached to it or in use.
    pub const VOLUMES: Sections = Sections(1 << 2);
    /// Section: all annotations.
    pub const ANNOTATIONS: Sections = Sections(1 << 3);

    /// Returns the condition of this type.
    pub fn condition(&self, kind: &str) -> Option<&NodeCondition> {
        self.conditions.iter().find(|condition| &*condition.kind == kind)
    }

    /// Returns the Ready condition's status; `None` if there is no such condition.
    pub fn ready(&self) -> Option<&str> {
        self.condition(READY).map(|condition| &*condition.status)
    }

    fn read_spec(&mut self, interner: &Interner, spec: &[u8]) -> Result<(), WireError> {
        let mut taints = Vec::new();
        let mut ranges = Vec::new();
        let mut first_range = "";
        for field in fields(spec) {
            let field = field?;
            match field.number {
                node_spec::UNSCHEDULABLE => self.unschedulable = field.value.bool(),
                node_spec::TAINTS => taints.push(Taint::decode(interner, field.value.bytes())?),
                node_spec::POD_CIDRS => ranges.push(Str::from(field.value.str())),
                node_spec::POD_CIDR => first_range = field.value.str(),
                _ => {}
            }
        }
        if ranges.is_empty() && !first_range.is_empty() {
            ranges.push(first_range.into());
        }
        self.taints = taints.into();
        self.pod_cidrs = ranges.into();
        Ok(())
    }
}

/// Returns the allocatable CPU in thousandths of a core, rounded up; an invalid quantity counts as zero. Upstream:
/// apimachinery/pkg/api/resource, MilliValue.
fn allocatable_cpu(status: &[u8]) -> Result<i64, WireError> {
    for field in fields(status) {
        let field = field?;
        let entry = field.value.bytes();
        if field.number == node_status::ALLOCATABLE && find(entry, 1) == b"cpu" {
            let amount = find_str(find(entry, 2), quantity_message::STRING);
            let millis = quantity::nanos(amount).map_or(0, |nanos| -(-nanos).div_euclid(1_000_000));
            return Ok(i64::try_from(millis).unwrap_or(i64::MAX));
        }
    }
    Ok(0)
}

impl NodeCondition {
    fn decode(interner: &Interner, message: &[u8]) -> Result<Self, WireError> {
        let empty = interner.str("");
        let mut read =
            Self { kind: empty.clone(), status: empty, heartbeat: Time::default(), transition: Time::default() };
        for field in fields(message) {
            let field = field?;
            match field.number {
                node_condition::TYPE => read.kind = interner.str(field.value.str()),
                node_condition::STATUS => read.status = interner.str(field.value.str()),
                node_condition::LAST_HEARTBEAT_TIME => read.heartbeat = Time::decode(field.value.bytes())?,
                node_condition::LAST_TRANSITION_TIME => read.transition = Time::decode(field.value.bytes())?,
                _ => {}
            }
        }
        Ok(read)
    }
}

impl Kind for Node {
    const RESOURCE: Resource = Resource { group: "", version: "v1", kind: "Node", plural: "nodes", namespaced: false };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let interner = &context.interner;
        let mut ttl_seconds = None;
        let mut provided_ip = None;
        let mut is_managed = false;
        let is_annotated = context.sections.contains(Self::ANNOTATIONS);
        let mut annotations = Vec::new();
        let meta = Meta::decode(interner, find(object, object::METADATA), |key, value| {
            if is_annotated {
                annotations.push((interner.str(key), Str::from(value)));
            }
            if key == TTL {
                ttl_seconds = value.parse().ok();
            } else if key == PROVIDED_NODE_IP {
                provided_ip = Some(Str::from(value));
            } else if key == CONTROLLER_ATTACHES {
                is_managed = true;
            }
        })?;
        let conditions = fields(find(object, object::STATUS))
            .filter(|field| field.as_ref().is_ok_and(|field| field.number == node_status::CONDITIONS) || field.is_err())
            .map(|field| NodeCondition::decode(interner, field?.value.bytes()))
            .collect::<Result<_, WireError>>()?;
        let (spec, status) = (find(object, object::SPEC), find(object, object::STATUS));
        let cloud = if context.sections.contains(Self::CLOUD) {
            Some(NodeCloud::decode(interner, spec, status, provided_ip)?.into())
        } else {
            None
        };
        annotations.sort_unstable();
        let mut node = Self {
            meta,
            ttl_seconds,
            unschedulable: false,
            taints: Box::default(),
            pod_cidrs: Box::default(),
            conditions,
            cloud,
            cpu_millis: 0,
            volumes: None,
            annotations: annotations.into(),
        };
        node.read_spec(interner, spec)?;
        if context.sections.contains(Self::CPU) {
            node.cpu_millis = allocatable_cpu(find(object, object::STATUS))?;
        }
        if context.sections.contains(Self::VOLUMES) {
            node.volumes = Some(Box::new(NodeVolumes::read(is_managed, status)?));
        }
        Ok(node)
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

/// A change of a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionEdit {
    /// Type of the condition.
    pub kind: &'static str,
    /// New status.
    pub status: &'static str,
    /// New reason.
    pub reason: &'static str,
    /// New message.
    pub message: &'static str,
    /// New heartbeat; `None` keeps the existing one.
    pub heartbeat: Option<Time>,
    /// New time of transition.
    pub transition: Time,
}

impl ConditionEdit {
    fn put(&self, condition: &mut Vec<u8>) {
        condition.put_str(node_condition::STATUS, self.status);
        condition.put_str(node_condition::REASON, self.reason);
        condition.put_str(node_condition::MESSAGE, self.message);
        self.transition.put(condition, node_condition::LAST_TRANSITION_TIME);
        if let Some(heartbeat) = self.heartbeat {
            heartbeat.put(condition, node_condition::LAST_HEARTBEAT_TIME);
        }
    }

    fn replaces(&self, number: u32) -> bool {
        matches!(
            number,
            node_condition::STATUS
                | node_condition::REASON
                | node_condition::MESSAGE
                | node_condition::LAST_TRANSITION_TIME
        ) || number == node_condition::LAST_HEARTBEAT_TIME && self.heartbeat.is_some()
    }
}

/// Returns a node for a PUT of its status with these conditions changed or added, and everything else unchanged.
///
/// # Errors
/// When `object` is not well-formed.
pub fn with_conditions(object: &[u8], edits: &[ConditionEdit]) -> Result<Vec<u8>, WireError> {
    let mut status = Vec::new();
    let mut replaced: Vec<&str> = Vec::new();
    for field in fields(find(object, object::STATUS)) {
        let field = field?;
        let kind = find(field.value.bytes(), node_condition::TYPE);
        match edits.iter().find(|edit| edit.kind.as_bytes() == kind) {
            Some(edit) if field.number == node_status::CONDITIONS => {
                let mut condition = Vec::new();
                copy_fields(field.value.bytes(), &mut condition, |field| !edit.replaces(field.number))?;
                edit.put(&mut condition);
                status.put_bytes(field.number, &condition);
                replaced.push(edit.kind);
            }
            _ => status.extend_from_slice(field.raw),
        }
    }
    for edit in edits.iter().filter(|edit| !replaced.contains(&edit.kind)) {
        status.put_message(node_status::CONDITIONS, |condition| {
            condition.put_str(node_condition::TYPE, edit.kind);
            edit.put(condition);
        });
    }
    edited(object, &[], |field| field.number != object::STATUS, |out| out.put_bytes(object::STATUS, &status))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::wire::schema::{node_address, node_system_info, object_meta, taint};

    fn condition(kind: &str, status: &str, heartbeat: i64) -> impl FnOnce(&mut Vec<u8>) {
        move |message| {
            message.put_str(node_condition::TYPE, kind);
            message.put_str(node_condition::STATUS, status);
            Time(heartbeat).put(message, node_condition::LAST_HEARTBEAT_TIME);
            message.put_str(99, "unknown");
        }
    }

    fn object() -> Vec<u8> {
        let mut object = Vec::new();
        object.put_message(object::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "a");
            meta.put_str(object_meta::RESOURCE_VERSION, "7");
        });
        object.put_message(object::SPEC, |spec| {
            spec.put_str(node_spec::POD_CIDR, "10.0.0.0/24");
            spec.put_bool(node_spec::UNSCHEDULABLE, true);
            spec.put_message(node_spec::TAINTS, |message| {
                message.put_str(taint::KEY, "k");
                message.put_str(taint::EFFECT, "NoExecute");
                Time(5).put(message, taint::TIME_ADDED);
            });
        });
        object.put_message(object::STATUS, |status| {
            status.put_message(node_status::CONDITIONS, condition("NetworkUnavailable", "False", 1));
            status.put_message(node_status::CONDITIONS, condition("Ready", "True", 2));
            status.put_str(88, "kept");
        });
        object
    }

    fn decode(object: &[u8]) -> Node {
        let context = Decode { interner: Arc::default(), sections: Sections::default() };
        Node::decode(&context, object).expect("well-formed")
    }

    #[test]
    fn node_fields_are_decoded() {
        let node = decode(&object());
        assert!(node.unschedulable && node.taints[0].is("k", "NoExecute") && node.taints[0].added == Time(5));
        assert_eq!((&*node.pod_cidrs[0], node.ready()), ("10.0.0.0/24", Some("True")));
        assert_eq!(node.condition(READY).expect("it is present").heartbeat, Time(2));
    }

    #[test]
    fn cloud_section_is_decoded_only_when_selected() {
        let identity = |meta: &mut Vec<u8>| {
            meta.put_str(object_meta::NAME, "a");
            meta.put_str(object_meta::RESOURCE_VERSION, "7");
        };
        let mut node = Vec::new();
        node.put_message(object::METADATA, identity);
        node.put_message(object::SPEC, |spec| spec.put_str(node_spec::PROVIDER_ID, "x://1"));
        node.put_message(object::STATUS, |status| {
            for (kind, address) in [("InternalIP", "10.0.0.1"), ("InternalIP", "fd00::1")] {
                status.put_message(node_status::ADDRESSES, |entry| {
                    entry.put_str(node_address::TYPE, kind);
                    entry.put_str(node_address::ADDRESS, address);
                });
            }
            status.put_message(node_status::NODE_INFO, |info| info.put_str(node_system_info::SYSTEM_UUID, "ec2"));
            for (kind, reason) in [("Ready", "KubeletReady"), ("NetworkUnavailable", "RouteCreated")] {
                status.put_message(node_status::CONDITIONS, |entry| {
                    entry.put_str(node_condition::TYPE, kind);
                    entry.put_str(node_condition::REASON, reason);
                });
            }
        });
        assert_eq!(decode(&node).cloud, None);
        let context = Decode { interner: Arc::default(), sections: Node::CLOUD };
        let cloud = Node::decode(&context, &node).expect("well-formed").cloud.expect("the section is selected");
        assert_eq!((&*cloud.provider_id, &*cloud.system_uuid, cloud.provided_ip), ("x://1", "ec2", None));
        assert_eq!(&*cloud.network_reason, "RouteCreated");
        let read: Vec<_> = cloud.addresses.iter().map(|own| (&*own.kind, &*own.address)).collect();
        assert_eq!(read, [("InternalIP", "10.0.0.1"), ("InternalIP", "fd00::1")]);
        let mut annotated = Vec::new();
        annotated.put_message(object::METADATA, |meta| {
            identity(meta);
            meta.put_entry(object_meta::ANNOTATIONS, PROVIDED_NODE_IP, "10.0.0.1");
        });
        let cloud = Node::decode(&context, &annotated).expect("well-formed").cloud.expect("the section is selected");
        assert_eq!(cloud.provided_ip.as_deref(), Some("10.0.0.1"));
    }

    #[test]
    fn annotations_are_decoded_only_when_selected() {
        let mut object = Vec::new();
        object.put_message(object::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "a");
            meta.put_str(object_meta::RESOURCE_VERSION, "7");
            meta.put_entry(object_meta::ANNOTATIONS, "b", "2");
            meta.put_entry(object_meta::ANNOTATIONS, "a", "1");
        });
        assert!(decode(&object).annotations.is_empty());
        let context = Decode { interner: Arc::default(), sections: Node::ANNOTATIONS };
        let annotations = Node::decode(&context, &object).expect("well-formed").annotations;
        let pairs: Vec<_> = annotations.iter().map(|(key, value)| (&**key, &**value)).collect();
        assert_eq!(pairs, [("a", "1"), ("b", "2")]);
    }

    #[test]
    fn cpu_is_the_allocatable_amount() {
        for (cpu, expected) in [("1500m", 1500), ("2", 2000), ("1u", 1), ("much", 0)] {
            let mut object = object();
            object.put_message(object::STATUS, |status| {
                for (resource, amount) in [("memory", "1Gi"), ("cpu", cpu)] {
                    status.put_message(node_status::ALLOCATABLE, |entry| {
                        entry.put_str(1, resource);
                        entry.put_message(2, |quantity| quantity.put_str(quantity_message::STRING, amount));
                    });
                }
            });
            let context = Decode { interner: Arc::default(), sections: Node::CPU };
            assert_eq!(Node::decode(&context, &object).expect("well-formed").cpu_millis, expected, "{cpu}");
            assert_eq!(decode(&object).cpu_millis, 0, "the section is not selected");
        }
    }

    #[test]
    fn edited_conditions_keep_the_rest() {
        let edit = |kind, heartbeat| ConditionEdit {
            kind,
            status: "Unknown",
            reason: "why",
            message: "what",
            heartbeat,
            transition: Time(9),
        };
        let written = with_conditions(&object(), &[edit("Ready", None), edit("DiskPressure", Some(Time(3)))])
            .expect("well-formed");
        let node = decode(&written);
        let read: Vec<_> =
            node.conditions.iter().map(|c| (&*c.kind, &*c.status, c.heartbeat.0, c.transition.0)).collect();
        assert_eq!(
            read,
            [("NetworkUnavailable", "False", 1, 0), ("Ready", "Unknown", 2, 9), ("DiskPressure", "Unknown", 3, 9)]
        );
        let status = find(&written, object::STATUS);
        assert_eq!(find(status, 88), b"kept");
        let ready = fields(status).flatten().filter(|field| field.number == node_status::CONDITIONS).nth(1);
        assert_eq!(find(ready.expect("it is present").value.bytes(), 99), b"unknown");
        assert!(node.unschedulable && node.meta.version == 7);
    }
}
