//! The handle of the mock cloud for tests, and the single path of all calls, which counts them and injects faults.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipnet::IpNet;
use providers::{CloudError, ErrorKind, Health, TargetId};
use tokio::time::Instant;

use crate::config::{InstanceConfig, MockConfig, Quotas};
use crate::fault::{CombinedEffect, Fault, FaultError, Faults, Operation};
use crate::snapshot::{CallCount, Snapshot};
use crate::state::State;

/// A cloud in memory. Clones are handles of the same cloud, which exists as long as one of them.
///
/// Its own methods simulate changes that no provider makes: instances are started and stopped, targets become
/// unhealthy, limits change. These methods are not counted and not affected by faults.
#[derive(Clone)]
pub struct MockCloud {
    inner: Arc<Mutex<Inner>>,
    created: Instant,
    /// The credentials of the provider that has this handle.
    token: Arc<Mutex<Option<String>>>,
}

struct Inner {
    /// The only credentials that calls may have; `None`: any.
    required_token: Option<String>,
    state: State,
    faults: Faults,
    calls: BTreeMap<Operation, CallCount>,
    requests: u64,
}

impl MockCloud {
    /// Creates a cloud with this configuration. `listen` has no effect here: the provider of
    /// [`factory`](crate::factory) and the program `mock-cloud` serve the cloud at that address.
    ///
    /// # Errors
    /// If the configuration contains a fault that can never happen.
    pub fn new(config: MockConfig) -> Result<Self, FaultError> {
        let created = Instant::now();
        let mut faults = Faults::new(config.seed);
        for fault in &config.faults {
            faults.add(fault.clone())?;
        }
        let state = State::new(config, created);
        let inner = Inner { required_token: None, state, faults, calls: BTreeMap::new(), requests: 0 };
        Ok(Self { inner: Arc::new(Mutex::new(inner)), created, token: Arc::default() })
    }

    /// Returns a handle of the same cloud that has no credentials yet.
    pub(crate) fn without_token(&self) -> Self {
        Self { token: Arc::default(), ..self.clone() }
    }

    /// Sets the credentials that calls must have, so that others are refused from now on; `None`: any.
    pub fn set_token(&self, token: Option<&str>) {
        self.lock().required_token = token.map(str::to_owned);
    }

    /// Sets the credentials of the provider that has this handle.
    pub(crate) fn use_token(&self, token: String) {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token);
    }

    /// Creates or replaces an instance; returns its provider ID.
    pub fn add_instance(&self, instance: &InstanceConfig) -> String {
        self.lock().state.put_instance(instance, Instant::now())
    }

    /// Stops an instance; returns false if there is none with that name.
    pub fn stop_instance(&self, name: &str) -> bool {
        self.lock().state.set_running(name, false)
    }

    /// Starts an instance again; returns false if there is none with that name.
    pub fn start_instance(&self, name: &str) -> bool {
        self.lock().state.set_running(name, true)
    }

    /// Removes an instance permanently, even if it would be created automatically; returns false if there is none with
    /// that name.
    pub fn remove_instance(&self, name: &str) -> bool {
        self.lock().state.remove_instance(name)
    }

    /// Sets a target's health; `None`: healthy while its instance runs.
    pub fn set_health(&self, target: TargetId, health: Option<Health>) {
        self.lock().state.set_health(target, health);
    }

    /// Adds a route that does not belong to the cluster.
    pub fn add_foreign_route(&self, destination: IpNet) {
        self.lock().state.put_foreign_route(destination);
    }

    /// Removes a route that does not belong to the cluster.
    pub fn remove_foreign_route(&self, destination: IpNet) {
        self.lock().state.remove_foreign_route(destination);
    }

    /// Sets the account's limits; existing resources beyond them are kept.
    pub fn set_quotas(&self, quotas: Quotas) {
        self.lock().state.quotas = quotas;
    }

    /// Arms a fault; returns the id for its removal.
    ///
    /// # Errors
    /// If the fault can never happen.
    pub fn add_fault(&self, fault: Fault) -> Result<u64, FaultError> {
        self.lock().faults.add(fault)
    }

    /// Removes a fault; returns false if there is none of that id.
    pub fn remove_fault(&self, id: u64) -> bool {
        self.lock().faults.remove(id)
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        self.lock().faults.clear();
    }

    /// Returns the whole current state.
    pub fn snapshot(&self) -> Snapshot {
        let now = Instant::now();
        let mut inner = self.lock();
        inner.state.complete_deletions(now);
        Snapshot {
            now_millis: (now - self.created).as_millis() as u64,
            instances: inner.state.instance_views(now),
            balancers: inner.state.balancer_views(None, now, true),
            routes: inner.state.route_views(),
            calls: inner.calls.clone(),
            faults: inner.faults.views(),
        }
    }

    /// Returns the number of calls of an operation.
    pub fn calls(&self, operation: Operation) -> CallCount {
        self.lock().calls.get(&operation).copied().unwrap_or_default()
    }

    /// Returns the number of calls of all changing operations.
    pub fn changing_calls(&self) -> u64 {
        self.lock().calls.iter().filter(|(operation, _)| operation.changes()).map(|(_, count)| count.calls).sum()
    }

    pub(crate) fn config(&self) -> MockConfig {
        self.lock().state.config.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic while the lock is held may leave a change incomplete. The cloud exists only for tests, which continue
        // with that state.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call, injects faults, and executes it under the lock of the state.
    pub(crate) async fn call<T>(
        &self,
        operation: Operation,
        subject: &str,
        execute: impl FnOnce(&mut State, &CombinedEffect, Instant) -> Result<T, CloudError>,
    ) -> Result<T, CloudError> {
        let token = self.token.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (effect, request) = {
            let mut inner = self.lock();
            inner.requests += 1;
            inner.calls.entry(operation).or_default().calls += 1;
            (inner.faults.decide(operation, subject), inner.requests)
        };
        if !effect.latency.is_zero() {
            tokio::time::sleep(effect.latency).await;
        }
        let result = {
            let mut inner = self.lock();
            let is_refused = inner.required_token.is_some() && inner.required_token != token;
            let result = match effect.refusal {
                _ if is_refused => {
                    Err(CloudError::new(ErrorKind::Denied, operation.as_str(), "the credentials are not valid"))
                }
                Some((kind, message)) => Err(CloudError::new(kind, operation.as_str(), message)),
                None => {
                    let now = Instant::now();
                    inner.state.complete_deletions(now);
                    let result = execute(&mut inner.state, &effect, now);
                    if effect.response_lost { Err(CombinedEffect::lost_error(operation)) } else { result }
                }
            };
            if result.is_err() || effect.without_response {
                inner.calls.entry(operation).or_default().failed += 1;
            }
            result
        };
        if effect.without_response {
            return std::future::pending().await;
        }
        result.map_err(|error| error.with_request_id(format!("mock-{request}")))
    }

    /// Returns the faults for one part of a batch.
    pub(crate) fn decide_part(&self, operation: Operation, subject: &str) -> CombinedEffect {
        let mut inner = self.lock();
        let effect = inner.faults.decide(operation, subject);
        let count = inner.calls.entry(operation).or_default();
        count.calls += 1;
        count.failed += u64::from(effect.refusal.is_some());
        effect
    }
}
