//! The desired node, given its instance. Pure functions.

use std::collections::BTreeMap;
use std::net::IpAddr;

use kinds::intern::label;
use kinds::names::{is_label_key, is_label_value};
use kinds::{Node, Str};
use providers::{Address, AddressKind, Instance};

/// The labels of zone, region and instance type: the beta label and its stable successor.
pub const LABEL_PAIRS: [(&str, &str); 3] = [
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
];

/// Time after the registration of a node in which the cloud may not list its instance yet.
pub const LISTED_AFTER_SECONDS: i64 = 60;

/// Returns the message for a node of this age in seconds whose instance the cloud does not have; `None` while the cloud
/// may not list the instance yet.
pub fn missing_instance(node: &Node, age: i64) -> Option<String> {
    if age < LISTED_AFTER_SECONDS {
        return None;
    }
    let id = node.cloud.as_ref().map(|cloud| &*cloud.provider_id).filter(|id| !id.is_empty());
    Some(match id {
        Some(id) => format!("the cloud has no instance with the provider ID {id}; the node stays uninitialized"),
        None => format!(
            "the cloud has no instance of this cluster for the node name {:?}; the node stays uninitialized: let the \
             kubelet set --provider-id, or name the node as the cloud names its instances",
            &*node.meta.name
        ),
    })
}

/// Returns true if neither the node nor its instance has a provider ID. Such a node stays uninitialized: other
/// controllers need the ID, and nothing sets it later. Upstream: cloud-provider,
/// CloudNodeController.getInstanceMetadata.
pub fn lacks_provider_id(node: &Node, instance: &Instance) -> bool {
    instance.provider_id.is_empty() && !has_provider_id(node)
}

/// Returns true if a node has a provider ID.
pub fn has_provider_id(node: &Node) -> bool {
    node.cloud.as_ref().is_some_and(|cloud| !cloud.provider_id.is_empty())
}

/// Labels to set.
pub type Edits = BTreeMap<String, String>;

/// The reason why the addresses configured in the kubelet (`--node-ip`) are not valid for the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadNodeIp(pub String);

/// Returns the stable labels whose values differ from those of their beta labels. Upstream: cloud-provider,
/// CloudNodeController.reconcileNodeLabels.
pub fn reconciled_labels(labels: &[(Str, Str)]) -> Edits {
    let differing = LABEL_PAIRS.iter().filter_map(|(beta, stable)| {
        let value = label(labels, beta)?;
        (label(labels, stable) != Some(value)).then(|| ((*stable).to_owned(), value.to_owned()))
    });
    differing.collect()
}

/// Returns the labels that a new node gets from its instance, and the provider's labels that are left out.
///
/// The stable and the beta label of each pair replace existing labels. A label of the provider is left out if the node
/// has another value for it, if its name belongs to Kubernetes, or if the API server would refuse it. A cloud's own
/// labels may have any text, and one of them must not keep the node uninitialized. Upstream: cloud-provider,
/// CloudNodeController.getNodeModifiersFromCloudProvider.
pub fn initial_labels<'a>(labels: &[(Str, Str)], instance: &'a Instance) -> (Edits, Vec<&'a str>) {
    let mut edits = Edits::new();
    let values = [&instance.zone, &instance.region, &instance.instance_type];
    for ((beta, stable), value) in LABEL_PAIRS.iter().zip(values) {
        for key in [beta, stable] {
            if !value.is_empty() && label(labels, key) != Some(value) {
                edits.insert((*key).to_owned(), value.clone());
            }
        }
    }
    let mut left_out = Vec::new();
    for (key, value) in &instance.labels {
        match label(labels, key).or_else(|| edits.get(key).map(String::as_str)) {
            _ if is_kubernetes_own(key) || !is_label(key, value) => left_out.push(key.as_str()),
            Some(there) if there != value => left_out.push(key.as_str()),
            Some(_) => {}
            None => {
                edits.insert(key.clone(), value.clone());
            }
        }
    }
    (edits, left_out)
}

/// Returns true if the API server accepts a label or taint.
pub fn is_label(key: &str, value: &str) -> bool {
    is_label_key(key) && is_label_value(value)
}

/// Returns true if a label's name belongs to `kubernetes.io` or `k8s.io` or a subdomain.
pub fn is_kubernetes_own(key: &str) -> bool {
    key.split_once('/').is_some_and(|(domain, _)| {
        ["kubernetes.io", "k8s.io"]
            .iter()
            .any(|own| domain.strip_suffix(own).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
    })
}

/// Returns the desired addresses of the node: the cloud's, with the kubelet's host name if the cloud has none, and with
/// the kubelet's configured addresses first. `None`: the cloud reports none, so the existing ones are kept. Upstream:
/// cloud-provider, CloudNodeController.updateNodeAddress.
///
/// # Errors
/// When the kubelet's configured addresses cannot be parsed, or the instance does not have them.
pub fn addresses(node: &Node, instance: &Instance) -> Result<Option<Vec<Address>>, BadNodeIp> {
    let Some(cloud) = &node.cloud else { return Ok(None) };
    let mut wanted = instance.addresses.clone();
    if !wanted.is_empty() && !wanted.iter().any(|address| address.kind == AddressKind::Hostname) {
        let own = cloud.addresses.iter().filter(|own| &*own.kind == AddressKind::Hostname.as_str());
        wanted.extend(own.map(|own| Address { kind: AddressKind::Hostname, address: own.address.to_string() }));
    }
    let wanted = match &cloud.provided_ip {
        Some(provided) => preferred(provided, wanted)?,
        None => wanted,
    };
    Ok(Some(wanted).filter(|wanted| !wanted.is_empty()))
}

/// Returns the addresses with the provided ones first, and without other addresses of the same kinds. Upstream:
/// cloud-provider node/helpers, GetNodeAddressesFromNodeIP.
fn preferred(provided: &str, addresses: Vec<Address>) -> Result<Vec<Address>, BadNodeIp> {
    let mut first: Vec<Address> = Vec::new();
    for ip in provided_ips(provided)? {
        let before = first.len();
        first.extend(addresses.iter().filter(|address| address.address.parse() == Ok(ip)).cloned());
        if first.len() == before {
            return Err(BadNodeIp(format!("the cloud has no address {ip} for this instance")));
        }
    }
    let taken: Vec<AddressKind> = first.iter().map(|address| address.kind).collect();
    first.extend(addresses.into_iter().filter(|address| !taken.contains(&address.kind)));
    Ok(first)
}

/// Parses one address, or one of each family (component-helpers node/util, ParseNodeIPAnnotation).
fn provided_ips(provided: &str) -> Result<Vec<IpAddr>, BadNodeIp> {
    let ips: Vec<IpAddr> = provided
        .split(',')
        .map(|text| text.parse().map_err(|_| BadNodeIp(format!("{text:?} is not an IP address"))))
        .collect::<Result<_, _>>()?;
    match ips[..] {
        [_] => Ok(ips),
        [a, b] if a.is_ipv4() != b.is_ipv4() && !a.is_unspecified() && !b.is_unspecified() => Ok(ips),
        _ => {
            Err(BadNodeIp("give one IP address, or one IPv4 and one IPv6 address, neither of them unspecified".into()))
        }
    }
}

/// Returns true if the node has exactly these addresses, in this order.
pub fn has_addresses(node: &Node, wanted: &[Address]) -> bool {
    let has = node.cloud.as_ref().map_or(&[][..], |cloud| &*cloud.addresses);
    has.len() == wanted.len()
        && has
            .iter()
            .zip(wanted)
            .all(|(has, wanted)| *has.kind == *wanted.kind.as_str() && *has.address == *wanted.address)
}
