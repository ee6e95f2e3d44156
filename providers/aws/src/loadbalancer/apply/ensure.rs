//! Brings the Network Load Balancer of a Service to the desired state.

use std::collections::BTreeSet;
use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use providers::{CloudError, Ensured, ErrorKind, LoadBalancerSpec, LoadBalancerStatus, Progress};
use tokio::time::Instant;

use crate::loadbalancer::apply::balancers::{Balancers, Work, name_taken};
use crate::loadbalancer::apply::calls::{self, Caller};
use crate::loadbalancer::apply::classic::later;
use crate::loadbalancer::apply::opening::{TargetSecurityGroups, unopened_targets_warning};
use crate::loadbalancer::model::build::{self, StackInputs};
use crate::loadbalancer::model::following::NodePorts;
use crate::loadbalancer::model::{diff, node_rules, user_groups};
use crate::loadbalancer::names;
use crate::loadbalancer::observed::balancer_state::BalancerState;
use crate::loadbalancer::observed::interfaces::MISS_PERIOD;
use crate::loadbalancer::observed::inventory::Listing;
use crate::loadbalancer::observed::network;
use crate::loadbalancer::observed::openings::Openings;
use crate::loadbalancer::observed::refused_targets::{self, Refused};
use crate::loadbalancer::observed::report::ingress;
use crate::loadbalancer::observed::stack::{ObservedBalancer, ObservedStack, State};
use crate::loadbalancer::observed::vpc::Network;
use crate::loadbalancer::ownership::{self, Purpose};
use crate::loadbalancer::plan::Step;
use crate::loadbalancer::spec::annotation_reader::PREFIX;
use crate::loadbalancer::spec::settings::{SecurityGroups, Settings};
use crate::loadbalancer::types::{Desired, Ports};
use crate::session::Session;

/// Maximum number of consecutive plans in one `ensure`: each plan needs ids of resources that the previous one created.
const ROUNDS: usize = 6;

/// Time until the next read while another client uses a resource that should be deleted.
const IN_USE_PAUSE: Duration = Duration::from_secs(300);

/// The progress of plans.
#[derive(Debug, Default)]
struct PlanProgress {
    /// The desired state is not reached: a later call continues.
    again: bool,
    /// Ports whose traffic moves to another target group once that has a healthy target.
    exchanging: BTreeSet<u16>,
    /// Further steps depend on the health of targets.
    waits_for_health: bool,
    /// Targets that AWS refused.
    refused: Refused,
    /// Descriptions of the applied steps, without those that change only targets.
    done: Vec<String>,
    /// The refusal of the deletion of a resource that is in use.
    in_use: Option<String>,
}

impl PlanProgress {
    /// Adds an applied step.
    fn add(&mut self, step: &Step) {
        if !step.is_about_targets() {
            self.done.push(step.description());
        }
    }

    /// Returns the time until the next read.
    fn pause(&self, state: &mut BalancerState) -> Duration {
        if self.in_use.is_some() && state.is_stuck() {
            return IN_USE_PAUSE;
        }
        let pause = state.pause();
        if self.waits_for_health {
            return pause.max(state.pause_for_health(Instant::now()));
        }
        state.unhealthy_since = None;
        pause
    }

    /// Returns warnings about a failed setup, changes by other clients, and changes that AWS does not finish;
    /// `settled`: everything was in the desired state before.
    fn warnings(&self, settled: bool, state: &BalancerState) -> Vec<String> {
        let mut warnings: Vec<String> = state.setup_warning().into_iter().collect();
        if settled && !self.done.is_empty() {
            warnings.push(format!("changes by another client were undone: {}", self.done.join("; ")));
        }
        if state.is_overdue() && !self.exchanging.is_empty() {
            let ports = self.exchanging.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
            warnings.push(format!(
                "traffic of port {ports} stays on its target group until the new one has a healthy target"
            ));
        }
        if let Some(refusal) = self.in_use.as_ref().filter(|_| state.is_stuck()) {
            warnings.push(format!("a former resource is not deleted, because another client uses it: {refusal}"));
        }
        warnings
    }
}

/// Returns the warning about a load balancer that AWS could not set up.
pub(super) fn failed_setup_warning(failed: &ObservedBalancer) -> String {
    let reason = if failed.reason.is_empty() { "AWS gives no reason" } else { &failed.reason };
    format!("AWS could not set up the load balancer {}, which is deleted and created again: {reason}", failed.name)
}

/// The observed state of a Service.
struct Observed {
    listing: Arc<Listing>,
    observed: ObservedStack,
    /// Names of load balancers that are being deleted.
    being_deleted: Vec<String>,
    /// This process has created all resources, or will create them, so their details are known from the calls.
    is_own_creation: bool,
}

impl Balancers {
    pub(super) async fn ensure_stack(
        &self,
        spec: &LoadBalancerSpec,
        work: &Work<'_>,
        state: &mut BalancerState,
    ) -> Result<Ensured, CloudError> {
        let mut group = self.lock_group(work).await?;
        let (settings, observed) = self.resolve_and_observe(spec, work, state).await?;
        let work = &Work { settings: &settings, ..*work };
        let Work { session, id, .. } = *work;
        let Observed { listing, mut observed, being_deleted, is_own_creation } = observed;
        if let Some(created) = group.as_deref_mut().filter(|_| !observed.balancers.iter().any(|one| one.shared)) {
            self.create_group_balancer(work, created, state).await?;
            let pause = state.setup_pause(Instant::now()).unwrap_or_default().max(state.pause());
            return self.wait_for_creation(spec, work, (&listing, &observed), pause, state).await;
        }
        let network = self.networks.network(session).await?;
        let nodes = self.target_security_groups(work, &listing).await?;
        let (desired, backend, mut warnings) = self.desire(work, &listing, &network, &observed).await?;
        warnings.extend(unopened_targets_warning(session, &nodes.undecided));
        warnings.extend(self.warn_of_group(work, &observed));
        let current = (&observed, being_deleted.as_slice());
        if let Some(pause) = self.pause_before_creation(work, &listing, &desired.balancer.name, current, state)? {
            return self.wait_for_creation(spec, work, (&listing, &observed), pause, state).await;
        }
        let ports = node_rules::ports(&desired);
        let opening = (&nodes.groups, &ports);
        let settled = state.settled.as_ref() == Some(spec);
        warnings.extend(self.open_backend(session, backend.as_ref(), opening, settled, state).await?);
        if let Some(created) = group.as_deref_mut() {
            created.add_user(id, Instant::now());
        }
        let (applied, notices) =
            self.change_stack(work, (&listing, &network), &desired, &mut observed, &nodes, state).await?;
        let sources: Vec<String> = backend.iter().chain(&state.range_rule_name).cloned().collect();
        state.openings = Openings::of(&sources, &nodes.groups, &ports);
        state.remember_groups(id, &desired, &observed);
        state.remove_refused(&applied.refused, &mut observed);
        // Nodes are still reached through the shared security group; the next call removes it from the load balancer.
        let leaves_nodes = backend.is_some() && !work.settings.node_rules;
        let is_transitional = leaves_nodes || user_groups::has_former_listeners(&settings);
        let progress = if !applied.again && !is_transitional && being_deleted.is_empty() {
            self.settle(spec, session, (&listing, &observed), state)
        } else if is_own_creation {
            Progress::After(state.pause_for_setup())
        } else {
            Progress::After(applied.pause(state))
        };
        warnings.extend(applied.warnings(settled, state).into_iter().chain(notices));
        let ingress = observed.balancer(&desired.balancer.name).and_then(ingress).into_iter().collect();
        if progress != Progress::Settled {
            let described = desired.groups().filter_map(|group| observed.target_group(&group.name));
            let described = described.map(|group| group.arn.clone()).collect();
            self.follow_former_groups(spec, work, (&listing, &observed), &described, state).await?;
        }
        if is_own_creation {
            state.keep_created(observed, spec, progress);
        }
        let ensured = Ensured { progress, warnings, ..Ensured::settled(LoadBalancerStatus { ingress }) };
        Ok(if nodes.pending.is_empty() { ensured } else { later(ensured, MISS_PERIOD) })
    }

    /// Returns the time until the load balancer may be created; `None` if it exists, or may be created now.
    fn pause_before_creation(
        &self,
        work: &Work<'_>,
        listing: &Listing,
        name: &str,
        (observed, being_deleted): (&ObservedStack, &[String]),
        state: &mut BalancerState,
    ) -> Result<Option<Duration>, CloudError> {
        let waits_for_tags = self.find_name_conflict(work, listing, name, observed, state)?;
        if waits_for_tags || being_deleted.iter().any(|one| one == name) {
            // Its name is free once it is deleted.
            return Ok(Some(state.pause()));
        }
        match observed.balancer(name) {
            Some(failed) if failed.state == State::Failed && !failed.shared => {
                state.record_failed_setup(failed_setup_warning(failed), Instant::now());
                Ok(None)
            }
            Some(_) => Ok(None),
            None => Ok(state.setup_pause(Instant::now())),
        }
    }

    /// Returns the result of an `ensure` while the load balancer cannot be created yet, or after the load balancer of a
    /// group was created. Former load balancers still serve the Service.
    async fn wait_for_creation(
        &self,
        spec: &LoadBalancerSpec,
        work: &Work<'_>,
        (listing, observed): (&Listing, &ObservedStack),
        pause: Duration,
        state: &mut BalancerState,
    ) -> Result<Ensured, CloudError> {
        self.follow_former_groups(spec, work, (listing, observed), &BTreeSet::new(), state).await?;
        let serving = observed.balancers.iter().find(|one| one.state != State::Failed).and_then(ingress);
        let status = LoadBalancerStatus { ingress: serving.into_iter().collect() };
        let warnings = state.setup_warning().into_iter().collect();
        Ok(Ensured { progress: Progress::After(pause), warnings, ..Ensured::settled(status) })
    }

    /// Updates the targets of target groups other than the `described` ones. These groups are being replaced, and get
    /// traffic until then: a new load balancer takes minutes, and a new target group may never have a healthy target.
    async fn follow_former_groups(
        &self,
        spec: &LoadBalancerSpec,
        work: &Work<'_>,
        (listing, observed): (&Listing, &ObservedStack),
        described: &BTreeSet<String>,
        state: &mut BalancerState,
    ) -> Result<(), CloudError> {
        let followed = (described, NodePorts::OfGroups);
        self.follow_undescribed(spec, work, (observed, listing), followed, state).await
    }

    /// Returns true if a listed load balancer has the name of the one to create, and may be the Service's because its
    /// tags may not be visible yet.
    ///
    /// A creation would return the listed load balancer instead of a new one. Names are made from uids, which two
    /// clusters share if one is a copy of the other.
    ///
    /// # Errors
    /// `Conflict` if it belongs to another owner.
    fn find_name_conflict(
        &self,
        work: &Work<'_>,
        listing: &Listing,
        name: &str,
        observed: &ObservedStack,
        state: &BalancerState,
    ) -> Result<bool, CloudError> {
        // The owner of a name that users choose is checked after the creation.
        let is_new = observed.balancer(name).is_none() && names::is_generated(work.id, name);
        let Some(other) = listing.balancer(name).filter(|one| is_new && !state.deleting.contains(&one.arn)) else {
            return Ok(false);
        };
        if ownership::is_incomplete(&other.tags, &work.session.cluster) && !state.is_overdue() {
            self.inventory.forget(&other.arn);
            return Ok(true);
        }
        Err(name_taken(other))
    }

    /// Returns the desired state, the security group that all load balancers share (`None` if the Service's load
    /// balancer should not have it), and warnings.
    async fn desire(
        &self,
        work: &Work<'_>,
        listing: &Listing,
        network: &Network,
        observed: &ObservedStack,
    ) -> Result<(Desired, Option<String>, Vec<String>), CloudError> {
        let Work { session, id, settings, targets } = *work;
        let named_groups = self.named_groups(session, settings).await?;
        let backend = if build::wants_backend(settings, build::existing(settings, id, observed), observed) {
            Some(self.shared.lock().await.backend(session, &self.inventory, listing, id).await?)
        } else {
            None
        };
        let cluster = &session.cluster;
        let inputs = StackInputs {
            id,
            cluster,
            network,
            observed,
            backend: backend.as_deref(),
            named_groups: &named_groups,
            targets,
        };
        let desired = build::desired(settings, &inputs);
        if desired.is_err() {
            // The next attempt reads the network again: an operator may have corrected it.
            self.networks.forget().await;
        }
        let (desired, warnings) = desired?;
        Ok((desired, backend, warnings))
    }

    /// Brings the load balancer to the desired state, and the nodes' rules if it has no security groups. Returns the
    /// progress, and warnings.
    async fn change_stack(
        &self,
        work: &Work<'_>,
        (listing, network): (&Listing, &Network),
        desired: &Desired,
        observed: &mut ObservedStack,
        nodes: &TargetSecurityGroups,
        state: &mut BalancerState,
    ) -> Result<(PlanProgress, Vec<String>), CloudError> {
        if work.settings.node_rules {
            // Refusals are ignored here: the call at the end returns them again.
            self.set_range_rules(work, (listing, network), (desired, &*observed), nodes, false, state).await?;
        }
        let mut caller = self.caller(work.session, network, work.id);
        let name = &desired.balancer.name;
        let exposed = self.prepare_endpoint_service(work, &mut caller, name, observed, state).await?;
        let mut applied = self.apply_plans(desired, observed, &mut caller, state).await?;
        if !exposed {
            self.ensure_endpoint_service(work, observed.balancer(name), state).await?;
        }
        state.refusals.add(&refused_targets::texts(&caller.refused));
        let mut warnings: Vec<String> = refused_targets::warning(&caller.refused).into_iter().collect();
        applied.refused = caller.refused;
        if work.settings.node_rules {
            let is_done = !applied.again;
            let refused = self.set_range_rules(work, (listing, network), (desired, &*observed), nodes, is_done, state);
            let refused = refused.await?;
            state.refusals.add(&refused);
            warnings.extend(refused);
        }
        let balancer = observed.balancer(&desired.balancer.name).filter(|one| one.security_groups.is_empty());
        let name = balancer.map(|one| names::rule_name(&work.session.cluster, work.id, &one.name));
        let had_rules = std::mem::replace(&mut state.range_rule_name, name).is_some();
        if had_rules && state.range_rule_name.is_none() {
            self.shared.lock().await.forget_range_rules(work.id);
        }
        Ok((applied, warnings))
    }

    /// Reads the observed state of a Service. Returns it with the settings, completed by what they name in AWS, and with
    /// the listeners of ports whose traffic moves to target groups of the user.
    async fn resolve_and_observe(
        &self,
        spec: &LoadBalancerSpec,
        work: &Work<'_>,
        state: &mut BalancerState,
    ) -> Result<(Settings, Observed), CloudError> {
        let all = user_groups::with_former_listeners(work.settings, state.user_groups_serve);
        let settings = self.resolved(&Work { settings: &all, ..*work }).await?;
        let observed = self.observe_stack(spec, &Work { settings: &settings, ..*work }, state).await?;
        let mut settings = settings.into_owned();
        user_groups::drop_missing_listeners(&mut settings, &observed.observed);
        Ok((settings, observed))
    }

    /// Reads the observed state of a Service.
    async fn observe_stack(
        &self,
        spec: &LoadBalancerSpec,
        work: &Work<'_>,
        state: &mut BalancerState,
    ) -> Result<Observed, CloudError> {
        let created = state.take_created(spec);
        // After an attempt of this process, resources may exist that are not listed yet.
        let is_first = state.changed.is_none();
        let begun = Instant::now();
        let purpose = Purpose::Ensure(work.settings.flavour);
        let mut listing = self.recent_listing(work.session, state).await?;
        let mut observed = listing.of(&work.session.cluster, work.id, purpose);
        if observed.is_empty() && is_first && !state.starts_empty {
            // Another process, or another owner of the name, may have created resources since the last listing.
            listing = self.inventory.listing_since(work.session, begun).await?;
            observed = listing.of(&work.session.cluster, work.id, purpose);
        }
        let being_deleted = observed.remove_deleting(&state.deleting);
        if being_deleted.is_empty() {
            state.deleting.clear();
        }
        self.add_user_balancer(work, &listing, &mut observed)?;
        if self.add_group(work, &listing, &mut observed) && work.settings.group.is_some() {
            state.groups.extend(observed.balancers.iter().filter(|one| one.shared).map(|one| one.name.clone()));
        }
        if observed.is_empty() {
            // A creation returns a resource that an earlier process has created and that is not visible yet: it may
            // have other listeners, attributes and targets.
            let all_visible = self.all_visible();
            let is_alone = is_first && (state.starts_empty || listing.begun >= all_visible);
            let is_own_creation = is_alone && !work.settings.shared_groups && work.settings.group.is_none();
            return Ok(Observed { listing, observed, being_deleted, is_own_creation });
        }
        let is_own_creation = match created {
            Some(created) => {
                let needs_health = state.needs_health();
                calls::details_of_created(work.session, &mut observed, &created, needs_health).await?
            }
            None => false,
        };
        if !is_own_creation {
            self.read_details(work, &mut observed).await?;
        }
        Ok(Observed { listing, observed, being_deleted, is_own_creation })
    }

    /// Opens the targets' security groups to the group that all load balancers share, if the Service's load balancer
    /// has it. Returns warnings; `settled`: the load balancer was in the desired state, with these openings.
    async fn open_backend(
        &self,
        session: &Session,
        backend: Option<&String>,
        (groups, ports): (&BTreeSet<String>, &Ports),
        settled: bool,
        state: &mut BalancerState,
    ) -> Result<Vec<String>, CloudError> {
        let Some(backend) = backend else { return Ok(Vec::new()) };
        let opened = self.open_targets(session, groups, backend, ports).await?;
        state.refusals.add(&opened.refused);
        let mut warnings = opened.refused;
        let had_all = !state.refusals.is_reported() && state.openings.covers(from_ref(backend), groups, ports);
        if settled && had_all && !opened.changed.is_empty() {
            let groups = opened.changed.join(", ");
            warnings.push(format!(
                "rules for the load balancer were missing in the nodes' security groups and were added again: {groups}"
            ));
        }
        Ok(warnings)
    }

    /// Applies plans, at most [`ROUNDS`], until no further step is possible now.
    async fn apply_plans(
        &self,
        desired: &Desired,
        observed: &mut ObservedStack,
        caller: &mut Caller<'_>,
        state: &mut BalancerState,
    ) -> Result<PlanProgress, CloudError> {
        let mut applied = PlanProgress { again: true, ..PlanProgress::default() };
        // AWS returns an existing target group as created, which may have targets. The next call reads them.
        let mut created = false;
        for _ in 0..ROUNDS {
            let plan = diff::ensure(desired, observed);
            if plan.steps.is_empty() {
                return Ok(PlanProgress {
                    again: plan.again.is_some() || created,
                    exchanging: plan.exchanging,
                    waits_for_health: plan.waits_for_health,
                    done: applied.done,
                    ..PlanProgress::default()
                });
            }
            created |= plan.steps.iter().any(Step::is_creation_of_a_group);
            applied.in_use = None;
            let mut full = None;
            for step in &plan.steps {
                match self.step_or_detour(caller, step, observed, state).await {
                    // There may be room after other targets are deregistered.
                    Err(error) if error.kind == ErrorKind::Quota && step.is_registration() => full = Some(error),
                    Err(error) if error.kind == ErrorKind::Conflict && step.waits_for_others() => {
                        applied.in_use = Some(error.message);
                    }
                    step => applied.add(&step?),
                }
            }
            applied.exchanging = plan.exchanging;
            applied.waits_for_health = plan.waits_for_health;
            if let Some(error) = full.filter(|_| !plan.steps.iter().any(Step::is_deregistration)) {
                return Err(error);
            }
            // The plan deleted a load balancer that AWS could not set up: the next one is created after a pause.
            let pauses = state.setup_pause(Instant::now()).is_some();
            if pauses || applied.in_use.is_some() {
                break;
            }
        }
        Ok(applied)
    }

    /// Applies a step, or other steps that lead to the same final state if AWS refuses it. Returns the step that was
    /// applied, or the refused one if a deletion and a creation replaced it.
    async fn step_or_detour(
        &self,
        caller: &mut Caller<'_>,
        step: &Step,
        observed: &mut ObservedStack,
        state: &mut BalancerState,
    ) -> Result<Step, CloudError> {
        match self.step(caller, step, observed, state).await {
            // A listener of a load balancer with IPv6 cannot be changed to UDP.
            Err(error) if error.is_invalid() && observed.as_recreation(step).is_some() => {
                for step in observed.as_recreation(step).into_iter().flatten() {
                    self.step(caller, &step, observed, state).await?;
                }
                Ok(step.clone())
            }
            // Some listeners cannot send traffic to several groups.
            Err(error) if error.is_invalid() && step.is_intermediate() => {
                let final_step = step.without_intermediate_state();
                self.step(caller, &final_step, observed, state).await?;
                Ok(final_step)
            }
            result => result.map(|()| step.clone()),
        }
    }

    async fn read_details(&self, work: &Work<'_>, observed: &mut ObservedStack) -> Result<(), CloudError> {
        let session = work.session;
        let settings = work.settings;
        calls::details(session, observed, settings.capacity.is_some()).await?;
        self.read_records(work, observed).await?;
        let listeners = observed.balancers.iter().flat_map(|balancer| &balancer.listeners);
        let arns: Vec<String> = listeners.map(|listener| listener.arn.clone()).collect();
        let mut tags = self.inventory.tags_of(session, &arns).await?;
        for listener in observed.balancers.iter_mut().flat_map(|balancer| &mut balancer.listeners) {
            listener.tags = tags.remove(&listener.arn).unwrap_or_default();
            let requested = settings.listeners.iter().find(|requested| requested.port == listener.port);
            if requested.is_some_and(|requested| !requested.attributes.is_empty()) {
                listener.attributes = calls::listener_attributes(session, &listener.arn).await?;
            }
        }
        self.separate_listeners(session, work.id, observed).await
    }

    async fn named_groups(&self, session: &Session, settings: &Settings) -> Result<Vec<String>, CloudError> {
        let SecurityGroups::Named(names) = &settings.security_groups else { return Ok(Vec::new()) };
        network::groups_named(session, names).await?.map_err(|missing| {
            let fix = format!("name groups of {} by id or by their tag Name: there is no {missing}", session.vpc);
            let key = format!("{PREFIX}security-groups");
            CloudError { kind: ErrorKind::Transient, ..CloudError::invalid_annotation(&key, &names.join(","), &fix) }
        })
    }
}
