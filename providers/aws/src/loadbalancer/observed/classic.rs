//! Classic Load Balancers that cloud-provider-aws created. They are maintained here and never created.

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_elasticloadbalancing::types as elb;
use providers::{CloudError, Health, LoadBalancerId};
use tokio::time::Instant;

use crate::client::Class;
use crate::loadbalancer::ownership;
use crate::loadbalancer::types::{Ports, Tags};
use crate::session::Session;

/// Tag with the time, in seconds since 1970, at which the Service's status got the Network Load Balancer's address
/// instead of the Classic Load Balancer's. The tag survives a restart, and is deleted with the load balancer.
pub(crate) const REPLACED: &str = "kubernetes.io/load-balancer-replaced";

/// Number of load balancers on a page.
const PAGE: i32 = 400;
/// Maximum number of load balancers whose tags one call reads.
const TAGGED: usize = 20;

/// A Classic Load Balancer as AWS returns it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Classic {
    pub name: String,
    pub dns: String,
    /// Registered instances.
    pub instances: BTreeSet<String>,
    /// Node ports by listener port.
    pub listeners: BTreeMap<u16, u16>,
    /// The port of health checks, if it can be read.
    pub health_port: Option<u16>,
    /// The first security group is the source of the rules in the nodes' security groups.
    pub security_groups: Vec<String>,
    pub tags: Tags,
}

impl Classic {
    /// Returns the time at which the load balancer was replaced, in seconds since 1970.
    pub(crate) fn replaced(&self) -> Option<u64> {
        self.tags.get(REPLACED)?.parse().ok()
    }

    /// Returns the ports of nodes that the load balancer sends traffic and health checks to.
    pub(crate) fn ports(&self) -> Ports {
        self.listeners.values().copied().chain(self.health_port).map(|port| ("tcp", port)).collect()
    }
}

/// The load balancer of a Service, if there is one that may be changed here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    Absent,
    /// The load balancer belongs to another cluster or Service, according to its tags.
    Foreign,
    Own(Classic),
}

/// Finds the Classic Load Balancer of a Service. Its name contains the Service's uid, which is the same in a restored
/// cluster, so its owner is determined by its tags.
pub(crate) async fn find(session: &Session, id: &LoadBalancerId) -> Result<Found, CloudError> {
    let Some(classic) = find_by_name(session, &id.default_name()).await? else { return Ok(Found::Absent) };
    Ok(match ownership::evidence(&classic.tags, &session.cluster, id) {
        Some(_) => Found::Own(classic),
        None => Found::Foreign,
    })
}

/// Finds the Classic Load Balancer with this name in the network, of any owner.
pub(crate) async fn find_by_name(session: &Session, name: &str) -> Result<Option<Classic>, CloudError> {
    let found = async {
        let Some(described) = describe(session, name).await?.filter(|one| one.vpc_id() == Some(&session.vpc)) else {
            return Ok(None);
        };
        Ok(Some(Classic { tags: tags(session, name).await?, ..convert(&described) }))
    };
    match found.await {
        Err(error) if CloudError::is_not_found(&error) => Ok(None),
        found => found,
    }
}

/// The names of all Classic Load Balancers of the network, which concurrent readers share.
#[derive(Debug, Default)]
pub(crate) struct ClassicNames(tokio::sync::Mutex<Option<(Instant, BTreeSet<String>)>>);

impl ClassicNames {
    /// Returns true if a Classic Load Balancer has this name, according to a read that began no earlier than `since`.
    pub(crate) async fn contain(&self, session: &Session, name: &str, since: Instant) -> Result<bool, CloudError> {
        let mut last = self.0.lock().await;
        if let Some((_, names)) = last.as_ref().filter(|(begun, _)| *begun >= since) {
            return Ok(names.contains(name));
        }
        let begun = Instant::now();
        let names: BTreeSet<String> = without_tags(session).await?.into_iter().map(|one| one.name).collect();
        let found = names.contains(name);
        *last = Some((begun, names));
        Ok(found)
    }
}

/// Lists the Classic Load Balancers of the network with their tags.
pub(crate) async fn list(session: &Session) -> Result<Vec<Classic>, CloudError> {
    let mut all = without_tags(session).await?;
    let mut waiting: Vec<&mut [Classic]> = all.chunks_mut(TAGGED).collect();
    while let Some(batch) = waiting.pop() {
        match read_tags(session, batch).await {
            // A load balancer that was deleted since it was listed fails the whole call.
            Err(error) if error.is_not_found() && batch.len() > 1 => {
                let (first, second) = batch.split_at_mut(batch.len() / 2);
                waiting.extend([second, first]);
            }
            // Without tags the load balancer counts as foreign until the next list.
            Err(error) if error.is_not_found() => {}
            result => result?,
        }
    }
    Ok(all)
}

/// Reads the tags of some load balancers in one call.
async fn read_tags(session: &Session, batch: &mut [Classic]) -> Result<(), CloudError> {
    let names = batch.iter().map(|one| one.name.clone()).collect();
    let request = session.api.classic.describe_tags().set_load_balancer_names(Some(names));
    let response = session.api.read(Class::ElbRead, "DescribeTags", || request.clone().send()).await?;
    for described in response.tag_descriptions() {
        let name = described.load_balancer_name();
        if let Some(one) = batch.iter_mut().find(|one| Some(one.name.as_str()) == name) {
            one.tags = described.tags().iter().map(pair).collect();
        }
    }
    Ok(())
}

async fn without_tags(session: &Session) -> Result<Vec<Classic>, CloudError> {
    let mut all = Vec::new();
    let mut marker = None;
    loop {
        let request = session.api.classic.describe_load_balancers().page_size(PAGE).set_marker(marker);
        let response = session.api.read(Class::ElbRead, "DescribeLoadBalancers", || request.clone().send()).await?;
        let own = response.load_balancer_descriptions().iter().filter(|one| one.vpc_id() == Some(&session.vpc));
        all.extend(own.map(convert));
        marker = response.next_marker().filter(|marker| !marker.is_empty()).map(str::to_owned);
        if marker.is_none() {
            return Ok(all);
        }
    }
}

async fn describe(session: &Session, name: &str) -> Result<Option<elb::LoadBalancerDescription>, CloudError> {
    let request = session.api.classic.describe_load_balancers().load_balancer_names(name);
    let response = session.api.read(Class::ElbRead, "DescribeLoadBalancers", || request.clone().send()).await?;
    Ok(response.load_balancer_descriptions().first().cloned())
}

async fn tags(session: &Session, name: &str) -> Result<Tags, CloudError> {
    let request = session.api.classic.describe_tags().load_balancer_names(name);
    let response = session.api.read(Class::ElbRead, "DescribeTags", || request.clone().send()).await?;
    Ok(response.tag_descriptions().iter().flat_map(|one| one.tags()).map(pair).collect())
}

fn pair(tag: &elb::Tag) -> (String, String) {
    (tag.key().to_owned(), tag.value().unwrap_or_default().to_owned())
}

fn convert(from: &elb::LoadBalancerDescription) -> Classic {
    let listeners = from.listener_descriptions().iter().filter_map(|one| one.listener());
    let ports = listeners.filter_map(|one| {
        Some((u16::try_from(one.load_balancer_port()).ok()?, u16::try_from(one.instance_port()).ok()?))
    });
    Classic {
        name: from.load_balancer_name().unwrap_or_default().to_owned(),
        dns: from.dns_name().unwrap_or_default().to_owned(),
        instances: from.instances().iter().filter_map(|one| one.instance_id()).map(str::to_owned).collect(),
        listeners: ports.collect(),
        health_port: from.health_check().and_then(|check| probed(check.target())),
        security_groups: from.security_groups().to_vec(),
        tags: Tags::new(),
    }
}

/// Returns the port of a health check such as `TCP:30080` or `HTTP:10256/healthz`.
fn probed(target: &str) -> Option<u16> {
    let (_, rest) = target.split_once(':')?;
    rest.split('/').next()?.parse().ok()
}

/// Reads the health of the registered instances.
pub(crate) async fn health(session: &Session, name: &str) -> Result<BTreeMap<String, Health>, CloudError> {
    let request = session.api.classic.describe_instance_health().load_balancer_name(name);
    let response = session.api.read(Class::ElbRead, "DescribeInstanceHealth", || request.clone().send()).await?;
    let of = |one: &elb::InstanceState| {
        let health = match one.state() {
            Some("InService") => Health::Healthy,
            Some("OutOfService") => Health::Unhealthy,
            _ => Health::Unknown,
        };
        Some((one.instance_id()?.to_owned(), health))
    };
    Ok(response.instance_states().iter().filter_map(of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_check_port_is_read_from_its_target() {
        for (target, expected) in [
            ("TCP:30080", Some(30_080)),
            ("HTTP:10256/healthz", Some(10_256)),
            ("SSL:30443", Some(30_443)),
            ("HTTP:/healthz", None),
            ("TCP", None),
            ("TCP:99999", None),
        ] {
            assert_eq!(probed(target), expected, "{target}");
        }
    }

    #[test]
    fn description_becomes_ports_and_instances() {
        let listener = elb::Listener::builder().protocol("TCP").load_balancer_port(80).instance_port(30_080);
        let listener = elb::ListenerDescription::builder().listener(listener.build().unwrap()).build();
        let check = elb::HealthCheck::builder().target("HTTP:31000/healthz").interval(10).timeout(5);
        let check = check.unhealthy_threshold(6).healthy_threshold(2).build().unwrap();
        let described = elb::LoadBalancerDescription::builder()
            .load_balancer_name("a1")
            .dns_name("a1.example.com")
            .listener_descriptions(listener)
            .health_check(check)
            .instances(elb::Instance::builder().instance_id("i-1").build())
            .security_groups("sg-1")
            .build();
        let classic = convert(&described);
        assert_eq!(classic.listeners, [(80, 30_080)].into());
        assert_eq!(classic.ports(), [("tcp", 30_080), ("tcp", 31_000)].into());
        assert_eq!(classic.instances, ["i-1".to_owned()].into());
        let tagged = Classic { tags: [(REPLACED.to_owned(), "1700000000".to_owned())].into(), ..classic };
        assert_eq!(tagged.replaced(), Some(1_700_000_000));
    }
}
