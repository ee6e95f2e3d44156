//! Finds the revision of a StatefulSet's template, and creates or renumbers one when the template has changed.

use std::sync::Arc;
use std::time::Duration;

use kinds::template::Template;
use kinds::{ControllerRevision, StatefulSet, Str};
use runtime::worker::ReconcileError;

use super::state::StatefulSets;
use super::status::Revisions;
use crate::workloads::controller_revisions::{self, Draft, HASH_LABEL, History, are_semantically_equal};

/// The result of the search for a StatefulSet's revisions.
pub enum RevisionSearch {
    /// The revisions exist.
    Revisions(Revisions),
    /// The cached StatefulSet is older than the API server's.
    Outdated,
    /// The creation of a revision was refused, and may be repeated after this delay.
    Refused(Duration),
}

impl StatefulSets {
    /// Returns the current and the newest revision of a StatefulSet; `sorted` are all its revisions, oldest first.
    /// Upstream: pkg/controller/statefulset, getStatefulSetRevisions.
    pub(super) async fn resolve(
        &self,
        set: &StatefulSet,
        template: &Template,
        history: &History<'_>,
        sorted: &[Arc<ControllerRevision>],
    ) -> Result<RevisionSearch, ReconcileError> {
        let mut collisions = set.status.collision_count;
        let update = match self.known(set, template, sorted) {
            Some(name) => name,
            None => {
                if let Some(left) = history.refused_before() {
                    return Ok(RevisionSearch::Refused(left));
                }
                match self.find_or_make(set, history, sorted, &mut collisions).await? {
                    Some(name) => name,
                    None => return Ok(RevisionSearch::Outdated),
                }
            }
        };
        self.memory.remember(&set.meta, template, &update);
        let current =
            sorted.iter().map(|revision| &revision.meta.name).find(|name| **name == set.status.current_revision);
        Ok(RevisionSearch::Revisions(Revisions { current: current.unwrap_or(&update).clone(), update, collisions }))
    }

    /// Returns the newest revision if its template is known to be the StatefulSet's: this process has compared them, or
    /// the status names the revision for this generation of the spec.
    fn known(&self, set: &StatefulSet, template: &Template, sorted: &[Arc<ControllerRevision>]) -> Option<Str> {
        let newest = &sorted.last()?.meta.name;
        let observed = set.status.observed_generation == set.meta.generation && set.meta.generation > 0;
        let known = self.memory.recall(&set.meta, template);
        let known = known.or_else(|| observed.then(|| set.status.update_revision.clone()))?;
        (known == *newest).then_some(known)
    }

    async fn find_or_make(
        &self,
        set: &StatefulSet,
        history: &History<'_>,
        sorted: &[Arc<ControllerRevision>],
        collisions: &mut i32,
    ) -> Result<Option<Str>, ReconcileError> {
        let snapshot = history.snapshot::<StatefulSet>().await?;
        if snapshot.generation != set.meta.generation {
            return Ok(None);
        }
        let number = controller_revisions::next_number(sorted);
        if let Some(equal) = controller_revisions::find_equal(sorted, &snapshot.data) {
            let is_newest = sorted.last().is_some_and(|newest| newest.data == equal.data);
            let found = if is_newest { sorted.last().cloned() } else { None };
            return Ok(Some(match found {
                Some(newest) => newest.meta.name.clone(),
                None => history.renumber(&equal, number).await?.meta.name.clone(),
            }));
        }
        if let Some(newest) = sorted.last().filter(|_| self.gates.semantic) {
            let data = history.data(&newest.meta.name).await?;
            if are_semantically_equal(&data, &snapshot.data) {
                return Ok(Some(newest.meta.name.clone()));
            }
        }
        let hash = controller_revisions::hash(&snapshot.data, Some(*collisions));
        let draft = Draft::new(snapshot, (HASH_LABEL, hash), number);
        Ok(Some(history.create(&draft, collisions).await?.meta.name.clone()))
    }
}
