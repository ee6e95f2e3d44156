//! Instances: read in batches by id, private DNS name or address, and labelled with their topology.

mod convert;
pub(crate) mod id;
mod topology;
mod zones;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use aws_sdk_ec2::types::{self, Filter, InstanceStateName};
use futures::future::{join, join_all};
use providers::{CloudError, ErrorKind, Instance, InstanceRef, InstanceState, Instances, async_trait};

use crate::client::{Api, Class};
use crate::session::{Session, Sessions};
use crate::tags::{self, ClusterTags};
use id::Wanted;
use topology::Topology;
use zones::Zones;

/// Maximum number of ids in one call.
const IDS: usize = 500;
/// Maximum number of values of one filter.
const FILTER_VALUES: usize = 200;
/// Number of instances on a page.
const PAGE: i32 = 1000;

/// Instances of EC2 and of Fargate.
#[derive(Debug)]
pub(crate) struct Ec2Instances {
    sessions: Sessions,
    zones: Zones,
    topology: Topology,
}

type States = HashMap<Wanted, InstanceState>;

/// The result of EC2 for each instance.
pub(crate) type Found = HashMap<Wanted, Result<types::Instance, CloudError>>;

impl Ec2Instances {
    pub(crate) fn new(sessions: Sessions) -> Self {
        Self { sessions, zones: Zones::default(), topology: Topology::default() }
    }
}

#[async_trait]
impl Instances for Ec2Instances {
    async fn describe(&self, instances: &[InstanceRef]) -> Vec<InstanceState> {
        let session = match self.sessions.get() {
            Ok(session) => session,
            Err(error) => return instances.iter().map(|_| InstanceState::Unknown(error.clone())).collect(),
        };
        let wanted: Vec<Result<Wanted, CloudError>> = instances.iter().map(id::wanted).collect();
        let mut states = look_up(&session, wanted.iter().flatten().collect()).await;
        self.label(&session, instances, &wanted, &mut states).await;
        wanted
            .into_iter()
            .map(|wanted| match wanted {
                Ok(wanted) => states.get(&wanted).cloned().unwrap_or_else(|| absent(&wanted)),
                Err(error) => InstanceState::Unknown(error),
            })
            .collect()
    }
}

impl Ec2Instances {
    /// Adds topology labels to Nodes that lack them. Labels that AWS does not provide are skipped: a missing label must
    /// not delay a Node.
    async fn label(
        &self,
        session: &Session,
        nodes: &[InstanceRef],
        wanted: &[Result<Wanted, CloudError>],
        states: &mut States,
    ) {
        let mut missing_zone = BTreeMap::new();
        let mut missing_topology = BTreeMap::new();
        for (node, wanted) in nodes.iter().zip(wanted) {
            let Ok(wanted) = wanted else { continue };
            let Some(InstanceState::Running(instance)) = states.get(wanted) else { continue };
            if !node.labels.contains_key(convert::ZONE_ID) {
                missing_zone.insert(wanted.clone(), instance.zone.clone());
            }
            let is_ec2_instance = !matches!(wanted, Wanted::Fargate(_));
            if is_ec2_instance && !node.labels.contains_key(&format!("{}1", convert::NETWORK_NODE)) {
                missing_topology.insert(id_of(instance), instance.instance_type.clone());
            }
        }
        if missing_zone.is_empty() && missing_topology.is_empty() {
            return;
        }
        let (zones, layers) = join(
            self.zones.ids(&session.api, missing_zone.values().map(String::as_str).collect()),
            self.topology.layers(session, missing_topology),
        )
        .await;
        for (wanted, state) in states {
            let InstanceState::Running(instance) = state else { continue };
            if let Some(zone) = zones.get(&instance.zone).filter(|_| missing_zone.contains_key(wanted)) {
                instance.labels.insert(convert::ZONE_ID.into(), zone.clone());
            }
            for (layer, node) in layers.get(&id_of(instance)).into_iter().flatten().enumerate() {
                instance.labels.insert(format!("{}{}", convert::NETWORK_NODE, layer + 1), node.clone());
            }
        }
    }
}

/// Returns the id of an instance: the last part of its provider ID.
fn id_of(instance: &Instance) -> String {
    instance.provider_id.rsplit('/').next().unwrap_or_default().to_owned()
}

/// Returns the state of an instance that no response contains: deleted, unless its id is malformed.
fn absent(wanted: &Wanted) -> InstanceState {
    match wanted {
        Wanted::Instance(id) if well_formed(id) => InstanceState::Gone,
        Wanted::Instance(id) => {
            let fix = "use the instance's id: i- and hexadecimal digits";
            InstanceState::Unknown(CloudError::invalid_field("spec.providerID", id, fix))
        }
        Wanted::Fargate(_) => InstanceState::Gone,
        Wanted::Name(name) => {
            let fix = "let the kubelet set --provider-id, or name Nodes after their private DNS name or instance id";
            tracing::info!(node = %name, "no instance of the cluster has this private DNS name; {fix}");
            InstanceState::Gone
        }
    }
}

fn well_formed(id: &str) -> bool {
    id.strip_prefix("i-").is_some_and(|rest| rest.len() >= 8 && rest.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Returns the states of all instances that were found, and `Unknown` for each instance of a failed batch or with an
/// ambiguous name.
async fn look_up(session: &Session, wanted: BTreeSet<&Wanted>) -> States {
    let addresses: Vec<IpAddr> = wanted
        .iter()
        .filter_map(|wanted| match wanted {
            Wanted::Fargate(address) => Some(*address),
            _ => None,
        })
        .collect();
    let interfaces = join_all(addresses.chunks(FILTER_VALUES).map(|addresses| by_address(session, addresses)));
    let (instances, interfaces) = join(find(session, wanted), interfaces).await;
    let state = |found: Result<types::Instance, CloudError>| match found {
        Ok(found) => convert::state(&found, &session.api.region, &session.config.node_ip_families),
        Err(error) => InstanceState::Unknown(error),
    };
    let instances = instances.into_iter().map(|(wanted, found)| (wanted, state(found)));
    instances.chain(interfaces.into_iter().flatten()).collect()
}

/// Returns the EC2 instances among `wanted`, and an error for each instance of a failed call or with an ambiguous name;
/// all other EC2 instances do not exist.
pub(crate) async fn find(session: &Session, wanted: BTreeSet<&Wanted>) -> Found {
    let mut ids = Vec::new();
    let mut names = Vec::new();
    for wanted in wanted {
        match wanted {
            Wanted::Instance(id) => ids.push(id.clone()),
            Wanted::Name(name) => names.push(name.clone()),
            Wanted::Fargate(_) => {}
        }
    }
    let ids = join_all(ids.chunks(IDS).map(|ids| by_id(session, ids)));
    let names = join_all(names.chunks(FILTER_VALUES).map(|names| by_name(session, names)));
    let (ids, names) = join(ids, names).await;
    ids.into_iter().chain(names).flatten().collect()
}

/// Reads instances by id. An id that does not exist fails the whole call, so the second attempt uses a filter, which
/// skips it.
async fn by_id(session: &Session, ids: &[String]) -> Found {
    let api = &session.api;
    let request = api.ec2.describe_instances().set_instance_ids(Some(ids.to_vec()));
    let found = match api.read(Class::Ec2Read, "DescribeInstances", || request.clone().send()).await {
        Ok(response) => Ok(response.reservations.unwrap_or_default().into_iter().flat_map(instances_of).collect()),
        Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Invalid) => {
            let chunks = ids.chunks(FILTER_VALUES);
            let pages = join_all(chunks.map(|ids| filtered(api, vec![filter("instance-id", ids.to_vec())]))).await;
            let pages: Result<Vec<_>, _> = pages.into_iter().collect();
            pages.map(|pages| pages.into_iter().flatten().collect::<Vec<_>>())
        }
        Err(error) => Err(error),
    };
    match found {
        Ok(found) => found
            .into_iter()
            .filter_map(|instance| Some((Wanted::Instance(instance.instance_id()?.to_owned()), Ok(instance))))
            .collect(),
        Err(error) => ids.iter().map(|id| (Wanted::Instance(id.clone()), Err(error.clone()))).collect(),
    }
}

/// Finds instances by their private DNS names, which are unique only within a network.
async fn by_name(session: &Session, names: &[String]) -> Found {
    match filtered(&session.api, name_filters(names, &session.cluster, &session.vpc)).await {
        Ok(found) => of_names(found, &session.cluster),
        Err(error) => names.iter().map(|name| (Wanted::Name(name.clone()), Err(error.clone()))).collect(),
    }
}

/// The filters for instances of the cluster with these names: other clusters of the account may have the same names in
/// networks of the same range.
fn name_filters(names: &[String], cluster: &ClusterTags, vpc: &str) -> Vec<Filter> {
    use InstanceStateName::{Pending, Running, ShuttingDown, Stopped, Stopping};
    let existing = [Pending, Running, ShuttingDown, Stopping, Stopped].map(|state| state.as_str().to_owned());
    let names = filter("private-dns-name", names.to_vec());
    let own = cluster.filter().unwrap_or_else(|| filter("vpc-id", vec![vpc.to_owned()]));
    vec![names, filter("instance-state-name", existing.to_vec()), own]
}

/// Returns the instance of each name, or an error for a name of several instances: a wrong provider ID would never be
/// corrected.
fn of_names(found: Vec<types::Instance>, cluster: &ClusterTags) -> Found {
    let mut by_name: BTreeMap<String, Vec<types::Instance>> = BTreeMap::new();
    // The filter compares keys only, so it also returns instances with the legacy tag of another cluster.
    for instance in found.into_iter().filter(|one| cluster.marks(tags::pairs(one.tags()))) {
        let name = instance.private_dns_name().unwrap_or_default().to_owned();
        by_name.entry(name).or_default().push(instance);
    }
    let one = |(name, mut instances): (String, Vec<types::Instance>)| {
        let found = match instances.len() {
            1 => instances.pop().ok_or_else(|| several(&name, &[])),
            _ => Err(several(&name, &instances)),
        };
        (Wanted::Name(name), found)
    };
    by_name.into_iter().map(one).collect()
}

fn several(name: &str, instances: &[types::Instance]) -> CloudError {
    let ids: Vec<&str> = instances.iter().filter_map(|instance| instance.instance_id()).collect();
    let fix = format!(
        "let the kubelet set --provider-id: the instances {} of this cluster have this private DNS name",
        ids.join(", ")
    );
    CloudError::invalid_field("metadata.name", name, &fix)
}

/// Reads Fargate nodes by address: they are network interfaces. Upstream: cloud-provider-aws,
/// pkg/providers/v1/variant/fargate.
async fn by_address(session: &Session, addresses: &[IpAddr]) -> States {
    let mut found = HashMap::new();
    for (name, is_of) in [
        ("addresses.private-ip-address", IpAddr::is_ipv4 as fn(&IpAddr) -> bool),
        ("ipv6-addresses.ipv6-address", IpAddr::is_ipv6),
    ] {
        let values: Vec<String> = addresses.iter().filter(|ip| is_of(ip)).map(ToString::to_string).collect();
        if values.is_empty() {
            continue;
        }
        let filters = interface_filters(name, values, &session.vpc);
        let request = session.api.ec2.describe_network_interfaces().set_filters(Some(filters));
        let call = session.api.read(Class::Ec2Read, "DescribeNetworkInterfaces", || request.clone().send());
        let response = match call.await {
            Ok(response) => response,
            Err(error) => {
                let unknown = |ip: &IpAddr| (Wanted::Fargate(*ip), InstanceState::Unknown(error.clone()));
                found.extend(addresses.iter().filter(|ip| is_of(ip)).map(unknown));
                continue;
            }
        };
        for interface in response.network_interfaces() {
            let texts = interface.private_ip_addresses().iter().filter_map(|ip| ip.private_ip_address());
            let six = interface.ipv6_addresses().iter().filter_map(|ip| ip.ipv6_address());
            for ip in texts.chain(six).filter_map(|text| text.parse::<IpAddr>().ok()) {
                if addresses.contains(&ip) {
                    found.insert(Wanted::Fargate(ip), InstanceState::Running(fargate(session, interface, ip)));
                }
            }
        }
    }
    found
}

/// The filters for interfaces of Fargate nodes. An interface that is no longer attached belongs to a node that has
/// ended.
fn interface_filters(name: &str, addresses: Vec<String>, vpc: &str) -> Vec<Filter> {
    let attached = filter("attachment.status", vec!["attached".to_owned()]);
    vec![filter(name, addresses), filter("vpc-id", vec![vpc.to_owned()]), attached]
}

fn fargate(session: &Session, interface: &types::NetworkInterface, ip: IpAddr) -> Box<Instance> {
    let zone = interface.availability_zone().unwrap_or_default();
    Box::new(Instance {
        provider_id: format!("aws:///{zone}/fargate-{ip}"),
        zone: zone.to_owned(),
        region: session.api.region.clone(),
        addresses: convert::fargate_addresses(interface, ip, &session.config.node_ip_families),
        ..Instance::default()
    })
}

pub(crate) fn filter(name: &str, values: Vec<String>) -> Filter {
    Filter::builder().name(name).set_values(Some(values)).build()
}

/// Returns all pages of the instances that match the filters.
async fn filtered(api: &Api, filters: Vec<Filter>) -> Result<Vec<types::Instance>, CloudError> {
    let mut found = Vec::new();
    let mut token = None;
    loop {
        let request = api.ec2.describe_instances().set_filters(Some(filters.clone())).max_results(PAGE);
        let request = request.set_next_token(token);
        let page = api.read(Class::Ec2Read, "DescribeInstances", || request.clone().send()).await?;
        found.extend(page.reservations.unwrap_or_default().into_iter().flat_map(instances_of));
        token = page.next_token.filter(|token| !token.is_empty());
        if token.is_none() {
            return Ok(found);
        }
    }
}

fn instances_of(reservation: types::Reservation) -> Vec<types::Instance> {
    reservation.instances.unwrap_or_default()
}

/// Creates the instances of the provider.
pub(crate) fn instances(sessions: Sessions) -> Arc<dyn Instances> {
    Arc::new(Ec2Instances::new(sessions))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_looked_up_within_the_cluster_only() {
        let values = |filters: &[Filter], name: &str| {
            filters.iter().find(|one| one.name() == Some(name)).map(|one| one.values().to_vec())
        };
        let names = ["ip-10-0-1-5.ec2.internal".to_owned()];
        let tagged = name_filters(&names, &ClusterTags::new("c", false), "vpc-1");
        let keys = ["kubernetes.io/cluster/c".to_owned(), "KubernetesCluster".to_owned()];
        assert_eq!(values(&tagged, "tag-key").unwrap(), keys);
        let untagged = name_filters(&names, &ClusterTags::new("", false), "vpc-1");
        assert_eq!(values(&untagged, "vpc-id").unwrap(), ["vpc-1"]);
    }

    #[test]
    fn fargate_node_is_an_attached_interface() {
        let filters = interface_filters("addresses.private-ip-address", vec!["10.0.0.7".into()], "vpc-1");
        let attached = filters.iter().find(|one| one.name() == Some("attachment.status"));
        assert_eq!(attached.expect("a filter").values(), ["attached"]);
    }

    #[test]
    fn name_of_several_instances_is_an_error() {
        let instance = |id: &str, name: &str, (key, value): (&str, &str)| {
            let tag = types::Tag::builder().key(key).value(value).build();
            types::Instance::builder().instance_id(id).private_dns_name(name).tags(tag).build()
        };
        let own = ("kubernetes.io/cluster/c", "owned");
        let others = instance("i-4", "a", ("KubernetesCluster", "d"));
        let found = vec![instance("i-1", "a", own), instance("i-2", "b", own), instance("i-3", "b", own), others];
        let found = of_names(found, &ClusterTags::new("c", false));
        let one = found[&Wanted::Name("a".into())].as_ref().unwrap();
        assert_eq!(one.instance_id(), Some("i-1"));
        let error = found[&Wanted::Name("b".into())].as_ref().unwrap_err();
        assert!(error.is_invalid() && error.message.contains("i-2, i-3"), "{error}");
    }

    #[test]
    fn missing_instance_is_deleted_only_if_its_id_is_well_formed() {
        for (wanted, gone) in [
            (Wanted::Instance("i-0123456789abcdef0".into()), true),
            (Wanted::Instance("i-12345678".into()), true),
            (Wanted::Instance("i-xyz".into()), false),
            (Wanted::Fargate([10, 0, 0, 1].into()), true),
            (Wanted::Name("ip-10-0-0-1.ec2.internal".into()), true),
        ] {
            assert_eq!(absent(&wanted) == InstanceState::Gone, gone, "{wanted:?}");
        }
    }
}
