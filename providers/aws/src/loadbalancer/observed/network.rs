//! Reads of the VPC, its subnets, its instances and their security groups. Those of the VPC, subnets and instances are
//! cached for a while, because they rarely change.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_ec2::types::{Filter, RouteTable, SecurityGroup, Vpc, VpcCidrBlockStateCode};
use futures::future::try_join3;
use providers::{CloudError, IpNet};
use tokio::time::Instant;

use crate::client::Class;
use crate::loadbalancer::observed::convert;
use crate::loadbalancer::observed::vpc::{Network, Subnet};
use crate::loadbalancer::ownership;
use crate::loadbalancer::types::ObservedRule;
use crate::session::Session;
use crate::tags::{by_key, pairs};

/// Maximum age of cached address ranges, subnets and routes.
const MAX_NETWORK_AGE: Duration = Duration::from_secs(60);
/// Maximum age of an instance's cached zone and security groups. A group that replaced another one is opened at the next
/// change of targets or check for drift after this time.
const MAX_INSTANCE_AGE: Duration = Duration::from_secs(10 * 60);
/// Time until another error about the same missing security group drops the cached instances again. An error before
/// that has another cause: the group that load balancers share does not exist, or EC2 returns outdated instances.
const FORGET_PERIOD: Duration = Duration::from_secs(60);
/// Number of security groups on a page. Each is listed with all its rules and may be large.
const GROUPS_ON_A_PAGE: i32 = 200;
/// Maximum number of values of a filter.
pub(crate) const VALUES: usize = 200;

/// The fields of an instance that load balancers need.
#[derive(Debug, Clone, Default)]
pub(crate) struct InstanceNetwork {
    pub zone: String,
    pub groups: Vec<String>,
}

/// Cached reads of the network and its instances.
#[derive(Debug, Default)]
pub(crate) struct Networks {
    network: tokio::sync::Mutex<Option<(Instant, Arc<Network>)>>,
    instances: tokio::sync::Mutex<Instances>,
}

/// Cached instances.
#[derive(Debug, Default)]
struct Instances {
    /// By id, with the time of the read.
    by_id: HashMap<String, (Instant, InstanceNetwork)>,
    /// Security groups whose instances were dropped because the group did not exist, with the time.
    forgotten: HashMap<String, Instant>,
}

impl Instances {
    fn forget_group(&mut self, group: &str, now: Instant) -> bool {
        self.forgotten.retain(|_, at| now < *at + FORGET_PERIOD);
        if self.forgotten.contains_key(group) {
            return false;
        }
        self.forgotten.insert(group.to_owned(), now);
        self.by_id.retain(|_, (_, network)| !network.groups.iter().any(|own| own == group));
        true
    }
}

pub(crate) fn filter(name: &str, values: Vec<String>) -> Filter {
    Filter::builder().name(name).set_values(Some(values)).build()
}

impl Networks {
    /// Returns the network.
    pub(crate) async fn network(&self, session: &Session) -> Result<Arc<Network>, CloudError> {
        let mut last = self.network.lock().await;
        if let Some((_, network)) = last.as_ref().filter(|(at, _)| Instant::now() < *at + MAX_NETWORK_AGE) {
            return Ok(network.clone());
        }
        let (ranges, mut subnets, tables) = try_join3(ranges(session), subnets(session), tables(session)).await?;
        for subnet in &mut subnets {
            subnet.public = is_public(&subnet.id, &tables);
        }
        subnets.sort_by(|a, b| a.id.cmp(&b.id));
        let network = Arc::new(Network {
            vpc: session.vpc.clone(),
            region: session.api.region.clone(),
            ranges,
            subnets,
            own_subnet: session.subnet.clone(),
        });
        *last = Some((Instant::now(), network.clone()));
        Ok(network)
    }

    /// Drops the cached network: the next reader reads it again.
    pub(crate) async fn forget(&self) {
        *self.network.lock().await = None;
    }

    /// Drops the cached instances with a security group that no longer exists: the next reader reads them again.
    /// Returns false, and drops nothing, if they were dropped less than [`FORGET_PERIOD`] ago.
    pub(crate) async fn forget_group(&self, group: &str) -> bool {
        self.instances.lock().await.forget_group(group, Instant::now())
    }

    /// Returns the instances with these ids. One call reads up to 200 of those that are not cached.
    pub(crate) async fn by_id(
        &self,
        session: &Session,
        ids: BTreeSet<String>,
    ) -> Result<BTreeMap<String, InstanceNetwork>, CloudError> {
        // Concurrent readers of the same instances wait for this response.
        let mut cached = self.instances.lock().await;
        let cache = &mut cached.by_id;
        let now = Instant::now();
        cache.retain(|_, (at, _)| now < *at + MAX_INSTANCE_AGE);
        let mut found = BTreeMap::new();
        let mut unknown = Vec::new();
        for id in ids {
            match cache.get(&id) {
                Some((_, network)) => drop(found.insert(id, network.clone())),
                None => unknown.push(id),
            }
        }
        for ids in unknown.chunks(VALUES) {
            // A filter skips instances that do not exist; a list of ids would fail as a whole.
            let request = session.api.ec2.describe_instances().filters(filter("instance-id", ids.to_vec()));
            let response = session.api.read(Class::Ec2Read, "DescribeInstances", || request.clone().send()).await?;
            for instance in response.reservations().iter().flat_map(|reservation| reservation.instances()) {
                let zone = instance.placement().and_then(|placement| placement.availability_zone());
                let groups = instance.security_groups().iter().filter_map(|group| group.group_id());
                let network = InstanceNetwork {
                    zone: zone.unwrap_or_default().to_owned(),
                    groups: groups.map(str::to_owned).collect(),
                };
                let id = instance.instance_id().unwrap_or_default().to_owned();
                cache.insert(id.clone(), (now, network.clone()));
                found.insert(id, network);
            }
        }
        Ok(found)
    }
}

async fn ranges(session: &Session) -> Result<Vec<IpNet>, CloudError> {
    let request = session.api.ec2.describe_vpcs().vpc_ids(&session.vpc);
    let response = session.api.read(Class::Ec2Read, "DescribeVpcs", || request.clone().send()).await?;
    Ok(response.vpcs().iter().flat_map(ranges_of).collect())
}

/// Returns the ranges of a VPC, without those that EC2 still lists although they no longer belong to it: an address
/// there is outside of the network.
fn ranges_of(vpc: &Vpc) -> Vec<IpNet> {
    let is_own =
        |state: Option<&VpcCidrBlockStateCode>| state.is_none_or(|state| *state == VpcCidrBlockStateCode::Associated);
    let parse = |text: Option<&str>| text.and_then(|text| text.parse().ok());
    let v4 = vpc.cidr_block_association_set().iter();
    let v4 = v4.filter(|one| is_own(one.cidr_block_state().and_then(|state| state.state())));
    let v6 = vpc.ipv6_cidr_block_association_set().iter();
    let v6 = v6.filter(|one| is_own(one.ipv6_cidr_block_state().and_then(|state| state.state())));
    v4.filter_map(|one| parse(one.cidr_block())).chain(v6.filter_map(|one| parse(one.ipv6_cidr_block()))).collect()
}

async fn subnets(session: &Session) -> Result<Vec<Subnet>, CloudError> {
    let mut all = Vec::new();
    let mut token = None;
    loop {
        let request = session.api.ec2.describe_subnets().filters(filter("vpc-id", vec![session.vpc.clone()]));
        let request = request.max_results(1000).set_next_token(token);
        let response = session.api.read(Class::Ec2Read, "DescribeSubnets", || request.clone().send()).await?;
        all.extend(response.subnets().iter().map(|subnet| {
            let v6 = subnet.ipv6_cidr_block_association_set().iter();
            Subnet {
                id: subnet.subnet_id().unwrap_or_default().to_owned(),
                zone: subnet.availability_zone().unwrap_or_default().to_owned(),
                v4: subnet.cidr_block().and_then(|range| range.parse().ok()).into_iter().collect(),
                v6: v6.filter_map(|one| one.ipv6_cidr_block()?.parse().ok()).collect(),
                tags: by_key(subnet.tags()),
                free: subnet.available_ip_address_count().unwrap_or_default(),
                public: false,
                outpost: subnet.outpost_arn().is_some_and(|arn| !arn.is_empty()),
            }
        }));
        token = response.next_token().filter(|token| !token.is_empty()).map(str::to_owned);
        if token.is_none() {
            return Ok(all);
        }
    }
}

async fn tables(session: &Session) -> Result<Vec<RouteTable>, CloudError> {
    let mut all = Vec::new();
    let mut token = None;
    loop {
        let request = session.api.ec2.describe_route_tables().filters(filter("vpc-id", vec![session.vpc.clone()]));
        let request = request.max_results(100).set_next_token(token);
        let response = session.api.read(Class::Ec2Read, "DescribeRouteTables", || request.clone().send()).await?;
        all.extend(response.route_tables().iter().cloned());
        token = response.next_token().filter(|token| !token.is_empty()).map(str::to_owned);
        if token.is_none() {
            return Ok(all);
        }
    }
}

/// Returns true if a subnet's route table, or else the network's main one, leads to an internet gateway.
fn is_public(subnet: &str, tables: &[RouteTable]) -> bool {
    let own = tables.iter().find(|table| table.associations().iter().any(|one| one.subnet_id() == Some(subnet)));
    let main = || tables.iter().find(|table| table.associations().iter().any(|one| one.main() == Some(true)));
    let routes = own.or_else(main).map(|table| table.routes()).unwrap_or_default();
    routes.iter().any(|route| route.gateway_id().is_some_and(|gateway| gateway.starts_with("igw")))
}

/// Returns the ingress rules of security groups, by group.
pub(crate) async fn rules(
    session: &Session,
    groups: &[String],
) -> Result<BTreeMap<String, Vec<ObservedRule>>, CloudError> {
    let mut all: BTreeMap<String, Vec<ObservedRule>> = BTreeMap::new();
    for groups in groups.chunks(VALUES) {
        let mut token = None;
        loop {
            let request = session.api.ec2.describe_security_group_rules().filters(filter("group-id", groups.to_vec()));
            let request = request.max_results(1000).set_next_token(token);
            let send = || request.clone().send();
            let response = session.api.read(Class::Ec2Read, "DescribeSecurityGroupRules", send).await?;
            for rule in response.security_group_rules() {
                if let Some(observed) = convert::rule(rule) {
                    all.entry(rule.group_id().unwrap_or_default().to_owned()).or_default().push(observed);
                }
            }
            token = response.next_token().filter(|token| !token.is_empty()).map(str::to_owned);
            if token.is_none() {
                break;
            }
        }
    }
    Ok(all)
}

/// Returns the security groups of the network whose ingress rules name load balancers, and these names; `name_in`
/// returns the name in a rule's description. Groups that have only tags of other clusters are left out: in a copy of
/// this cluster, Services have the same uids.
///
/// EC2 has no filter by the description of a rule, so all groups are read, page by page.
pub(crate) async fn groups_that_name_balancers(
    session: &Session,
    name_in: fn(&str) -> Option<&str>,
) -> Result<BTreeMap<String, BTreeSet<String>>, CloudError> {
    let mut all = BTreeMap::new();
    let mut token = None;
    loop {
        let request = session.api.ec2.describe_security_groups().filters(filter("vpc-id", vec![session.vpc.clone()]));
        let request = request.max_results(GROUPS_ON_A_PAGE).set_next_token(token);
        let response = session.api.read(Class::Ec2Read, "DescribeSecurityGroups", || request.clone().send()).await?;
        for group in response.security_groups().iter().filter(|group| !is_of_another(session, group)) {
            let balancers: BTreeSet<String> = descriptions(group).filter_map(name_in).map(str::to_owned).collect();
            if !balancers.is_empty() {
                all.insert(group.group_id().unwrap_or_default().to_owned(), balancers);
            }
        }
        token = response.next_token().filter(|token| !token.is_empty()).map(str::to_owned);
        if token.is_none() {
            return Ok(all);
        }
    }
}

/// Returns true if a group has tags of other clusters, but no tag of this one.
fn is_of_another(session: &Session, group: &SecurityGroup) -> bool {
    let tags = by_key(group.tags());
    let cluster = &session.cluster;
    !cluster.id.is_empty() && ownership::names_another(&tags, cluster) && !tags.contains_key(&cluster.key())
}

/// Returns the descriptions of a group's ingress rules for ranges of addresses.
fn descriptions(group: &SecurityGroup) -> impl Iterator<Item = &str> {
    group.ip_permissions().iter().flat_map(|permission| {
        let v4 = permission.ip_ranges().iter().filter_map(|range| range.description());
        v4.chain(permission.ipv6_ranges().iter().filter_map(|range| range.description()))
    })
}

/// Returns the ids of the security groups with these names or ids; the inner error is the first name without a group.
pub(crate) async fn groups_named(
    session: &Session,
    names: &[String],
) -> Result<Result<Vec<String>, String>, CloudError> {
    let (ids, names): (Vec<String>, Vec<String>) = names.iter().cloned().partition(|name| name.starts_with("sg-"));
    if names.is_empty() {
        return Ok(Ok(ids));
    }
    let filters = vec![filter("vpc-id", vec![session.vpc.clone()]), filter("tag:Name", names.clone())];
    let request = session.api.ec2.describe_security_groups().set_filters(Some(filters));
    let response = session.api.read(Class::Ec2Read, "DescribeSecurityGroups", || request.clone().send()).await?;
    let mut all = ids;
    for name in names {
        let is = |group: &&aws_sdk_ec2::types::SecurityGroup| pairs(group.tags()).any(|tag| tag == ("Name", &name));
        match response.security_groups().iter().find(is).and_then(|group| group.group_id()) {
            Some(id) => all.push(id.to_owned()),
            None => return Ok(Err(name)),
        }
    }
    Ok(Ok(all))
}

/// Returns the security groups with rules that reference `group`.
pub(crate) async fn groups_that_name(session: &Session, group: &str) -> Result<Vec<String>, CloudError> {
    let filters = filter("ip-permission.group-id", vec![group.to_owned()]);
    let request = session.api.ec2.describe_security_groups().filters(filters);
    let response = session.api.read(Class::Ec2Read, "DescribeSecurityGroups", || request.clone().send()).await?;
    Ok(response.security_groups().iter().filter_map(|group| group.group_id().map(str::to_owned)).collect())
}

/// Returns the instance of a provider ID; instances of Fargate and other clouds cannot be registered by id.
pub(crate) fn instance_id(provider_id: &str) -> Option<&str> {
    let path = match provider_id.split_once("://") {
        Some(("aws", path)) => path,
        Some(_) => return None,
        None => provider_id,
    };
    path.rsplit('/').next().filter(|id| id.starts_with("i-"))
}

#[cfg(test)]
mod tests {
    use aws_sdk_ec2::types::{VpcCidrBlockAssociation, VpcCidrBlockState, VpcIpv6CidrBlockAssociation};

    use super::*;

    #[test]
    fn ranges_that_left_the_network_are_left_out() {
        type State = VpcCidrBlockStateCode;
        let state = |state: State| VpcCidrBlockState::builder().state(state).build();
        let v4 = |range: &str| VpcCidrBlockAssociation::builder().cidr_block(range);
        let v6 = |range: &str| VpcIpv6CidrBlockAssociation::builder().ipv6_cidr_block(range);
        let vpc = Vpc::builder()
            .cidr_block_association_set(v4("10.0.0.0/16").cidr_block_state(state(State::Associated)).build())
            .cidr_block_association_set(v4("10.1.0.0/16").cidr_block_state(state(State::Disassociated)).build())
            .cidr_block_association_set(v4("10.2.0.0/16").cidr_block_state(state(State::Failed)).build())
            .cidr_block_association_set(v4("10.3.0.0/16").build())
            .ipv6_cidr_block_association_set(
                v6("2001:db8::/56").ipv6_cidr_block_state(state(State::Associated)).build(),
            )
            .ipv6_cidr_block_association_set(
                v6("2001:db8:1::/56").ipv6_cidr_block_state(state(State::Disassociated)).build(),
            )
            .build();
        let ranges: Vec<String> = ranges_of(&vpc).iter().map(ToString::to_string).collect();
        assert_eq!(ranges, ["10.0.0.0/16", "10.3.0.0/16", "2001:db8::/56"]);
    }

    #[test]
    fn instances_with_a_deleted_security_group_are_read_again_once_a_minute() {
        let mut cache = Instances::default();
        let start = Instant::now();
        for (seconds, is_dropped) in [(0, true), (59, false), (60, true)] {
            for (id, group) in [("i-1", "sg-old"), ("i-2", "sg-other")] {
                let network = InstanceNetwork { zone: "a".into(), groups: vec![group.into()] };
                cache.by_id.insert(id.into(), (start, network));
            }
            let now = start + Duration::from_secs(seconds);
            assert_eq!(cache.forget_group("sg-old", now), is_dropped, "after {seconds} s");
            assert_eq!(cache.by_id.contains_key("i-1"), !is_dropped, "after {seconds} s");
            assert!(cache.by_id.contains_key("i-2"), "its group exists");
        }
    }
}
