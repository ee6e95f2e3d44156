//! Random histories of one volume that may be attached to one node only: pods, kubelets, a driver, caches that lag,
//! crashes, lost responses and changes of the leader. The volume is never attached to two nodes. It is never detached
//! while it is mounted, unless the node is out of service or unhealthy for long enough.

use std::collections::BTreeMap;
use std::time::Duration;

use kinds::Str;
use kinds::node_volumes::AttachedVolume;
use proptest::prelude::*;
use tokio::time::Instant;

use crate::storage::attach_detach::decide::{
    Attachment, ForceDetachReason, MAX_WAIT_FOR_UNMOUNT, NodeState, Rules, Site, Step, decide,
};
use crate::storage::attach_detach::node_list::NodeList;

const NODES: usize = 3;
const VOLUME: &str = "volume";

/// The state of the pod on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pod {
    None,
    Wanted,
    Ending,
}

/// A VolumeAttachment.
#[derive(Debug, Clone, Copy)]
struct Request {
    uid: u64,
    is_attached: bool,
    is_deleting: bool,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    version: u64,
    /// The volume is in `status.volumesAttached`.
    is_listed: bool,
    /// The volume is in `status.volumesInUse`.
    is_in_use: bool,
    is_ready: bool,
    is_out_of_service: bool,
}

/// State of the API server. Kubelets and the driver read it without a cache.
#[derive(Debug, Clone)]
struct Server {
    version: u64,
    requests: BTreeMap<usize, Request>,
    nodes: [Node; NODES],
    pods: [Pod; NODES],
}

/// Cached copies of the server's state, by kind; each may be outdated.
#[derive(Debug, Clone)]
struct Caches {
    requests: (u64, BTreeMap<usize, Request>),
    nodes: (u64, [Node; NODES]),
    pods: [Pod; NODES],
}

/// A write that has been decided on and not sent.
#[derive(Debug, Clone, Copy)]
enum Pending {
    Create(usize),
    Delete { node: usize, uid: u64 },
}

/// Memory of a leader.
#[derive(Debug, Default)]
struct Memory {
    /// Version that the cache of requests must have reached before the next reconcile.
    awaited_requests: u64,
    awaited_nodes: [u64; NODES],
    lists: [NodeList; NODES],
    uncertain: [bool; NODES],
    unwanted_since: [Option<u64>; NODES],
    pending: Option<Pending>,
    /// Write of a node's list that is not sent yet: the node, its version, and the new value of `is_listed`.
    pending_list: Option<(usize, u64, bool)>,
}

#[derive(Debug)]
struct Controller {
    caches: Caches,
    memory: Memory,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    None,
    /// The request is lost: the server does not execute it.
    LostBefore,
    /// The response is lost: the server has executed the request.
    LostAfter,
    /// The process ends after the server has executed the request.
    Crash,
}

#[derive(Debug, Clone, Copy)]
enum Action {
    CreatePod(usize),
    EndPod(usize),
    Kubelet(usize),
    Driver(usize),
    SetNode { node: usize, is_ready: bool, is_out_of_service: bool },
    DeleteRequest(usize),
    Wait(u64),
    Deliver { controller: usize, kind: usize },
    Reconcile,
    Send(Fault),
    ReconcileNode(usize),
    SendList(Fault),
    TakeOver(usize),
}

struct Model {
    server: Server,
    controllers: [Controller; 2],
    leader: usize,
    /// Nodes that the driver has attached the volume to.
    attached: [bool; NODES],
    mounted: [bool; NODES],
    /// Nodes from which the volume may be detached by force: when the controller decided to, they were not ready for
    /// long enough, or out of service.
    forced: [bool; NODES],
    /// Seconds.
    now: u64,
    uids: u64,
    violations: Vec<String>,
}

impl Model {
    fn new() -> Self {
        let node = Node { version: 0, is_listed: false, is_in_use: false, is_ready: true, is_out_of_service: false };
        let server = Server { version: 0, requests: BTreeMap::new(), nodes: [node; NODES], pods: [Pod::None; NODES] };
        let controller = || {
            let caches = Caches { requests: (0, BTreeMap::new()), nodes: (0, [node; NODES]), pods: [Pod::None; NODES] };
            Controller { caches, memory: Memory::default() }
        };
        Self {
            server,
            controllers: [controller(), controller()],
            leader: 0,
            attached: [false; NODES],
            mounted: [false; NODES],
            forced: [false; NODES],
            now: 0,
            uids: 0,
            violations: Vec::new(),
        }
    }

    fn change_node(&mut self, node: usize, change: impl FnOnce(&mut Node)) {
        self.server.version += 1;
        let record = &mut self.server.nodes[node];
        record.version = self.server.version;
        change(record);
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::CreatePod(node) if self.server.pods[node] == Pod::None => self.server.pods[node] = Pod::Wanted,
            Action::EndPod(node) if self.server.pods[node] == Pod::Wanted => self.server.pods[node] = Pod::Ending,
            Action::CreatePod(_) | Action::EndPod(_) => {}
            Action::Kubelet(node) => self.kubelet(node),
            Action::Driver(node) => self.driver(node),
            Action::SetNode { node, is_ready, is_out_of_service } => {
                self.change_node(node, |node| {
                    node.is_ready = is_ready;
                    node.is_out_of_service = is_out_of_service;
                });
            }
            Action::DeleteRequest(node) => {
                // Other clients delete a request only while the volume is not mounted: otherwise no controller could
                // prevent the violation.
                if !self.mounted[node] && !self.server.nodes[node].is_in_use {
                    self.mark_deleting(node, None);
                }
            }
            Action::Wait(seconds) => self.now += seconds,
            Action::Deliver { controller, kind } => self.deliver(controller, kind),
            Action::Reconcile => self.reconcile(),
            Action::Send(fault) => self.send(fault),
            Action::ReconcileNode(node) => self.reconcile_node(node),
            Action::SendList(fault) => self.send_list(fault),
            Action::TakeOver(controller) => self.take_over(controller),
        }
    }

    /// A step of a kubelet, which is dead while its node is out of service.
    fn kubelet(&mut self, node: usize) {
        let record = self.server.nodes[node];
        if record.is_out_of_service {
            return;
        }
        let is_usable =
            self.server.requests.get(&node).is_some_and(|request| request.is_attached && !request.is_deleting);
        match self.server.pods[node] {
            Pod::Wanted if !record.is_in_use => self.change_node(node, |node| node.is_in_use = true),
            Pod::Wanted if record.is_listed && is_usable => self.mounted[node] = true,
            Pod::Ending if self.mounted[node] => self.mounted[node] = false,
            Pod::Ending if record.is_in_use => self.change_node(node, |node| node.is_in_use = false),
            Pod::Ending => self.server.pods[node] = Pod::None,
            Pod::None if record.is_in_use && !self.mounted[node] => {
                self.change_node(node, |node| node.is_in_use = false);
            }
            Pod::Wanted | Pod::None => {}
        }
    }

    fn driver(&mut self, node: usize) {
        let Some(request) = self.server.requests.get(&node).copied() else { return };
        self.server.version += 1;
        if !request.is_deleting {
            if (0..NODES).any(|other| other != node && self.attached[other]) {
                self.violations.push(format!("attached to a second node, {node}"));
            }
            self.attached[node] = true;
            self.server.requests.insert(node, Request { is_attached: true, ..request });
            return;
        }
        if self.mounted[node] && !self.forced[node] {
            self.violations.push(format!("detached from {node} while it is mounted"));
        }
        self.attached[node] = false;
        self.mounted[node] = false;
        self.forced[node] = false;
        self.server.requests.remove(&node);
    }

    fn mark_deleting(&mut self, node: usize, uid: Option<u64>) {
        if let Some(request) = self.server.requests.get_mut(&node)
            && uid.is_none_or(|uid| uid == request.uid)
            && !request.is_deleting
        {
            self.server.version += 1;
            request.is_deleting = true;
        }
    }

    fn deliver(&mut self, controller: usize, kind: usize) {
        let server = &self.server;
        let caches = &mut self.controllers[controller].caches;
        match kind {
            0 => caches.requests = (server.version, server.requests.clone()),
            1 => caches.nodes = (server.version, server.nodes),
            _ => caches.pods = server.pods,
        }
    }

    fn take_over(&mut self, controller: usize) {
        // A write that the previous leader has decided on and not sent is never sent.
        self.controllers[self.leader].memory = Memory::default();
        self.leader = controller;
        self.controllers[controller].memory = Memory { awaited_requests: self.server.version, ..Memory::default() };
    }

    fn site(&self, node: usize) -> Site {
        let Controller { caches, memory } = &self.controllers[self.leader];
        let attachment = match caches.requests.1.get(&node) {
            Some(request) if request.is_deleting => Attachment::Deleting,
            Some(request) if request.is_attached => Attachment::Attached,
            Some(_) => Attachment::Requested,
            None if memory.uncertain[node] => Attachment::Uncertain,
            None => Attachment::Absent,
        };
        let record = caches.nodes.1[node];
        let since = memory.unwanted_since[node];
        Site {
            is_wanted: caches.pods[node] == Pod::Wanted || caches.pods[node] == Pod::Ending,
            attachment,
            awaits_kubelet: false,
            has_foreign: false,
            is_listed: record.is_listed || memory.lists[node].may_be_writing(VOLUME),
            is_in_use: record.is_in_use,
            node: NodeState {
                exists: true,
                is_managed: true,
                is_ready: record.is_ready,
                is_out_of_service: record.is_out_of_service,
            },
            unwanted_for: since.map_or(Duration::ZERO, |since| Duration::from_secs(self.now - since)),
        }
    }

    fn reconcile(&mut self) {
        let controller = &self.controllers[self.leader];
        if controller.memory.pending.is_some() || controller.caches.requests.0 < controller.memory.awaited_requests {
            return;
        }
        for node in 0..NODES {
            let is_wanted = self.site(node).is_wanted;
            let since = &mut self.controllers[self.leader].memory.unwanted_since[node];
            if is_wanted {
                *since = None;
            } else {
                since.get_or_insert(self.now);
            }
        }
        let sites: Vec<Site> = (0..NODES).map(|node| self.site(node)).collect();
        let rules = Rules { is_exclusive: true, is_timeout_disabled: false, may_have_undecodable_users: false };
        let steps = decide(&sites, rules);
        for (node, step) in steps.into_iter().enumerate() {
            if step != Step::List && sites[node].is_wanted && sites[node].is_listed {
                self.list(node, false);
            }
            match step {
                Step::Attach => self.leading().pending = Some(Pending::Create(node)),
                Step::List => self.list(node, true),
                Step::Unlist => self.list(node, false),
                Step::Detach(forced) => self.detach(node, forced),
                _ => {}
            }
        }
    }

    fn leading(&mut self) -> &mut Memory {
        &mut self.controllers[self.leader].memory
    }

    fn list(&mut self, node: usize, is_listed: bool) {
        self.leading().lists[node].decide(&Str::from(VOLUME), is_listed, true);
    }

    fn detach(&mut self, node: usize, forced: Option<ForceDetachReason>) {
        let record = self.server.nodes[node];
        let is_forced = match forced {
            Some(ForceDetachReason::Timeout) => !record.is_ready,
            Some(ForceDetachReason::OutOfService) => record.is_out_of_service,
            None => false,
        };
        // If the response to the write of the list shows the volume not in use, the node is not read again.
        let is_released = forced.is_none() && self.leading().lists[node].take_release(VOLUME, Instant::now());
        if !is_released && (record.is_listed || record.is_in_use && !is_forced) {
            return;
        }
        self.forced[node] |= is_forced;
        let request = self.controllers[self.leader].caches.requests.1.get(&node).copied();
        let pending = match request {
            Some(request) => Pending::Delete { node, uid: request.uid },
            // The response to the creation was lost. By now the server has executed the creation, or it never will.
            None if self.server.requests.contains_key(&node) => {
                let version = self.server.version;
                self.leading().awaited_requests = version;
                return;
            }
            None => {
                self.leading().uncertain[node] = false;
                return;
            }
        };
        self.leading().pending = Some(pending);
    }

    fn send(&mut self, fault: Fault) {
        let Some(pending) = self.leading().pending.take() else { return };
        if !matches!(fault, Fault::LostBefore) {
            match pending {
                Pending::Create(node) => {
                    self.uids += 1;
                    self.server.version += 1;
                    let created = Request { uid: self.uids, is_attached: false, is_deleting: false };
                    self.server.requests.entry(node).or_insert(created);
                }
                Pending::Delete { node, uid } => self.mark_deleting(node, Some(uid)),
            }
        }
        let version = self.server.version;
        match (fault, pending) {
            (Fault::Crash, _) => self.take_over(self.leader),
            (Fault::None, Pending::Create(node)) => {
                self.leading().awaited_requests = version;
                self.leading().uncertain[node] = false;
            }
            (Fault::None, Pending::Delete { .. }) => self.leading().awaited_requests = version,
            (_, Pending::Create(node)) => self.leading().uncertain[node] = true,
            (_, Pending::Delete { .. }) => {}
        }
    }

    fn reconcile_node(&mut self, node: usize) {
        let Controller { caches, memory } = &mut self.controllers[self.leader];
        if memory.pending_list.is_some() || caches.nodes.0 < memory.awaited_nodes[node] {
            return;
        }
        let record = caches.nodes.1[node];
        let entry = AttachedVolume { name: VOLUME.into(), device_path: "".into() };
        let current: Vec<AttachedVolume> = record.is_listed.then_some(entry).into_iter().collect();
        memory.lists[node].end_write(&current, Instant::now());
        let Some(planned) = memory.lists[node].plan(&current) else { return };
        memory.lists[node].begin_write(&planned);
        memory.pending_list = Some((node, record.version, !planned.is_empty()));
    }

    fn send_list(&mut self, fault: Fault) {
        let Some((node, version, is_listed)) = self.leading().pending_list.take() else { return };
        let is_done = !matches!(fault, Fault::LostBefore) && self.server.nodes[node].version == version;
        if is_done {
            self.change_node(node, |node| node.is_listed = is_listed);
            if matches!(fault, Fault::None) {
                let is_released = !is_listed && !self.server.nodes[node].is_in_use;
                let released = is_released.then(|| Str::from(VOLUME)).into_iter().collect();
                self.leading().lists[node].written(Instant::now(), Duration::ZERO, released);
            }
        }
        if matches!(fault, Fault::Crash) {
            return self.take_over(self.leader);
        }
        // A refused write has had no effect. After success or a lost request or response, the server's version is
        // awaited.
        if is_done || matches!(fault, Fault::LostBefore | Fault::LostAfter) {
            self.leading().awaited_nodes[node] = self.server.version;
        } else {
            self.leading().lists[node].end_write(&[], Instant::now());
        }
    }

    /// Runs all components for more rounds than any state needs to become stable.
    fn settle(&mut self) {
        for _ in 0..40 {
            (0..3).for_each(|kind| self.deliver(self.leader, kind));
            self.reconcile();
            self.send(Fault::None);
            for node in 0..NODES {
                self.deliver(self.leader, 1);
                self.reconcile_node(node);
                self.send_list(Fault::None);
                self.driver(node);
                self.kubelet(node);
            }
        }
    }
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        6 => Just(Fault::None), 1 => Just(Fault::LostBefore), 1 => Just(Fault::LostAfter), 1 => Just(Fault::Crash),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    let node = || 0..NODES;
    prop_oneof![
        3 => node().prop_map(Action::CreatePod),
        3 => node().prop_map(Action::EndPod),
        8 => node().prop_map(Action::Kubelet),
        6 => node().prop_map(Action::Driver),
        1 => (node(), any::<bool>(), proptest::bool::weighted(0.2))
            .prop_map(|(node, is_ready, is_out_of_service)| Action::SetNode { node, is_ready, is_out_of_service }),
        1 => node().prop_map(Action::DeleteRequest),
        1 => prop_oneof![Just(1), Just(MAX_WAIT_FOR_UNMOUNT.as_secs())].prop_map(Action::Wait),
        12 => (0..2_usize, 0..3_usize).prop_map(|(controller, kind)| Action::Deliver { controller, kind }),
        8 => Just(Action::Reconcile),
        6 => fault().prop_map(Action::Send),
        6 => node().prop_map(Action::ReconcileNode),
        6 => fault().prop_map(Action::SendList),
        1 => (0..2_usize).prop_map(Action::TakeOver),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn volume_is_attached_to_one_node_and_detached_when_unmounted(actions in prop::collection::vec(action(), 1..200)) {
        let mut model = Model::new();
        for (at, action) in actions.iter().enumerate() {
            model.act(*action);
            prop_assert!(model.violations.is_empty(), "{:?} after {:?}", model.violations, &actions[..=at]);
        }
        // At the end one pod remains, and gets the volume.
        (0..NODES).for_each(|node| model.change_node(node, |node| { node.is_ready = true; node.is_out_of_service = false; }));
        (1..NODES).for_each(|node| model.act(Action::EndPod(node)));
        model.settle();
        if model.server.pods[0] == Pod::Ending {
            model.settle();
        }
        model.act(Action::CreatePod(0));
        model.settle();
        prop_assert!(model.violations.is_empty(), "{:?}", model.violations);
        prop_assert!(model.mounted[0], "{:?}", model.server);
        prop_assert_eq!(model.attached, [true, false, false]);
        model.act(Action::EndPod(0));
        model.settle();
        prop_assert_eq!(model.attached, [false; NODES]);
        prop_assert!(model.server.requests.is_empty() && model.server.nodes.iter().all(|node| !node.is_listed));
    }
}
