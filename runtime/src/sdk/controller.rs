//! The builder of controllers.

use std::any::{Any, TypeId};
use std::collections::{HashMap, HashSet};
use std::hash::RandomState;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::{Meta, ObjectKey};
use kinds::{Kind, Resource, Sections};

use super::applied::{AppliedChildren, KindName};
use super::context::{Context, Shared, kind_name};
use super::error::Error;
use super::object::Object;
use super::record::{Children, Owned, Typed, by_controller};
use super::work::{Finalizer, Run, Worker};
use crate::consistency::Consistency;
use crate::manager::Manager;
use crate::queue::{Queue, QueueOptions};
use crate::watch::{Builder, Registry};
use crate::worker::{Outcome, WorkOptions};

/// Kinds of which some controller needs whole objects.
pub(super) type WholeKinds = HashSet<KindName>;

/// A kind of children. Their metadata is watched, or whole objects if some controller needs them, because there is only
/// one watch per kind.
struct ChildKind {
    resource: Resource,
    need: fn(&mut Builder, bool),
    store: fn(&Registry, bool) -> Arc<dyn Children>,
}

impl ChildKind {
    fn of<D: Object>() -> Self {
        Self {
            resource: D::RESOURCE,
            need: |needs, whole| {
                if whole {
                    needs.need::<Typed<D>>(Sections::default(), &[by_controller()]);
                } else {
                    needs.need::<Owned<D>>(Sections::default(), &[by_controller()]);
                }
            },
            store: |registry, whole| {
                if whole { registry.store::<Typed<D>>() } else { registry.store::<Owned<D>>() }
            },
        }
    }
}

/// Subscribes the queue to changes of a kind. Returns the kind's store under its type.
type Follow = Box<dyn FnOnce(&Registry, &Arc<Queue<ObjectKey>>) -> (TypeId, AnyStore) + Send>;

/// An `Arc<Store<Typed<W>>>`.
pub(super) type AnyStore = Arc<dyn Any + Send + Sync>;

type Need = Box<dyn FnOnce(&mut Builder, &WholeKinds) + Send>;
type Start = Box<dyn FnOnce(&mut Manager, &WholeKinds) + Send>;

/// A kind of objects on which the reconciled objects depend.
struct WatchedKind {
    resource: Resource,
    need: fn(&mut Builder),
    start: Follow,
}

/// The entry point of the builder.
#[derive(Debug, Clone, Copy)]
pub struct Controller;

/// A controller under construction: its kind, its children and its function.
pub struct For<K: Object> {
    name: &'static str,
    workers: usize,
    owns: Vec<ChildKind>,
    watches: Vec<WatchedKind>,
    finalizer: Option<Finalizer<K>>,
}

impl Controller {
    /// Starts to build a controller for the objects of a kind. The name is used in metrics, in Events, and as field
    /// manager of applied children and of the status. Keep the name stable: a field manager with another name owns
    /// other fields.
    pub fn for_<K: Object>(name: &'static str) -> For<K> {
        For { name, workers: 2, owns: Vec::new(), watches: Vec::new(), finalizer: None }
    }
}

impl<K: Object> For<K> {
    /// Declares children of a kind: a change of a child requeues its owner.
    pub fn owns<D: Object>(mut self) -> Self {
        self.owns.push(ChildKind::of::<D>());
        self
    }

    /// Declares a dependency on another kind: a change requeues the keys that `concerned` returns for the old and the
    /// new object. Read the objects with [`Context::look_up`].
    pub fn watches<W: Object>(mut self, concerned: impl Fn(&W) -> Vec<ObjectKey> + Send + Sync + 'static) -> Self {
        self.watches.push(WatchedKind {
            resource: W::RESOURCE,
            need: |needs| {
                needs.need::<Typed<W>>(Sections::default(), &[]);
            },
            start: Box::new(move |registry, queue| {
                let (store, queue) = (registry.store::<Typed<W>>(), queue.clone());
                store.subscribe(move |change| {
                    for record in change.old.into_iter().chain(change.new) {
                        concerned(&record.object).into_iter().for_each(|key| queue.add(key));
                    }
                });
                (TypeId::of::<W>(), Arc::new(store))
            }),
        });
        self
    }

    /// Keeps objects that are being deleted until `clean_up` has returned [`Outcome::Done`], for resources that are not
    /// deleted with their owner. `name` is the finalizer on the objects, such as `example.com/bucket`.
    pub fn finalizer<F>(
        mut self,
        name: &'static str,
        clean_up: impl Fn(Context<K>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Outcome, Error>> + Send + 'static,
    {
        self.finalizer = Some(Finalizer { name, clean_up: boxed(clean_up) });
        self
    }

    /// Sets the number of objects that are reconciled at the same time; 2 by default. While reconciles take longer than
    /// a second, up to the same number of objects of other namespaces is reconciled in addition.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// Sets the reconcile function and completes the controller. The function is called after the object, one of its
    /// children or an object of a watched kind has changed (a change of the object's status alone does not count if its
    /// kind has a generation), after a failure, and after the time of a requested requeue. It never runs twice at the
    /// same time for an object, and not before the stores contain the previous writes for that object. It is not called
    /// for an object that is being deleted: see [`For::finalizer`].
    pub fn reconcile<F>(self, reconcile: impl Fn(Context<K>) -> F + Send + Sync + 'static) -> Prepared
    where
        F: Future<Output = Result<Outcome, Error>> + Send + 'static,
    {
        let run = boxed(reconcile);
        let owned: Vec<_> = self.owns.iter().map(|kind| (kind_name(&kind.resource), kind.need)).collect();
        let watched: Vec<_> = self.watches.iter().map(|kind| kind.need).collect();
        let whole =
            self.watches.iter().map(|kind| kind_name(&kind.resource)).chain([kind_name(&K::RESOURCE)]).collect();
        Prepared {
            whole,
            need: Box::new(move |needs, whole| {
                needs.need::<Typed<K>>(Sections::default(), &[by_controller()]);
                owned.iter().for_each(|(at, need)| need(needs, whole.contains(at)));
                watched.iter().for_each(|need| need(needs));
            }),
            start: Box::new(move |manager, whole| self.start(manager, whole, run)),
        }
    }

    fn start(self, manager: &mut Manager, whole: &WholeKinds, run: Run<K>) {
        let queue: Arc<Queue<ObjectKey>> = Queue::new(QueueOptions::named(self.name));
        let registry = manager.registry();
        let store = registry.store::<Typed<K>>();
        let added = queue.clone();
        store.subscribe(move |change| {
            if let Some(record) = change.new.or(change.old)
                && requires_reconcile(change.old.map(|record| &**record), change.new.map(|record| &**record))
            {
                added.add(record.meta().key());
            }
        });
        let applied = Arc::<AppliedChildren>::default();
        let mut children = HashMap::new();
        for kind in self.owns {
            let at = kind_name(&kind.resource);
            let store = (kind.store)(registry, whole.contains(&at));
            let (added, known) = (queue.clone(), applied.clone());
            store.on_change(Box::new(move |old, new| {
                forget_deleted::<K>(&known, at, old, new);
                for key in [old, new].into_iter().flatten().filter_map(owner::<K>) {
                    added.add(key);
                }
            }));
            children.insert(at, (kind.resource, store));
        }
        let watched = self.watches.into_iter().map(|kind| (kind.start)(registry, &queue)).collect();
        let shared = Shared {
            name: self.name,
            store,
            children,
            watched,
            writer: manager.writer(self.name),
            recorder: manager.recorder(self.name, self.name),
            consistency: Consistency::default(),
            applied,
            hasher: RandomState::new(),
        };
        let worker = Worker { shared: Arc::new(shared), queue: queue.clone(), run, finalizer: self.finalizer };
        let options = WorkOptions { name: self.name, workers: self.workers };
        manager.add(options, queue, Arc::new(worker));
    }
}

/// A controller that is ready to be run by an [`Operator`](super::Operator).
pub struct Prepared {
    pub(super) whole: WholeKinds,
    pub(super) need: Need,
    pub(super) start: Start,
}

fn boxed<K: Object, F>(run: impl Fn(Context<K>) -> F + Send + Sync + 'static) -> Run<K>
where
    F: Future<Output = Result<Outcome, Error>> + Send + 'static,
{
    Box::new(move |context| -> BoxFuture<'static, Result<Outcome, Error>> { run(context).boxed() })
}

/// Returns true if a change requires a reconcile. A change of the status alone does not: only the controller writes it.
pub(super) fn requires_reconcile<K: Object>(old: Option<&Typed<K>>, new: Option<&Typed<K>>) -> bool {
    let (Some(old), Some(new)) = (old, new) else { return true };
    // Kinds without a generation do not show which part has changed.
    new.meta().generation == 0
        || old.meta().generation != new.meta().generation
        || old.meta().differs(new.meta())
        || old.object.meta().annotations != new.object.meta().annotations
}

/// Removes a child from the applied ones if a change deleted it: other clients may delete it, too, and an owner may
/// have children with ever-changing names.
pub(super) fn forget_deleted<K: Object>(
    applied: &AppliedChildren,
    kind: KindName,
    old: Option<&Meta>,
    new: Option<&Meta>,
) {
    let deleted = old.filter(|old| new.is_none_or(|new| new.uid != old.uid));
    if let Some((owner, child)) = deleted.and_then(|child| Some((owner::<K>(child)?, child.key()))) {
        applied.forget_child(&owner, &(kind, child));
    }
}

/// Returns the controller of a child, if it is of kind `K`.
pub(super) fn owner<K: Object>(child: &Meta) -> Option<ObjectKey> {
    let (resource, owner) = (K::RESOURCE, child.controller()?);
    let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
    let namespace = if resource.namespaced { child.namespace.clone() } else { "".into() };
    (group == resource.group && *owner.kind == *resource.kind).then(|| ObjectKey::new(namespace, owner.name.clone()))
}
