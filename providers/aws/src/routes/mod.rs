//! Routes to nodes' pod networks, in all route tables of the cluster: mostly one read for each pass, and the smallest
//! change.

mod route_instances;
mod table;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use providers::{CloudError, ErrorKind, IpNet, Route, RouteChange, RouteSpec, RouteTarget, Routes, async_trait};
use tokio::time::Instant;

use crate::client::Class;
use crate::instances::filter;
use crate::instances::id::{self, Wanted};
use crate::session::{Session, Sessions};
use crate::tags;
use route_instances::{RouteInstance, RouteInstances};
use table::{Step, Table};

/// Maximum number of concurrent changes.
const MAX_CONCURRENT_CHANGES: usize = 16;
/// Maximum age of listed tables for changes, which follow in the same pass.
const MAX_LIST_AGE: Duration = Duration::from_secs(5);

/// The cluster's route tables.
#[derive(Debug)]
struct Ec2Routes {
    sessions: Sessions,
    instances: RouteInstances,
    /// The last list, until a change is made.
    listed: Mutex<Option<(Instant, Vec<Table>)>>,
}

/// Creates the routes of the provider.
pub(crate) fn routes(sessions: Sessions) -> Arc<dyn Routes> {
    Arc::new(Ec2Routes { sessions, instances: RouteInstances::default(), listed: Mutex::default() })
}

#[async_trait]
impl Routes for Ec2Routes {
    async fn list(&self) -> Result<Vec<Route>, CloudError> {
        let session = self.sessions.get()?;
        let tables = read(&session).await?;
        let merged = table::merged(&tables);
        let names = self.instances.names(&session, merged.values().flatten().cloned().collect()).await?;
        *self.listed.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), tables));
        let route = |(destination, instance): (IpNet, Option<String>)| {
            let name = instance.and_then(|id| names.get(&id).cloned());
            let target = name.map_or(RouteTarget::Blackhole, RouteTarget::Instance);
            Route { name: String::new(), destination, target, addresses: None }
        };
        Ok(merged.into_iter().map(route).collect())
    }

    async fn apply(&self, changes: &[RouteChange]) -> Vec<Result<(), CloudError>> {
        if changes.is_empty() {
            return Vec::new();
        }
        match self.tables().await {
            Ok((session, tables)) => self.change(&session, &tables, changes).await,
            Err(error) => changes.iter().map(|_| Err(error.clone())).collect(),
        }
    }
}

impl Ec2Routes {
    /// Returns the tables that were listed just now, or reads them again.
    async fn tables(&self) -> Result<(Arc<Session>, Vec<Table>), CloudError> {
        let session = self.sessions.get()?;
        let listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner).take();
        let tables = match listed {
            Some((at, tables)) if at.elapsed() < MAX_LIST_AGE => tables,
            _ => read(&session).await?,
        };
        Ok((session, tables))
    }

    /// Makes changes. Removals come first, so that a full table has room again.
    async fn change(
        &self,
        session: &Session,
        tables: &[Table],
        changes: &[RouteChange],
    ) -> Vec<Result<(), CloudError>> {
        let mut results: Vec<Result<(), CloudError>> = changes.iter().map(|_| Ok(())).collect();
        let mut removals = Vec::new();
        let mut sets = Vec::new();
        for (at, change) in changes.iter().enumerate() {
            match change {
                RouteChange::Remove(route) => removals.push((at, route)),
                RouteChange::Set(spec) => sets.push((at, spec)),
            }
        }
        let removed: Vec<_> = removals.iter().map(|(_, route)| remove(session, tables, route)).collect();
        let removed: Vec<_> = stream::iter(removed).buffered(MAX_CONCURRENT_CHANGES).collect().await;
        removals.iter().zip(removed).for_each(|((at, _), result)| results[*at] = result);

        self.instances.store_provider_ids(sets.iter().map(|(_, spec)| *spec));
        let due = |(at, spec): (usize, &'_ RouteSpec)| is_due(tables, spec).then_some(at);
        let sets: Vec<usize> = sets.into_iter().filter_map(due).collect();
        let specs: Vec<&RouteSpec> = sets.iter().filter_map(|at| spec_of(&changes[*at])).collect();
        let instances = self.instances.prepare(session, &specs).await;
        let ready = specs.into_iter().zip(instances);
        let set: Vec<_> = ready.map(|(spec, instance)| self.set(session, tables, spec, instance)).collect();
        let set: Vec<_> = stream::iter(set).buffered(MAX_CONCURRENT_CHANGES).collect().await;
        sets.into_iter().zip(set).for_each(|(at, result)| results[at] = result);
        results
    }

    async fn set(
        &self,
        session: &Session,
        tables: &[Table],
        spec: &RouteSpec,
        instance: Result<RouteInstance, CloudError>,
    ) -> Result<(), CloudError> {
        let instance = instance?;
        let mut steps = Vec::new();
        for table in tables {
            steps.extend(table.to_set(spec.destination, &instance.id)?.map(|step| (table, step)));
        }
        for (table, step) in steps {
            let result = make(session, table, step, spec.destination, Some(&instance)).await;
            if let Err(error) = result {
                if matches!(error.kind, ErrorKind::Invalid | ErrorKind::NotFound) {
                    self.instances.forget(&instance.id);
                }
                return Err(error);
            }
        }
        Ok(())
    }
}

fn spec_of(change: &RouteChange) -> Option<&RouteSpec> {
    match change {
        RouteChange::Set(spec) => Some(spec),
        RouteChange::Remove(_) => None,
    }
}

/// Returns true if any table lacks the route, or if the Node does not identify its instance by an id.
fn is_due(tables: &[Table], spec: &RouteSpec) -> bool {
    let Ok(Wanted::Instance(instance)) = id::wanted(&spec.instance) else { return true };
    tables.iter().any(|table| table.to_set(spec.destination, &instance) != Ok(None))
}

async fn remove(session: &Session, tables: &[Table], route: &Route) -> Result<(), CloudError> {
    let listed = match &route.target {
        RouteTarget::Instance(id) => match id::of_provider_id(id)? {
            Wanted::Instance(id) => Some(id),
            Wanted::Fargate(_) | Wanted::Name(_) => None,
        },
        RouteTarget::Node(_) | RouteTarget::Blackhole => None,
    };
    if !table::may_remove(tables, route.destination, listed.as_deref())? {
        return Ok(());
    }
    for table in tables.iter().filter(|table| table.has_own(route.destination)) {
        make(session, table, Step::Delete, route.destination, None).await?;
    }
    Ok(())
}

/// Makes one step in one table.
async fn make(
    session: &Session,
    table: &Table,
    step: Step,
    destination: IpNet,
    instance: Option<&RouteInstance>,
) -> Result<(), CloudError> {
    let ec2 = &session.api.ec2;
    let (ipv4, ipv6) = match destination {
        IpNet::V4(net) => (Some(net.to_string()), None),
        IpNet::V6(net) => (None, Some(net.to_string())),
    };
    let interface = instance.and_then(|instance| instance.interface.clone());
    let instance = instance.filter(|_| interface.is_none()).map(|instance| instance.id.clone());
    match step {
        Step::Create => {
            let request = ec2.create_route().route_table_id(&table.id).set_destination_cidr_block(ipv4);
            let request = request.set_destination_ipv6_cidr_block(ipv6);
            let request = request.set_instance_id(instance).set_network_interface_id(interface);
            let made = session.api.change(Class::Ec2Change, "CreateRoute", request.send()).await;
            made.map(drop).map_err(|error| explained(error, &table.id))
        }
        Step::Replace => {
            let request = ec2.replace_route().route_table_id(&table.id).set_destination_cidr_block(ipv4);
            let request = request.set_destination_ipv6_cidr_block(ipv6);
            let request = request.set_instance_id(instance).set_network_interface_id(interface);
            let made = session.api.change(Class::Ec2Change, "ReplaceRoute", request.send()).await;
            made.map(drop).map_err(|error| explained(error, &table.id))
        }
        Step::Delete => {
            let request = ec2.delete_route().route_table_id(&table.id).set_destination_cidr_block(ipv4);
            let request = request.set_destination_ipv6_cidr_block(ipv6);
            match session.api.change(Class::Ec2Change, "DeleteRoute", request.send()).await {
                Err(error) if error.is_not_found() => Ok(()),
                result => result.map(drop),
            }
        }
    }
}

/// Adds the fix to the error of a full table. Converts the error of a route that has changed since it was listed to
/// `Conflict`, so that the tables are read again.
fn explained(mut error: CloudError, table: &str) -> CloudError {
    if error.is_not_found() && error.message.starts_with("InvalidRoute") {
        error.kind = ErrorKind::Conflict;
    }
    if error.kind == ErrorKind::Quota {
        error.message = format!(
            "the route table {table} is full ({}): ask AWS to raise the quota \"Routes per route table\", or give nodes \
             addresses of the VPC for their pods",
            error.message
        );
    }
    error
}

/// Returns the tables with the cluster's tag (without a cluster id: all tables of the network), or the one that the
/// cloud config names.
///
/// # Errors
/// `Transient` if there is none: an operator may tag one at any time.
async fn read(session: &Session) -> Result<Vec<Table>, CloudError> {
    let mut tables = Vec::new();
    let mut token = None;
    let named = &session.config.route_table_id;
    let nothing = |message: String| CloudError::new(ErrorKind::Transient, "DescribeRouteTables", message);
    loop {
        let request = session.api.ec2.describe_route_tables().set_next_token(token);
        let request = if named.is_empty() {
            let filters = [Some(filter("vpc-id", vec![session.vpc.clone()])), session.cluster.filter()];
            request.set_filters(Some(filters.into_iter().flatten().collect()))
        } else {
            request.route_table_ids(named)
        };
        let page = session.api.read(Class::Ec2Read, "DescribeRouteTables", || request.clone().send()).await;
        let page = page.map_err(|error| match error.kind {
            ErrorKind::NotFound | ErrorKind::Invalid => {
                nothing(format!("[Global] RouteTableID is {named:?}, and there is no such table: {}", error.message))
            }
            _ => error,
        })?;
        let own = |table: &&aws_sdk_ec2::types::RouteTable| {
            !named.is_empty() || session.cluster.marks(tags::pairs(table.tags()))
        };
        tables.extend(page.route_tables().iter().filter(own).map(Table::read));
        token = page.next_token.filter(|token| !token.is_empty());
        if token.is_none() {
            break;
        }
    }
    if tables.is_empty() {
        let vpc = &session.vpc;
        let key = session.cluster.key();
        return Err(nothing(format!(
            "no route table of {vpc} has the tag {key}: tag one, or set [Global] RouteTableID"
        )));
    }
    Ok(tables)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_table_error_has_a_fix_and_changed_table_is_read_again() {
        let full = CloudError::new(ErrorKind::Quota, "CreateRoute", "RouteLimitExceeded: 50 of 50");
        let reported = explained(full, "rtb-1");
        assert_eq!(reported.kind, ErrorKind::Quota);
        assert!(
            reported.message.starts_with("the route table rtb-1 is full (RouteLimitExceeded: 50 of 50): ask"),
            "{reported}"
        );
        let changed = CloudError::new(ErrorKind::NotFound, "ReplaceRoute", "InvalidRoute.NotFound: none");
        assert_eq!(explained(changed, "rtb-1").kind, ErrorKind::Conflict);
        let missing = CloudError::new(ErrorKind::NotFound, "CreateRoute", "InvalidInstanceID.NotFound: none");
        assert_eq!(explained(missing, "rtb-1").kind, ErrorKind::NotFound);
    }
}
