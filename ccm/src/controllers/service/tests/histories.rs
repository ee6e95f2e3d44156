//! Random histories: whatever users, nodes, the cloud, the API server and the process's own death do, in the end the
//! cloud has what the Services ask for, and nothing else.
//!
//! `CCM_HISTORIES` and `CCM_SEED` choose how many, and from which seed on; a failure prints its seed.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kinds::Service;
use kinds::service::ServiceType;
use provider_mock::{BalancerView, Effect, Fault, MockConfig, Operation, Pattern};
use providers::{LoadBalancerId, TargetId};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::world::{CLUSTER, Process, World, WriteFault, annotated, key, node, pass, port, service};
use crate::controllers::service::decide::{self, is_held};

const SERVICES: usize = 4;
const STEPS: usize = 50;

struct History {
    rng: StdRng,
    world: Arc<World>,
    process: Option<Process>,
    /// Balancers whose hold a person took away, or that were hidden by such a person's deed.
    unheld: BTreeSet<LoadBalancerId>,
    log: RefCell<Vec<String>>,
}

/// What a Service's annotations ask for.
const WISHES: [&[(&str, &str)]; 5] = [
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
        (Pattern::Changes, Effect::AnswerLost),
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
        let world = World::new(MockConfig {
            seed,
            provisioning_millis: if slow { 5_000 } else { 0 },
            deletion_millis: if slow { 20_000 } else { 0 },
            ..MockConfig::default()
        });
        let process = Some(Process::start(&world, 2));
        Self { rng, world, process, unheld: BTreeSet::new(), log: RefCell::default() }
    }

    fn note(&self, what: impl Into<String>) {
        self.log.borrow_mut().push(what.into());
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("a process")
    }

    async fn restart(&mut self) {
        self.process.take().expect("a process").crash().await;
        self.process = Some(Process::start(&self.world, 2));
    }

    /// Changes a Service, which the watch may tell of only later.
    fn change(&mut self, name: &str, change: impl FnOnce(&mut Service)) {
        self.world.change(&key(name), change);
        if self.rng.random_bool(0.7) {
            self.process().deliver(&key(name));
        }
    }

    async fn step(&mut self) {
        let name = format!("web-{}", self.rng.random_range(0..SERVICES));
        let kind = self.rng.random_range(0..14);
        self.note(format!("{kind} {name}"));
        match kind {
            0..=2 => {
                let mut new = service(&name);
                annotated(&mut new, WISHES.choose(&mut self.rng).expect("wishes"));
                self.world.create(new);
                self.process().deliver(&key(&name));
            }
            3 => {
                self.world.delete(&key(&name));
                self.process().deliver(&key(&name));
            }
            4 => {
                let wish = *WISHES.choose(&mut self.rng).expect("wishes");
                self.change(&name, |service| annotated(service, wish));
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
                self.world.set_nodes((0..count).map(|n| node(&format!("node-{n}"))).collect());
                self.process().nodes_changed();
            }
            8 => {
                self.world.cloud.add_fault(random_fault(&mut self.rng)).expect("a fault that works");
            }
            9 => {
                let fault = *[WriteFault::Refused, WriteFault::Lost].choose(&mut self.rng).expect("faults");
                self.world.add_fault(fault);
            }
            10 => {
                let acts = self.rng.random_range(1..6);
                self.world.die_after(acts);
            }
            11 if self.rng.random_bool(0.3) => {
                // A person forces it: only a process that goes on living can know what was there.
                let id = self.world.get(&key(&name)).map(|service| decide::id(&service.meta, CLUSTER));
                self.unheld.extend(id);
                self.change(&name, |service| service.meta.finalizers = [].into());
            }
            12 => self.process().deliver_all(),
            _ => {
                let seconds = self.rng.random_range(0.0..30.0);
                pass(seconds).await;
            }
        }
        pass(0.001).await;
        if self.world.is_dead() {
            self.note("dead");
            self.restart().await;
        }
    }

    async fn settle(&mut self) {
        self.world.clear_faults();
        self.world.die_after(u64::MAX);
        for _ in 0..8 {
            self.process().deliver_all();
            pass(100.0).await;
        }
    }

    async fn check(&self) {
        let snapshot = self.world.cloud.snapshot();
        let mut there: BTreeMap<&LoadBalancerId, &BalancerView> =
            snapshot.balancers.iter().map(|b| (&b.id, b)).collect();
        assert_eq!(there.len(), snapshot.balancers.len(), "each once");
        for service in self.world.services().values() {
            let id = decide::id(&service.meta, CLUSTER);
            let wish = &*service.annotations;
            assert!(!service.meta.is_deleting(), "{id} was to go");
            if service.kind != ServiceType::LoadBalancer || wish.iter().any(|(_, value)| &**value == "elsewhere") {
                assert!(!is_held(&service.meta), "{id} is held for nothing");
                continue;
            }
            if wish.iter().any(|(_, value)| &**value == "inside") {
                // What it had before it asked for the impossible stays, and is held.
                assert!(there.remove(&id).is_none() || is_held(&service.meta) || self.unheld.contains(&id), "{id}");
                continue;
            }
            let balancer = there.remove(&id).unwrap_or_else(|| panic!("{id} has no balancer"));
            assert!(is_held(&service.meta), "{id}");
            assert_eq!(balancer.internal, wish.iter().any(|(_, value)| &**value == "internal"), "{id}");
            let ports: Vec<_> = service.ports.iter().map(|port| port.port).collect();
            assert_eq!(balancer.listeners.iter().map(|l| i32::from(l.port)).collect::<Vec<_>>(), ports, "{id}");
            let ids = self
                .world
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
        for id in there.keys() {
            assert!(self.unheld.contains(id), "{id} {} leaked", id.uid);
        }
        // A Service that somebody else balances may want it back: as long as it is there it is not told of.
        let wanting = self.world.services().into_values().filter(|service| service.kind == ServiceType::LoadBalancer);
        let wanting: BTreeSet<_> = wanting.map(|service| decide::id(&service.meta, CLUSTER)).collect();
        let leaks = there.keys().filter(|id| !wanting.contains(id)).count();
        assert_eq!(self.process().leaks().await, leaks, "{there:?}");
    }
}

/// Prints how to run a history again if it ends in a panic.
struct Seed<'a>(u64, &'a RefCell<Vec<String>>);

impl Drop for Seed<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}\nCCM_SEED={} CCM_HISTORIES=1 shows it again", self.1.borrow().join("\n"), self.0);
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
async fn a_sample_of_histories_leaks_nothing() {
    histories(40).await;
}

/// `cargo test -p ccm --lib histories -- --ignored --nocapture`
#[tokio::test(start_paused = true)]
#[ignore = "takes long; run it after changes of this controller"]
async fn a_thousand_histories_leak_nothing() {
    histories(1_000).await;
}
