//! The state of the provider's load balancers, and the operations that several modules need: settings, listings, and
//! the call of a step.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use providers::{BuildContext, ClassFilter, CloudError, ErrorKind, LoadBalancerId, LoadBalancerSpec, Records, Targets};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::config::Config;
use crate::loadbalancer::apply::backend_group::{Listings, Shared};
use crate::loadbalancer::apply::calls::Caller;
use crate::loadbalancer::apply::group_locks::Groups;
use crate::loadbalancer::model::claims::Claims;
use crate::loadbalancer::model::following::Following;
use crate::loadbalancer::observed::balancer_state::BalancerState;
use crate::loadbalancer::observed::balancer_states::BalancerStates;
use crate::loadbalancer::observed::certificates::Certificates;
use crate::loadbalancer::observed::classic::ClassicNames;
use crate::loadbalancer::observed::interfaces::Interfaces;
use crate::loadbalancer::observed::inventory::{Inventory, Listing};
use crate::loadbalancer::observed::network::Networks;
use crate::loadbalancer::observed::refused_targets::Refused;
use crate::loadbalancer::observed::stack::{ObservedBalancer, ObservedStack};
use crate::loadbalancer::observed::vpc::Network;
use crate::loadbalancer::plan::Step;
use crate::loadbalancer::spec::annotation_reader::PREFIX;
use crate::loadbalancer::spec::annotations;
use crate::loadbalancer::spec::settings::{Policy, Settings};
use crate::session::{Session, Sessions};

/// Maximum age of a listing that is used again, if nothing was changed since.
pub(super) const FRESH: Duration = Duration::from_secs(10);

/// Network Load Balancers.
pub(crate) struct Balancers {
    pub(super) sessions: Sessions,
    /// `--cluster-name`.
    pub(super) cluster: String,
    pub(super) policy: Policy,
    pub(super) classes: ClassFilter,
    pub(super) inventory: Inventory,
    pub(super) networks: Networks,
    pub(super) interfaces: Interfaces,
    pub(super) states: BalancerStates,
    pub(super) certificates: Certificates,
    pub(super) groups: Groups,
    pub(super) shared: Mutex<Shared>,
    /// Services that move from a Classic Load Balancer; true once their status has the address of the new load
    /// balancer.
    pub(super) moved: std::sync::Mutex<HashMap<LoadBalancerId, bool>>,
    /// The target groups of invalid Services, with the settings by which their targets are kept up to date. An entry is
    /// removed when a call fails.
    pub(super) following: std::sync::Mutex<HashMap<LoadBalancerId, Following>>,
    /// Targets in target groups of users.
    claims: std::sync::Mutex<Claims>,
    records: OnceLock<Arc<dyn Records>>,
    /// The time of the first reconcile; unset in a process that has never led.
    begun: OnceLock<Instant>,
    /// The time from `begun` until reads contain the last resource that an earlier process created.
    visible: Duration,
    /// The names of the Classic Load Balancers in the network, as last read.
    pub(super) classic_names: ClassicNames,
}

/// The inputs of each operation on one Service.
pub(super) struct Work<'a> {
    pub session: &'a Session,
    pub id: &'a LoadBalancerId,
    pub settings: &'a Settings,
    pub targets: &'a Targets,
}

impl fmt::Debug for Balancers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Balancers").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

impl Balancers {
    pub(crate) fn new(context: &BuildContext, config: &Config, sessions: Sessions, visible: Duration) -> Self {
        let classes = ClassFilter { unset: !context.only_classes, named: context.load_balancer_classes.clone() };
        let foreign_tags: BTreeSet<String> = context.external_tags.iter().cloned().collect();
        let policy = Policy {
            controller_services: !classes.named.is_empty(),
            shared_probe: config.shared_probe.clone(),
            no_node_rules: config.no_node_rules,
            tags: context.default_tags.clone().into_iter().filter(|(key, _)| !foreign_tags.contains(key)).collect(),
            max_targets: context.max_targets,
            groups: config.groups.clone(),
            foreign_tags,
        };
        Self {
            sessions,
            cluster: context.cluster_name.clone(),
            policy,
            classes,
            inventory: Inventory::default(),
            networks: Networks::default(),
            interfaces: Interfaces::default(),
            states: BalancerStates::default(),
            certificates: Certificates::default(),
            groups: Groups::default(),
            shared: Mutex::default(),
            moved: std::sync::Mutex::default(),
            following: std::sync::Mutex::default(),
            claims: std::sync::Mutex::default(),
            records: OnceLock::new(),
            begun: OnceLock::new(),
            visible,
            classic_names: ClassicNames::default(),
        }
    }

    /// Sets the storage for records that outlive this process; only the first call has an effect.
    pub(crate) fn keep_records(&self, records: Arc<dyn Records>) {
        let _ = self.records.set(records);
    }

    pub(super) fn records(&self) -> Option<&dyn Records> {
        self.records.get().map(|records| &**records)
    }

    pub(super) fn claims(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn caller<'a>(
        &'a self,
        session: &'a Session,
        network: &'a Network,
        id: &'a LoadBalancerId,
    ) -> Caller<'a> {
        let records = self.records();
        Caller { session, network, id, records, refused: Refused::new(), unconfirmed: Vec::new() }
    }

    /// Returns the settings of a Service.
    ///
    /// # Errors
    /// `Invalid` for a mistake, and for a Service of another controller, for which `ensure` is not called.
    pub(super) fn settings(&self, spec: &LoadBalancerSpec) -> Result<Settings, CloudError> {
        let (_, settings) = annotations::read(spec, &self.policy)?;
        settings.ok_or_else(|| {
            let kind = spec.annotations.get(&format!("{PREFIX}type")).map(String::as_str).unwrap_or_default();
            let fix = "use nlb: existing resources are left to the Load Balancer Controller";
            CloudError::invalid_annotation(&format!("{PREFIX}type"), kind, fix)
        })
    }

    /// Returns a listing, and the inventory that can read a newer one.
    pub(super) fn listings<'a>(&'a self, read: &'a Listing) -> Listings<'a> {
        Listings { read, inventory: &self.inventory }
    }

    /// Returns a listing of all resources that was started after the last change of this Service, and at most `FRESH`
    /// ago.
    pub(super) async fn recent_listing(
        &self,
        session: &Session,
        state: &BalancerState,
    ) -> Result<Arc<Listing>, CloudError> {
        let now = Instant::now();
        let recent = now.checked_sub(FRESH).unwrap_or(now);
        self.inventory.listing_since(session, state.changed.map_or(recent, |changed| changed.max(recent))).await
    }

    /// Returns the time from which reads contain everything that earlier processes have created.
    pub(super) fn all_visible(&self) -> Instant {
        *self.begun.get_or_init(Instant::now) + self.visible
    }

    /// Makes the call of one step, and records the result. The deletion of a resource that no longer exists succeeds.
    pub(super) async fn step(
        &self,
        caller: &mut Caller<'_>,
        step: &Step,
        observed: &mut ObservedStack,
        state: &mut BalancerState,
    ) -> Result<(), CloudError> {
        let deleted = match step {
            Step::DeleteBalancer { arn } | Step::DeleteTargetGroup { arn } | Step::DeleteListener { arn } => Some(arn),
            Step::DeleteSecurityGroup { id } => Some(id),
            _ => None,
        };
        let result = caller.execute(step, observed, &mut state.refused_targets).await;
        let now = Instant::now();
        state.changed = Some(now);
        state.unconfirmed.extend(caller.unconfirmed.drain(..).map(|arn| (arn, now)));
        if let Some(name) = step.created_name() {
            match &result {
                Ok(_) => drop(state.unanswered.remove(name)),
                Err(error) if error.kind == ErrorKind::Transient => drop(state.unanswered.insert(name.to_owned(), now)),
                Err(_) => {}
            }
        }
        let made = match result {
            // The resource may not be visible yet, so it is deleted again later.
            Err(error) if error.is_not_found() && deleted.is_some_and(|id| state.may_appear(id, now)) => return Ok(()),
            Err(error) if error.is_not_found() && deleted.is_some() => Default::default(),
            result => result?,
        };
        if !made.id.is_empty() {
            state.unconfirmed.remove(&made.id);
            state.made.insert(made.id.clone(), now);
        }
        if let Some(id) = deleted {
            state.made.remove(id);
            state.deleting.insert(id.clone());
        }
        observed.apply_step(step, &made);
        match step {
            Step::CreateBalancer(wanted) => self.inventory.tagged(&made.id, &wanted.tags),
            Step::CreateTargetGroup(wanted) => self.inventory.tagged(&made.id, &wanted.tags),
            Step::CreateListener { listener, .. } => self.inventory.tagged(&made.id, &listener.tags),
            Step::AddTags { arn, .. } | Step::RemoveTags { arn, .. } => self.inventory.forget(arn),
            _ => {}
        }
        Ok(())
    }
}

/// Returns the error about a load balancer of another owner that already has the name of the one to create.
pub(super) fn name_taken(other: &ObservedBalancer) -> CloudError {
    let message = format!(
        "the load balancer {} has the name {} of the one to be created, and belongs to another owner: delete it, or \
         choose another name by annotation {PREFIX}name",
        other.arn, other.name
    );
    CloudError::new(ErrorKind::Conflict, "CreateLoadBalancer", message)
}
