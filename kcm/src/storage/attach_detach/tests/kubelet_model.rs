//! Random histories of a volume that kubelets attach, for a single node: it has no VolumeAttachment, so that only the
//! nodes' statuses show where it may be. It is never mounted on two nodes.

use std::time::Duration;

use kinds::Str;
use kinds::node_volumes::AttachedVolume;
use proptest::prelude::*;
use tokio::time::Instant;

use crate::storage::attach_detach::decide::{Attachment, NodeState, Rules, Site, Step, decide};
use crate::storage::attach_detach::node_list::NodeList;

const NODES: usize = 3;
const VOLUME: &str = "kubernetes.io/iscsi/10.0.0.1:3260:iqn:0";
const HEALTHY: NodeState = NodeState { exists: true, is_managed: true, is_ready: true, is_out_of_service: false };

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Pod {
    #[default]
    None,
    Wanted,
    Ending,
}

#[derive(Debug, Clone, Copy, Default)]
struct Node {
    version: u64,
    is_listed: bool,
    is_in_use: bool,
}

/// Nodes with the version of their newest change, and pods: of the server, or of a cache.
#[derive(Debug, Clone, Default)]
struct State {
    version: u64,
    nodes: [Node; NODES],
    pods: [Pod; NODES],
}

/// A write of a node's list that has been decided on and not sent.
#[derive(Debug, Clone, Copy)]
struct ListWrite {
    node: usize,
    read: Node,
    is_listed: bool,
}

#[derive(Debug, Default)]
struct Controller {
    cache: State,
    /// Version that the cache of nodes must have reached in this leadership term.
    term: u64,
    awaited: [u64; NODES],
    is_held: [bool; NODES],
    lists: [NodeList; NODES],
    pending: Option<ListWrite>,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    None,
    LostBefore,
    LostAfter,
    Crash,
}

#[derive(Debug, Clone, Copy)]
enum Action {
    CreatePod(usize),
    EndPod(usize),
    Kubelet(usize),
    DeliverNodes(usize),
    DeliverPods(usize),
    Reconcile,
    ReconcileNode(usize),
    Send(Fault),
    TakeOver(usize),
}

#[derive(Debug, Default)]
struct World {
    server: State,
    is_mounted: [bool; NODES],
    controllers: [Controller; 2],
    leader: usize,
    violations: Vec<String>,
}

impl World {
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
            Action::DeliverNodes(controller) => {
                let cache = &mut self.controllers[controller].cache;
                (cache.version, cache.nodes) = (self.server.version, self.server.nodes);
            }
            Action::DeliverPods(controller) => self.controllers[controller].cache.pods = self.server.pods,
            Action::Reconcile => self.reconcile(),
            Action::ReconcileNode(node) => self.reconcile_node(node),
            Action::Send(fault) => self.send(fault),
            Action::TakeOver(controller) => self.take_over(controller),
        }
    }

    fn kubelet(&mut self, node: usize) {
        let record = self.server.nodes[node];
        match self.server.pods[node] {
            Pod::Wanted if !record.is_in_use => self.change_node(node, |node| node.is_in_use = true),
            Pod::Wanted if record.is_listed => {
                if (0..NODES).any(|other| other != node && self.is_mounted[other]) {
                    self.violations.push(format!("mounted on a second node, {node}"));
                }
                self.is_mounted[node] = true;
            }
            Pod::Ending if self.is_mounted[node] => self.is_mounted[node] = false,
            Pod::Ending if record.is_in_use => self.change_node(node, |node| node.is_in_use = false),
            Pod::Ending => self.server.pods[node] = Pod::None,
            Pod::Wanted | Pod::None => {}
        }
    }

    fn leading(&mut self) -> &mut Controller {
        &mut self.controllers[self.leader]
    }

    fn take_over(&mut self, controller: usize) {
        let cache = std::mem::take(&mut self.controllers[controller].cache);
        let term = self.server.version;
        self.controllers[controller] = Controller { cache, term, ..Controller::default() };
        self.leader = controller;
    }

    fn site(&mut self, node: usize) -> Site {
        let leading = self.leading();
        let record = leading.cache.nodes[node];
        let is_wanted = leading.cache.pods[node] != Pod::None;
        leading.is_held[node] |= record.is_listed;
        let attachment = match leading.is_held[node] {
            true => Attachment::Attached,
            false if record.is_in_use && !is_wanted => Attachment::Uncertain,
            false => Attachment::Absent,
        };
        Site {
            is_wanted,
            attachment,
            is_listed: record.is_listed || leading.lists[node].may_be_writing(VOLUME),
            is_in_use: record.is_in_use,
            node: HEALTHY,
            ..Site::default()
        }
    }

    fn reconcile(&mut self) {
        let leading = self.leading();
        if leading.cache.version < leading.term {
            return;
        }
        let sites: Vec<Site> = (0..NODES).map(|node| self.site(node)).collect();
        let steps = decide(&sites, Rules { is_exclusive: true, is_timeout_disabled: false });
        for (node, step) in steps.into_iter().enumerate() {
            match step {
                Step::Attach | Step::List => {
                    self.leading().is_held[node] = true;
                    self.leading().lists[node].decide(&VOLUME.into(), true, true);
                }
                Step::Unlist => {
                    self.leading().lists[node].decide(&VOLUME.into(), false, true);
                }
                Step::Detach(_) => self.detach(node),
                _ => {}
            }
        }
    }

    fn detach(&mut self, node: usize) {
        let record = self.server.nodes[node];
        let is_released = self.leading().lists[node].take_release(VOLUME, Instant::now());
        if is_released || !record.is_listed && !record.is_in_use {
            self.leading().is_held[node] = false;
        }
    }

    fn reconcile_node(&mut self, node: usize) {
        let leading = self.leading();
        let read = leading.cache.nodes[node];
        if leading.pending.is_some() || leading.cache.version < leading.awaited[node] {
            return;
        }
        let entry = AttachedVolume { name: Str::from(VOLUME), device_path: "".into() };
        let current: Vec<AttachedVolume> = read.is_listed.then_some(entry).into_iter().collect();
        leading.lists[node].end_write(&current);
        let Some(planned) = leading.lists[node].plan(&current) else { return };
        leading.lists[node].begin_write(&planned);
        leading.pending = Some(ListWrite { node, read, is_listed: !planned.is_empty() });
    }

    fn send(&mut self, fault: Fault) {
        let Some(ListWrite { node, read, is_listed }) = self.leading().pending.take() else { return };
        let now = self.server.nodes[node];
        // A volume is removed only if the node has not changed; otherwise the same list suffices.
        let is_current =
            now.is_listed == read.is_listed && (is_listed || read.is_in_use || now.version == read.version);
        let is_done = is_current && !matches!(fault, Fault::LostBefore);
        if is_done {
            self.change_node(node, |node| node.is_listed = is_listed);
        }
        let (version, is_released) = (self.server.version, !is_listed && !self.server.nodes[node].is_in_use);
        match fault {
            Fault::Crash => self.take_over(self.leader),
            Fault::None if is_done => {
                let released = is_released.then(|| Str::from(VOLUME)).into_iter().collect();
                self.leading().lists[node].written(Instant::now(), Duration::ZERO, released);
                self.leading().awaited[node] = version;
            }
            Fault::None => {
                self.leading().lists[node].end_write(&[]);
                self.leading().awaited[node] = version;
            }
            Fault::LostBefore | Fault::LostAfter => self.leading().awaited[node] = version,
        }
    }

    /// Runs all components until nothing is left to do.
    fn settle(&mut self) {
        for _ in 0..40 {
            self.act(Action::DeliverNodes(self.leader));
            self.act(Action::DeliverPods(self.leader));
            self.reconcile();
            for node in 0..NODES {
                self.act(Action::DeliverNodes(self.leader));
                self.reconcile_node(node);
                self.send(Fault::None);
                self.kubelet(node);
            }
        }
    }
}

fn action() -> impl Strategy<Value = Action> {
    let node = || 0..NODES;
    let controller = || 0..2_usize;
    let fault = prop_oneof![
        6 => Just(Fault::None), 1 => Just(Fault::LostBefore), 1 => Just(Fault::LostAfter), 1 => Just(Fault::Crash),
    ];
    prop_oneof![
        3 => node().prop_map(Action::CreatePod),
        3 => node().prop_map(Action::EndPod),
        8 => node().prop_map(Action::Kubelet),
        8 => controller().prop_map(Action::DeliverNodes),
        6 => controller().prop_map(Action::DeliverPods),
        8 => Just(Action::Reconcile),
        8 => node().prop_map(Action::ReconcileNode),
        8 => fault.prop_map(Action::Send),
        1 => controller().prop_map(Action::TakeOver),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn volume_that_kubelets_attach_is_mounted_on_one_node(actions in prop::collection::vec(action(), 1..200)) {
        let mut world = World::default();
        for (at, action) in actions.iter().enumerate() {
            world.act(*action);
            prop_assert!(world.violations.is_empty(), "{:?} after {:?}", world.violations, &actions[..=at]);
        }
        // At the end one pod remains, and gets the volume.
        (1..NODES).for_each(|node| world.act(Action::EndPod(node)));
        world.settle();
        world.act(Action::CreatePod(0));
        world.settle();
        prop_assert!(world.violations.is_empty(), "{:?}", world.violations);
        prop_assert_eq!(world.is_mounted, [true, false, false]);
        world.act(Action::EndPod(0));
        world.settle();
        prop_assert_eq!(world.is_mounted, [false; NODES]);
        prop_assert!(world.server.nodes.iter().all(|node| !node.is_listed), "{:?}", world.server);
    }
}
