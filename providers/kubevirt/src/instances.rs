//! Instances: nodes of the tenant cluster as virtual machines of the infrastructure cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::StreamExt as _;
use kinds::names::is_dns_subdomain;
use providers::{
    Address, AddressKind, CloudError, ErrorKind, Instance, InstanceRef, InstanceState, Instances, async_trait,
};

use crate::infra::Infra;
use crate::objects::VirtualMachineInstance;
use crate::virtual_machines::{Key, SearchResult, VirtualMachines};

/// The scheme of provider IDs.
const SCHEME: &str = "kubevirt://";

/// Label of a Node with the name of its virtual machine. Upstream: instanceIDLabelKey.
const INSTANCE_LABEL: &str = "node.kubernetes.io/instance-id";

/// Annotations with the instance type: one for a VirtualMachineInstancetype, one for a
/// VirtualMachineClusterInstancetype.
const TYPE_ANNOTATIONS: [&str; 2] = ["kubevirt.io/instancetype-name", "kubevirt.io/cluster-instancetype-name"];

/// The interface whose addresses are the Node's. Upstream: getNodeAddresses.
const DEFAULT_INTERFACE: &str = "default";

const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
const REGION_LABEL: &str = "topology.kubernetes.io/region";

/// Maximum number of infrastructure nodes that are read concurrently.
const MAX_NODE_READS: usize = 8;

pub(crate) struct KubeVirtInstances {
    pub infra: Arc<Infra>,
    /// Zones and regions are read from the infrastructure cluster's nodes.
    pub zones: bool,
}

/// Returns the provider ID of a virtual machine.
pub(crate) fn provider_id(machine: &str) -> String {
    format!("{SCHEME}{machine}")
}

/// Returns the name of the virtual machine in a provider ID.
pub(crate) fn machine_name(id: &str) -> Result<&str, CloudError> {
    let invalid = |problem: &str| {
        let message = format!("spec.providerID is {id:?}, {problem}");
        CloudError::new(ErrorKind::Invalid, "ReadProviderId", message)
    };
    let name = id.strip_prefix(SCHEME).ok_or_else(|| invalid("which belongs to another cloud"))?;
    if is_dns_subdomain(name) { Ok(name) } else { Err(invalid("which contains no name of a virtual machine")) }
}

/// Returns the key by which a Node's virtual machine is searched; `None` if no virtual machine can have this name.
fn key(wanted: &InstanceRef) -> Result<Option<Key>, CloudError> {
    let key = match &wanted.provider_id {
        Some(id) => Key::Name(machine_name(id)?.to_owned()),
        None => match wanted.labels.get(INSTANCE_LABEL) {
            Some(name) => Key::Name(name.clone()),
            None => Key::Node(wanted.node.clone()),
        },
    };
    Ok(Some(key).filter(|key| is_dns_subdomain(key.name())))
}

fn unknown(kind: ErrorKind, message: String) -> InstanceState {
    InstanceState::Unknown(CloudError::new(kind, "DescribeInstance", message))
}

/// The zone and region of an infrastructure node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Place {
    zone: String,
    region: String,
}

type Places = BTreeMap<String, Result<Place, CloudError>>;

/// Returns the addresses of an instance. If it has none, returns the internal addresses of the Node: the guest agent
/// can fail to report them for a moment.
fn addresses(instance: &VirtualMachineInstance, wanted: &InstanceRef) -> Vec<Address> {
    let interface = instance.status.interfaces.iter().find(|interface| interface.name == DEFAULT_INTERFACE);
    let reported = interface.map(|interface| {
        if interface.ip_addresses.is_empty() {
            std::slice::from_ref(&interface.ip_address)
        } else {
            &interface.ip_addresses[..]
        }
    });
    let mut addresses: Vec<Address> = Vec::new();
    for address in reported.unwrap_or_default().iter().filter(|address| !address.is_empty()) {
        let address = Address { kind: AddressKind::InternalIP, address: address.clone() };
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() {
        addresses = wanted.addresses.iter().filter(|a| a.kind == AddressKind::InternalIP).cloned().collect();
    }
    addresses
}

/// Returns the state of a virtual machine that has a VirtualMachineInstance.
fn state_of(instance: &VirtualMachineInstance, wanted: &InstanceRef, places: Option<&Places>) -> InstanceState {
    let name = &instance.metadata.name;
    match instance.status.phase.as_str() {
        "Succeeded" | "Failed" => return InstanceState::Stopped,
        "Unknown" => {
            let message = format!("the phase of virtual machine {name} is Unknown: its host does not respond");
            return unknown(ErrorKind::Transient, message);
        }
        _ => {}
    }
    let place = match places.map(|places| places.get(&instance.status.node_name)) {
        None => Place::default(),
        Some(Some(Ok(place))) => place.clone(),
        Some(Some(Err(error))) => return InstanceState::Unknown(error.clone()),
        // Not Running: the Node would permanently lack the label of its zone, which is set only once.
        Some(None) => return unknown(ErrorKind::Transient, format!("virtual machine {name} is not scheduled yet")),
    };
    let annotation = |key: &&str| instance.metadata.annotations.get(*key).cloned();
    InstanceState::Running(Box::new(Instance {
        provider_id: provider_id(name),
        instance_type: TYPE_ANNOTATIONS.iter().find_map(annotation).unwrap_or_default(),
        zone: place.zone,
        region: place.region,
        addresses: addresses(instance, wanted),
        ..Instance::default()
    }))
}

fn found_state(found: &SearchResult<'_>, wanted: &InstanceRef, places: Option<&Places>) -> InstanceState {
    match found {
        SearchResult::Instance(instance) => state_of(instance, wanted, places),
        SearchResult::Stopped => InstanceState::Stopped,
        SearchResult::Ambiguous(count) => {
            unknown(ErrorKind::Conflict, format!("{count} virtual machines have the host name {:?}", wanted.node))
        }
        SearchResult::Absent => InstanceState::Gone,
    }
}

impl KubeVirtInstances {
    /// Reads the zones of the infrastructure nodes that these instances run on; `None` if they are not wanted.
    async fn places(&self, instances: impl Iterator<Item = &VirtualMachineInstance>) -> Option<Places> {
        if !self.zones {
            return None;
        }
        let names: BTreeSet<&str> =
            instances.map(|instance| instance.status.node_name.as_str()).filter(|name| !name.is_empty()).collect();
        let reads: Vec<_> = names.into_iter().map(|name| self.place(name)).collect();
        Some(futures::stream::iter(reads).buffered(MAX_NODE_READS).collect().await)
    }

    async fn place(&self, name: &str) -> (String, Result<Place, CloudError>) {
        let place = match self.infra.node(name).await {
            Err(error) => Err(error),
            Ok(None) => {
                let message = format!("the infrastructure cluster has no node {name:?}");
                Err(CloudError::new(ErrorKind::Transient, "GetNode", message))
            }
            Ok(Some(node)) => {
                let label = |key: &str| node.metadata.labels.get(key).cloned().unwrap_or_default();
                Ok(Place { zone: label(ZONE_LABEL), region: label(REGION_LABEL) })
            }
        };
        (name.to_owned(), place)
    }
}

#[async_trait]
impl Instances for KubeVirtInstances {
    async fn describe(&self, instances: &[InstanceRef]) -> Vec<InstanceState> {
        let keys: Vec<_> = instances.iter().map(key).collect();
        let valid: Vec<&Key> = keys.iter().filter_map(|key| key.as_ref().ok()?.as_ref()).collect();
        if valid.is_empty() {
            return keys
                .into_iter()
                .map(|key| key.map_or_else(InstanceState::Unknown, |_| InstanceState::Gone))
                .collect();
        }
        let machines = match VirtualMachines::read(&self.infra, &valid).await {
            Ok(machines) => machines,
            Err(error) => return vec![InstanceState::Unknown(error); instances.len()],
        };
        let found: Vec<Result<SearchResult<'_>, CloudError>> = keys
            .iter()
            .map(|key| match key {
                Ok(Some(key)) => machines.search(key),
                Ok(None) => Ok(SearchResult::Absent),
                Err(error) => Err(error.clone()),
            })
            .collect();
        let running = found.iter().filter_map(|found| match found {
            Ok(SearchResult::Instance(instance)) => Some(*instance),
            _ => None,
        });
        let places = self.places(running).await;
        let states = found.iter().zip(instances).map(|(found, wanted)| match found {
            Ok(found) => found_state(found, wanted, places.as_ref()),
            Err(error) => InstanceState::Unknown(error.clone()),
        });
        states.collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn instance(status: Value) -> VirtualMachineInstance {
        serde_json::from_value(json!({"metadata": {"name": "vm-1"}, "status": status})).expect("an instance")
    }

    fn internal(address: &str) -> Address {
        Address { kind: AddressKind::InternalIP, address: address.into() }
    }

    #[test]
    fn key_is_the_provider_id_or_the_label_or_the_name() {
        let named = InstanceRef::named("node-1");
        assert_eq!(key(&named), Ok(Some(Key::Node("node-1".into()))));
        let mut labelled = named.clone();
        labelled.labels.insert(INSTANCE_LABEL.into(), "vm-1".into());
        assert_eq!(key(&labelled), Ok(Some(Key::Name("vm-1".into()))));
        let with_id = labelled.with_provider_id("kubevirt://vm.2");
        assert_eq!(key(&with_id), Ok(Some(Key::Name("vm.2".into()))));
        for id in ["aws:///a/i-1", "kubevirt://", "kubevirt://a/b", "kubevirt://../x", "kubevirt://A", "kubevirt://a?b"]
        {
            let error = key(&named.clone().with_provider_id(id)).expect_err(id);
            assert!(error.is_invalid() && error.message.contains(id), "{error}");
        }
        assert_eq!(key(&InstanceRef::named("..")), Ok(None), "no path is ever built from it");
    }

    #[test]
    fn phase_determines_the_state() {
        for (phase, expected) in [
            ("", "running"),
            ("Pending", "running"),
            ("Scheduling", "running"),
            ("Running", "running"),
            ("Succeeded", "stopped"),
            ("Failed", "stopped"),
            ("Unknown", "unknown"),
        ] {
            let state = match state_of(&instance(json!({"phase": phase})), &InstanceRef::named("n"), None) {
                InstanceState::Running(_) => "running",
                InstanceState::Stopped => "stopped",
                InstanceState::Gone => "gone",
                InstanceState::Unknown(_) => "unknown",
            };
            assert_eq!(state, expected, "{phase:?}");
        }
    }

    #[test]
    fn addresses_come_from_the_default_interface_or_else_from_the_node() {
        let mut wanted = InstanceRef::named("n");
        wanted.addresses =
            vec![internal("10.0.0.9"), Address { kind: AddressKind::ExternalIP, address: "192.0.2.1".into() }];
        for (interfaces, expected) in [
            (
                json!([{"name": "default", "ipAddress": "10.0.0.1", "ipAddresses": ["10.0.0.1", "fd00::1"]}]),
                vec!["10.0.0.1", "fd00::1"],
            ),
            (
                json!([{"name": "other", "ipAddress": "10.1.0.1"}, {"name": "default", "ipAddress": "10.0.0.1"}]),
                vec!["10.0.0.1"],
            ),
            (json!([{"name": "default", "ipAddresses": ["10.0.0.1", "10.0.0.1", ""]}]), vec!["10.0.0.1"]),
            (json!([{"name": "default"}]), vec!["10.0.0.9"]),
            (json!([]), vec!["10.0.0.9"]),
        ] {
            let found = addresses(&instance(json!({"interfaces": interfaces})), &wanted);
            assert_eq!(found, expected.into_iter().map(internal).collect::<Vec<_>>());
        }
    }

    #[test]
    fn instance_whose_zone_cannot_be_read_is_unknown() {
        let wanted = InstanceRef::named("n");
        let place = Place { zone: "z".into(), region: "r".into() };
        let denied = CloudError::new(ErrorKind::Denied, "GetNode", "forbidden");
        let places = BTreeMap::from([("good".to_owned(), Ok(place)), ("bad".to_owned(), Err(denied.clone()))]);
        let on = |node: &str| state_of(&instance(json!({"nodeName": node})), &wanted, Some(&places));
        assert!(matches!(on("good"), InstanceState::Running(found) if found.zone == "z" && found.region == "r"));
        assert_eq!(on("bad"), InstanceState::Unknown(denied));
        assert!(matches!(on(""), InstanceState::Unknown(_)), "a Node would be initialized without its zone");
        assert!(matches!(state_of(&instance(json!({})), &wanted, None), InstanceState::Running(_)));
    }
}
