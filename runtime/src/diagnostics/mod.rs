//! Why is this stuck? What a process knows of its controllers' work, and of one object, in words.
//!
//! Nothing is kept for an object at rest. A controller remembers its last [`RECENT`](crate::journal::RECENT) decisions and the keys that fail, at
//! most [`FAILING`](crate::journal::FAILING) of them; all else is read from queues and stores when somebody asks.

mod html;
mod object;
mod overview;

use std::sync::Arc;

pub(crate) use html::PATH;

use crate::fence::Fence;
use crate::queue::QueueLook;
use crate::watch::{EveryKind, Source, WatchStats};
use crate::worker::WorkCounts;

/// A controller's queue and what its workers did.
pub(crate) struct Watched {
    pub(crate) name: &'static str,
    pub(crate) workers: usize,
    pub(crate) queue: Arc<dyn QueueLook>,
    pub(crate) counts: Arc<WorkCounts>,
}

/// A finalizer and the program that removes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FinalizerOwner {
    /// The finalizer; a name that ends with `/` stands for all that begin with it.
    pub finalizer: &'static str,
    /// The controller or program that removes it.
    pub by: &'static str,
    /// The condition for the removal, as the end of "is removed ...".
    pub condition: &'static str,
}

impl FinalizerOwner {
    fn matches(&self, finalizer: &str) -> bool {
        finalizer == self.finalizer || self.finalizer.ends_with('/') && finalizer.starts_with(self.finalizer)
    }
}

/// The report of a process on its controllers and on single objects.
pub struct Explainer {
    pub(crate) component: &'static str,
    /// Kinds that the keys of queues are of, by the queue's name.
    pub(crate) kinds: Vec<(&'static str, &'static str)>,
    /// The finalizers of which the owner is known; the first match counts.
    pub(crate) finalizers: Vec<FinalizerOwner>,
    pub(crate) controllers: Vec<Watched>,
    pub(crate) sources: Vec<Arc<dyn Source>>,
    pub(crate) every: Option<Arc<EveryKind>>,
    pub(crate) stores: Vec<Arc<dyn WatchStats>>,
    pub(crate) fence: Fence,
}

/// How an answer is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// For people.
    Html,
    /// For scripts.
    Json,
}

/// An object that is asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Its kind, or its resource's plural name, with its group behind a dot if need be; in capitals or not.
    pub kind: String,
    /// Its namespace; empty for kinds without one.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Wanted {
    /// What a query asks about: `None` without `kind` and `name`.
    #[must_use]
    pub fn read(pairs: &[(String, String)]) -> Option<Self> {
        let value = |wanted: &str| {
            pairs.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
        };
        let wanted = Self { kind: value("kind"), namespace: value("namespace"), name: value("name") };
        (!wanted.kind.is_empty() && !wanted.name.is_empty()).then_some(wanted)
    }
}

impl Explainer {
    /// The page about an object, or about everything.
    #[must_use]
    pub fn answer(&self, wanted: Option<&Wanted>, form: Form) -> String {
        match (wanted, form) {
            (None, Form::Json) => json(&self.overview()),
            (None, Form::Html) => html::overview(&self.overview()),
            (Some(wanted), Form::Json) => json(&self.object(wanted)),
            (Some(wanted), Form::Html) => html::object(&self.object(wanted)),
        }
    }

    /// The kind that a controller's keys are of, if they are of one and it is known.
    fn kind_of(&self, watched: &Watched) -> Option<&'static str> {
        self.kinds.iter().find(|(queue, _)| *queue == watched.queue.name()).map(|(_, kind)| *kind)
    }

    /// All kinds that are watched.
    fn all_sources(&self) -> Vec<Arc<dyn Source>> {
        self.every.as_ref().map_or_else(|| self.sources.clone(), |every| every.sources())
    }
}

/// Reports hold texts and numbers only, which always become JSON.
fn json(report: &impl serde::Serialize) -> String {
    let mut text = serde_json::to_string_pretty(report).unwrap_or_default();
    text.push('\n');
    text
}

#[cfg(test)]
mod tests;
