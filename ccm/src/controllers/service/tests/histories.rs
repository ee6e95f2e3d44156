//! Random histories of users, nodes, the cloud, the API server and crashes of the process. In the end, the cloud has
//! exactly the load balancers that the Services request.
//!
//! `CCM_HISTORIES` sets the number of histories and `CCM_SEED` the first seed. A failure prints its seed.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kinds::Service;
use kinds::service::ServiceType;
use provider_mock::{Effect, Fault, LoadBalancerView, MockConfig, Operation, Pattern};
use providers::{LoadBalancerId, TargetId};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::simulation::{CLUSTER, Process, Simulation, WriteFault, annotated, key, node, pass, port, service};
use crate::controllers::service::decide::{self, has_finalizer};

const SERVICES: usize = 4;
const STEPS: usize = 50;

struct History {
    rng: StdRng,
    sim: Arc<Simulation>,
    process: Option<Process>,
    /// Load balancers whose finalizer a user removed. They may leak.
    without_finalizer: BTreeSet<LoadBalancerId>,
    log: RefCell<Vec<String>>,
}

/// The possible annotations of a Service.
const ANNOTATIONS: [&[(&str, &str)]; 5] = [
    &[],
    &[("mock.cloud/scheme", "internal")],
    &[("mock.cloud/scheme", "inside")],
    &[("mock.cloud/targets", "elsewhere")],
    &[("mock.cloud/hostname", "true")],
];

fn random_fault(rng: &mut StdRng) -> Fault {
    let effects = [
        (Pattern::Any, Effect::Latency { millis: 3_000 }),
        (Pattern::Any, Effect::Throttle { after_millis: Some(5_000) }),
        (Pattern::Any, Effect::Throttle { after_millis: None }),
        (Pattern::Changes, Effect::Quota),
        (Pattern::Reads, Effect::Transient),
        (Pattern::Any, Effect::Denied),
        (Pattern::Changes, Effect::Conflict),
        (Pattern::Changes, Effect::ResponseLost),
        (Pattern::One(Operation::CreateBalancer), Effect::Invisible { millis: 5_000 }),
        (Pattern::One(Operation::AllocateAddress), Effect::Invisible { millis: 5_000 }),
        (Pattern::One(Operation::DeleteBalancer), Effect::Pending { millis: 20_000 }),
    ];
    let (operation, effect) = *effects.choose(rng).expect("effects");
    Fault { probability: Some(0.5), times: Some(rng.random_range(1..4)), ..Fault::always(operation, effect) }
}

impl History {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let slow = rng.random_bool(0.5);
        let sim = Simulation::new(MockConfig {
            seed,
            provisioning_millis: if slow { 5_000 } else { 0 },
            deletion_millis: if slow { 20_000 } else { 0 },
            ..MockConfig::default()
        });
        let process = Some(Process::start(&sim, 2));
        Self { rng, sim, process, without_finalizer: BTreeSet::new(), log: RefCell::default() }
    }

    fn note(&self, what: impl Into<String>) {
        self.log.borrow_mut().push(what.into());
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("a process")
    }

    async fn restart(&mut self) {
        self.process.take().expect("a process").crash().await;
        self.process = Some(Process::start(&self.sim, 2));
    }

    /// Changes a Service. The watch may deliver the change only later.
    fn change(&mut self, name: &str, change: impl FnOnce(&mut Service)) {
        self.sim.change(&key(name), change);
        if self.rng.random_bool(0.7) {
            self.process().deliver(&key(name));
        }
    }

    /// Removes the finalizer as a user does: afterwards only a process that does not crash has the state of the load
    /// balancer.
    fn remove_finalizer(&mut self, name: &str) {
        let id = self.sim.get(&key(name)).map(|service| decide::id(&service.meta, CLUSTER));
        self.without_finalizer.extend(id);
        self.change(name, |service| service.meta.finalizers = [].into());
    }

    async fn step(&mut self) {
        let name = format!("web-{}", self.rng.random_range(0..SERVICES));
        let kind = self.rng.random_range(0..14);
        self.note(format!("{kind} {name}"));
        match kind {
            0..=2 => {
                let mut new = service(&name);
                annotated(&mut new, ANNOTATIONS.choose(&mut self.rng).expect("annotations"));
                self.sim.create(new);
                self.process().deliver(&key(&name));
            }
            3 => {
                self.sim.delete(&key(&name));
                self.process().deliver(&key(&name));
            }
            4 => {
                let annotations = *ANNOTATIONS.choose(&mut self.rng).expect("annotations");
                self.change(&name, |service| annotated(service, annotations));
            }
            5 => {
                let number = self.rng.random_range(1..90);
                self.change(&name, |service| service.ports = vec![port(number), port(90)]);
            }
            6 => self.change(&name, |service| {
                service.kind = match service.kind {
                    ServiceType::LoadBalancer => ServiceType::ClusterIp,
                    _ => ServiceType::LoadBalancer,
                }
            }),
            7 => {
                let count = self.rng.random_range(0..5);
                self.sim.set_nodes((0..count).map(|n| node(&format!("node-{n}"))).collect());
                self.process().nodes_changed();
            }
            8 => {
                self.sim.cloud.add_fault(random_fault(&mut self.rng)).expect("a fault that works");
            }
            9 => {
                let fault = *[WriteFault::Refused, WriteFault::Lost].choose(&mut self.rng).expect("faults");
                self.sim.add_fault(fault);
            }
            10 => {
                let acts = self.rng.random_range(1..6);
                self.sim.die_after(acts);
            }
            11 if self.rng.random_bool(0.3) => {
                self.remove_finalizer(&name);
            }
            12 => self.process().deliver_all(),
            _ => {
                let seconds = self.rng.random_range(0.0..30.0);
                pass(seconds).await;
            }
        }
        pass(0.001).await;
        if self.sim.is_dead() {
            self.note("dead");
            self.restart().await;
        }
    }

    async fn settle(&mut self) {
        self.sim.clear_faults();
        self.sim.die_after(u64::MAX);
        for _ in 0..8 {
            self.process().deliver_all();
            pass(100.0).await;
        }
    }

    async fn check(&self) {
        let snapshot = self.sim.cloud.snapshot();
        let mut existing: BTreeMap<&LoadBalancerId, &LoadBalancerView> =
            snapshot.balancers.iter().map(|b| (&b.id, b)).collect();
        assert_eq!(existing.len(), snapshot.balancers.len(), "no duplicates");
        for service in self.sim.services().values() {
            let id = decide::id(&service.meta, CLUSTER);
            let annotations = &*service.annotations;
            assert!(!service.meta.is_deleting(), "{id} was not deleted");
            if service.kind != ServiceType::LoadBalancer || annotations.iter().any(|(_, value)| &**value == "elsewhere")
            {
                assert!(!has_finalizer(&service.meta), "{id} has a finalizer without need");
                continue;
            }
            if annotations.iter().any(|(_, value)| &**value == "inside") {
                // The load balancer of the last valid request stays, and the Service has the finalizer.
                assert!(
                    existing.remove(&id).is_none()
                        || has_finalizer(&service.meta)
                        || self.without_finalizer.contains(&id),
                    "{id}"
                );
                continue;
            }
            let balancer = existing.remove(&id).unwrap_or_else(|| panic!("{id} has no balancer"));
            assert!(has_finalizer(&service.meta), "{id}");
            assert_eq!(balancer.internal, annotations.iter().any(|(_, value)| &**value == "internal"), "{id}");
            let ports: Vec<_> = service.ports.iter().map(|port| port.port).collect();
            assert_eq!(balancer.listeners.iter().map(|l| i32::from(l.port)).collect::<Vec<_>>(), ports, "{id}");
            let ids = self
                .sim
                .nodes()
                .iter()
                .filter_map(|node| node.provider_id.clone())
                .map(TargetId::Instance)
                .collect::<Vec<_>>();
            assert_eq!(balancer.targets.iter().map(|t| t.target.clone()).collect::<Vec<_>>(), ids, "{id}");
            let [ingress] = decide::published(service) else { panic!("{id} has no status") };
            if ingress.hostname.is_empty() {
                assert_eq!(*ingress.ip, balancer.addresses[0].to_string(), "{id}");
            }
        }
        for id in existing.keys() {
            assert!(self.without_finalizer.contains(id), "{id} {} leaked", id.uid);
        }
        // The load balancer of a Service that another controller has taken over is not reported while the Service
        // exists.
        let wanting = self.sim.services().into_values().filter(|service| service.kind == ServiceType::LoadBalancer);
        let wanting: BTreeSet<_> = wanting.map(|service| decide::id(&service.meta, CLUSTER)).collect();
        let leaks = existing.keys().filter(|id| !wanting.contains(id)).count();
        assert_eq!(self.process().leaks().await, leaks, "{existing:?}");
    }
}

/// The seed of a history. If the history panics, the drop prints how to run it again.
struct Seed<'a>(u64, &'a RefCell<Vec<String>>);

impl Drop for Seed<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}\nCCM_SEED={} CCM_HISTORIES=1 repeats it", self.1.borrow().join("\n"), self.0);
        }
    }
}

async fn run(seed: u64) {
    let mut history = History::new(seed);
    let log = RefCell::default();
    let _seed = Seed(seed, &log);
    for _ in 0..STEPS {
        history.step().await;
        log.replace(history.log.borrow().clone());
    }
    history.settle().await;
    history.check().await;
}

fn number(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(given) => given.parse().unwrap_or_else(|_| panic!("{variable} is {given:?}: use a number")),
        Err(_) => default,
    }
}

async fn histories(default: u64) {
    let (first, count) = (number("CCM_SEED", 1), number("CCM_HISTORIES", default));
    println!("seeds {first} to {}", first + count.saturating_sub(1));
    for seed in first..first + count {
        run(seed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn sample_of_histories_leaks_nothing() {
    histories(40).await;
}

/// `cargo test -p ccm --lib histories -- --ignored --nocapture`
#[tokio::test(start_paused = true)]
#[ignore = "slow; run it after changes of this controller"]
async fn thousand_histories_leak_nothing() {
    histories(1_000).await;
}
