//! Records of the infrastructure cluster's objects, with the fields that the provider reads.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

/// Reads a field whose `null` means the same as its absence.
fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A page of a list.
#[derive(Debug, Deserialize)]
pub(crate) struct Page<T> {
    #[serde(default)]
    pub metadata: PageMeta,
    pub items: Vec<T>,
}

/// The metadata of a page.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PageMeta {
    #[serde(rename = "continue", deserialize_with = "nullable")]
    pub next: String,
}

/// An object's metadata.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Meta {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    #[serde(deserialize_with = "nullable")]
    pub labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "nullable")]
    pub annotations: BTreeMap<String, String>,
    pub creation_timestamp: Option<String>,
    pub deletion_timestamp: Option<String>,
}

impl Meta {
    /// Returns true if the object is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.deletion_timestamp.is_some()
    }
}

/// An object of which only the metadata matters.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Object {
    pub metadata: Meta,
}

/// A VirtualMachineInstance.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct VirtualMachineInstance {
    pub metadata: Meta,
    #[serde(deserialize_with = "nullable")]
    pub spec: VirtualMachineInstanceSpec,
    #[serde(deserialize_with = "nullable")]
    pub status: VirtualMachineInstanceStatus,
}

/// The spec of a VirtualMachineInstance.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct VirtualMachineInstanceSpec {
    #[serde(deserialize_with = "nullable")]
    pub hostname: String,
}

/// The status of a VirtualMachineInstance.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct VirtualMachineInstanceStatus {
    #[serde(deserialize_with = "nullable")]
    pub phase: String,
    #[serde(deserialize_with = "nullable")]
    pub node_name: String,
    #[serde(deserialize_with = "nullable")]
    pub interfaces: Vec<Interface>,
}

/// A network interface of a VirtualMachineInstance.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Interface {
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    #[serde(deserialize_with = "nullable")]
    pub ip_address: String,
    #[serde(deserialize_with = "nullable")]
    pub ip_addresses: Vec<String>,
}

/// A VirtualMachine, which exists even while it is stopped and has no VirtualMachineInstance.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct VirtualMachine {
    pub metadata: Meta,
    #[serde(deserialize_with = "nullable")]
    pub spec: VirtualMachineSpec,
}

/// The spec of a VirtualMachine.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct VirtualMachineSpec {
    #[serde(deserialize_with = "nullable")]
    pub template: VirtualMachineTemplate,
}

/// The template of a VirtualMachine.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct VirtualMachineTemplate {
    #[serde(deserialize_with = "nullable")]
    pub spec: VirtualMachineInstanceSpec,
}

/// A Service of the infrastructure cluster.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct InfraService {
    pub metadata: Meta,
    pub spec: InfraServiceSpec,
    #[serde(deserialize_with = "nullable")]
    pub status: InfraServiceStatus,
}

/// The fields of a Service's spec that the provider sets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct InfraServiceSpec {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<InfraPort>,
    #[serde(deserialize_with = "nullable")]
    pub selector: BTreeMap<String, String>,
    #[serde(deserialize_with = "nullable")]
    pub load_balancer_source_ranges: Vec<String>,
    #[serde(rename = "loadBalancerIP")]
    pub load_balancer_ip: Option<String>,
    pub external_traffic_policy: String,
    pub session_affinity: String,
    pub session_affinity_config: Option<SessionAffinityConfig>,
}

/// The timeout of session affinity.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct SessionAffinityConfig {
    #[serde(rename = "clientIP")]
    pub client_ip: Option<ClientIpConfig>,
}

/// The timeout of session affinity by the client's address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ClientIpConfig {
    pub timeout_seconds: u64,
}

/// A port of a Service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct InfraPort {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    pub protocol: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<String>,
    pub port: u16,
    /// A number, or a name that another client has set.
    pub target_port: serde_json::Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_port: Option<u16>,
}

/// The status of a Service.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct InfraServiceStatus {
    #[serde(deserialize_with = "nullable")]
    pub load_balancer: InfraLoadBalancer,
}

/// The load balancer in a Service's status.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct InfraLoadBalancer {
    #[serde(deserialize_with = "nullable")]
    pub ingress: Vec<InfraIngress>,
}

/// An ingress point.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct InfraIngress {
    pub ip: Option<String>,
    pub hostname: Option<String>,
    pub ip_mode: Option<String>,
}

/// An EndpointSlice.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Slice {
    pub metadata: Meta,
    #[serde(deserialize_with = "nullable")]
    pub endpoints: Vec<SliceEndpoint>,
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<SlicePort>,
}

/// An endpoint of an EndpointSlice.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct SliceEndpoint {
    #[serde(deserialize_with = "nullable")]
    pub addresses: Vec<String>,
    pub conditions: SliceConditions,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<TargetRef>,
}

/// The conditions of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SliceConditions {
    pub ready: Option<bool>,
}

/// The virtual machine behind an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct TargetRef {
    pub kind: String,
    pub namespace: String,
    pub name: String,
}

/// A port of an EndpointSlice.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct SlicePort {
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    pub protocol: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<String>,
    pub port: u16,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn null_means_absent() {
        let read: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": {"name": "a", "labels": null}, "spec": {"hostname": null},
            "status": {"interfaces": [{"name": "default", "ipAddresses": null}], "nodeName": null},
        }))
        .expect("nulls are allowed");
        assert!(read.status.node_name.is_empty() && read.status.interfaces[0].ip_addresses.is_empty());
        let read: VirtualMachineInstance =
            serde_json::from_value(json!({"metadata": {"name": "a"}})).expect("no status yet");
        assert!(read.status.phase.is_empty());
    }
}
