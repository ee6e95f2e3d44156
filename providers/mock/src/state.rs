//! The resources of the cloud, and the effect of each call on them at a given time, without injected faults and the
//! latency of calls.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use providers::{
    CloudError, ErrorKind, Health, Instance, InstanceRef, IpFamily, LoadBalancerId, ObservedTarget, Phase, RouteTarget,
    TargetId,
};
use tokio::time::Instant;

use crate::config::{InstanceConfig, MockConfig, Quotas};
use crate::fault::Operation;
use crate::snapshot::{Attributes, InstanceView, ListenerView, LoadBalancerView, RouteView};

/// Annotation of a Node with the name of its instance. Without it, the instance has the Node's name.
pub const INSTANCE_ANNOTATION: &str = "mock.cloud/instance";

#[derive(Debug, Clone)]
pub(crate) struct InstanceRecord {
    pub instance: Instance,
    pub system_uuid: Option<String>,
    pub running: bool,
    visible_at: Instant,
}

#[derive(Debug, Clone)]
struct Address {
    ip: IpAddr,
    visible_at: Instant,
}

#[derive(Debug, Clone)]
struct LoadBalancer {
    internal: bool,
    ready_at: Instant,
    visible_at: Instant,
    deleted_at: Option<Instant>,
    source_ranges: Vec<IpNet>,
    attributes: Attributes,
    listeners: Vec<ListenerView>,
    /// The time at which each target becomes healthy.
    targets: BTreeMap<TargetId, Instant>,
}

/// The resources of the cloud.
#[derive(Debug)]
pub(crate) struct State {
    pub config: MockConfig,
    pub quotas: Quotas,
    instances: BTreeMap<String, InstanceRecord>,
    /// Names of removed instances, which are not created automatically.
    removed: BTreeSet<String>,
    addresses: BTreeMap<LoadBalancerId, Vec<Address>>,
    balancers: BTreeMap<LoadBalancerId, LoadBalancer>,
    /// Overrides of the targets' health.
    health: BTreeMap<TargetId, Health>,
    /// The provider ID of the target instance, by destination; `None`: a foreign route.
    routes: BTreeMap<IpNet, Option<String>>,
}

fn error(kind: ErrorKind, operation: Operation, message: impl Into<String>) -> CloudError {
    CloudError::new(kind, operation.as_str(), message)
}

fn check_quota(limit: Option<usize>, count: usize, operation: Operation, what: &str) -> Result<(), CloudError> {
    match limit {
        Some(limit) if count > limit => {
            Err(error(ErrorKind::Quota, operation, format!("{count} {what} would be more than the limit of {limit}")))
        }
        _ => Ok(()),
    }
}

impl State {
    pub fn new(config: MockConfig, now: Instant) -> Self {
        let mut state = Self {
            quotas: config.quotas,
            instances: BTreeMap::new(),
            removed: BTreeSet::new(),
            addresses: BTreeMap::new(),
            balancers: BTreeMap::new(),
            health: BTreeMap::new(),
            routes: BTreeMap::new(),
            config,
        };
        for record in state.config.instances.clone() {
            state.put_instance(&record, now);
        }
        state
    }

    // Instances.

    /// Creates or replaces an instance; returns its provider ID.
    pub fn put_instance(&mut self, config: &InstanceConfig, now: Instant) -> String {
        let instance = config.complete(&self.config);
        let id = instance.provider_id.clone();
        self.removed.remove(&config.name);
        let visible_at = now + Duration::from_millis(config.visible_after_millis);
        let system_uuid = config.system_uuid.clone();
        let record = InstanceRecord { instance, system_uuid, running: !config.stopped, visible_at };
        self.instances.insert(config.name.clone(), record);
        id
    }

    pub fn set_running(&mut self, name: &str, running: bool) -> bool {
        self.instances.get_mut(name).map(|record| record.running = running).is_some()
    }

    pub fn remove_instance(&mut self, name: &str) -> bool {
        self.removed.insert(name.into());
        self.instances.remove(name).is_some()
    }

    /// Returns the instance that reads return for a Node: by its provider ID, or by other attributes if it has none.
    /// Creates a missing instance if the configuration requests that.
    pub fn find_instance(&mut self, wanted: &InstanceRef, now: Instant) -> Option<&InstanceRecord> {
        let name = self.instance_name(wanted).or_else(|| self.create_automatic(wanted, now))?;
        self.instances.get(&name).filter(|record| record.visible_at <= now)
    }

    fn instance_name(&self, wanted: &InstanceRef) -> Option<String> {
        let find_by = |matches: &dyn Fn(&InstanceRecord) -> bool| {
            self.instances.iter().find(|(_, record)| matches(record)).map(|(name, _)| name.clone())
        };
        if let Some(id) = &wanted.provider_id {
            // IDs end with the name unless configured otherwise, so the search is rarely needed.
            let last_part = id.rsplit('/').next().unwrap_or_default();
            return match self.instances.get(last_part) {
                Some(record) if record.instance.provider_id == *id => Some(last_part.into()),
                _ => find_by(&|record| record.instance.provider_id == *id),
            };
        }
        if let Some(name) = wanted.annotations.get(INSTANCE_ANNOTATION) {
            return self.instances.contains_key(name).then(|| name.clone());
        }
        if self.instances.contains_key(&wanted.node) {
            return Some(wanted.node.clone());
        }
        let uuid = wanted.system_uuid.as_ref().filter(|uuid| !uuid.is_empty())?;
        find_by(&|record| record.system_uuid.as_ref() == Some(uuid))
    }

    fn create_automatic(&mut self, wanted: &InstanceRef, now: Instant) -> Option<String> {
        let name = &wanted.node;
        let has_other_name = wanted.annotations.contains_key(INSTANCE_ANNOTATION);
        if !self.config.auto_instances || name.is_empty() || self.removed.contains(name) || has_other_name {
            return None;
        }
        if self.instances.contains_key(name) {
            return None;
        }
        let provider_id = wanted.provider_id.clone();
        self.put_instance(&InstanceConfig { provider_id, ..InstanceConfig::named(name) }, now);
        Some(name.clone())
    }

    fn instance_by_id(&self, id: &str) -> Option<&InstanceRecord> {
        let name = self.instance_name(&InstanceRef::default().with_provider_id(id))?;
        self.instances.get(&name)
    }

    pub fn instance_views(&self, now: Instant) -> BTreeMap<String, InstanceView> {
        let view = |record: &InstanceRecord| InstanceView {
            running: record.running,
            visible: record.visible_at <= now,
            instance: record.instance.clone(),
        };
        self.instances.iter().map(|(name, record)| (name.clone(), view(record))).collect()
    }

    // Load balancers.

    /// Completes deletions whose time has passed.
    pub fn complete_deletions(&mut self, now: Instant) {
        self.balancers.retain(|_, balancer| balancer.deleted_at.is_none_or(|deleted_at| now < deleted_at));
    }

    /// Returns the load balancer with its addresses; `all` includes invisible parts.
    pub fn balancer_view(&self, id: &LoadBalancerId, now: Instant, all: bool) -> Option<LoadBalancerView> {
        let is_included = |visible_at: Instant| all || visible_at <= now;
        let addresses = self.addresses.get(id).map_or(&[][..], Vec::as_slice);
        let addresses: Vec<IpAddr> =
            addresses.iter().filter(|address| is_included(address.visible_at)).map(|address| address.ip).collect();
        let balancer = self.balancers.get(id).filter(|balancer| is_included(balancer.visible_at));
        let Some(balancer) = balancer else {
            return (!addresses.is_empty()).then(|| LoadBalancerView {
                id: id.clone(),
                phase: Phase::Incomplete,
                exists: false,
                internal: false,
                addresses,
                source_ranges: Vec::new(),
                attributes: Attributes::default(),
                listeners: Vec::new(),
                targets: Vec::new(),
                remaining: Duration::ZERO,
            });
        };
        let phase = match balancer.deleted_at {
            Some(_) => Phase::Deleting,
            None if addresses.is_empty() || balancer.listeners.is_empty() => Phase::Incomplete,
            None if now < balancer.ready_at => Phase::Provisioning,
            None => Phase::Active,
        };
        let remaining = balancer.deleted_at.unwrap_or(balancer.ready_at).saturating_duration_since(now);
        let targets = balancer.targets.iter().map(|(target, healthy_at)| ObservedTarget {
            target: target.clone(),
            health: self.health_of(target, *healthy_at, now),
        });
        Some(LoadBalancerView {
            id: id.clone(),
            phase,
            exists: true,
            internal: balancer.internal,
            addresses,
            source_ranges: balancer.source_ranges.clone(),
            attributes: balancer.attributes,
            listeners: balancer.listeners.clone(),
            targets: targets.collect(),
            remaining,
        })
    }

    fn health_of(&self, target: &TargetId, healthy_at: Instant, now: Instant) -> Health {
        if let Some(health) = self.health.get(target) {
            return *health;
        }
        let running = match target {
            TargetId::Instance(id) => self.instance_by_id(id).is_some_and(|record| record.running),
            TargetId::Endpoint { .. } => true,
        };
        if !running {
            Health::Unhealthy
        } else if now < healthy_at {
            Health::Initial
        } else {
            Health::Healthy
        }
    }

    /// Returns the load balancers of `cluster`, or of all clusters if `None`, including incomplete ones; `all` includes
    /// invisible parts.
    pub fn balancer_views(&self, cluster: Option<&str>, now: Instant, all: bool) -> Vec<LoadBalancerView> {
        let ids: BTreeSet<&LoadBalancerId> = self.addresses.keys().chain(self.balancers.keys()).collect();
        ids.into_iter()
            .filter(|id| cluster.is_none_or(|cluster| id.cluster == cluster))
            .filter_map(|id| self.balancer_view(id, now, all))
            .collect()
    }

    /// Sets a target's health; `None` removes the override.
    pub fn set_health(&mut self, target: TargetId, health: Option<Health>) {
        match health {
            Some(health) => self.health.insert(target, health),
            None => self.health.remove(&target),
        };
    }

    /// Allocates an address of `family`, or returns the one that is already allocated.
    pub fn allocate_address(
        &mut self,
        id: &LoadBalancerId,
        family: IpFamily,
        wanted: Option<IpAddr>,
        visible_at: Instant,
    ) -> Result<IpAddr, CloudError> {
        let operation = Operation::AllocateAddress;
        let existing = self.addresses.get(id).map_or(&[][..], Vec::as_slice);
        if let Some(address) = existing.iter().find(|address| IpFamily::of(address.ip) == family) {
            return Ok(address.ip);
        }
        let used: BTreeSet<IpAddr> = self.addresses.values().flatten().map(|address| address.ip).collect();
        check_quota(self.quotas.addresses, used.len() + 1, operation, "addresses")?;
        let ip = match wanted {
            Some(wanted) if used.contains(&wanted) => {
                return Err(error(ErrorKind::Conflict, operation, format!("address {wanted} is already in use")));
            }
            Some(wanted) => Some(wanted),
            None => match family {
                IpFamily::IPv4 => first_unused(self.config.balancer_network.hosts().map(IpAddr::V4), &used),
                IpFamily::IPv6 => first_unused(self.config.balancer_network_v6.hosts().map(IpAddr::V6), &used),
            },
        };
        let full = || error(ErrorKind::Quota, operation, format!("no {family:?} address is left"));
        let ip = ip.ok_or_else(full)?;
        self.addresses.entry(id.clone()).or_default().push(Address { ip, visible_at });
        Ok(ip)
    }

    /// Releases the addresses of the families that are not in `keep`. Fails if `keep` is empty while the load balancer
    /// exists.
    pub fn release_addresses(&mut self, id: &LoadBalancerId, keep: &[IpFamily]) -> Result<(), CloudError> {
        if keep.is_empty() && self.balancers.contains_key(id) {
            return Err(error(
                ErrorKind::Conflict,
                Operation::ReleaseAddresses,
                format!("load balancer {id} uses the addresses"),
            ));
        }
        if let Some(existing) = self.addresses.get_mut(id) {
            existing.retain(|address| keep.contains(&IpFamily::of(address.ip)));
            if existing.is_empty() {
                self.addresses.remove(id);
            }
        }
        Ok(())
    }

    /// Creates a load balancer, or returns the existing one of the same id.
    pub fn create_balancer(
        &mut self,
        id: &LoadBalancerId,
        internal: bool,
        visible_at: Instant,
        now: Instant,
    ) -> Result<LoadBalancerView, CloudError> {
        if let Some(found) = self.balancer_view(id, now, true).filter(|view| view.exists) {
            return Ok(found);
        }
        check_quota(self.quotas.balancers, self.balancers.len() + 1, Operation::CreateBalancer, "load balancers")?;
        let balancer = LoadBalancer {
            internal,
            ready_at: now + Duration::from_millis(self.config.provisioning_millis),
            visible_at,
            deleted_at: None,
            source_ranges: Vec::new(),
            attributes: Attributes::default(),
            listeners: Vec::new(),
            targets: BTreeMap::new(),
        };
        self.balancers.insert(id.clone(), balancer);
        let deleted =
            || error(ErrorKind::Transient, Operation::CreateBalancer, format!("load balancer {id} was deleted"));
        self.balancer_view(id, now, true).ok_or_else(deleted)
    }

    fn changeable_balancer(
        &mut self,
        id: &LoadBalancerId,
        operation: Operation,
    ) -> Result<&mut LoadBalancer, CloudError> {
        match self.balancers.get_mut(id) {
            Some(balancer) if balancer.deleted_at.is_none() => Ok(balancer),
            Some(_) => Err(error(ErrorKind::Conflict, operation, format!("load balancer {id} is being deleted"))),
            None => Err(error(ErrorKind::NotFound, operation, format!("there is no load balancer {id}"))),
        }
    }

    pub fn set_firewall(&mut self, id: &LoadBalancerId, ranges: &[IpNet]) -> Result<(), CloudError> {
        self.changeable_balancer(id, Operation::SetFirewall)?.source_ranges = ranges.to_vec();
        Ok(())
    }

    pub fn set_attributes(&mut self, id: &LoadBalancerId, attributes: Attributes) -> Result<(), CloudError> {
        self.changeable_balancer(id, Operation::SetAttributes)?.attributes = attributes;
        Ok(())
    }

    pub fn set_listeners(&mut self, id: &LoadBalancerId, listeners: &[ListenerView]) -> Result<(), CloudError> {
        self.changeable_balancer(id, Operation::SetListeners)?.listeners = listeners.to_vec();
        Ok(())
    }

    /// Sets the targets; existing ones keep their health.
    pub fn set_targets(
        &mut self,
        id: &LoadBalancerId,
        targets: &BTreeSet<TargetId>,
        now: Instant,
    ) -> Result<(), CloudError> {
        check_quota(self.quotas.targets, targets.len(), Operation::SetTargets, "targets")?;
        let healthy_at = now + Duration::from_millis(self.config.health_millis);
        let balancer = self.changeable_balancer(id, Operation::SetTargets)?;
        balancer.targets.retain(|target, _| targets.contains(target));
        for target in targets {
            balancer.targets.entry(target.clone()).or_insert(healthy_at);
        }
        Ok(())
    }

    /// Starts the deletion of a load balancer; returns the remaining time, or `None` once it is deleted.
    pub fn delete_balancer(&mut self, id: &LoadBalancerId, duration: Duration, now: Instant) -> Option<Duration> {
        let balancer = self.balancers.get_mut(id)?;
        let deleted_at = *balancer.deleted_at.get_or_insert(now + duration);
        self.complete_deletions(now);
        (deleted_at > now).then(|| deleted_at - now)
    }

    // Routes.

    /// Adds a route that does not belong to this cluster.
    pub fn put_foreign_route(&mut self, destination: IpNet) {
        self.routes.insert(destination.trunc(), None);
    }

    /// Removes a route that does not belong to this cluster.
    pub fn remove_foreign_route(&mut self, destination: IpNet) {
        self.routes.retain(|known, instance| *known != destination.trunc() || instance.is_some());
    }

    pub fn route_views(&self) -> Vec<RouteView> {
        let target = |id: &Option<String>| {
            id.as_ref().map(|id| match self.instance_by_id(id) {
                Some(_) => RouteTarget::Instance(id.clone()),
                None => RouteTarget::Blackhole,
            })
        };
        let view =
            |(destination, id): (&IpNet, &Option<String>)| RouteView { destination: *destination, target: target(id) };
        self.routes.iter().map(view).collect()
    }

    pub fn set_route(&mut self, destination: IpNet, wanted: &InstanceRef, now: Instant) -> Result<(), CloudError> {
        let operation = Operation::SetRoute;
        let destination = destination.trunc();
        let Some(id) = self.find_instance(wanted, now).map(|record| record.instance.provider_id.clone()) else {
            return Err(error(
                ErrorKind::NotFound,
                operation,
                format!("there is no instance for node {}", wanted.node),
            ));
        };
        match self.routes.get(&destination) {
            Some(None) => {
                let message = format!("{destination} is a foreign route");
                return Err(error(ErrorKind::Conflict, operation, message));
            }
            Some(Some(_)) => {}
            None => check_quota(self.quotas.routes, self.routes.len() + 1, operation, "routes")?,
        }
        self.routes.insert(destination, Some(id));
        Ok(())
    }

    pub fn remove_route(&mut self, destination: IpNet, listed: &RouteTarget) -> Result<(), CloudError> {
        let destination = destination.trunc();
        let current = self.route_views().into_iter().find(|route| route.destination == destination);
        match current {
            None => Ok(()),
            Some(route) if route.target.as_ref() == Some(listed) => {
                self.routes.remove(&destination);
                Ok(())
            }
            Some(_) => {
                let message = format!("{destination} has another target than listed");
                Err(error(ErrorKind::Conflict, Operation::RemoveRoute, message))
            }
        }
    }
}

/// Returns the first address that is not taken.
fn first_unused(mut addresses: impl Iterator<Item = IpAddr>, used: &BTreeSet<IpAddr>) -> Option<IpAddr> {
    addresses.find(|address| !used.contains(address))
}
