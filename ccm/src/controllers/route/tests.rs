//! Tables of plans, and passes over the mock cloud until the routes match the nodes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ipnet::IpNet;
use kinds::Node;
use kinds::meta::Time;
use kinds::node::NodeCondition;
use kinds::node_cloud::{NETWORK_UNAVAILABLE, NodeAddress};
use provider_mock::{Effect, Fault, InstanceConfig, MockCloud, MockConfig, Operation, Pattern, Quotas};
use providers::{Address, AddressKind, InstanceRef, Route, RouteChange, RouteTarget, async_trait};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use runtime::store::Change;
use runtime::worker::Outcome;

use super::decide::{RouteNode, cluster_networks, plan};
use super::kubernetes::{route_node, routes_differ};
use super::sync::{ClusterAccess, RouteTable};

const CLUSTER: &str = "10.244.0.0/16,fd00:10:244::/56";

fn cluster() -> Vec<IpNet> {
    cluster_networks(CLUSTER).expect("two networks")
}

fn net(text: &str) -> IpNet {
    text.parse().expect("a network")
}

fn id(name: &str) -> String {
    format!("mock://mock-1/{name}")
}

fn node(name: &str, cidrs: &[&str]) -> RouteNode {
    RouteNode {
        instance: InstanceRef::named(name).with_provider_id(id(name)),
        uid: format!("uid-{name}"),
        addresses: vec![Address { kind: AddressKind::InternalIP, address: "10.0.0.1".into() }],
        pod_cidrs: cidrs.iter().map(|cidr| (*cidr).to_owned()).collect(),
        reported: None,
    }
}

fn route(destination: &str, target: RouteTarget) -> Route {
    Route { name: String::new(), destination: net(destination), target, addresses: None }
}

fn to(name: &str) -> RouteTarget {
    RouteTarget::Instance(id(name))
}

/// Returns the changes of a plan, and for each node its state: `ok`, `-` if nothing is reported, or the problem.
fn planned(nodes: &[RouteNode], routes: &[Route]) -> (Vec<String>, Vec<String>) {
    let plan = plan(nodes, routes, &cluster(), true);
    let change = |change: &RouteChange| match change {
        RouteChange::Set(spec) => format!("set {} {}", spec.destination, spec.instance.node),
        RouteChange::Remove(route) => format!("remove {}", route.destination),
    };
    let state = |state: &Option<super::decide::NodeState>| match state {
        None => "-".to_owned(),
        Some(state) if state.without_pod_cidrs => "no pod CIDRs".to_owned(),
        Some(state) if !state.terminal.is_empty() => state.terminal[0].1.clone(),
        Some(state) if state.needs.is_empty() => "ok".to_owned(),
        Some(state) => format!("needs {:?}", state.needs),
    };
    (plan.changes.iter().map(change).collect(), plan.nodes.iter().map(state).collect())
}

#[test]
fn plan_compares_routes_with_nodes() {
    let (a, b) = ("10.244.0.0/24", "10.244.1.0/24");
    let six = "fd00:10:244::/64";
    type Case<'a> = (&'a str, Vec<RouteNode>, Vec<Route>, &'a [&'a str], &'a [&'a str]);
    let with_address = |addresses: &str| {
        let address = Address { kind: AddressKind::InternalIP, address: addresses.into() };
        Route { addresses: Some(vec![address]), ..route(a, to("a")) }
    };
    let cases: Vec<Case<'_>> = vec![
        ("nothing", vec![], vec![], &[], &[]),
        ("a node without network", vec![node("a", &[])], vec![], &[], &["-"]),
        ("a new node", vec![node("a", &[a])], vec![], &["set 10.244.0.0/24 a"], &["needs [0]"]),
        ("a node that has its route", vec![node("a", &[a])], vec![route(a, to("a"))], &[], &["ok"]),
        (
            "a route by the node's name",
            vec![node("a", &[a])],
            vec![route(a, RouteTarget::Node("a".into()))],
            &[],
            &["ok"],
        ),
        (
            "two families",
            vec![node("a", &[a, six])],
            vec![route(a, to("a"))],
            &["set fd00:10:244::/64 a"],
            &["needs [0]"],
        ),
        (
            "a route elsewhere is replaced",
            vec![node("a", &[a])],
            vec![route(a, to("z"))],
            &["set 10.244.0.0/24 a"],
            &["needs [0]"],
        ),
        (
            "a blackhole is replaced",
            vec![node("a", &[a])],
            vec![route(a, RouteTarget::Blackhole)],
            &["set 10.244.0.0/24 a"],
            &["needs [0]"],
        ),
        (
            "a blackhole that no node needs",
            vec![],
            vec![route(b, RouteTarget::Blackhole)],
            &["remove 10.244.1.0/24"],
            &[],
        ),
        (
            "a route of a deleted node",
            vec![node("a", &[a])],
            vec![route(a, to("a")), route(b, to("b"))],
            &["remove 10.244.1.0/24"],
            &["ok"],
        ),
        (
            "routes outside of the cluster's networks",
            vec![],
            vec![route("192.168.0.0/24", to("z")), route("192.0.2.0/24", RouteTarget::Blackhole)],
            &[],
            &[],
        ),
        (
            "a route that contains the cluster's network",
            vec![],
            vec![route("10.244.0.0/15", to("z"))],
            &["remove 10.244.0.0/15"],
            &[],
        ),
        (
            "a node whose network was removed",
            vec![node("a", &[])],
            vec![route(a, to("a"))],
            &["remove 10.244.0.0/24"],
            &["no pod CIDRs"],
        ),
        (
            "a node outside of the cluster's network",
            vec![node("a", &["192.168.7.0/24"])],
            vec![],
            &["set 192.168.7.0/24 a"],
            &["needs [0]"],
        ),
        (
            "two nodes with one network",
            vec![node("a", &[a]), node("b", &[a])],
            vec![],
            &["set 10.244.0.0/24 a"],
            &["needs [0]", "the network already belongs to node a"],
        ),
        (
            "the node with the route keeps it",
            vec![node("a", &[a]), node("b", &[a])],
            vec![route(a, to("b"))],
            &[],
            &["the network already belongs to node b", "ok"],
        ),
        (
            "an invalid network",
            vec![node("a", &["nonsense"])],
            vec![],
            &[],
            &["spec.podCIDRs contains an invalid network"],
        ),
        ("the addresses are the node's", vec![node("a", &[a])], vec![with_address("10.0.0.1")], &[], &["ok"]),
        (
            "the addresses are old",
            vec![node("a", &[a])],
            vec![with_address("10.0.0.9")],
            &["set 10.244.0.0/24 a"],
            &["needs [0]"],
        ),
        ("host bits are ignored", vec![node("a", &["10.244.0.1/24"])], vec![route(a, to("a"))], &[], &["ok"]),
    ];
    for (case, nodes, routes, changes, states) in cases {
        let (planned_changes, node_states) = planned(&nodes, &routes);
        assert_eq!(planned_changes, changes, "{case}");
        assert_eq!(node_states, states, "{case}");
    }
    let incomplete = plan(&[], &[route(b, to("b"))], &cluster(), false);
    assert_eq!(incomplete.changes, [], "nothing is removed while a node cannot be decoded");
}

#[test]
fn cluster_networks_are_validated() {
    for good in ["10.244.0.0/16", " 10.244.0.0/16,fd00::/56 "] {
        assert!(cluster_networks(good).is_ok(), "{good}");
    }
    for (bad, why) in [
        ("", "use the pods' network"),
        ("10.244.0.0", "use the pods' network"),
        ("10.0.0.0/16,10.1.0.0/16", "one network of each IP family"),
        ("10.0.0.0/16,fd00::/56,10.1.0.0/16", "at most two networks, not 3"),
    ] {
        let error = cluster_networks(bad).expect_err(bad);
        assert!(error.starts_with("--cluster-cidr is ") && error.contains(why), "{error}");
    }
}

/// Returns the record of a node in the cache.
fn cached_node() -> Node {
    crate::controllers::node::tests::node(&[("InternalIP", "10.0.0.1")], None)
}

#[test]
fn only_the_condition_of_this_controller_reports_routes() {
    for (status, reason, expected) in [
        ("", "", None),
        ("False", "RouteCreated", Some(true)),
        ("False", "CalicoIsUp", None),
        ("True", "NoRouteCreated", Some(false)),
        ("True", "RouteCreated", None),
        ("False", "NoRouteCreated", None),
    ] {
        let mut node = cached_node();
        if !status.is_empty() {
            let (kind, status) = (NETWORK_UNAVAILABLE.into(), status.into());
            let condition = NodeCondition { kind, status, heartbeat: Time::default(), transition: Time::default() };
            node.conditions = [condition].into();
        }
        node.cloud.as_mut().expect("a cloud").network_reason = reason.into();
        assert_eq!(route_node(&node, &[]).reported, expected, "{status} {reason}");
    }
}

#[test]
fn change_of_a_node_causes_a_pass_if_routes_depend_on_it() {
    let cloud = |node: &mut Node, change: fn(&mut kinds::node_cloud::NodeCloud)| {
        change(node.cloud.as_mut().expect("a cloud"));
    };
    type Edit<'a> = &'a dyn Fn(&mut Node);
    let edits: [(&str, Edit<'_>, bool); 7] = [
        ("nothing", &|_| {}, false),
        ("labels", &|node| node.meta.labels = [("a".into(), "b".into())].into(), false),
        ("cordoned", &|node| node.unschedulable = true, false),
        ("pod networks", &|node| node.pod_cidrs = ["10.244.0.0/24".into()].into(), true),
        (
            "addresses",
            &|node| {
                cloud(node, |cloud| {
                    cloud.addresses = [NodeAddress { kind: "InternalIP".into(), address: "10.0.0.2".into() }].into();
                });
            },
            true,
        ),
        ("provider ID", &|node| cloud(node, |cloud| cloud.provider_id = "mock://mock-1/a".into()), true),
        ("condition of another client", &|node| cloud(node, |cloud| cloud.network_reason = "CalicoIsUp".into()), true),
    ];
    for (name, edit, expected) in edits {
        let mut new = cached_node();
        edit(&mut new);
        let (old, new) = (Arc::new(cached_node()), Arc::new(new));
        assert_eq!(routes_differ(&Change { old: Some(&old), new: Some(&new) }), expected, "{name}");
        assert!(
            routes_differ(&Change { old: None, new: Some(&new) })
                && routes_differ(&Change { old: Some(&old), new: None })
        );
    }
}

/// Nodes in memory.
#[derive(Default)]
struct FakeCluster {
    nodes: Mutex<Vec<RouteNode>>,
    warnings: Mutex<Vec<String>>,
    condition_writes: Mutex<usize>,
}

struct FakeClusterAccess(Arc<FakeCluster>);

#[async_trait]
impl ClusterAccess for FakeClusterAccess {
    fn nodes(&self) -> (Vec<RouteNode>, bool) {
        (self.0.nodes.lock().expect("no panic").clone(), true)
    }
    fn warn(&self, node: &RouteNode, message: String) {
        self.0.warnings.lock().expect("no panic").push(format!("{}: {message}", node.instance.node));
    }
    async fn set_network_condition(&self, node: &RouteNode, created: bool) -> Result<(), String> {
        *self.0.condition_writes.lock().expect("no panic") += 1;
        let mut nodes = self.0.nodes.lock().expect("no panic");
        nodes.iter_mut().filter(|known| known.uid == node.uid).for_each(|known| known.reported = Some(created));
        Ok(())
    }
}

fn fake(names: &[&str]) -> (Arc<FakeCluster>, MockCloud, RouteTable<FakeClusterAccess>) {
    let cloud = MockCloud::new(MockConfig::default()).expect("a cloud");
    let fake = Arc::new(FakeCluster::default());
    for (at, name) in names.iter().enumerate() {
        cloud.add_instance(&InstanceConfig::named(*name));
        fake.nodes.lock().expect("no panic").push(node(name, &[&format!("10.244.{at}.0/24")]));
    }
    let routes = cloud.provider("cluster").routes().expect("the mock routes");
    let table = RouteTable::new(FakeClusterAccess(fake.clone()), routes, cluster(), Duration::from_secs(10));
    (fake, cloud, table)
}

fn conditions(fake: &FakeCluster) -> Vec<Option<bool>> {
    fake.nodes.lock().expect("no panic").iter().map(|node| node.reported).collect()
}

#[tokio::test(start_paused = true)]
async fn pass_makes_one_list_and_one_change_per_route() {
    let names: Vec<_> = (0..200).map(|n| format!("node-{n}")).collect();
    let (fake, cloud, table) = fake(&names.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(table.pass().await, Outcome::RequeueAfter(Duration::from_secs(10)));
    assert_eq!((cloud.calls(Operation::ListRoutes).calls, cloud.calls(Operation::SetRoute).calls), (1, 200));
    assert!(conditions(&fake).iter().all(|reported| *reported == Some(true)));
    for _ in 0..5 {
        table.pass().await;
    }
    assert_eq!((cloud.calls(Operation::ListRoutes).calls, cloud.changing_calls()), (6, 200), "later passes only list");
    assert_eq!(*fake.condition_writes.lock().expect("no panic"), 200);
}

#[tokio::test(start_paused = true)]
async fn failed_route_does_not_block_others() {
    let (fake, cloud, table) = fake(&["a", "b", "c"]);
    let fault = Fault::always(Pattern::One(Operation::SetRoute), Effect::Denied).about("10.244.1.0/24");
    cloud.add_fault(fault).expect("a fault");
    for _ in 0..10 {
        table.pass().await;
        tokio::time::advance(Duration::from_secs(10)).await;
    }
    assert_eq!(conditions(&fake), [Some(true), Some(false), Some(true)]);
    let calls = cloud.calls(Operation::SetRoute).calls;
    assert!((4..=5).contains(&calls), "{calls} calls: retries have a backoff");
    let warnings = fake.warnings.lock().expect("no panic").clone();
    assert_eq!(
        warnings,
        ["b: Could not create route uid-b 10.244.1.0/24 for node b: SetRoute: the credentials do not allow it"]
    );
    cloud.clear_faults();
    tokio::time::advance(Duration::from_secs(60)).await;
    table.pass().await;
    assert_eq!(conditions(&fake), [Some(true); 3]);
}

#[tokio::test(start_paused = true)]
async fn foreign_routes_are_kept() {
    let (fake, cloud, table) = fake(&["a"]);
    cloud.add_foreign_route(net("10.244.0.0/24"));
    cloud.add_foreign_route(net("10.244.9.0/24"));
    for _ in 0..3 {
        table.pass().await;
        tokio::time::advance(Duration::from_secs(60)).await;
    }
    assert_eq!(conditions(&fake), [Some(false)]);
    assert_eq!(cloud.snapshot().routes.iter().filter(|route| route.target.is_none()).count(), 2);
}

#[tokio::test(start_paused = true)]
async fn failed_list_changes_nothing() {
    let (fake, cloud, table) = fake(&["a"]);
    let throttle = Effect::Throttle { after_millis: Some(45_000) };
    cloud.add_fault(Fault::at(Pattern::One(Operation::ListRoutes), 1, throttle)).expect("a fault");
    assert_eq!(table.pass().await, Outcome::RequeueAfter(Duration::from_secs(45)));
    assert_eq!((cloud.changing_calls(), conditions(&fake)), (0, vec![None]));
    table.pass().await;
    assert_eq!(conditions(&fake), [Some(true)]);
}

#[tokio::test(start_paused = true)]
async fn outcome_of_a_pass_is_that_of_upstream() {
    let (_, cloud, table) = fake(&["a", "b"]);
    cloud.add_fault(Fault::always(Pattern::One(Operation::SetRoute), Effect::Denied)).expect("a fault");
    assert_eq!(table.run().await.1, "noop", "no route was created");
    cloud.clear_faults();
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(table.run().await.1, "changed");
    assert_eq!(table.run().await.1, "noop");
    cloud.add_fault(Fault::at(Pattern::One(Operation::ListRoutes), 1, Effect::Transient)).expect("a fault");
    assert_eq!(table.run().await.1, "error");
}

async fn history(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let (fake, cloud, mut table) = fake(&["n0", "n1"]);
    for _ in 0..60 {
        let name = format!("n{}", rng.random_range(0..5));
        let cidr = format!("10.244.{}.0/24", rng.random_range(0..5));
        match rng.random_range(0..9) {
            0 => {
                cloud.add_instance(&InstanceConfig::named(name.clone()));
                let mut nodes = fake.nodes.lock().expect("no panic");
                if nodes.iter().all(|node| node.instance.node != name) {
                    let uid = format!("uid-{name}-{}", rng.random_range(0..1000));
                    nodes.push(RouteNode { uid, ..node(&name, &[&cidr]) });
                }
            }
            1 => {
                if rng.random_bool(0.7) {
                    cloud.remove_instance(&name);
                }
                fake.nodes.lock().expect("no panic").retain(|node| node.instance.node != name);
            }
            2 => {
                let mut nodes = fake.nodes.lock().expect("no panic");
                if let Some(node) = nodes.iter_mut().find(|node| node.instance.node == name) {
                    node.pod_cidrs = if rng.random_bool(0.3) { Vec::new() } else { vec![cidr] };
                }
            }
            3 => {
                let effects = [
                    (Pattern::Any, Effect::Throttle { after_millis: Some(3_000) }),
                    (Pattern::Any, Effect::Transient),
                    (Pattern::Changes, Effect::Quota),
                    (Pattern::Changes, Effect::Conflict),
                    (Pattern::Changes, Effect::ResponseLost),
                    (Pattern::Any, Effect::Denied),
                ];
                let (operation, effect) = *effects.choose(&mut rng).expect("effects");
                let times = Some(rng.random_range(1..4));
                let fault = Fault { probability: Some(0.5), times, ..Fault::always(operation, effect) };
                cloud.add_fault(fault).expect("a fault");
            }
            4 => cloud.set_quotas(Quotas { routes: Some(rng.random_range(1..6)), ..Quotas::default() }),
            5 => {
                // The process crashes, and another one continues without its state.
                let routes = cloud.provider("cluster").routes().expect("routes");
                table = RouteTable::new(FakeClusterAccess(fake.clone()), routes, cluster(), Duration::from_secs(10));
            }
            _ => _ = table.pass().await,
        }
        tokio::time::advance(Duration::from_secs(rng.random_range(0..20))).await;
    }
    cloud.clear_faults();
    cloud.set_quotas(Quotas::default());
    for _ in 0..10 {
        tokio::time::advance(Duration::from_secs(60)).await;
        table.pass().await;
    }
    let nodes = fake.nodes.lock().expect("no panic").clone();
    assert_desired_routes(seed, &nodes, &cloud);
}

/// Fails unless each node of an existing instance has its routes, and no other route exists.
fn assert_desired_routes(seed: u64, nodes: &[RouteNode], cloud: &MockCloud) {
    let routes = cloud.snapshot().routes;
    let instances = cloud.snapshot().instances;
    for route in &routes {
        let wanted = |node: &RouteNode| node.pod_cidrs.iter().any(|cidr| net(cidr) == route.destination);
        assert!(nodes.iter().any(wanted), "seed {seed}: {route:?} belongs to no node");
    }
    for node in nodes {
        for cidr in &node.pod_cidrs {
            let has_route =
                routes.iter().any(|r| r.destination == net(cidr) && r.target == Some(to(&node.instance.node)));
            let is_claimed_twice = nodes.iter().any(|other| other.uid != node.uid && other.pod_cidrs.contains(cidr));
            let instance = instances.contains_key(&node.instance.node);
            assert!(has_route || is_claimed_twice || !instance, "seed {seed}: {node:?} has no route in {routes:?}");
            assert_eq!(node.reported, Some(has_route && instance), "seed {seed}: {node:?}, {routes:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn any_history_ends_with_the_desired_routes() {
    println!("seeds 1 to 150");
    for seed in 1..=150 {
        history(seed).await;
    }
}
