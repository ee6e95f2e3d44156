//! Diagnostics of reconciles: the state of all controllers, and of one object.
//!
//! Idle objects cost nothing. A controller keeps its last [`MAX_RECENT`](crate::journal::MAX_RECENT) decisions and at
//! most [`MAX_FAILING`](crate::journal::MAX_FAILING) failing keys. Everything else is read from queues and caches when
//! a report is requested.

mod html;
mod object;
mod overview;

use std::sync::Arc;

pub(crate) use html::PATH;

use crate::fence::Fence;
use crate::queue::QueueView;
use crate::watch::{EveryKind, Source, WatchStats};
use crate::worker::WorkCounts;

/// A controller's queue and the journal of its workers.
pub(crate) struct ReportedController {
    pub(crate) name: &'static str,
    pub(crate) workers: usize,
    pub(crate) queue: Arc<dyn QueueView>,
    pub(crate) counts: Arc<WorkCounts>,
}

/// A finalizer and the program that removes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FinalizerOwner {
    /// The finalizer. A name that ends with `/` matches all finalizers with that prefix.
    pub finalizer: &'static str,
    /// The controller or program that removes it.
    pub by: &'static str,
    /// The condition for the removal, which completes the sentence "The finalizer is removed …".
    pub condition: &'static str,
}

impl FinalizerOwner {
    fn matches(&self, finalizer: &str) -> bool {
        finalizer == self.finalizer || self.finalizer.ends_with('/') && finalizer.starts_with(self.finalizer)
    }
}

/// Creates reports on the controllers of a process and on single objects.
pub struct Explainer {
    pub(crate) component: &'static str,
    /// Maps a queue name to the kind of its keys.
    pub(crate) kinds: Vec<(&'static str, &'static str)>,
    /// The finalizers with a known owner; the first match applies.
    pub(crate) finalizers: Vec<FinalizerOwner>,
    pub(crate) controllers: Vec<ReportedController>,
    pub(crate) sources: Vec<Arc<dyn Source>>,
    pub(crate) every: Option<Arc<EveryKind>>,
    pub(crate) stores: Vec<Arc<dyn WatchStats>>,
    pub(crate) fence: Fence,
}

/// The format of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// HTML for browsers.
    Html,
    /// JSON for scripts.
    Json,
}

/// The object that a report is requested for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectQuery {
    /// The kind, or the resource's plural name, optionally with its group after a dot; case-insensitive.
    pub kind: String,
    /// The namespace; empty for kinds without one.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
}

impl ObjectQuery {
    /// Parses the names and values of a URL's query; `None` if `kind` or `name` is missing or empty.
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
    /// Returns the report about the wanted object, or, without one, about the whole process.
    #[must_use]
    pub fn render(&self, wanted: Option<&ObjectQuery>, form: Form) -> String {
        match (wanted, form) {
            (None, Form::Json) => json(&self.overview()),
            (None, Form::Html) => html::overview(&self.overview()),
            (Some(wanted), Form::Json) => json(&self.object(wanted)),
            (Some(wanted), Form::Html) => html::object(&self.object(wanted)),
        }
    }

    /// Returns the kind of a controller's keys, if they have one and it is known.
    fn kind_of(&self, watched: &ReportedController) -> Option<&'static str> {
        self.kinds.iter().find(|(queue, _)| *queue == watched.queue.name()).map(|(_, kind)| *kind)
    }

    /// Returns all watched kinds.
    fn all_sources(&self) -> Vec<Arc<dyn Source>> {
        self.every.as_ref().map_or_else(|| self.sources.clone(), |every| every.sources())
    }
}

/// Serializes a report. Reports hold only texts and numbers, so this cannot fail.
fn json(report: &impl serde::Serialize) -> String {
    let mut text = serde_json::to_string_pretty(report).unwrap_or_default();
    text.push('\n');
    text
}

#[cfg(test)]
mod tests;
