//! The environment of a case: the provider's capabilities, unique names, and waits with deadlines.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::future::BoxFuture;
use providers::{
    CloudError, CloudProvider, Deletion, Ensured, ErrorKind, InstanceRef, Instances, LoadBalancerId, LoadBalancerSpec,
    LoadBalancers, NodeTarget, Observed, ObservedLoadBalancer, Owned, Phase, Port, Progress, Protocol, Route,
    RouteChange, Routes, TargetPort, Targets,
};
use tokio::time::Instant;

use crate::fixture::{Fixture, FixtureError};

/// The reason why a case ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The case cannot be run.
    Skip(String),
    /// The case found a defect.
    Fail(String),
}

impl From<FixtureError> for Stop {
    fn from(error: FixtureError) -> Self {
        match error {
            FixtureError::Unsupported(_) => Self::Skip(error.to_string()),
            FixtureError::Failed(_) => Self::Fail(error.to_string()),
        }
    }
}

impl From<CloudError> for Stop {
    fn from(error: CloudError) -> Self {
        Self::Fail(format!("unexpected {:?} error: {error}", error.kind))
    }
}

/// Ends the case if a condition does not hold, with the expected and the actual state.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::context::Stop::Fail(format!($($message)+)));
        }
    };
}
pub(crate) use ensure;

/// Default pause between two reads.
const PAUSE: Duration = Duration::from_millis(50);

/// The resources that the case created, which `clean_up` deletes.
#[derive(Default)]
struct CreatedResources {
    instances: Vec<InstanceRef>,
    balancers: Vec<LoadBalancerId>,
    /// The case may have created routes.
    routes: bool,
}

pub(crate) struct Context<'a> {
    provider: &'a Arc<dyn CloudProvider>,
    pub fixture: &'a dyn Fixture,
    created: Mutex<CreatedResources>,
}

/// Returns a number that no other case uses, in this run or another.
fn unique_number() -> u64 {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64 ^ (COUNTER.fetch_add(1, Ordering::Relaxed) << 52)
}

/// Returns true if a controller would retry soon after the error.
fn is_temporary(error: &CloudError) -> bool {
    matches!(error.kind, ErrorKind::Throttled { .. } | ErrorKind::Transient | ErrorKind::Conflict)
}

impl<'a> Context<'a> {
    pub fn new(provider: &'a Arc<dyn CloudProvider>, fixture: &'a dyn Fixture) -> Self {
        Self { provider, fixture, created: Mutex::default() }
    }

    fn created(&self) -> std::sync::MutexGuard<'_, CreatedResources> {
        self.created.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn provider_name(&self) -> &'static str {
        self.provider.name()
    }

    pub fn provider(&self) -> &dyn CloudProvider {
        &**self.provider
    }

    pub fn instances(&self) -> Result<Arc<dyn Instances>, Stop> {
        self.provider.instances().ok_or_else(|| Stop::Skip("the provider has no instances".into()))
    }

    pub fn balancers(&self) -> Result<Arc<dyn LoadBalancers>, Stop> {
        self.provider.load_balancers().ok_or_else(|| Stop::Skip("the provider has no load balancers".into()))
    }

    pub fn routes(&self) -> Result<Arc<dyn Routes>, Stop> {
        let routes = self.provider.routes().ok_or_else(|| Stop::Skip("the provider has no routes".into()))?;
        self.created().routes = true;
        Ok(routes)
    }

    pub fn unique_name(&self, prefix: &str) -> String {
        format!("{prefix}-{:012x}", unique_number() & 0xffff_ffff_ffff)
    }

    /// Creates an instance, which is deleted at the end of the case.
    pub async fn instance(&self, prefix: &str) -> Result<InstanceRef, Stop> {
        let instance = self.fixture.create_instance(&self.unique_name(prefix)).await?;
        self.created().instances.push(instance.clone());
        Ok(instance)
    }

    /// Creates nodes with an instance each, as targets.
    pub async fn nodes(&self, count: usize) -> Result<Vec<NodeTarget>, Stop> {
        let mut nodes = Vec::with_capacity(count);
        for _ in 0..count {
            let instance = self.instance("node").await?;
            nodes.push(NodeTarget {
                name: instance.node,
                provider_id: instance.provider_id,
                labels: instance.labels,
                ..NodeTarget::default()
            });
        }
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(nodes)
    }

    /// Returns a new id with this name. Its load balancer is deleted at the end of the case.
    pub fn id_named(&self, name: &str) -> LoadBalancerId {
        let number = unique_number();
        let uid = format!("{:08x}-{:04x}-4000-8000-{:012x}", number >> 32, number & 0xffff, number & 0xffff_ffff_ffff);
        let id =
            LoadBalancerId { cluster: self.fixture.cluster(), namespace: "conformance".into(), name: name.into(), uid };
        self.created().balancers.push(id.clone());
        id
    }

    /// Returns a Service with one port that any cloud supports.
    pub fn spec(&self) -> LoadBalancerSpec {
        let name = self.unique_name("web");
        self.spec_of(self.id_named(&name))
    }

    pub fn spec_of(&self, id: LoadBalancerId) -> LoadBalancerSpec {
        let mut spec = LoadBalancerSpec::new(id, vec![port("http", Protocol::Tcp, 80)]);
        spec.annotations = self.fixture.annotations();
        spec
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.fixture.timeout()
    }

    /// Calls ensure repeatedly, as a controller does, until it is settled.
    pub async fn settle(&self, spec: &LoadBalancerSpec, targets: &Targets) -> Result<Ensured, Stop> {
        let (balancers, deadline) = (self.balancers()?, self.deadline());
        loop {
            let (pause, last) = match balancers.ensure(spec, targets).await {
                Ok(ensured) => match ensured.progress {
                    Progress::Settled => return Ok(ensured),
                    Progress::After(pause) => (pause, "in progress".to_owned()),
                },
                Err(error) if is_temporary(&error) => (error.retry_after().unwrap_or(PAUSE), error.to_string()),
                Err(error) => return Err(error.into()),
            };
            ensure!(Instant::now() < deadline, "ensure does not settle; the last result was {last}");
            tokio::time::sleep(pause.min(self.fixture.timeout())).await;
        }
    }

    /// Removes the fault of the `nth` change. Returns true if the provider made fewer changes, so no further `nth`
    /// has to be tried.
    pub async fn restore_after_fault(&self, nth: u64) -> Result<bool, Stop> {
        let is_missing = self.fixture.faults_applied().await == Some(0);
        self.fixture.restore().await?;
        ensure!(!is_missing || nth > 1, "the fixture reports that no change was made");
        Ok(is_missing)
    }

    /// Observes until the load balancer is active.
    pub async fn wait_until_active(&self, id: &LoadBalancerId) -> Result<ObservedLoadBalancer, Stop> {
        let (balancers, deadline) = (self.balancers()?, self.deadline());
        loop {
            let observed = match balancers.observe(id).await {
                Ok(Observed::Present(balancer)) if balancer.phase == Phase::Active => return Ok(*balancer),
                Err(error) if !is_temporary(&error) => return Err(error.into()),
                observed => observed,
            };
            ensure!(Instant::now() < deadline, "the load balancer is not active but {observed:?}");
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Deletes repeatedly, as a controller does, until the deletion is complete.
    pub async fn delete(&self, id: &LoadBalancerId) -> Result<(), Stop> {
        let balancers = self.balancers()?;
        self.until_deleted(|| balancers.delete(id)).await
    }

    /// Collects a Service's leaked resources repeatedly, until the deletion is complete.
    pub async fn collect(&self, owned: &Owned) -> Result<(), Stop> {
        let balancers = self.balancers()?;
        self.until_deleted(|| balancers.collect(owned)).await
    }

    async fn until_deleted<'d>(
        &self,
        delete: impl Fn() -> BoxFuture<'d, Result<Deletion, CloudError>> + Send,
    ) -> Result<(), Stop> {
        let deadline = self.deadline();
        loop {
            let (pause, last) = match delete().await {
                Ok(Deletion::Gone) => return Ok(()),
                Ok(Deletion::InProgress(pause)) => (pause, "in progress".to_owned()),
                Err(error) if is_temporary(&error) => (error.retry_after().unwrap_or(PAUSE), error.to_string()),
                Err(error) => return Err(error.into()),
            };
            ensure!(Instant::now() < deadline, "delete does not complete; the last result was {last}");
            tokio::time::sleep(pause.min(self.fixture.timeout())).await;
        }
    }

    /// Checks that no resource of the load balancer still exists in the cloud, if the fixture supports that.
    pub async fn check_nothing_leaked(&self, id: &LoadBalancerId) -> Result<(), Stop> {
        match self.fixture.leaked_resources(id).await {
            Ok(leaked) => {
                ensure!(leaked.is_empty(), "{id} was reported as Gone, but left {leaked:?}");
                Ok(())
            }
            Err(FixtureError::Unsupported(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes everything that the case created, continuing after errors; returns the first error.
    pub async fn clean_up(&self) -> Result<(), Stop> {
        let resources = std::mem::take(&mut *self.created());
        let mut results: Vec<Result<(), Stop>> = vec![self.fixture.restore().await.map_err(Stop::from)];
        for id in resources.balancers.iter().filter(|_| self.provider.load_balancers().is_some()) {
            results.push(self.delete(id).await.map(drop));
            results.push(self.check_nothing_leaked(id).await);
        }
        if let Some(routes) = self.provider.routes().filter(|_| resources.routes) {
            results.extend(self.remove_routes(&*routes).await);
        }
        for instance in &resources.instances {
            results.push(self.fixture.delete_instance(instance).await.map_err(Stop::from));
        }
        results.into_iter().collect()
    }

    async fn remove_routes(&self, routes: &dyn Routes) -> Vec<Result<(), Stop>> {
        let destinations = self.fixture.destinations();
        let listed = match routes.list().await {
            Ok(listed) => listed,
            Err(error) => return vec![Err(error.into())],
        };
        let created = listed.into_iter().filter(|route: &Route| destinations.contains(&route.destination));
        let changes: Vec<RouteChange> = created.map(RouteChange::Remove).collect();
        routes.apply(&changes).await.into_iter().map(|removed| removed.map_err(Stop::from)).collect()
    }
}

pub(crate) fn port(name: &str, protocol: Protocol, number: u16) -> Port {
    Port {
        name: name.into(),
        protocol,
        app_protocol: None,
        port: number,
        node_port: Some(30_000 + number % 2_000),
        target_port: TargetPort::Number(number),
    }
}

pub(crate) fn merged(
    mut base: BTreeMap<String, String>,
    more: impl IntoIterator<Item = (String, String)>,
) -> BTreeMap<String, String> {
    base.extend(more);
    base
}
