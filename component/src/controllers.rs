//! The form of the table of a binary's controllers: what each needs, writes and how it starts.

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

/// A controller: its names, what it reads and writes, and how it starts with a binary's settings `S`.
pub struct Descriptor<S> {
    /// Its name in `--controllers`.
    pub name: &'static str,
    /// Its service account in `kube-system`; its role is `system:controller:` and this name. Empty for a controller
    /// that writes as the process itself.
    pub service_account: &'static str,
    /// Declares the kinds, sections and indexes that it reads.
    pub needs: fn(&mut Builder),
    /// Everything that it writes; all of it must be in its bootstrap role.
    pub writes: &'static [Write],
    /// Adds it to a manager.
    pub start: fn(&mut Manager, &S),
}
