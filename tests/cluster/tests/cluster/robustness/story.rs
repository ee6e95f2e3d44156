//! A scenario as data, which the crash tests run with a fault at any of its writes.

use anyhow::Result;
use cluster_tests::{Space, View};
use futures::future::BoxFuture;

/// What is done in a space.
pub type Told = BoxFuture<'static, Result<()>>;

/// A story of one or more controllers.
#[derive(Clone, Copy)]
pub struct Story {
    /// Its name among the tests.
    pub name: &'static str,
    /// Flags of its managers.
    pub flags: &'static [&'static str],
    /// A kind that its managers watch: a manager that has listed it knows whether there is something to do.
    pub kind: &'static str,
    /// What users do, and the state that they wait for after each step. Managers come and go beside it.
    pub tell: fn(Space) -> Told,
    /// Holds in every state on the way.
    pub judge: fn(&View) -> Result<()>,
    /// Takes away, at the end, what the namespace would not take with it.
    pub clear: fn(Space) -> Told,
    /// How many pods there are over the whole of it: one more is one too many.
    pub pods: usize,
    /// How many writes there are at least; status writes may fall together, so that the last few need not come.
    pub writes: usize,
    /// Writes that are to fail in each way: their beginnings, as a [`Call`](cluster_tests::Call) is written, and which of them.
    pub fails: &'static [(&'static str, usize)],
}

impl Story {
    /// One in which nothing happens; rows of the table say what is different.
    pub const BLANK: Self = Self {
        name: "",
        flags: &[],
        kind: "pods",
        tell: |_| Box::pin(async { Ok(()) }),
        judge: |_| Ok(()),
        clear: |_| Box::pin(async { Ok(()) }),
        pods: 0,
        writes: 0,
        fails: &[],
    };
}
