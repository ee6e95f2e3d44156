//! A model of a cluster with one Deployment: events decide when ReplicaSets follow their scale and pods become ready.

use std::sync::Arc;

use kinds::deployment::{DeploymentStatus, Strategy};
use kinds::{Deployment, ReplicaSet, Time, Uid};

use super::builders::{START, created, deployment, edited, template};
use crate::workloads::deployment::decide::{Step, SyncMode, next_step, old_pods_running, surplus_history, sync_mode};
use crate::workloads::deployment::decide_revision::{new_replica_set, new_set_update, revision_edit, rollback};
use crate::workloads::deployment::decide_scale::{DESIRED_REPLICAS, Scale, max_surge, max_unavailable, resize};
use crate::workloads::deployment::decide_status::{is_complete, note_created, note_found, note_pause, status};
use crate::workloads::deployment::sets::Sets;

/// An event.
#[derive(Debug, Clone)]
pub enum ClusterEvent {
    /// The Deployment is synced once.
    Sync,
    /// A set creates or removes pods and reports them.
    Follow(usize),
    /// Pods of a set become available, and it reports them.
    Ready(usize, i32),
    /// Pods of a set are no longer available, and it reports that.
    Unready(usize, i32),
    /// An action of the user.
    User(UserAction),
}

/// An action of a user.
#[derive(Debug, Clone)]
pub enum UserAction {
    /// Changes the scale.
    Scale(i32),
    /// Changes the template.
    Template(u8),
    /// Changes the strategy.
    Strategy(Strategy),
    /// Pauses or resumes.
    Pause(bool),
    /// Rolls back to a revision.
    RollBack(i64),
    /// Changes a set's annotation about the scale, as another client may.
    EditScaleAnnotation(usize, i32),
}

/// The cluster.
#[derive(Debug, Clone)]
pub struct Cluster {
    pub deployment: Deployment,
    pub sets: Vec<ReplicaSet>,
    pub now: Time,
    created: u32,
}

/// The writes of one sync.
#[derive(Debug, Default)]
pub struct SyncWrites {
    /// Writes to ReplicaSets and to the Deployment's spec.
    pub writes: u32,
    /// Writes to the Deployment's status.
    pub status_writes: u32,
}

impl Cluster {
    pub fn new(replicas: i32, strategy: Strategy) -> Self {
        let mut deployment = deployment(replicas);
        deployment.strategy = strategy;
        deployment.revision_history_limit = Some(2);
        Self { deployment, sets: Vec::new(), now: Time(START), created: 0 }
    }

    pub fn apply_event(&mut self, event: &ClusterEvent) {
        self.now.0 += 1;
        let count = self.sets.len();
        let pick = |at: usize| (count > 0).then(|| at % count.max(1));
        match event {
            ClusterEvent::Sync => {
                self.sync();
            }
            ClusterEvent::Follow(at) => {
                if let Some(set) = pick(*at).map(|at| &mut self.sets[at]) {
                    follow(set);
                }
            }
            ClusterEvent::Ready(at, pods) => {
                if let Some(set) = pick(*at).map(|at| &mut self.sets[at]) {
                    let ready = (set.status.available_replicas + pods).min(set.status.replicas);
                    set.status.ready_replicas = ready;
                    set.status.available_replicas = ready;
                }
            }
            ClusterEvent::Unready(at, pods) => {
                if let Some(set) = pick(*at).map(|at| &mut self.sets[at]) {
                    let ready = (set.status.available_replicas - pods).max(0);
                    set.status.ready_replicas = ready;
                    set.status.available_replicas = ready;
                }
            }
            ClusterEvent::User(user_action) => self.user_action(user_action),
        }
    }

    pub fn user_action(&mut self, user_action: &UserAction) {
        let before = self.deployment.clone();
        match user_action {
            UserAction::Scale(replicas) => self.deployment.replicas = *replicas,
            UserAction::Template(version) => self.deployment.template = Some(template(&format!("v{version}"))),
            UserAction::Strategy(strategy) => self.deployment.strategy = strategy.clone(),
            UserAction::Pause(paused) => self.deployment.paused = *paused,
            UserAction::RollBack(revision) => {
                let request = ("deprecated.deployment.rollback.to".into(), Some(revision.to_string().into()));
                self.deployment.annotations = edited(&self.deployment.annotations, &vec![request]);
            }
            UserAction::EditScaleAnnotation(at, desired) => {
                let count = self.sets.len().max(1);
                if let Some(set) = self.sets.get_mut(at % count) {
                    let edits = vec![(DESIRED_REPLICAS.into(), Some(desired.to_string().into()))];
                    set.annotations = edited(&set.annotations, &edits);
                }
            }
        }
        if self.deployment != before {
            self.deployment.meta.generation += 1;
        }
    }

    /// Lets all sets create and remove their pods, and makes all pods available.
    pub fn settle_pods(&mut self) {
        for set in &mut self.sets {
            follow(set);
            set.status.ready_replicas = set.replicas;
            set.status.available_replicas = set.replicas;
        }
    }

    /// Returns the number of pods that all sets together should have.
    pub fn total(&self) -> i32 {
        self.sets.iter().map(|set| set.replicas).sum()
    }

    /// Returns the number of available pods that no write has removed.
    pub fn safe(&self) -> i32 {
        self.sets.iter().map(|set| set.status.available_replicas.min(set.replicas)).sum()
    }

    /// Describes the cluster for a failed test.
    pub fn summary(&self) -> String {
        let sets = self.sets.iter().map(|set| (&set.meta.name, set.replicas, &set.annotations, &set.status));
        format!("{} of {:?}, {:?}", self.deployment.replicas, self.deployment.strategy, sets.collect::<Vec<_>>())
    }

    pub fn is_complete(&self) -> bool {
        let actual: i32 = self.sets.iter().map(|set| set.status.replicas).sum();
        is_complete(&self.deployment, &self.deployment.status) && actual == self.deployment.replicas
    }

    /// Runs one reconcile with every write accepted; checks the bounds that no sync may break.
    pub fn sync(&mut self) -> SyncWrites {
        let total = self.total();
        let safe = self.safe();
        let listed: Vec<_> = self.sets.iter().cloned().map(Arc::new).collect();
        let mode = sync_mode(&self.deployment, &Sets::split(&self.deployment, &listed));
        let done = self.act();
        let max = self.deployment.replicas + max_surge(&self.deployment);
        assert!(self.total() <= total.max(max), "{mode:?} went from {total} to {} pods of {max}", self.total());
        if mode == SyncMode::Rollout && matches!(self.deployment.strategy, Strategy::RollingUpdate { .. }) {
            let min = self.deployment.replicas - max_unavailable(&self.deployment);
            assert!(self.safe() >= safe.min(min), "went from {safe} to {} of {min} available pods", self.safe());
        }
        done
    }

    fn act(&mut self) -> SyncWrites {
        let mut done = SyncWrites::default();
        let listed: Vec<_> = self.sets.iter().cloned().map(Arc::new).collect();
        let mut sets = Sets::split(&self.deployment, &listed);
        let mode = sync_mode(&self.deployment, &sets);
        let mut noted = self.deployment.status.clone();
        note_pause(&self.deployment, &mut noted, self.now);
        if let Some((edits, new)) = new_set_update(&self.deployment, &sets).zip(sets.new.clone()) {
            let mut updated = (*new).clone();
            updated.annotations = edited(&updated.annotations, &edits);
            updated.min_ready_seconds = self.deployment.min_ready_seconds;
            self.put(&mut sets, updated, &mut done);
        }
        if let Some(new) = &sets.new {
            note_found(&self.deployment, &mut noted, &new.meta.name, self.now);
        }
        match mode {
            SyncMode::RollBack(revision) => {
                if sets.new.is_none() {
                    self.create(&mut sets, &mut done);
                }
                let back = rollback(&self.deployment, &sets, revision);
                self.deployment.template = back.template.or(self.deployment.template.take());
                self.deployment.annotations = edited(&self.deployment.annotations, &back.annotations);
                self.deployment.meta.generation += 1;
                done.writes += 1;
                return done;
            }
            SyncMode::Hold | SyncMode::Resize => {
                let scales = resize(&self.deployment, &sets);
                self.scale(&mut sets, scales, &mut done);
                if mode == SyncMode::Hold {
                    self.clean(&mut sets, &mut done);
                }
            }
            SyncMode::Rollout => self.roll_out(&mut sets, &mut noted, &mut done),
            SyncMode::Refuse | SyncMode::Report => {}
        }
        let rollout = mode == SyncMode::Rollout;
        let status = status(&self.deployment, &noted, &sets, rollout, self.now);
        let edits = revision_edit(&self.deployment, &sets);
        if status != self.deployment.status || !edits.is_empty() {
            self.deployment.status = status;
            self.deployment.annotations = edited(&self.deployment.annotations, &edits);
            done.status_writes += 1;
        }
        done
    }

    fn roll_out(&mut self, sets: &mut Sets, noted: &mut DeploymentStatus, done: &mut SyncWrites) {
        loop {
            match next_step(&self.deployment, sets, || old_pods_running(sets, [])) {
                Step::Create => {
                    self.create(sets, done);
                    let name = &sets.new.as_ref().expect("created").meta.name;
                    note_created(&self.deployment, noted, name, self.now);
                    continue;
                }
                Step::Scale(scales) => self.scale(sets, scales, done),
                Step::Settled => {
                    if is_complete(&self.deployment, &self.deployment.status) {
                        self.clean(sets, done);
                    }
                }
                Step::Wait => {}
                Step::Unsupported(kind) => panic!("{kind}"),
            }
            break;
        }
    }

    fn create(&mut self, sets: &mut Sets, done: &mut SyncWrites) {
        let new = new_replica_set(&self.deployment, sets).expect("template");
        let mut set = created(&self.deployment, &new);
        assert!(self.sets.iter().all(|other| other.meta.name != set.meta.name), "{} exists", set.meta.name);
        self.created += 1;
        set.meta.uid = Uid::parse(&format!("set-{}", self.created));
        set.meta.created = self.now;
        set.meta.generation = 1;
        self.sets.push(set.clone());
        sets.replace(Arc::new(set));
        done.writes += 1;
    }

    fn scale(&mut self, sets: &mut Sets, scales: Vec<Scale>, done: &mut SyncWrites) {
        for scale in scales {
            let mut updated = (*scale.set).clone();
            updated.meta.generation += i64::from(updated.replicas != scale.replicas);
            updated.replicas = scale.replicas;
            updated.annotations = edited(&updated.annotations, &scale.annotations);
            self.put(sets, updated, done);
        }
    }

    fn put(&mut self, sets: &mut Sets, updated: ReplicaSet, done: &mut SyncWrites) {
        let place = self.sets.iter_mut().find(|set| set.meta.uid == updated.meta.uid).expect("known");
        assert_ne!(*place, updated, "a write that changes nothing");
        *place = updated.clone();
        sets.replace(Arc::new(updated));
        done.writes += 1;
    }

    fn clean(&mut self, sets: &mut Sets, done: &mut SyncWrites) {
        for surplus in surplus_history(&self.deployment, sets) {
            self.sets.retain(|set| set.meta.uid != surplus.meta.uid);
            sets.old.retain(|set| set.meta.uid != surplus.meta.uid);
            done.writes += 1;
        }
    }
}

/// Brings a set's pods to its scale, removing unavailable ones first, and reports them in its status.
fn follow(set: &mut ReplicaSet) {
    let ready = set.status.available_replicas.min(set.replicas);
    set.status.replicas = set.replicas;
    set.status.ready_replicas = ready;
    set.status.available_replicas = ready;
    set.status.terminating_replicas = Some(0);
    set.status.observed_generation = set.meta.generation;
}

#[test]
fn the_model_removes_pods_that_are_not_available_first() {
    let mut cluster = Cluster::new(4, Strategy::Recreate);
    cluster.sync();
    cluster.apply_event(&ClusterEvent::Follow(0));
    cluster.apply_event(&ClusterEvent::Ready(0, 3));
    cluster.sets[0].replicas = 3;
    cluster.apply_event(&ClusterEvent::Follow(0));
    assert_eq!((cluster.safe(), cluster.sets[0].status.replicas), (3, 3));
}
