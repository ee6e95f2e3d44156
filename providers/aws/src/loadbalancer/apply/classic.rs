//! Classic Load Balancers: maintains them after a takeover from cloud-provider-aws, and moves Services from them to
//! Network Load Balancers.

use std::collections::HashMap;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_sdk_elasticloadbalancing::types as elb;
use providers::{
    CloudError, Ensured, ErrorKind, Forecast, Ingress, Listener, LoadBalancerId, LoadBalancerSpec, LoadBalancerStatus,
    ObservedLoadBalancer, ObservedTarget, Phase, PlannedChange, Progress, Protocol as Transport, TargetId,
};
use tokio::time::Instant;

use crate::client::Class;
use crate::loadbalancer::apply::balancers::{Balancers, FRESH, Work};
use crate::loadbalancer::model::classic::{self as model, Stage};
use crate::loadbalancer::names::Flavour;
use crate::loadbalancer::observed::balancer_state::BalancerState;
use crate::loadbalancer::observed::classic::{self, Classic, Found, REPLACED};
use crate::loadbalancer::observed::inventory::Listing;
use crate::loadbalancer::ownership::Purpose;
use crate::loadbalancer::plan::PACE;
use crate::session::Session;

/// Maximum number of instances in one call.
const INSTANCES: usize = 100;
/// Interval between two checks that the new address was published.
const PUBLICATION_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum age of a listing from which the security groups with the cluster's tag are taken.
const GROUPS_AGE: Duration = Duration::from_secs(30 * 60);

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Returns the status of a Service that has the address of its Classic Load Balancer.
pub(super) fn status(classic: &Classic) -> LoadBalancerStatus {
    let hostname = Some(classic.dns.clone()).filter(|dns| !dns.is_empty());
    let ingress = hostname.map(|hostname| Ingress { hostname: Some(hostname), ..Ingress::default() });
    LoadBalancerStatus { ingress: ingress.into_iter().collect() }
}

impl Balancers {
    /// Brings a Service to the desired state, including a Classic Load Balancer that it may have.
    pub(super) async fn ensure_with_classic(
        &self,
        spec: &LoadBalancerSpec,
        work: &Work<'_>,
        state: &mut BalancerState,
    ) -> Result<Ensured, CloudError> {
        let listing = self.recent_listing(work.session, state).await?;
        let observed = listing.of(&work.session.cluster, work.id, Purpose::Ensure(work.settings.flavour));
        let network = !observed.balancers.is_empty();
        state.classic = None;
        let Some(mut classic) = self.find_classic(work, state, &listing, network).await? else {
            // A Service with resources was reconciled before: its Classic Load Balancer would have been found then.
            if observed.is_empty() {
                self.refuse_invisible_classic(work, state, &listing).await?;
            }
            if let Some(error) = &work.settings.classic_only {
                return Err(error.clone());
            }
            let ensured = self.ensure_stack(spec, work, state).await?;
            // After a move, the security group of the Classic Load Balancer exists for as long as network interfaces
            // use it.
            let moved = work.settings.replace_classic.is_some();
            let deleted = !moved || self.remove_classic(work.session, work.id, &listing, state).await?;
            return Ok(if deleted { ensured } else { later(ensured, PACE) });
        };
        let stage = model::stage(work.settings.replace_classic, network, classic.replaced(), now());
        let mut warnings = model::warnings(work.settings, &classic, stage);
        if stage != Stage::Delete {
            warnings.extend(self.set_classic_instances(work, &mut classic, &listing, state).await?);
            state.classic = Some((classic.clone(), stage == Stage::Keep));
        }
        let mut ensured = match stage {
            Stage::Keep => Ensured::settled(status(&classic)),
            Stage::Both if classic.replaced().is_some() => self.ensure_stack(spec, work, state).await?,
            Stage::Both | Stage::Prepare => self.prepare(spec, work, state, &mut classic).await?,
            Stage::Drain { left } => {
                let ensured = self.ensure_stack(spec, work, state).await?;
                later(ensured, left)
            }
            Stage::Delete => {
                let deleted = self.remove_classic(work.session, work.id, &listing, state).await?;
                let ensured = self.ensure_stack(spec, work, state).await?;
                if deleted { ensured } else { later(ensured, PACE) }
            }
        };
        ensured.warnings.extend(warnings);
        Ok(ensured)
    }

    /// Returns the actions of the next `ensure`.
    pub(super) async fn make_forecast(&self, work: &Work<'_>) -> Result<Forecast, CloudError> {
        let mut state = BalancerState::default();
        let listing = self.recent_listing(work.session, &state).await?;
        if let Err(error) = self.resolved(work).await {
            return if error.is_invalid() {
                Ok(Forecast { change: PlannedChange::Refused, reasons: vec![error.message] })
            } else {
                Err(error)
            };
        }
        let words = match self.forecast_user_groups(work, &listing).await {
            Err(error) if error.is_invalid() => {
                return Ok(Forecast { change: PlannedChange::Refused, reasons: vec![error.message] });
            }
            words => words?,
        };
        if let Some(group) = work.settings.group.as_ref().filter(|_| !work.settings.listeners.is_empty()) {
            return Ok(model::with_warnings(self.forecast_group(work, &listing, group), work.settings));
        }
        let observed = listing.of(&work.session.cluster, work.id, Purpose::Ensure(work.settings.flavour));
        let network = observed.balancers.first().map(|one| one.name.as_str());
        let has_stack = !work.settings.listeners.is_empty();
        let classic = match self.find_classic(work, &mut state, &listing, network.is_some()).await {
            Err(error) if error.kind == ErrorKind::Conflict && !has_stack => None,
            Err(error) if error.kind == ErrorKind::Conflict => {
                return Ok(Forecast { change: PlannedChange::Refused, reasons: vec![error.message] });
            }
            classic => classic?,
        };
        if !has_stack {
            let classic = classic.as_ref().map(|one| one.name.as_str());
            return Ok(model::forecast_without_stack(network, classic, words));
        }
        let mut forecast = model::forecast(work.settings, network, classic.as_ref(), now());
        let is_kept = forecast.change == PlannedChange::Kept && classic.is_none() && work.settings.existing.is_none();
        if let Some(reason) = model::scheme_change(work.settings, &observed.balancers).filter(|_| is_kept) {
            forecast.change = PlannedChange::Replaced;
            forecast.reasons[0] = reason;
        }
        forecast.reasons.extend(words);
        Ok(forecast)
    }

    /// Creates the Network Load Balancer next to the Classic one. The Service keeps the old address until each target
    /// group, including those of users, has a healthy target.
    async fn prepare(
        &self,
        spec: &LoadBalancerSpec,
        work: &Work<'_>,
        state: &mut BalancerState,
        classic: &mut Classic,
    ) -> Result<Ensured, CloudError> {
        let ensured = self.ensure_stack(spec, work, state).await?;
        let serving = state.serving && state.user_groups_serve;
        let ready = ensured.progress == Progress::Settled && serving && !ensured.status.ingress.is_empty();
        if !ready {
            self.moved().remove(work.id);
            let waits_for_health = ensured.progress == Progress::Settled && !serving;
            let pause = if waits_for_health { state.pause_for_health(Instant::now()).max(PACE) } else { PACE };
            return Ok(later(Ensured { status: status(classic), ..ensured }, pause));
        }
        // The time that clients have to switch begins when the new address is published, not earlier.
        let published = *self.moved().entry(work.id.clone()).or_default();
        if !published {
            return Ok(later(ensured, PUBLICATION_INTERVAL));
        }
        let replaced = now().to_string();
        self.tag_classic(work.session, &classic.name, &replaced).await?;
        tracing::info!(service = %work.id, classic = classic.name, "Service moved to its Network Load Balancer");
        classic.tags.insert(REPLACED.to_owned(), replaced);
        self.moved().remove(work.id);
        Ok(later(ensured, work.settings.replace_classic.unwrap_or(PACE)))
    }

    /// Finds the Classic Load Balancer of a Service. Sends no request if the Service cannot have one.
    async fn find_classic(
        &self,
        work: &Work<'_>,
        state: &mut BalancerState,
        listing: &Listing,
        network: bool,
    ) -> Result<Option<Classic>, CloudError> {
        if !self.may_have_classic(work, state, listing, network).await? {
            return Ok(None);
        }
        let is_proof = state.starts_empty || Instant::now() >= self.all_visible();
        match classic::find(work.session, work.id).await? {
            Found::Own(classic) => Ok(Some(classic)),
            Found::Absent => {
                state.no_classic = is_proof;
                Ok(None)
            }
            Found::Foreign => {
                let name = work.id.default_name();
                let message = format!(
                    "the Classic Load Balancer {name} has the tags of another cluster or Service: if it is this Service's, \
                     give it the tags of cloud-provider-aws again; otherwise delete the Service and create it again"
                );
                Err(CloudError::new(ErrorKind::Conflict, "FindClassicLoadBalancer", message))
            }
        }
    }

    /// Returns true if cloud-provider-aws may have created a Classic Load Balancer for the Service; `network`: the
    /// Service has a Network Load Balancer.
    async fn may_have_classic(
        &self,
        work: &Work<'_>,
        state: &BalancerState,
        listing: &Listing,
        network: bool,
    ) -> Result<bool, CloudError> {
        let Work { session, id, settings, .. } = *work;
        if state.no_classic || settings.flavour != Flavour::CloudProvider {
            return Ok(false);
        }
        let is_likely = listing.classic_group(session, id).is_some()
            || settings.replace_classic.is_some()
            || (settings.untyped && !network);
        if is_likely || !network || state.starts_empty {
            return Ok(is_likely);
        }
        // A load balancer with security groups of the user is found only by its name. All Services share one list.
        let now = Instant::now();
        let recent = now.checked_sub(FRESH).unwrap_or(now).min(self.all_visible());
        self.classic_names.contain(session, &id.default_name(), recent).await
    }

    /// Delays the creation of a Network Load Balancer while a Classic one may exist that AWS does not list yet, because
    /// cloud-provider-aws has just created it. Otherwise the Service would get another address.
    ///
    /// # Errors
    /// `Conflict` in this case.
    async fn refuse_invisible_classic(
        &self,
        work: &Work<'_>,
        state: &mut BalancerState,
        listing: &Listing,
    ) -> Result<(), CloudError> {
        let is_possible = self.may_have_classic(work, state, listing, false).await?;
        if !is_possible || !state.may_have_invisible_classic(Instant::now(), self.all_visible()) {
            return Ok(());
        }
        let message = format!(
            "a Classic Load Balancer {} may not be visible yet, if cloud-provider-aws has just created it: it is searched \
             for again before a Network Load Balancer is created",
            work.id.default_name()
        );
        Err(CloudError::new(ErrorKind::Conflict, "FindClassicLoadBalancer", message))
    }

    /// Registers the instances of the Service's nodes and deregisters all others. Returns warnings.
    async fn set_classic_instances(
        &self,
        work: &Work<'_>,
        classic: &mut Classic,
        listing: &Listing,
        state: &mut BalancerState,
    ) -> Result<Vec<String>, CloudError> {
        // A failure must not keep new instances from being registered: other rules may open their groups already.
        let opened = self.open_to_classic(work, classic, listing).await;
        let mut warnings = Vec::new();
        let wanted = model::instances(work.settings, work.targets);
        let change = model::registration(&classic.instances, &wanted, work.targets.incomplete);
        for add in [true, false] {
            let ids: Vec<String> = if add { &change.add } else { &change.remove }.iter().cloned().collect();
            let mut waiting: Vec<&[String]> = ids.chunks(INSTANCES).rev().collect();
            while let Some(batch) = waiting.pop() {
                match register(work.session, &classic.name, batch, add).await {
                    // One terminated instance fails the whole call.
                    Err(error) if error.is_invalid() && batch.len() > 1 => {
                        let (first, second) = batch.split_at(batch.len() / 2);
                        waiting.extend([second, first]);
                        continue;
                    }
                    Err(error) if error.is_invalid() && add => {
                        warnings.push(format!("instance {} gets no traffic: {}", batch[0], error.message));
                        continue;
                    }
                    Err(error) if error.is_invalid() => {}
                    result => result?,
                }
                for id in batch {
                    if add {
                        classic.instances.insert(id.clone());
                    } else {
                        classic.instances.remove(id);
                    }
                }
            }
        }
        state.refusals.add(&warnings);
        let refused = opened?;
        state.refusals.add(&refused);
        warnings.extend(refused);
        Ok(warnings)
    }

    /// Updates the instances of the Service's Classic Load Balancer, if there is one. Returns true if no other load
    /// balancer serves the Service, so there are no target groups to update. Also returns the first error: an
    /// error must not prevent the update of target groups.
    pub(super) async fn update_classic(
        &self,
        work: &Work<'_>,
        state: &mut BalancerState,
    ) -> (bool, Result<(), CloudError>) {
        let found = self.find_existing_classic(work, state).await;
        let updated = self.update_kept_classic(work, state).await;
        let is_alone = updated == Ok(true) && work.settings.user_groups.is_empty();
        (is_alone, found.and(updated.map(drop)))
    }

    /// Finds the Classic Load Balancer of a Service after a failed call, so that its instances are still updated when
    /// nodes change.
    async fn find_existing_classic(&self, work: &Work<'_>, state: &mut BalancerState) -> Result<(), CloudError> {
        if state.known.is_some() || state.classic.is_some() || state.no_classic {
            return Ok(());
        }
        let listing = self.recent_listing(work.session, state).await?;
        let observed = listing.of(&work.session.cluster, work.id, Purpose::Ensure(work.settings.flavour));
        let network = !observed.balancers.is_empty();
        if let Some(classic) = self.find_classic(work, state, &listing, network).await? {
            let stage = model::stage(work.settings.replace_classic, network, classic.replaced(), now());
            state.classic = (stage != Stage::Delete).then_some((classic, stage == Stage::Keep));
        }
        Ok(())
    }

    /// Updates the instances of the Service's Classic Load Balancer, if one is known. Returns true if it is known and
    /// no other load balancer serves the Service.
    async fn update_kept_classic(&self, work: &Work<'_>, state: &mut BalancerState) -> Result<bool, CloudError> {
        // The entry is missing during the update: after a failure the next call reads the load balancer again.
        let Some((mut classic, alone)) = state.classic.take() else { return Ok(false) };
        let now = Instant::now();
        let listing = self.inventory.listing_since(work.session, now.checked_sub(GROUPS_AGE).unwrap_or(now)).await?;
        for warning in self.set_classic_instances(work, &mut classic, &listing, state).await? {
            tracing::warn!(service = %work.id, "{warning}");
        }
        state.classic = Some((classic, alone));
        Ok(alone)
    }

    /// Deletes the Classic Load Balancer of a Service with its security group. Returns true once both are deleted, or
    /// if they belong to another cluster or Service.
    pub(super) async fn remove_classic(
        &self,
        session: &Session,
        id: &LoadBalancerId,
        listing: &Listing,
        state: &mut BalancerState,
    ) -> Result<bool, CloudError> {
        let group = listing.classic_group(session, id);
        if state.no_classic && group.is_none() {
            return Ok(true);
        }
        // No Classic Load Balancer is created while this process runs: the result of a read after `all_visible` stays
        // valid. Until then, each step of a deletion reads again.
        let now = Instant::now();
        let recent = state.changed.max(now.checked_sub(FRESH)).unwrap_or(now).min(self.all_visible());
        let found = if self.classic_names.contain(session, &id.default_name(), recent).await? {
            classic::find(session, id).await?
        } else {
            Found::Absent
        };
        match found {
            Found::Own(classic) => {
                self.delete_classic(session, id, &classic, listing, state).await?;
                return Ok(false);
            }
            // Another cluster has a Service with the same uid, so the security group with this name may belong to that
            // Service.
            Found::Foreign => return Ok(true),
            Found::Absent => state.no_classic = state.starts_empty || recent >= self.all_visible(),
        }
        self.moved().remove(id);
        match group {
            Some(group) => self.delete_classic_group(session, &group.id, state).await,
            None => Ok(true),
        }
    }

    /// Reads a Classic Load Balancer for reports.
    pub(super) async fn observe_classic(
        &self,
        session: &Session,
        id: &LoadBalancerId,
    ) -> Result<Option<ObservedLoadBalancer>, CloudError> {
        let Found::Own(classic) = classic::find(session, id).await? else { return Ok(None) };
        let health = classic::health(session, &classic.name).await?;
        let instances = self.networks.by_id(session, classic.instances.clone()).await?;
        let target = |id: &String| {
            let zone = instances.get(id).map(|instance| instance.zone.as_str()).unwrap_or_default();
            let health = health.get(id).copied().unwrap_or(providers::Health::Unknown);
            ObservedTarget { target: TargetId::Instance(format!("aws:///{zone}/{id}")), health }
        };
        let listener = |port: &u16| Listener { protocol: Transport::Tcp, port: *port };
        Ok(Some(ObservedLoadBalancer {
            phase: Phase::Active,
            status: status(&classic),
            listeners: classic.listeners.keys().map(listener).collect(),
            source_ranges: Vec::new(),
            targets: classic.instances.iter().map(target).collect(),
        }))
    }

    async fn tag_classic(&self, session: &Session, name: &str, replaced: &str) -> Result<(), CloudError> {
        let tag = elb::Tag::builder().key(REPLACED).value(replaced).build();
        let tag = tag.map_err(|error| CloudError::new(ErrorKind::Transient, "AddTags", error.to_string()))?;
        let request = session.api.classic.add_tags().load_balancer_names(name).tags(tag);
        session.api.change(Class::ElbChange, "AddTags", request.send()).await.map(drop)
    }

    /// Records that the Service has the address that the last `ensure` returned.
    pub(super) fn address_published(&self, id: &LoadBalancerId) {
        if let Some(published) = self.moved().get_mut(id) {
            *published = true;
        }
    }

    fn moved(&self) -> MutexGuard<'_, HashMap<LoadBalancerId, bool>> {
        self.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the result with another `ensure` after at most this time.
pub(super) fn later(ensured: Ensured, time: Duration) -> Ensured {
    let progress = match ensured.progress {
        Progress::Settled => Progress::After(time),
        Progress::After(sooner) => Progress::After(sooner.min(time)),
    };
    Ensured { progress, ..ensured }
}

async fn register(session: &Session, name: &str, ids: &[String], add: bool) -> Result<(), CloudError> {
    let instances = ids.iter().map(|id| elb::Instance::builder().instance_id(id).build()).collect();
    let api = &session.api;
    if add {
        let request = api.classic.register_instances_with_load_balancer().load_balancer_name(name);
        let send = request.set_instances(Some(instances)).send();
        api.change(Class::ElbChange, "RegisterInstancesWithLoadBalancer", send).await.map(drop)
    } else {
        let request = api.classic.deregister_instances_from_load_balancer().load_balancer_name(name);
        let send = request.set_instances(Some(instances)).send();
        api.change(Class::ElbChange, "DeregisterInstancesFromLoadBalancer", send).await.map(drop)
    }
}
