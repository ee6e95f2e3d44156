//! Route tables as read from EC2: the cluster's routes, and the steps that a change needs. No calls.

use std::collections::BTreeMap;

use aws_sdk_ec2::types::{self, RouteOrigin, RouteState};
use providers::{CloudError, ErrorKind, IpNet};

/// A route table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Table {
    pub id: String,
    entries: BTreeMap<IpNet, Entry>,
}

/// The destination's next hop.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Entry {
    /// An instance, by its id.
    Instance(String),
    /// An instance that no longer exists.
    Blackhole,
    /// Another target, such as a gateway, a peer or an endpoint: this controller did not create the route.
    Foreign,
}

/// A change of a destination in one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Create,
    Replace,
    Delete,
}

impl Table {
    /// Converts a table. Skips destinations that are prefix lists, and routes that a gateway announces: a static route
    /// for the same destination may exist next to an announced one.
    pub(crate) fn read(table: &types::RouteTable) -> Self {
        let announced = |route: &&types::Route| route.origin() == Some(&RouteOrigin::EnableVgwRoutePropagation);
        let entries = table.routes().iter().filter(|route| !announced(route)).filter_map(|route| {
            let destination = route.destination_cidr_block().or(route.destination_ipv6_cidr_block())?;
            Some((destination.parse::<IpNet>().ok()?.trunc(), entry(route)))
        });
        Self { id: table.route_table_id().unwrap_or_default().to_owned(), entries: entries.collect() }
    }

    /// Returns the step that routes the destination to the instance; `None` if the route exists.
    ///
    /// # Errors
    /// `Conflict` if the table's route leads to something that is not an instance.
    pub(crate) fn to_set(&self, destination: IpNet, instance: &str) -> Result<Option<Step>, CloudError> {
        match self.entries.get(&destination) {
            None => Ok(Some(Step::Create)),
            Some(Entry::Instance(id)) if id == instance => Ok(None),
            Some(Entry::Instance(_) | Entry::Blackhole) => Ok(Some(Step::Replace)),
            Some(Entry::Foreign) => {
                let message = format!(
                    "{destination} leads to something that is not an instance in the route table {}: remove that route, \
                     or give the Node another pod network",
                    self.id
                );
                Err(CloudError::new(ErrorKind::Conflict, "CreateRoute", message))
            }
        }
    }

    /// Returns true if the table has a route of the cluster for the destination.
    pub(crate) fn has_own(&self, destination: IpNet) -> bool {
        matches!(self.entries.get(&destination), Some(Entry::Instance(_) | Entry::Blackhole))
    }

    fn has_foreign(&self, destination: IpNet) -> bool {
        self.entries.get(&destination) == Some(&Entry::Foreign)
    }
}

fn entry(route: &types::Route) -> Entry {
    let elsewhere = [
        route.gateway_id(),
        route.nat_gateway_id(),
        route.transit_gateway_id(),
        route.local_gateway_id(),
        route.carrier_gateway_id(),
        route.egress_only_internet_gateway_id(),
        route.vpc_peering_connection_id(),
        route.core_network_arn(),
        route.odb_network_arn(),
    ];
    let is_blackhole = route.state() == Some(&RouteState::Blackhole);
    match route.instance_id().filter(|id| !id.is_empty()) {
        Some(id) if !is_blackhole => Entry::Instance(id.to_owned()),
        Some(_) => Entry::Blackhole,
        None if is_blackhole && elsewhere.into_iter().flatten().all(str::is_empty) => Entry::Blackhole,
        None => Entry::Foreign,
    }
}

/// Returns the instance that each of the cluster's destinations leads to in all tables. `None`: a table has another
/// target or no route, so that the controller corrects the tables.
pub(crate) fn merged(tables: &[Table]) -> BTreeMap<IpNet, Option<String>> {
    let own = tables.iter().flat_map(|table| table.entries.keys().filter(|net| table.has_own(**net)));
    own.map(|destination| (*destination, leads_to(tables, *destination))).collect()
}

fn leads_to(tables: &[Table], destination: IpNet) -> Option<String> {
    let mut found = tables.iter().map(|table| match table.entries.get(&destination) {
        Some(Entry::Instance(id)) => Some(id),
        _ => None,
    });
    let first = found.next()??;
    found.all(|other| other == Some(first)).then(|| first.clone())
}

/// Returns true if a listed route may be removed; false if no table has it.
///
/// # Errors
/// `Conflict` if the route leads to another target now.
pub(crate) fn may_remove(tables: &[Table], destination: IpNet, listed: Option<&str>) -> Result<bool, CloudError> {
    let own = tables.iter().any(|table| table.has_own(destination));
    let foreign = tables.iter().any(|table| table.has_foreign(destination));
    if (own && leads_to(tables, destination).as_deref() != listed) || (!own && foreign) {
        let message = format!("the route to {destination} has another target by now and is kept");
        return Err(CloudError::new(ErrorKind::Conflict, "DeleteRoute", message));
    }
    Ok(own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_sdk_ec2::types::builders::RouteBuilder;

    fn route(destination: &str) -> RouteBuilder {
        let route = types::Route::builder().state(RouteState::Active);
        if destination.contains(':') {
            route.destination_ipv6_cidr_block(destination)
        } else {
            route.destination_cidr_block(destination)
        }
    }

    fn table(id: &str, routes: impl IntoIterator<Item = RouteBuilder>) -> Table {
        let routes = routes.into_iter().map(RouteBuilder::build).collect();
        Table::read(&types::RouteTable::builder().route_table_id(id).set_routes(Some(routes)).build())
    }

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    const A: &str = "10.244.1.0/24";

    #[test]
    fn route_leads_to_an_instance_a_blackhole_or_a_foreign_target() {
        let blackhole = |route: RouteBuilder| route.state(RouteState::Blackhole);
        for (route, expected) in [
            (route(A).instance_id("i-1"), Some(Entry::Instance("i-1".into()))),
            (route(A).instance_id("i-1").network_interface_id("eni-1"), Some(Entry::Instance("i-1".into()))),
            (blackhole(route(A).instance_id("i-1")), Some(Entry::Blackhole)),
            (blackhole(route(A).network_interface_id("eni-1")), Some(Entry::Blackhole)),
            (blackhole(route(A)), Some(Entry::Blackhole)),
            (blackhole(route(A).nat_gateway_id("nat-1")), Some(Entry::Foreign)),
            (blackhole(route(A).vpc_peering_connection_id("pcx-1")), Some(Entry::Foreign)),
            (route(A).network_interface_id("eni-1"), Some(Entry::Foreign)),
            (route(A).gateway_id("local"), Some(Entry::Foreign)),
            (route(A).gateway_id("vgw-1").origin(RouteOrigin::EnableVgwRoutePropagation), None),
            (types::Route::builder().destination_prefix_list_id("pl-1").gateway_id("vpce-1"), None),
        ] {
            let reported = format!("{route:?}");
            assert_eq!(table("rtb-1", [route]).entries.get(&net(A)), expected.as_ref(), "{reported}");
        }
    }

    #[test]
    fn route_is_set_by_the_smallest_step() {
        let full = table(
            "rtb-1",
            [
                route(A).instance_id("i-1"),
                route("10.244.2.0/24").state(RouteState::Blackhole),
                route("10.0.0.0/16").gateway_id("local"),
                route("fd00:1::/64").instance_id("i-1"),
            ],
        );
        for (destination, instance, expected) in [
            (A, "i-1", Ok(None)),
            (A, "i-2", Ok(Some(Step::Replace))),
            ("10.244.2.0/24", "i-1", Ok(Some(Step::Replace))),
            ("10.244.3.0/24", "i-1", Ok(Some(Step::Create))),
            ("fd00:1::/64", "i-1", Ok(None)),
            ("fd00:2::/64", "i-1", Ok(Some(Step::Create))),
            ("10.0.0.0/16", "i-1", Err(ErrorKind::Conflict)),
        ] {
            let step = full.to_set(net(destination), instance).map_err(|error| error.kind);
            assert_eq!(step, expected, "{destination} to {instance}");
        }
    }

    #[test]
    fn differing_tables_have_no_common_target() {
        let one = table("rtb-1", [route(A).instance_id("i-1"), route("10.244.2.0/24").instance_id("i-2")]);
        let two = table("rtb-2", [route(A).instance_id("i-1"), route("10.244.3.0/24").instance_id("i-3")]);
        let three = table("rtb-3", [route(A).gateway_id("igw-1")]);
        let list = |tables: &[Table]| -> Vec<(String, Option<String>)> {
            merged(tables).into_iter().map(|(net, instance)| (net.to_string(), instance)).collect()
        };
        let line = |net: &str, instance: Option<&str>| (net.to_owned(), instance.map(String::from));
        assert_eq!(
            list(&[one.clone(), two.clone()]),
            [line(A, Some("i-1")), line("10.244.2.0/24", None), line("10.244.3.0/24", None)]
        );
        assert_eq!(list(std::slice::from_ref(&three)), [], "nothing of it is the cluster's");
        assert_eq!(list(&[two, three]), [line(A, None), line("10.244.3.0/24", None)]);
        assert_eq!(list(&[]), []);
    }

    #[test]
    fn only_listed_routes_are_removed() {
        let one = table("rtb-1", [route(A).instance_id("i-1")]);
        let blackhole = table("rtb-1", [route(A).state(RouteState::Blackhole)]);
        let foreign = table("rtb-1", [route(A).gateway_id("igw-1")]);
        let empty = table("rtb-2", []);
        for (tables, listed, expected) in [
            (vec![one.clone()], Some("i-1"), Ok(true)),
            (vec![one.clone()], Some("i-2"), Err(ErrorKind::Conflict)),
            (vec![one.clone()], None, Err(ErrorKind::Conflict)),
            (vec![blackhole.clone()], None, Ok(true)),
            (vec![blackhole], Some("i-1"), Err(ErrorKind::Conflict)),
            (vec![one, empty.clone()], None, Ok(true)),
            (vec![empty], Some("i-1"), Ok(false)),
            (vec![foreign], Some("i-1"), Err(ErrorKind::Conflict)),
        ] {
            let may = may_remove(&tables, net(A), listed).map_err(|error| error.kind);
            assert_eq!(may, expected, "{tables:?} listed as {listed:?}");
        }
    }
}
