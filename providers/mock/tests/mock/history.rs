//! Random histories compared with a simple model: after any operations and faults, the cloud reaches the last requested
//! state.
//!
//! `MOCK_HISTORIES` and `MOCK_SEED` select the number of histories and the first seed; a failure prints its seed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use provider_mock::{Effect, Fault, InstanceConfig, MockCloud, MockConfig, Operation, Pattern};
use providers::{
    Deletion, InstanceRef, InstanceState, IpNet, LoadBalancerId, LoadBalancerSpec, LoadBalancers, NodeTarget, Phase,
    Progress, Protocol, RouteChange, RouteSpec, RouteTarget, TargetId, Targets,
};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::fixture::{CLUSTER, spec};

const NODES: usize = 6;
const SERVICES: usize = 4;
const STEPS: usize = 60;

/// The expected state.
#[derive(Default)]
struct Model {
    /// Instances, and whether they run.
    instances: BTreeMap<String, bool>,
    /// The last request; `None`: deleted.
    balancers: BTreeMap<LoadBalancerId, Option<(LoadBalancerSpec, Targets)>>,
    /// Targets of routes, by the last change that succeeded or got no response.
    routes: BTreeMap<IpNet, Option<String>>,
}

struct History {
    rng: StdRng,
    cloud: MockCloud,
    model: Model,
    log: Vec<String>,
}

fn provider_id(name: &str) -> String {
    format!("mock://mock-1/{name}")
}

fn random_fault(rng: &mut StdRng) -> Fault {
    let effects = [
        (Pattern::Any, Effect::Latency { millis: 800 }),
        (Pattern::Any, Effect::Throttle { after_millis: Some(500) }),
        (Pattern::Changes, Effect::Quota),
        (Pattern::Reads, Effect::Transient),
        (Pattern::Any, Effect::Denied),
        (Pattern::Changes, Effect::Conflict),
        (Pattern::Changes, Effect::ResponseLost),
        (Pattern::One(Operation::CreateBalancer), Effect::Invisible { millis: 3_000 }),
        (Pattern::One(Operation::AllocateAddress), Effect::Invisible { millis: 3_000 }),
        (Pattern::One(Operation::DeleteBalancer), Effect::Pending { millis: 5_000 }),
    ];
    let (operation, effect) = *effects.choose(rng).expect("effects");
    Fault { probability: Some(0.5), times: Some(rng.random_range(1..4)), ..Fault::always(operation, effect) }
}

impl History {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let slow = rng.random_bool(0.5);
        let config = MockConfig {
            seed,
            provisioning_millis: if slow { 2_000 } else { 0 },
            deletion_millis: if slow { 4_000 } else { 0 },
            ..MockConfig::default()
        };
        let cloud = MockCloud::new(config).expect("no faults yet");
        Self { rng, cloud, model: Model::default(), log: Vec::new() }
    }

    fn balancers(&self) -> std::sync::Arc<dyn LoadBalancers> {
        self.cloud.provider(CLUSTER).load_balancers().expect("the mock has load balancers")
    }

    fn node(&mut self) -> String {
        format!("node-{}", self.rng.random_range(0..NODES))
    }

    fn random_request(&mut self) -> (LoadBalancerSpec, Targets) {
        let number = self.rng.random_range(0..SERVICES);
        let mut spec = spec(&format!("web-{}", number / 2), &format!("uid-{number}"));
        let mut port = spec.ports[0].clone();
        port.protocol = *[Protocol::Tcp, Protocol::Udp].choose(&mut self.rng).expect("protocols");
        port.port = self.rng.random_range(1..4);
        spec.ports.push(port);
        if self.rng.random_bool(0.3) {
            spec.annotations.insert("mock.cloud/scheme".into(), "internal".into());
        }
        if self.rng.random_bool(0.5) {
            spec.source_ranges = vec!["192.0.2.0/24".parse().expect("a network")];
        }
        (spec, self.targets())
    }

    fn targets(&mut self) -> Targets {
        let nodes: BTreeSet<String> = (0..self.rng.random_range(0..NODES)).map(|_| self.node()).collect();
        let target = |name: String| NodeTarget { provider_id: Some(provider_id(&name)), name, ..NodeTarget::default() };
        Targets::nodes(nodes.into_iter().map(target).collect::<Vec<_>>())
    }

    async fn step(&mut self) {
        let kind = self.rng.random_range(0..10);
        let name = self.node();
        match kind {
            0 => {
                self.log.push(format!("add {name}"));
                self.cloud.add_instance(&InstanceConfig::named(&name));
                self.model.instances.insert(name, true);
            }
            1 => {
                self.log.push(format!("stop {name}"));
                self.cloud.stop_instance(&name);
                self.model.instances.entry(name).and_modify(|running| *running = false);
            }
            2 => {
                self.log.push(format!("remove {name}"));
                self.cloud.remove_instance(&name);
                self.model.instances.remove(&name);
            }
            3..=4 => {
                let (spec, targets) = self.random_request();
                let result = self.balancers().ensure(&spec, &targets).await;
                self.log.push(format!("ensure {} {:?}", spec.id.uid, result.map(|ensured| ensured.progress)));
                self.model.balancers.insert(spec.id.clone(), Some((spec, targets)));
            }
            5 => {
                let (request, _) = self.random_request();
                let result = self.balancers().delete(&request.id).await;
                self.log.push(format!("delete {} {result:?}", request.id.uid));
                self.model.balancers.insert(request.id, None);
            }
            6 => {
                let targets = self.targets();
                let id = self.random_request().0.id;
                if let Some(Some((spec, wanted))) = self.model.balancers.get_mut(&id) {
                    *wanted = targets.clone();
                    let spec = spec.clone();
                    let result = self.balancers().set_targets(&spec, &targets).await;
                    self.log.push(format!("set_targets {} {result:?}", id.uid));
                }
            }
            7 => self.change_route(name).await,
            8 => {
                let fault = random_fault(&mut self.rng);
                self.log.push(format!("fault {fault:?}"));
                self.cloud.add_fault(fault).expect("it can happen");
            }
            _ => {
                let millis = self.rng.random_range(0..3_000);
                self.log.push(format!("wait {millis}"));
                tokio::time::advance(Duration::from_millis(millis)).await;
            }
        }
    }

    /// Sets a random route to an instance, and updates the model by the cloud's routes before and after the call: a
    /// failed call is not retried, and may still have changed the route.
    async fn change_route(&mut self, name: String) {
        let third = self.rng.random_range(0..4);
        let destination: IpNet = format!("10.244.{third}.0/24").parse().expect("a network");
        let foreign = third == 0;
        if foreign && !self.model.routes.contains_key(&destination) {
            self.cloud.add_foreign_route(destination);
            self.model.routes.insert(destination, None);
        }
        let instance = InstanceRef::named(&name);
        let spec = RouteSpec { destination, instance, addresses: Vec::new(), name_hint: String::new() };
        let before = self.cloud.snapshot().routes;
        let routes = self.cloud.provider(CLUSTER).routes().expect("the mock has routes");
        let result = routes.apply(&[RouteChange::Set(spec)]).await.remove(0);
        self.log.push(format!("route {destination} to {name} {result:?}"));
        match result {
            Ok(()) => {
                assert!(!foreign && self.model.instances.contains_key(&name), "an impossible route was set");
                self.model.routes.insert(destination, Some(provider_id(&name)));
            }
            Err(error) => {
                let changed = self.cloud.snapshot().routes != before;
                assert!(
                    !changed || error.message.contains("connection failed before the response"),
                    "refused, but executed: {error}"
                );
                if changed {
                    self.model.routes.insert(destination, Some(provider_id(&name)));
                }
            }
        }
    }

    /// Acts like a controller after all faults have ended: repeats until everything is settled.
    async fn settle(&mut self) {
        self.cloud.clear_faults();
        let balancers = self.balancers();
        for (id, request) in &self.model.balancers {
            for round in 0.. {
                assert!(round < 20, "{id} does not settle");
                let pause = match request {
                    Some((spec, targets)) => match balancers.ensure(spec, targets).await.expect("no faults").progress {
                        Progress::Settled => break,
                        Progress::After(pause) => pause,
                    },
                    None => match balancers.delete(id).await.expect("no faults") {
                        Deletion::Gone => break,
                        Deletion::InProgress(pause) => pause,
                    },
                };
                tokio::time::advance(pause).await;
            }
        }
        // Resources that were not visible yet are visible now.
        tokio::time::advance(Duration::from_secs(10)).await;
    }

    async fn check(&self) {
        let snapshot = self.cloud.snapshot();
        let existing: BTreeMap<_, _> = snapshot.balancers.iter().map(|balancer| (&balancer.id, balancer)).collect();
        let wanted: BTreeMap<_, _> =
            self.model.balancers.iter().filter_map(|(id, request)| Some((id, request.as_ref()?))).collect();
        assert_eq!(existing.len(), snapshot.balancers.len(), "a load balancer exists twice");
        assert!(existing.keys().eq(wanted.keys()), "these exist: {existing:?}");
        for (id, (spec, targets)) in wanted {
            let balancer = existing[id];
            assert_eq!(balancer.phase, Phase::Active);
            assert_eq!(balancer.addresses.len(), 1);
            assert_eq!(balancer.internal, spec.annotations.contains_key("mock.cloud/scheme"));
            assert_eq!(balancer.source_ranges, spec.source_ranges);
            let ports: BTreeSet<_> = spec.ports.iter().map(|port| (port.protocol, port.port)).collect();
            assert!(ports.into_iter().eq(balancer.listeners.iter().map(|l| (l.protocol, l.port))));
            let ids = targets.nodes.iter().filter_map(|node| node.provider_id.clone()).map(TargetId::Instance);
            assert!(ids.eq(balancer.targets.iter().map(|target| target.target.clone())), "{balancer:?}");
        }
        let addresses: BTreeSet<_> = snapshot.balancers.iter().flat_map(|balancer| &balancer.addresses).collect();
        assert_eq!(addresses.len(), existing.len(), "two load balancers have the same address");
        let owned = self.balancers().list_owned().await.expect("no faults");
        assert!(owned.iter().map(|owned| &owned.id).eq(existing.keys().copied()));

        let requested: Vec<_> = (0..NODES).map(|number| InstanceRef::named(format!("node-{number}"))).collect();
        let states = self.cloud.provider(CLUSTER).instances().expect("instances").describe(&requested).await;
        for (requested, state) in requested.iter().zip(&states) {
            match self.model.instances.get(&requested.node) {
                None => assert_eq!(*state, InstanceState::Gone),
                Some(false) => assert_eq!(*state, InstanceState::Stopped),
                Some(true) => assert!(matches!(state, InstanceState::Running(_)), "{state:?}"),
            }
        }
        let routes: BTreeMap<_, _> =
            snapshot.routes.iter().map(|route| (route.destination, route.target.clone())).collect();
        let expected: BTreeMap<_, _> = self
            .model
            .routes
            .iter()
            .map(|(destination, id)| {
                let target = id.as_ref().map(|id| {
                    let exists = self.model.instances.keys().any(|name| provider_id(name) == *id);
                    if exists { RouteTarget::Instance(id.clone()) } else { RouteTarget::Blackhole }
                });
                (*destination, target)
            })
            .collect();
        assert_eq!(routes, expected);
    }
}

/// The seed and the log of a history. Both are printed if the history ends in a panic.
struct Seed<'a>(u64, &'a std::cell::RefCell<Vec<String>>);

impl Drop for Seed<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}\nMOCK_SEED={} MOCK_HISTORIES=1 repeats it", self.1.borrow().join("\n"), self.0);
        }
    }
}

async fn run(seed: u64) -> provider_mock::Snapshot {
    let log = std::cell::RefCell::new(Vec::new());
    let _seed = Seed(seed, &log);
    let mut history = History::new(seed);
    for _ in 0..STEPS {
        history.step().await;
        log.replace(history.log.clone());
    }
    history.settle().await;
    history.check().await;
    history.cloud.snapshot()
}

fn number(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(given) => given.parse().unwrap_or_else(|_| panic!("{variable} is {given:?}: use a number")),
        Err(_) => default,
    }
}

#[tokio::test(start_paused = true)]
async fn any_history_reaches_the_last_requested_state() {
    let (first, count) = (number("MOCK_SEED", 1), number("MOCK_HISTORIES", 200));
    println!("seeds {first} to {}", first + count.saturating_sub(1));
    for seed in first..first + count {
        run(seed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn history_is_deterministic_for_a_seed() {
    let (one, again, other) = (run(7).await, run(7).await, run(8).await);
    assert_eq!(one, again);
    assert_ne!(one.calls, other.calls);
}
