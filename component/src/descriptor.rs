//! What a controller declares about itself. The only place where it does: command line, RBAC tests, diagnostics and docs
//! are derived from these values.

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

/// A write that a controller does.
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
    /// The kind that all keys are of; `None` if they are of several kinds or no objects.
    pub kind: Option<&'static str>,
}

impl QueueKeys {
    /// Returns a queue whose keys are objects of one kind.
    #[must_use]
    pub const fn of(queue: &'static str, kind: &'static str) -> Self {
        Self { queue, kind: Some(kind) }
    }

    /// Returns a queue with keys of its own.
    #[must_use]
    pub const fn other(queue: &'static str) -> Self {
        Self { queue, kind: None }
    }
}

/// A finalizer that a controller removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finalizer {
    /// Its name on objects; a name that ends with `/` stands for all that begin with it.
    pub name: &'static str,
    /// The condition for its removal, as the end of "is removed ...".
    pub removed: &'static str,
}

/// Whether a controller runs with the flags, gates, credentials and cloud of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// It has work.
    Run,
    /// It is skipped, as upstream skips it; the reason goes to the log.
    Skip(&'static str),
}

/// A controller: its name, what it reads and writes, and how it starts with a binary's context `C`.
pub struct Descriptor<C: 'static> {
    /// Its name in `--controllers`.
    pub name: &'static str,
    /// Its service account in `kube-system`; its role is `system:controller:` and this name. Empty for a controller
    /// that writes as the process itself.
    pub service_account: &'static str,
    /// API resources without which the controller is skipped.
    pub requires: &'static [Resource],
    /// Reads what the controller needs from the command line into the context, and reports whether it has work. An
    /// error ends the process: flags contradict each other, or a file cannot be used.
    pub prepare: fn(&mut C) -> anyhow::Result<Start>,
    /// Declares the kinds, sections and indexes that it reads.
    pub watches: fn(&mut Builder, &C),
    /// Everything that it writes; all of it must be in its bootstrap role.
    pub writes: &'static [Write],
    /// Its queues.
    pub queues: &'static [QueueKeys],
    /// The finalizers that it removes.
    pub finalizers: &'static [Finalizer],
    /// Adds it to a manager.
    pub start: fn(&mut Manager, &C),
}

impl<C> Descriptor<C> {
    /// A controller that needs no particular API or flag, reads and writes nothing and does nothing: the base for struct
    /// update syntax.
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
