//! The declaration of a controller, from which command line, RBAC tests, diagnostics and docs are derived.

use kinds::Resource;
use runtime::manager::Manager;
use runtime::watch::Builder;

/// A verb of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// POST
    Create,
    /// PUT
    Update,
    /// PATCH
    Patch,
    /// DELETE
    Delete,
}

/// A write of a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write {
    /// The verb.
    pub verb: Verb,
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Plural name, with its subresource after a slash.
    pub resource: &'static str,
}

/// A work queue of a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueKeys {
    /// The queue's name, as in its metrics.
    pub queue: &'static str,
    /// The kind of all keys; `None` if the keys are of several kinds or not objects.
    pub kind: Option<&'static str>,
}

impl QueueKeys {
    /// Returns a queue whose keys are objects of one kind.
    #[must_use]
    pub const fn of(queue: &'static str, kind: &'static str) -> Self {
        Self { queue, kind: Some(kind) }
    }

    /// Returns a queue whose keys are not objects of one kind.
    #[must_use]
    pub const fn other(queue: &'static str) -> Self {
        Self { queue, kind: None }
    }
}

/// A finalizer that a controller removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finalizer {
    /// Its name on objects; a name that ends with `/` matches all finalizers with that prefix.
    pub name: &'static str,
    /// The condition for its removal, which completes the sentence "The finalizer is removed …".
    pub removed: &'static str,
}

/// The decision whether a controller runs with the flags, gates, credentials and cloud of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The controller runs.
    Run,
    /// The controller is skipped, as in upstream; the reason is logged.
    Skip(&'static str),
}

/// A controller: its name, its reads and writes, and its start with a binary's context `C`.
pub struct Descriptor<C: 'static> {
    /// Its name in `--controllers`.
    pub name: &'static str,
    /// Its service account in `kube-system`; its role is called `system:controller:<account>`. Empty for a controller
    /// that writes under the process's identity.
    pub service_account: &'static str,
    /// API resources without which the controller is skipped.
    pub requires: &'static [Resource],
    /// Reads the controller's settings from the command line into the context, and decides whether the controller
    /// runs. An error ends the process: flags contradict each other, or a file cannot be used.
    pub prepare: fn(&mut C) -> anyhow::Result<Start>,
    /// Declares the kinds, sections and indexes that the controller reads.
    pub watches: fn(&mut Builder, &C),
    /// Its writes; each must be in its bootstrap role.
    pub writes: &'static [Write],
    /// Its queues.
    pub queues: &'static [QueueKeys],
    /// The finalizers that the controller removes.
    pub finalizers: &'static [Finalizer],
    /// Adds the controller to a manager.
    pub start: fn(&mut Manager, &C),
}

impl<C> Descriptor<C> {
    /// A controller that requires, reads and writes nothing: the base for struct update syntax.
    pub const NONE: Self = Self {
        name: "",
        service_account: "",
        requires: &[],
        prepare: |_| Ok(Start::Run),
        watches: |_, _| {},
        writes: &[],
        queues: &[],
        finalizers: &[],
        start: |_, _| {},
    };
}
