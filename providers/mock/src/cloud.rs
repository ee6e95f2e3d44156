//! The mock cloud from outside: a handle for tests, and the one way in which its calls are made, counted and disturbed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipnet::IpNet;
use providers::{CloudError, CloudProvider, Health, TargetId};
use tokio::time::Instant;

use crate::config::{InstanceConfig, MockConfig, Quotas};
use crate::fault::{Fault, FaultError, Faults, Operation, Verdict};
use crate::provider::Provider;
use crate::snapshot::{CallCount, Snapshot};
use crate::state::State;

/// A cloud in memory. Clones are handles on the same cloud, which is there as long as one of them.
///
/// Its own methods stand for what happens in a cloud besides the provider's calls: people start and stop machines,
/// targets fall ill, limits change. They are not counted and no fault happens to them.
#[derive(Clone)]
pub struct MockCloud {
    inner: Arc<Mutex<Inner>>,
    born: Instant,
}

struct Inner {
    state: State,
    faults: Faults,
    calls: BTreeMap<Operation, CallCount>,
    requests: u64,
}

impl MockCloud {
    /// A cloud as configured. `listen` is for [`factory`](crate::factory); nothing is served here.
    ///
    /// # Errors
    /// A fault of the configuration that could never happen.
    pub fn new(config: MockConfig) -> Result<Self, FaultError> {
        let born = Instant::now();
        let mut faults = Faults::new(config.seed);
        for fault in &config.faults {
            faults.add(fault.clone())?;
        }
        let state = State::new(config, born);
        let inner = Inner { state, faults, calls: BTreeMap::new(), requests: 0 };
        Ok(Self { inner: Arc::new(Mutex::new(inner)), born })
    }

    /// The provider over this cloud for a cluster. Each call makes another one, as a restarted process would.
    pub fn provider(&self, cluster_name: &str) -> Arc<dyn CloudProvider> {
        Arc::new(Provider::new(self.clone(), cluster_name, false))
    }

    /// Makes a machine, or makes it anew; its provider id comes back.
    pub fn add_instance(&self, instance: &InstanceConfig) -> String {
        self.lock().state.put_machine(instance, Instant::now())
    }

    /// Stops a machine; false if there is none of that name.
    pub fn stop_instance(&self, name: &str) -> bool {
        self.lock().state.set_running(name, false)
    }

    /// Starts a machine again; false if there is none of that name.
    pub fn start_instance(&self, name: &str) -> bool {
        self.lock().state.set_running(name, true)
    }

    /// Removes a machine for good, also one that would be made automatically; false if there is none of that name.
    pub fn remove_instance(&self, name: &str) -> bool {
        self.lock().state.remove_machine(name)
    }

    /// What a target's health is from now on; `None`: by whether its machine runs.
    pub fn set_health(&self, target: TargetId, health: Option<Health>) {
        self.lock().state.set_health(target, health);
    }

    /// Puts a route that is not the cluster's.
    pub fn add_foreign_route(&self, destination: IpNet) {
        self.lock().state.put_foreign_route(destination);
    }

    /// The account's limits from now on; what is over them stays.
    pub fn set_quotas(&self, quotas: Quotas) {
        self.lock().state.quotas = quotas;
    }

    /// Arms a fault; it is removed by the id that comes back.
    ///
    /// # Errors
    /// A fault that could never happen.
    pub fn add_fault(&self, fault: Fault) -> Result<u64, FaultError> {
        self.lock().faults.add(fault)
    }

    /// Removes a fault; false if there is none of that id.
    pub fn remove_fault(&self, id: u64) -> bool {
        self.lock().faults.remove(id)
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        self.lock().faults.clear();
    }

    /// Everything, now.
    pub fn snapshot(&self) -> Snapshot {
        let now = Instant::now();
        let mut inner = self.lock();
        inner.state.sweep(now);
        Snapshot {
            now_millis: (now - self.born).as_millis() as u64,
            instances: inner.state.machine_views(now),
            balancers: inner.state.balancer_views(None, now, true),
            routes: inner.state.route_views(),
            calls: inner.calls.clone(),
            faults: inner.faults.views(),
        }
    }

    /// How often an operation was called.
    pub fn calls(&self, operation: Operation) -> CallCount {
        self.lock().calls.get(&operation).copied().unwrap_or_default()
    }

    /// How often anything that changes something was called.
    pub fn changing_calls(&self) -> u64 {
        self.lock().calls.iter().filter(|(operation, _)| operation.changes()).map(|(_, count)| count.calls).sum()
    }

    pub(crate) fn config(&self) -> MockConfig {
        self.lock().state.config.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing is left half done by a panic in here: each change is one insertion.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes one call: counts it, lets happen to it what is scripted, and does it at one moment.
    pub(crate) async fn call<T>(
        &self,
        operation: Operation,
        subject: &str,
        act: impl FnOnce(&mut State, &Verdict, Instant) -> Result<T, CloudError>,
    ) -> Result<T, CloudError> {
        let (verdict, request) = {
            let mut inner = self.lock();
            inner.requests += 1;
            inner.calls.entry(operation).or_default().calls += 1;
            (inner.faults.decide(operation, subject), inner.requests)
        };
        if !verdict.latency.is_zero() {
            tokio::time::sleep(verdict.latency).await;
        }
        let answer = {
            let mut inner = self.lock();
            let answer = match verdict.refusal {
                Some((kind, message)) => Err(CloudError::new(kind, operation.as_str(), message)),
                None => {
                    let now = Instant::now();
                    inner.state.sweep(now);
                    let answer = act(&mut inner.state, &verdict, now);
                    if verdict.lost { Err(Verdict::lost_error(operation)) } else { answer }
                }
            };
            if answer.is_err() || verdict.unanswered {
                inner.calls.entry(operation).or_default().failed += 1;
            }
            answer
        };
        if verdict.unanswered {
            return std::future::pending().await;
        }
        answer.map_err(|error| error.with_request_id(format!("mock-{request}")))
    }

    /// What is scripted for one part of a batch.
    pub(crate) fn decide_part(&self, operation: Operation, subject: &str) -> Verdict {
        let mut inner = self.lock();
        let verdict = inner.faults.decide(operation, subject);
        let count = inner.calls.entry(operation).or_default();
        count.calls += 1;
        count.failed += u64::from(verdict.refusal.is_some());
        verdict
    }
}
