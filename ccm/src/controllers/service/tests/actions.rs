//! Table of the next action of a reconcile.

use std::sync::Arc;
use std::time::Duration;

use kinds::Service;
use kinds::meta::Time;
use kinds::service::{Ingress, ServiceType};
use providers::{CloudError, ErrorKind, Targeting, Targets};
use tokio::time::Instant;

use super::simulation::{CLUSTER, RESYNC, node, service};
use crate::controllers::service::decide::{self, FINALIZER};
use crate::controllers::service::decide_action::{Action, Follow, Request, Wanted, next_action, previous};
use crate::controllers::service::load_balancer_state::{Announced, EnsuredLoadBalancer, LoadBalancerState, Pause};

/// The inputs of a decision; each row of the table changes some of them.
struct Situation {
    service: Service,
    request: Request,
    state: LoadBalancerState,
    now: Instant,
}

fn service_with_finalizer() -> Service {
    let mut service = service("web");
    service.meta.finalizers = Arc::new([FINALIZER.into()]);
    service
}

/// Returns an address in a status.
fn ingress() -> Ingress {
    Ingress { ip: "192.0.2.1".into(), hostname: "".into(), ip_mode: "VIP".into(), ports: Vec::new() }
}

fn targets(nodes: &[&str]) -> Targets {
    Targets { nodes: nodes.iter().map(|name| node(name)).collect(), ..Targets::default() }
}

fn wanted(service: &Service) -> Wanted {
    let spec = Arc::new(decide::spec(service, CLUSTER, &[]).expect("a Service that can work"));
    Wanted { spec, targeting: Targeting::Nodes, targets: Some(targets(&["node-0"])), has_both_kinds: false }
}

fn error() -> CloudError {
    CloudError::new(ErrorKind::Invalid, "Read", "not possible")
}

/// Returns the situation of a Service with the finalizer, whose load balancer was ensured
/// just now.
fn ensured() -> Situation {
    let (service, now) = (service_with_finalizer(), Instant::now());
    let wanted = wanted(&service);
    let spec = wanted.spec.clone();
    let state = LoadBalancerState {
        uid: service.meta.uid.clone(),
        load_balancer: Some(spec.id.clone()),
        targeting: Some(Targeting::Nodes),
        last_spec: Some(spec.clone()),
        last_targets: wanted.targets.clone(),
        ensured: Some(EnsuredLoadBalancer { spec, targets: targets(&["node-0"]), due: now + RESYNC }),
        ingress: Some(Vec::new()),
        ..LoadBalancerState::default()
    };
    Situation { service, request: Request::Wanted(wanted), state, now }
}

/// Returns the situation of the same Service after a restart: only its finalizer shows that a
/// load balancer may exist.
fn after_restart() -> Situation {
    Situation { state: LoadBalancerState::default(), ..ensured() }
}

fn pause(situation: &mut Situation, seconds: Option<u64>, throttled: bool) {
    let request = situation.state.ensured.take().map(|ensured| ensured.spec);
    let until = seconds.map(|seconds| situation.now + Duration::from_secs(seconds));
    situation.state.pause = Some(Pause { until, request, throttled });
}

fn more_nodes(situation: &mut Situation) {
    if let Request::Wanted(wanted) | Request::Invalid { last: Some(wanted), .. } = &mut situation.request {
        wanted.targets = Some(targets(&["node-0", "node-1"]));
    }
}

fn invalid(situation: &mut Situation) {
    let request = std::mem::replace(&mut situation.request, Request::Nothing);
    let Request::Wanted(wanted) = request else { return };
    situation.request = if situation.state.last_spec.is_some() {
        Request::Invalid { error: error(), last: Some(wanted), follow: None }
    } else {
        let targets = wanted.targets.expect("nodes");
        Request::Invalid { error: error(), last: None, follow: Some(Follow { spec: wanted.spec, targets }) }
    };
}

/// Makes the request invalid after a restart. A call that sent the nodes `sent` is repeated after a pause of
/// `seconds`.
fn follow_after_refusal(situation: &mut Situation, (sent, seconds): (&[&str], u64), throttled: bool) {
    invalid(situation);
    situation.service.balancing.as_mut().expect("a load balancer").ingress = vec![ingress()];
    situation.state.last_targets = Some(targets(sent));
    pause(situation, Some(seconds), throttled);
    let spec = decide::spec(&situation.service, CLUSTER, &[]).expect("a Service that can work");
    situation.state.pause.as_mut().expect("a pause").request = Some(Arc::new(spec));
}

/// Returns the name of an action, with the values that the decision sets.
fn name(action: &Action<'_>) -> String {
    match action {
        Action::Forget => "forget".into(),
        Action::Wait(wait) => format!("wait {wait:?}"),
        Action::DeleteWithoutFinalizer => "delete without finalizer".into(),
        Action::CleanUp { clear_status } => format!("clean up, clear: {clear_status}"),
        Action::Follow(wanted) => format!("follow {}", wanted.targets.nodes.len()),
        Action::RejectUnwatched => "reject unwatched".into(),
        Action::UpdateWhileWaiting { wait, .. } => format!("update, wait {wait:?}"),
        Action::Update { targets, .. } => format!("update {}", targets.nodes.len()),
        Action::Publish { .. } => "publish".into(),
        Action::Ensure { announce, drift, .. } => format!("ensure, announce: {announce}, drift: {drift}"),
    }
}

type Row<'a> = (&'a str, fn() -> Situation, fn(&mut Situation), &'a str);

#[test]
fn next_action_follows_from_request_and_state() {
    let rows: &[Row<'_>] = &[
        ("nothing wanted and no load balancer", after_restart, |s| s.request = Request::Nothing, "forget"),
        ("finalizer removed by another client", ensured, |s| s.request = Request::Nothing, "delete without finalizer"),
        ("another class, own status", ensured, |s| s.request = Request::Removal, "clean up, clear: true"),
        (
            "another class, status of its controller",
            ensured,
            |s| {
                s.request = Request::Removal;
                s.service.balancing.as_mut().expect("a load balancer").ingress = vec![ingress()];
            },
            "clean up, clear: false",
        ),
        (
            "deleted Service",
            ensured,
            |s| {
                s.request = Request::Removal;
                s.service.meta.deletion = Time(1);
                s.service.balancing.as_mut().expect("a load balancer").ingress = vec![ingress()];
            },
            "clean up, clear: true",
        ),
        (
            "another type after a restart",
            after_restart,
            |s| {
                s.request = Request::Removal;
                s.service.kind = ServiceType::ClusterIp;
                s.service.balancing.as_mut().expect("a load balancer").ingress = vec![ingress()];
            },
            "clean up, clear: true",
        ),
        (
            "another controller's, without finalizer",
            after_restart,
            |s| {
                s.request = Request::Elsewhere;
                s.service.meta.finalizers = Arc::new([]);
            },
            "wait None",
        ),
        (
            "another controller's, with finalizer",
            after_restart,
            |s| s.request = Request::Elsewhere,
            "clean up, clear: false",
        ),
        (
            "another controller's, with a status that this controller wrote",
            ensured,
            |s| {
                s.request = Request::Elsewhere;
                s.state.ingress = Some(Vec::new());
            },
            "clean up, clear: true",
        ),
        ("invalid from the start", after_restart, invalid, "wait None"),
        (
            "invalid after a restart, status published",
            after_restart,
            |s| {
                invalid(s);
                s.service.balancing.as_mut().expect("a load balancer").ingress = vec![ingress()];
            },
            "follow 1",
        ),
        (
            "invalid after a restart, after a failed call",
            after_restart,
            |s| {
                invalid(s);
                s.service.balancing.as_mut().expect("a load balancer").ingress = vec![ingress()];
                pause(s, Some(7), false);
                let spec = Arc::new(decide::spec(&s.service, CLUSTER, &[]).expect("a Service that can work"));
                s.state.pause.as_mut().expect("a pause").request = Some(spec);
            },
            "wait Some(7s)",
        ),
        (
            "invalid after a restart, the same nodes",
            after_restart,
            |s| {
                invalid(s);
                s.service.balancing.as_mut().expect("a load balancer").ingress = vec![ingress()];
                s.state.last_targets = Some(targets(&["node-0"]));
            },
            "wait None",
        ),
        (
            "invalid after a restart, the same nodes, during the pause after a refusal",
            after_restart,
            |s| follow_after_refusal(s, (&["node-0"], 7), false),
            "wait Some(7s)",
        ),
        (
            "invalid after a restart, the same nodes, after the pause after a refusal",
            after_restart,
            |s| follow_after_refusal(s, (&["node-0"], 0), false),
            "follow 1",
        ),
        (
            "invalid after a restart, other nodes, during the pause after a refusal",
            after_restart,
            |s| follow_after_refusal(s, (&["node-0", "node-1"], 7), false),
            "follow 1",
        ),
        (
            "invalid after a restart, other nodes, while the cloud throttles",
            after_restart,
            |s| follow_after_refusal(s, (&["node-0", "node-1"], 7), true),
            "wait Some(7s)",
        ),
        (
            "invalid after a restart, status of another controller",
            after_restart,
            |s| {
                invalid(s);
                s.service.meta.finalizers = Arc::new([]);
                s.service.balancing.as_mut().expect("a load balancer").ingress = vec![ingress()];
            },
            "wait None",
        ),
        ("invalid later", ensured, invalid, "publish"),
        (
            "invalid later, other nodes",
            ensured,
            |s| {
                invalid(s);
                more_nodes(s);
            },
            "update 2",
        ),
        (
            "invalid later, due for a drift check",
            ensured,
            |s| {
                invalid(s);
                s.now += RESYNC * 2;
            },
            "ensure, announce: false, drift: true",
        ),
        (
            "invalid before the first call has succeeded",
            ensured,
            |s| {
                invalid(s);
                (s.state.ensured, s.state.ingress) = (None, None);
            },
            "wait None",
        ),
        (
            "invalid before the load balancer was as requested",
            ensured,
            |s| {
                invalid(s);
                let spec = s.state.ensured.take().expect("ensured").spec;
                s.state.announced = Some(Announced::Ensuring(spec));
            },
            "ensure, announce: false, drift: false",
        ),
        (
            "invalid while a retry waits",
            ensured,
            |s| {
                invalid(s);
                pause(s, Some(5), false);
            },
            "wait Some(5s)",
        ),
        (
            "invalid while a retry waits for a change, other nodes",
            ensured,
            |s| {
                invalid(s);
                pause(s, None, false);
                more_nodes(s);
            },
            "update, wait None",
        ),
        ("first time", after_restart, |s| s.service = service("web"), "ensure, announce: true, drift: false"),
        (
            "after a restart, status published",
            after_restart,
            |s| {
                s.service.balancing.as_mut().expect("a load balancer").ingress = vec![ingress()];
            },
            "ensure, announce: false, drift: false",
        ),
        ("after a restart, no status", after_restart, |_| {}, "ensure, announce: true, drift: false"),
        (
            "announced and failed",
            ensured,
            |s| {
                let spec = s.state.ensured.take().expect("ensured").spec;
                s.state.announced = Some(Announced::Ensuring(spec));
            },
            "ensure, announce: false, drift: false",
        ),
        ("as requested", ensured, |_| {}, "publish"),
        (
            "as requested, without finalizer",
            ensured,
            |s| s.service = service("web"),
            "ensure, announce: false, drift: true",
        ),
        ("other nodes", ensured, more_nodes, "update 2"),
        ("due for a drift check", ensured, |s| s.now += RESYNC * 2, "ensure, announce: false, drift: true"),
        (
            "other request",
            ensured,
            |s| {
                let Request::Wanted(wanted) = &mut s.request else { return };
                let spec = Arc::make_mut(&mut wanted.spec);
                spec.ports[0].port = 81;
            },
            "ensure, announce: true, drift: false",
        ),
        (
            "endpoints not watched",
            ensured,
            |s| {
                let Request::Wanted(wanted) = &mut s.request else { return };
                wanted.targets = None;
            },
            "reject unwatched",
        ),
        ("retry waits", ensured, |s| pause(s, Some(5), false), "wait Some(5s)"),
        ("retry waits for a change", ensured, |s| pause(s, None, false), "wait None"),
        ("retry due", ensured, |s| pause(s, Some(0), false), "ensure, announce: true, drift: false"),
        (
            "retry waits, other nodes",
            ensured,
            |s| {
                pause(s, Some(5), false);
                more_nodes(s);
            },
            "update, wait Some(5s)",
        ),
        (
            "retry waits, the last update of targets failed",
            ensured,
            |s| {
                pause(s, Some(5), false);
                s.state.last_targets = None;
            },
            "update, wait Some(5s)",
        ),
        (
            "throttled, other nodes",
            ensured,
            |s| {
                pause(s, Some(5), true);
                more_nodes(s);
            },
            "wait Some(5s)",
        ),
        (
            "retry waits, request changed",
            ensured,
            |s| {
                pause(s, Some(5), false);
                let Request::Wanted(wanted) = &mut s.request else { return };
                Arc::make_mut(&mut wanted.spec).ports[0].port = 81;
            },
            "ensure, announce: true, drift: false",
        ),
    ];
    for (row, start, change, expected) in rows {
        let mut situation = start();
        change(&mut situation);
        let Situation { service, request, state, now } = &situation;
        assert_eq!(name(&next_action(service, request, state, *now)), *expected, "{row}");
    }
}

#[test]
fn load_balancer_of_a_previous_service_with_the_same_name_is_deleted_first() {
    let own = decide::id(&service("web").meta, CLUSTER);
    let earlier = providers::LoadBalancerId { uid: "earlier".into(), ..own.clone() };
    for (existing, now, expected) in [
        (None, Some(&own), None),
        (Some(&own), Some(&own), None),
        (Some(&earlier), Some(&own), Some(&earlier)),
        (Some(&own), None, Some(&own)),
    ] {
        let state = LoadBalancerState { load_balancer: existing.cloned(), ..LoadBalancerState::default() };
        assert_eq!(previous(&state, now).as_ref(), expected, "{existing:?} {now:?}");
    }
}
