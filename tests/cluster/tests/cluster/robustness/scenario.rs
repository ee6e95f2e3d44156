//! A scenario as data, which the crash tests run with a fault at any of its writes.

use anyhow::Result;
use cluster_tests::{Faults, Space, Verb, View};
use futures::future::BoxFuture;

/// The future of a scenario's actions in a space.
pub type StepFuture = BoxFuture<'static, Result<()>>;

/// A scenario of one or more controllers.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// Its name among the tests.
    pub name: &'static str,
    /// Flags of its managers.
    pub flags: &'static [&'static str],
    /// A resource that its managers watch. In the end, a further manager is started: once it watches the resource, it
    /// must not write.
    pub kind: &'static str,
    /// Actions of users, each followed by a wait for a state. At the same time, managers are started and crash.
    pub run: fn(Space) -> StepFuture,
    /// Checks an invariant of every intermediate state.
    pub judge: fn(&View) -> Result<()>,
    /// Deletes, at the end, objects that are not deleted with the namespace.
    pub clear: fn(Space) -> StepFuture,
    /// The exact number of pods that are created in total.
    pub pods: usize,
    /// The minimum number of writes. The number varies, because status writes may be combined.
    pub writes: usize,
    /// Writes that a test fails in each way: the prefix of the call's text (see [`Call`](cluster_tests::Call)), and the
    /// number of the write among those with this prefix, counted from one.
    pub fails: &'static [(&'static str, usize)],
}

impl Scenario {
    /// A scenario without actions, as the default for the fields of others.
    pub const EMPTY: Self = Self {
        name: "",
        flags: &[],
        kind: "pods",
        run: |_| Box::pin(async { Ok(()) }),
        judge: |_| Ok(()),
        clear: |_| Box::pin(async { Ok(()) }),
        pods: 0,
        writes: 0,
        fails: &[],
    };
}

/// Returns the number of created pods, including those whose response was lost.
pub fn created_pods(faults: &Faults) -> usize {
    let requests = faults.requests();
    requests
        .iter()
        .filter(|request| {
            (request.call.verb, request.call.resource.as_str(), request.status) == (Verb::Create, "pods", Some(201))
        })
        .count()
}
