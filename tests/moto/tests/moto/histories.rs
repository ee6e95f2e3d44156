//! Random histories: Services are created, changed and deleted while calls fail, responses are lost, another client
//! changes AWS and the process crashes at any time. At the end AWS has the desired state, and after the deletion of all
//! Services no resource is left.
//!
//! Every target is reachable when its Service settles, and no change interrupts that. Exceptions: users manage the
//! rules in nodes' security groups themselves, or a fault refused a rule.
//!
//! `MOTO_HISTORIES` and `MOTO_SEED` set the number of histories and the first seed; a failure prints its seed and its
//! steps. With `MOTO_SLOW=1` created resources are visible late, the setup of load balancers fails, network interfaces
//! are kept, and pages are small.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cluster_tests::{Space, eventually};
use futures::{StreamExt as _, stream};
use moto::{Effect, Fault, Instance, Moto, Server, Service};
use providers::{
    Deletion, EndpointTarget, LoadBalancerId, LoadBalancerSpec, LoadBalancers, NodeTarget, Port, Progress, Protocol,
    TargetPort, Targets,
};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};

use crate::balancers::{AccountResources, PREFIX, delete, id, new_process, settle, texts};

/// Number of Services in a history.
const SERVICES: usize = 3;
/// Number of events in a history.
const STEPS: usize = 25;
/// Number of concurrent histories on each server, each in an account of its own.
const HISTORIES_PER_SERVER: usize = 3;
/// Number of histories until the servers are restarted: they never free the memory of an account.
const HISTORIES_PER_START: usize = 100;
/// Number of histories in the usual tests.
const SAMPLE: u64 = 12;

/// A Service with its desired state.
#[derive(Default)]
struct Slot {
    desired: Option<LoadBalancerSpec>,
    /// Its deletion was requested.
    is_being_deleted: bool,
}

struct History {
    rng: StdRng,
    moto: Moto,
    instances: Vec<Instance>,
    balancers: Arc<dyn LoadBalancers>,
    slots: Vec<Slot>,
    targets: Targets,
    log: Vec<String>,
}

/// Ports with different numbers, except those that may share a listener.
const PORTS: [(u16, Protocol); 5] =
    [(80, Protocol::Tcp), (443, Protocol::Tcp), (53, Protocol::Udp), (53, Protocol::Tcp), (9000, Protocol::Udp)];

/// Annotations that may be added and removed during a Service's life.
const OPTIONAL_ANNOTATIONS: [(&str, &str); 9] = [
    ("internal", "true"),
    ("cross-zone-load-balancing-enabled", "true"),
    ("target-group-attributes", "deregistration_delay.timeout_seconds=30"),
    ("healthcheck-interval", "10"),
    ("healthcheck-protocol", "HTTP"),
    ("nlb-target-type", "ip"),
    ("additional-resource-tags", "team=web,stage=test"),
    ("enable-icmp-for-path-mtu-discovery", "on"),
    ("manage-backend-security-group-rules", "false"),
];

fn port((number, protocol): (u16, Protocol)) -> Port {
    Port {
        name: format!("{}-{number}", protocol.as_str().to_lowercase()),
        protocol,
        app_protocol: None,
        port: number,
        node_port: Some(30_000 + number % 2000),
        target_port: TargetPort::Number(8080),
    }
}

fn random_fault(rng: &mut StdRng) -> Fault {
    let refused = |code: &str| Effect::refused(code, "as scripted");
    let faults = [
        ("*", Effect::Outage),
        ("*", Effect::Slow(Duration::from_millis(200))),
        ("*", Effect::Throttle { retry_after: None }),
        ("changes", Effect::Outage),
        ("changes", Effect::ResponseLost),
        ("changes", Effect::ResponseLost),
        ("changes", refused("AccessDenied")),
        ("reads", refused("UnauthorizedOperation")),
        ("CreateLoadBalancer", refused("TooManyLoadBalancers")),
        ("CreateTargetGroup", refused("TooManyTargetGroups")),
        ("AuthorizeSecurityGroupIngress", refused("RulesPerSecurityGroupLimitExceeded")),
        ("RegisterTargets", refused("InvalidTarget")),
        ("ModifyListener", refused("UnsupportedProtocol")),
        ("DeleteSecurityGroup", Effect::in_use()),
        ("DeleteTargetGroup", refused("ResourceInUse")),
        ("DeleteLoadBalancer", Effect::Pending(Duration::from_millis(700))),
        ("DeleteTargetGroup", Effect::Pending(Duration::from_millis(400))),
    ];
    let (action, effect) = faults.choose(rng).expect("there are faults").clone();
    Fault { times: Some(rng.random_range(1..4)), ..Fault::nth(action, rng.random_range(1..8), effect) }
}

impl History {
    async fn begin(server: Arc<Server>, seed: u64) -> Result<Self> {
        let moto = Moto::on(server, crate::bed::CLUSTER).await?;
        let mut rng = StdRng::seed_from_u64(seed);
        if number("MOTO_SLOW", 0)? > 0 {
            moto.proxy.delay_visibility(rng.random_range(1..3));
            moto.proxy.delay_provisioning(rng.random_range(0..3));
            moto.proxy.fail_setup(rng.random_range(0..2));
            moto.proxy.keep_interfaces(rng.random_range(0..6));
            moto.proxy.limit_pages(rng.random_range(1..5));
        }
        let instances = moto.run(4).await?;
        let balancers = new_process(&moto).await?;
        let slots = (0..SERVICES).map(|_| Slot::default()).collect();
        let mut history = Self { rng, moto, instances, balancers, slots, targets: Targets::default(), log: Vec::new() };
        history.new_targets();
        Ok(history)
    }

    /// Chooses some of the instances, and some pods.
    fn new_targets(&mut self) {
        let mut instances = self.instances.clone();
        instances.shuffle(&mut self.rng);
        instances.truncate(self.rng.random_range(1..=self.instances.len()));
        instances.sort_by(|a, b| a.name.cmp(&b.name));
        let node = |instance: &Instance| NodeTarget {
            name: instance.name.clone(),
            provider_id: Some(instance.provider_id()),
            ..NodeTarget::default()
        };
        let pods: Vec<u8> = (1..=self.rng.random_range(1..5)).collect();
        let endpoints = PORTS.iter().flat_map(|numbered| {
            let name = port(*numbered).name;
            pods.iter().map(move |pod| EndpointTarget {
                port_name: name.clone(),
                address: [10, 0, 16, 100 + pod].into(),
                port: 8080,
                node: None,
                provider_id: None,
                zone: None,
                ready: true,
                serving: true,
                terminating: false,
                pod: None,
            })
        });
        let mut endpoints: Vec<EndpointTarget> = endpoints.collect();
        endpoints.sort_by(|a, b| (&a.port_name, a.address, a.port).cmp(&(&b.port_name, b.address, b.port)));
        let nodes = Targets::nodes(instances.iter().map(node).collect::<Vec<_>>());
        self.targets = Targets { endpoints: endpoints.into(), ..nodes };
    }

    /// Returns a Service as users write it; fields that cannot be changed later are taken from `before`.
    fn spec(&mut self, slot: usize, before: Option<&LoadBalancerSpec>) -> LoadBalancerSpec {
        let id = before.map_or_else(|| id(slot), |spec| spec.id.clone());
        let mut ports: Vec<(u16, Protocol)> = PORTS.into();
        ports.shuffle(&mut self.rng);
        ports.truncate(self.rng.random_range(1..4));
        let ports: Vec<Port> = ports.into_iter().map(port).collect();
        let mut spec = LoadBalancerSpec::new(id, ports);
        let mut annotations = BTreeMap::from([("type".to_owned(), "nlb".to_owned())]);
        for (key, value) in OPTIONAL_ANNOTATIONS {
            if self.rng.random_bool(0.25) {
                annotations.insert(key.into(), value.into());
            }
        }
        let without_groups = match before {
            Some(before) => before.annotations.contains_key(&format!("{PREFIX}disable-nlb-sg")),
            None => self.rng.random_bool(0.25),
        };
        if without_groups {
            annotations.insert("disable-nlb-sg".into(), "true".into());
        }
        spec.annotations = annotations.into_iter().map(|(key, value)| (format!("{PREFIX}{key}"), value)).collect();
        if self.rng.random_bool(0.3) {
            spec.source_ranges = vec!["192.0.2.0/24".parse().expect("a range")];
        }
        spec
    }

    /// Marks the targets of Services whose users manage the rules in nodes' security groups as opened.
    fn open_unmanaged(&self) {
        let managed = format!("{PREFIX}manage-backend-security-group-rules");
        let desired = self.slots.iter().filter_map(|slot| slot.desired.as_ref());
        let unmanaged =
            desired.filter(|desired| desired.annotations.get(&managed).is_some_and(|managed| managed == "false"));
        let names = unmanaged.flat_map(|desired| names_of(&desired.id));
        self.moto.proxy.open_by_hand(names.collect());
    }

    /// Creates or changes a Service, and reconciles it a few times.
    async fn ensure_service(&mut self, slot: usize) {
        if self.slots[slot].is_being_deleted {
            return;
        }
        let before = self.slots[slot].desired.clone();
        let is_unchanged = before.is_some() && self.rng.random_bool(0.3);
        let desired = match before.clone().filter(|_| is_unchanged) {
            Some(same) => same,
            None => self.spec(slot, before.as_ref()),
        };
        self.slots[slot].desired = Some(desired.clone());
        self.open_unmanaged();
        for _ in 0..self.rng.random_range(1..4) {
            let ensured = self.balancers.ensure(&desired, &self.targets).await;
            let settled = matches!(&ensured, Ok(ensured) if ensured.progress == Progress::Settled);
            self.log.push(match ensured {
                Ok(ensured) => format!("  {:?}", ensured.progress),
                Err(error) => format!("  {error}"),
            });
            if settled {
                break;
            }
        }
    }

    async fn step(&mut self) -> Result<()> {
        let slot = self.rng.random_range(0..SERVICES);
        let kind = self.rng.random_range(0..14);
        let event = match kind {
            0..=4 => "ensure",
            5 | 6 => "set_targets",
            7 | 8 => "delete",
            9 => "restart",
            10..=12 => "fault",
            _ => "change by another client",
        };
        self.log.push(format!("{event}, Service {slot}"));
        match kind {
            0..=4 => self.ensure_service(slot).await,
            5 | 6 => {
                self.new_targets();
                for slot in self.slots.iter().filter(|slot| !slot.is_being_deleted) {
                    if let Some(desired) = &slot.desired {
                        drop(self.balancers.set_targets(desired, &self.targets).await);
                    }
                }
            }
            7 | 8 => {
                let Some(id) = self.slots[slot].desired.as_ref().map(|desired| desired.id.clone()) else {
                    return Ok(());
                };
                self.slots[slot].is_being_deleted = true;
                for _ in 0..self.rng.random_range(1..6) {
                    if self.balancers.delete(&id).await == Ok(Deletion::Gone) {
                        self.slots[slot] = Slot::default();
                        self.log.push("  deleted".into());
                        break;
                    }
                }
            }
            // The process is restarted. If its first calls fail, the old one continues.
            9 => match new_process(&self.moto).await {
                Ok(balancers) => self.balancers = balancers,
                Err(error) => self.log.push(format!("  {error:#}")),
            },
            10..=12 => {
                let fault = random_fault(&mut self.rng);
                self.log.push(format!("  {fault:?}"));
                self.moto.proxy.arm(fault);
            }
            _ => self.change_as_another_client().await?,
        }
        Ok(())
    }

    /// Another client changes something in AWS.
    async fn change_as_another_client(&mut self) -> Result<()> {
        let resources = AccountResources::read(&self.moto).await?;
        let (Some(balancer), Some(group)) =
            (resources.balancers.choose(&mut self.rng), resources.target_groups.choose(&mut self.rng))
        else {
            return Ok(());
        };
        let (balancer, group) = (balancer.as_str(), group.as_str());
        let choice = self.rng.random_range(0..4);
        self.log.push(format!("  another client: {choice}"));
        let aws = &self.moto.aws;
        let elb = async |action: &str, parameters: &[(&str, &str)]| aws.call(Service::Elb, action, parameters).await;
        match choice {
            0 => drop(elb("DeleteLoadBalancer", &[("LoadBalancerArn", balancer)]).await?),
            1 => {
                let listeners = elb("DescribeListeners", &[("LoadBalancerArn", balancer)]).await?;
                if let Some(listener) = texts(&listeners, "ListenerArn").first() {
                    elb("DeleteListener", &[("ListenerArn", listener.as_str())]).await?;
                }
            }
            2 => {
                let parameters = [
                    ("LoadBalancerArn", balancer),
                    ("Attributes.member.1.Key", "load_balancing.cross_zone.enabled"),
                    ("Attributes.member.1.Value", "true"),
                ];
                elb("ModifyLoadBalancerAttributes", &parameters).await?;
            }
            // AWS refuses to delete a group in use.
            _ => drop(elb("DeleteTargetGroup", &[("TargetGroupArn", group)]).await),
        }
        Ok(())
    }

    /// Stops all faults, and checks that AWS reaches the desired state and that everything can be deleted.
    async fn finish(&mut self) -> Result<()> {
        self.moto.proxy.disarm();
        self.moto.proxy.delay_visibility(0);
        self.moto.proxy.delay_provisioning(0);
        self.moto.proxy.fail_setup(0);
        eventually("all deletions were executed", || async {
            ensure!(self.moto.proxy.pending() == 0, "{} are pending", self.moto.proxy.pending());
            Ok(())
        })
        .await?;
        self.balancers = new_process(&self.moto).await?;
        let mut desired: Vec<LoadBalancerSpec> = Vec::new();
        for slot in std::mem::take(&mut self.slots) {
            match (slot.desired, slot.is_being_deleted) {
                (Some(spec), true) => delete(&*self.balancers, &spec.id).await?,
                (Some(spec), false) => desired.push(spec),
                (None, _) => {}
            }
        }
        for spec in &desired {
            settle(&self.moto, &*self.balancers, spec, &self.targets).await?;
        }
        self.check_desired_state(&desired).await?;
        for spec in &desired {
            delete(&*self.balancers, &spec.id).await?;
        }
        let resources = AccountResources::read(&self.moto).await?;
        ensure!(resources.is_empty(), "leaked: {resources:?}");
        let owned = self.balancers.list_owned().await?;
        ensure!(owned.is_empty(), "listed as leaked: {owned:?}");
        Ok(())
    }

    async fn check_desired_state(&self, desired: &[LoadBalancerSpec]) -> Result<()> {
        let resources = AccountResources::read(&self.moto).await?;
        let listeners = |spec: &LoadBalancerSpec| {
            let mut numbers: Vec<u16> = spec.ports.iter().map(|port| port.port).collect();
            numbers.sort_unstable();
            numbers.dedup();
            numbers.len()
        };
        ensure!(resources.balancers.len() == desired.len(), "{} Services have {resources:?}", desired.len());
        let listeners: usize = desired.iter().map(listeners).sum();
        ensure!(resources.target_groups.len() == listeners, "{listeners} listeners have {resources:?}");
        let instances: BTreeSet<String> = self
            .targets
            .nodes
            .iter()
            .filter_map(|node| Some(node.provider_id.as_ref()?.rsplit('/').next()?.into()))
            .collect();
        let pods: BTreeSet<String> = self.targets.endpoints.iter().map(|pod| pod.address.to_string()).collect();
        for group in &resources.target_groups {
            let health = [("TargetGroupArn", &**group)];
            let health = self.moto.aws.call(Service::Elb, "DescribeTargetHealth", &health).await?;
            let targets: BTreeSet<String> = texts(&health, "Id").into_iter().collect();
            ensure!(targets == instances || targets == pods, "{group} has {targets:?}, not {instances:?} or {pods:?}");
        }
        let wanted: Vec<LoadBalancerId> = desired.iter().map(|spec| spec.id.clone()).collect();
        let owned = self.balancers.list_owned().await?;
        ensure!(owned.iter().all(|owned| wanted.contains(&owned.id)), "{owned:?} is more than {wanted:?}");
        self.check_listeners(desired, &resources).await?;
        self.check_security_groups(desired, &resources).await
    }

    /// Checks that each load balancer has the listeners of its Service, each with a target group of its own.
    async fn check_listeners(&self, desired: &[LoadBalancerSpec], resources: &AccountResources) -> Result<()> {
        let aws = &self.moto.aws;
        let mut used = BTreeSet::new();
        for arn in &resources.balancers {
            let tags = aws.call(Service::Elb, "DescribeTags", &[("ResourceArns.member.1", arn)]).await?;
            let own = desired.iter().find(|spec| tags.contains(&spec.id.uid));
            let own = own.with_context(|| format!("{arn} belongs to no Service"))?;
            let listeners = aws.call(Service::Elb, "DescribeListeners", &[("LoadBalancerArn", arn)]).await?;
            let found: BTreeSet<String> = texts(&listeners, "Port").into_iter().collect();
            let expected: BTreeSet<String> = own.ports.iter().map(|port| port.port.to_string()).collect();
            ensure!(found == expected, "{}: listeners for {found:?}, not {expected:?}", own.id);
            used.extend(texts(&listeners, "TargetGroupArn"));
        }
        let all: BTreeSet<String> = resources.target_groups.iter().cloned().collect();
        ensure!(used == all, "listeners use {used:?}, and there are {all:?}");
        Ok(())
    }

    /// Checks the security groups of load balancers with their rules, and that rules of the nodes' group name only load
    /// balancers that exist.
    async fn check_security_groups(&self, desired: &[LoadBalancerSpec], resources: &AccountResources) -> Result<()> {
        let mut known = BTreeSet::new();
        for spec in desired {
            let own = [("Filter.1.Name", "tag:kubernetes.io/service-uid"), ("Filter.1.Value.1", &*spec.id.uid)];
            let groups = self.moto.aws.ec2("DescribeSecurityGroups", &own, "groupId").await?;
            match (&groups[..], is_set(spec, "disable-nlb-sg", "true")) {
                ([], true) => {}
                ([group], false) => {
                    let found = self.incoming(group).await?.into_iter().map(|[rule, _]| rule).collect();
                    let expected = front_rules(spec);
                    ensure!(expected == found, "{}: {found:?}, not {expected:?}", spec.id);
                }
                _ => anyhow::bail!("{} has the security groups {groups:?}", spec.id),
            }
            known.extend(groups);
        }
        let backend = [("Filter.1.Name", "tag-key"), ("Filter.1.Value.1", "kubernetes.io/load-balancer-backend")];
        let backend = self.moto.aws.ec2("DescribeSecurityGroups", &backend, "groupId").await?;
        ensure!(backend.len() <= 1, "several shared groups: {backend:?}");
        known.extend(backend);
        let others: Vec<_> = resources.security_groups.difference(&known).collect();
        ensure!(others.is_empty(), "{others:?} belong to no Service");
        for [rule, description] in self.incoming(&self.moto.network.group).await? {
            let Some((_, name)) = description.split_once("=") else { continue };
            let without_groups = desired.iter().filter(|spec| is_set(spec, "disable-nlb-sg", "true"));
            let mut names = without_groups.flat_map(|spec| names_of(&spec.id));
            ensure!(names.any(|own| name.starts_with(&own)), "{rule} is for the deleted load balancer {name}");
        }
        Ok(())
    }

    /// Returns the incoming rules of a security group, each with its description.
    async fn incoming(&self, group: &str) -> Result<BTreeSet<[String; 2]>> {
        let filter = [("Filter.1.Name", "group-id"), ("Filter.1.Value.1", group)];
        let rules = self.moto.aws.list(Service::Ec2, "DescribeSecurityGroupRules", &filter, "securityGroupRuleSet");
        let rules = rules.await?;
        let incoming = rules.iter().filter(|rule| rule.text("isEgress") == "false");
        let fields = ["ipProtocol", "fromPort", "toPort", "cidrIpv4"];
        Ok(incoming
            .map(|rule| [fields.map(|field| rule.text(field)).join(" "), rule.text("description").to_owned()])
            .collect())
    }
}

fn is_set(spec: &LoadBalancerSpec, annotation: &str, value: &str) -> bool {
    spec.annotations.get(&format!("{PREFIX}{annotation}")).is_some_and(|found| found == value)
}

/// Returns the rules that the clients of a Service need in the security group of its load balancer.
fn front_rules(spec: &LoadBalancerSpec) -> BTreeSet<String> {
    let clients = spec.source_ranges.first().map_or_else(|| "0.0.0.0/0".to_owned(), ToString::to_string);
    let port = |port: &Port| {
        let (protocol, number) = (port.protocol.as_str().to_lowercase(), port.port);
        format!("{protocol} {number} {number} {clients}")
    };
    let mut rules: BTreeSet<String> = spec.ports.iter().map(port).collect();
    if is_set(spec, "enable-icmp-for-path-mtu-discovery", "on") {
        rules.insert(format!("icmp 3 4 {clients}"));
    }
    rules
}

/// Returns the beginnings of the names that load balancers of a Service may have.
fn names_of(id: &LoadBalancerId) -> [String; 2] {
    let service = id.name.replace('-', "");
    [id.default_name(), format!("k8s-{}-{service}-", id.namespace.replace('-', ""))]
}

/// Runs one history; an error contains its seed.
async fn run_history(server: Arc<Server>, seed: u64) -> Result<()> {
    let mut history = History::begin(server, seed).await?;
    let mut result = Ok(());
    for _ in 0..STEPS {
        result = history.step().await;
        if result.is_err() {
            break;
        }
    }
    if result.is_ok() {
        result = history.finish().await;
    }
    result.with_context(|| format!("{}\nMOTO_SEED={seed} MOTO_HISTORIES=1 repeats it", history.log.join("\n")))
}

/// Returns the number in an environment variable.
fn number(variable: &str, default: u64) -> Result<u64> {
    match std::env::var(variable) {
        Ok(given) => given.parse().with_context(|| format!("{variable} is {given:?}: use a number")),
        Err(_) => Ok(default),
    }
}

async fn histories(default: u64) -> Result<()> {
    let (first, count) = (number("MOTO_SEED", 1)?, number("MOTO_HISTORIES", default)?);
    println!("seeds {first} to {}", first + count.saturating_sub(1));
    let seeds: Vec<u64> = (first..first + count).collect();
    // A server handles one call at a time.
    let server_count = std::thread::available_parallelism().map_or(1, usize::from);
    let mut failed = 0;
    for seeds in seeds.chunks(HISTORIES_PER_START) {
        let servers = (0..server_count).map(|_| tokio::task::spawn_blocking(|| Server::start(None).map(Arc::new)));
        let servers: Vec<Arc<Server>> =
            futures::future::try_join_all(servers).await?.into_iter().collect::<Result<_>>()?;
        let assignments: Vec<(Arc<Server>, u64)> = servers.iter().cycle().cloned().zip(seeds.iter().copied()).collect();
        let histories = stream::iter(assignments).map(|(server, seed)| run_history(server, seed));
        let mut results = histories.buffer_unordered(HISTORIES_PER_SERVER * server_count);
        while let Some(result) = results.next().await {
            if let Err(error) = result {
                failed += 1;
                println!("{error:#}\n");
            }
        }
        println!("to seed {}: {failed} histories leaked resources or failed", seeds[seeds.len() - 1]);
    }
    ensure!(failed == 0, "{failed} of {count} histories leaked resources or failed; their steps are above");
    Ok(())
}

/// Few histories, because each takes seconds.
pub async fn sample_of_histories_leaks_nothing(_: Space) -> Result<()> {
    histories(SAMPLE).await
}

/// Runs only in `cargo xtask soak --only aws`.
pub async fn thousand_histories_leak_nothing(_: Space) -> Result<()> {
    histories(1_000).await
}
