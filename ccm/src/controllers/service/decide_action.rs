//! The next action of a Service's reconcile: a pure function of the Service, its request, and the state of its load
//! balancer in this process.

use std::sync::Arc;
use std::time::Duration;

use kinds::Service;
use kinds::service::{Ingress, ServiceType};
use providers::{CloudError, LoadBalancerId, LoadBalancerSpec, Targeting, Targets};
use tokio::time::Instant;

use super::decide;
use super::load_balancer_state::{Announced, EnsuredLoadBalancer, LoadBalancerState};

/// The request of a Service, read before any action.
#[derive(Debug)]
pub enum Request {
    /// No load balancer of this controller is requested. This controller does not write the Service, but deletes a load
    /// balancer that this process has created for it.
    Nothing,
    /// A load balancer is no longer requested; because the Service has the finalizer, one may exist.
    Removal,
    /// A load balancer that another controller provides.
    Elsewhere,
    /// A request that no retry can fulfil. `last` is the last valid request that this process has processed. The load
    /// balancer stays as `last` requests: its targets are updated, and a change in progress is completed. Without such
    /// a request, only the targets of a published load balancer are updated: `follow`.
    Invalid { error: CloudError, last: Option<Wanted>, follow: Option<Follow> },
    /// A load balancer of this controller.
    Wanted(Wanted),
}

/// A load balancer as requested.
#[derive(Debug, PartialEq)]
pub struct Wanted {
    pub spec: Arc<LoadBalancerSpec>,
    pub targeting: Targeting,
    /// `None` if the load balancer needs endpoints, but this process does not watch them.
    pub targets: Option<Targets>,
    /// The load balancer may also have targets of the other kind, which have to be updated, too.
    pub has_both_kinds: bool,
}

impl Wanted {
    /// Returns the targets to compare with later ones: without endpoints, unless the load balancer may send traffic to
    /// endpoints.
    pub fn remembered(&self, targets: &Targets) -> Targets {
        let endpoints = match self.targeting {
            Targeting::Nodes | Targeting::Elsewhere if !self.has_both_kinds => Arc::default(),
            _ => targets.endpoints.clone(),
        };
        Targets { endpoints, ..targets.clone() }
    }
}

/// A load balancer whose last valid request is unknown.
#[derive(Debug, PartialEq)]
pub struct Follow {
    /// The invalid request.
    pub spec: Arc<LoadBalancerSpec>,
    /// Its nodes, and its endpoints if these are watched.
    pub targets: Targets,
}

impl Request {
    /// Returns the reason for which the request cannot be fulfilled.
    pub fn rejection(&self) -> Option<&CloudError> {
        match self {
            Self::Invalid { error, .. } => Some(error),
            _ => None,
        }
    }

    /// Returns the desired load balancer: the requested one, or that of the last valid request.
    pub fn wanted(&self) -> Option<&Wanted> {
        match self {
            Self::Wanted(wanted) => Some(wanted),
            Self::Invalid { last, .. } => last.as_ref(),
            _ => None,
        }
    }

    /// Returns the request and the targets of a load balancer that may have endpoints as targets.
    pub fn with_endpoints(&self) -> Option<(&LoadBalancerSpec, &Targets)> {
        match self {
            Self::Invalid { last: None, follow: Some(Follow { spec, targets }), .. } => Some((spec, targets)),
            _ => match self.wanted()? {
                Wanted { spec, targeting: Targeting::Endpoints, targets, .. } => Some((spec, targets.as_ref()?)),
                _ => None,
            },
        }
    }
}

/// The next step of a reconcile.
#[derive(Debug, PartialEq)]
pub enum Action<'a> {
    /// There is nothing to do, and no state to keep.
    Forget,
    /// No call until this time has passed; `None`: until something changes.
    Wait(Option<Duration>),
    /// Another client removed the finalizer: delete the load balancer without writing to the Service.
    DeleteWithoutFinalizer,
    /// Delete the load balancer, then remove the finalizer.
    CleanUp { clear_status: bool },
    /// Report that the request needs endpoints, but this process does not watch them.
    RejectUnwatched,
    /// Update the targets of a load balancer whose last valid request is unknown.
    Follow(&'a Follow),
    /// Update the targets although the retry of a failed call waits.
    UpdateWhileWaiting { wanted: &'a Wanted, targets: &'a Targets, wait: Option<Duration> },
    /// Update the targets of a load balancer that is otherwise as requested, then take another action.
    Update { wanted: &'a Wanted, targets: &'a Targets, from: EnsuredLoadBalancer },
    /// Write the status and the provider's annotations if they differ, and reconcile again after this time.
    Publish { next_check: Duration },
    /// Bring the load balancer to the requested state. `announce`: an event is recorded first. `drift`: the load
    /// balancer was in this state before, and the call reverts changes by other clients.
    Ensure { wanted: &'a Wanted, targets: &'a Targets, announce: bool, drift: bool },
}

/// Returns the load balancer of a previous Service, which has to be deleted first. That Service was deleted, or
/// replaced by one with the same name, without waiting for the cleanup.
pub fn previous(state: &LoadBalancerState, own: Option<&LoadBalancerId>) -> Option<LoadBalancerId> {
    state.load_balancer.clone().filter(|id| Some(id) != own)
}

/// Returns the next action for a Service. `state` belongs to this Service, not to an earlier one with the same name
/// (see [`previous`]).
pub fn next_action<'a>(service: &Service, request: &'a Request, state: &LoadBalancerState, now: Instant) -> Action<'a> {
    let has_finalizer = decide::has_finalizer(&service.meta);
    match request {
        Request::Nothing if state.load_balancer.is_some() => Action::DeleteWithoutFinalizer,
        Request::Nothing => Action::Forget,
        // The Service's class belongs to another controller, which may have written the status already.
        Request::Removal if service.kind == ServiceType::LoadBalancer && !service.meta.is_deleting() => {
            Action::CleanUp { clear_status: has_own_status(service, state) }
        }
        Request::Removal => Action::CleanUp { clear_status: true },
        Request::Elsewhere if has_finalizer || state.load_balancer.is_some() => {
            Action::CleanUp { clear_status: has_own_status(service, state) }
        }
        Request::Elsewhere => Action::Wait(None),
        // Before the first success no client uses the load balancer: the last valid request, which the user has
        // replaced, is not completed.
        Request::Invalid { last: Some(last), .. } if state.ingress.is_some() || was_published(service) => {
            balance(service, last, state, now)
        }
        Request::Invalid { follow: Some(wanted), .. } if was_published(service) => follow(wanted, state, now),
        Request::Invalid { .. } => Action::Wait(None),
        Request::Wanted(wanted) => balance(service, wanted, state, now),
    }
}

/// Returns true if a load balancer of this controller serves clients, possibly one that an earlier process has ensured.
fn was_published(service: &Service) -> bool {
    decide::has_finalizer(&service.meta) && !decide::published(service).is_empty()
}

/// Returns the action for a load balancer whose last valid request is unknown: its targets are updated. The same
/// targets are sent again only after a failed call. Changed targets do not wait for that retry if the failed call sent
/// targets, unless the cloud throttles.
fn follow<'a>(wanted: &'a Follow, state: &LoadBalancerState, now: Instant) -> Action<'a> {
    let is_sent = |sent: &Targets| *sent == wanted.targets;
    match state.remaining_pause(Some(&wanted.spec), now) {
        Some(wait) if state.is_throttled() || state.last_targets.as_ref().is_none_or(is_sent) => Action::Wait(wait),
        None if state.pause.is_none() && state.last_targets.as_ref().is_some_and(is_sent) => Action::Wait(None),
        _ => Action::Follow(wanted),
    }
}

fn balance<'a>(service: &Service, wanted: &'a Wanted, state: &LoadBalancerState, now: Instant) -> Action<'a> {
    let has_finalizer = decide::has_finalizer(&service.meta);
    if let Some(wait) = state.remaining_pause(Some(&wanted.spec), now) {
        return match wanted
            .targets
            .as_ref()
            .filter(|targets| has_finalizer && updates_while_waiting(wanted, targets, state))
        {
            Some(targets) => Action::UpdateWhileWaiting { wanted, targets, wait },
            None => Action::Wait(wait),
        };
    }
    let Some(targets) = &wanted.targets else { return Action::RejectUnwatched };
    let ensured = state.ensured.as_ref().filter(|ensured| ensured.spec == wanted.spec);
    if let Some(ensured) = ensured.filter(|_| has_finalizer) {
        if !same_targets(wanted.targeting, &ensured.targets, targets) {
            return Action::Update { wanted, targets, from: ensured.clone() };
        }
        if ensured.due > now {
            return Action::Publish { next_check: ensured.due - now };
        }
    }
    let drift = ensured.is_some();
    Action::Ensure { wanted, targets, announce: announces(service, wanted, state, drift), drift }
}

/// Returns true if the targets of an existing load balancer are updated while the retry of a failed call waits: pods
/// and nodes change in the meantime. Each set of targets is sent once, unless that fails; none is sent while the cloud
/// throttles.
fn updates_while_waiting(wanted: &Wanted, targets: &Targets, state: &LoadBalancerState) -> bool {
    let differ = |last_targets: &Targets| {
        let is_same = if wanted.has_both_kinds {
            last_targets == targets
        } else {
            same_targets(wanted.targeting, last_targets, targets)
        };
        !is_same
    };
    state.load_balancer.is_some() && !state.is_throttled() && state.last_targets.as_ref().is_none_or(differ)
}

/// Returns true if an event announces the call. Checks for drift are not announced, nor is a load balancer that already
/// served when this process became leader. An operation of several calls is announced once.
fn announces(service: &Service, wanted: &Wanted, state: &LoadBalancerState, drift: bool) -> bool {
    let served_before = state.load_balancer.is_none()
        && state.announced.is_none()
        && decide::has_finalizer(&service.meta)
        && !decide::published(service).is_empty();
    let announced = matches!(&state.announced, Some(Announced::Ensuring(spec)) if *spec == wanted.spec);
    !served_before && !drift && !announced
}

/// Returns true if the status has the addresses of this controller's load balancer.
fn has_own_status(service: &Service, state: &LoadBalancerState) -> bool {
    state.ingress.as_deref() == Some(decide::published(service))
}

/// Returns the addresses to write into the status, if they differ from those published.
pub fn unpublished<'a>(service: &Service, state: &'a LoadBalancerState) -> Option<&'a [Ingress]> {
    state.ingress.as_deref().filter(|ingress| *ingress != decide::published(service))
}

/// Returns true if two sets of targets are the same for a load balancer with this targeting.
pub fn same_targets(targeting: Targeting, old: &Targets, new: &Targets) -> bool {
    if old.incomplete != new.incomplete {
        return false;
    }
    match targeting {
        Targeting::Endpoints => old.endpoints == new.endpoints && old.others == new.others,
        _ => Arc::ptr_eq(&old.nodes, &new.nodes) || old.nodes == new.nodes,
    }
}
