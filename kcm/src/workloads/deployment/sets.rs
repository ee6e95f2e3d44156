//! The ReplicaSets of one Deployment, and comparisons with its template.

use std::sync::Arc;

use kinds::ReplicaSet;
use kinds::deployment::Deployment;
use kinds::raw_object::AnnotationEdits;

/// The ReplicaSets of one Deployment, distinguished by their templates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sets {
    /// The set with the Deployment's template; the oldest of several.
    pub new: Option<Arc<ReplicaSet>>,
    /// All other sets, oldest first.
    pub old: Vec<Arc<ReplicaSet>>,
}

impl Sets {
    /// Splits the sets that the Deployment owns. Upstream: pkg/controller/deployment/util, FindNewReplicaSet and
    /// FindOldReplicaSets.
    pub fn split(deployment: &Deployment, sets: &[Arc<ReplicaSet>]) -> Self {
        let mut old = sets.to_vec();
        old.sort_by(|a, b| a.meta.by_creation(&b.meta));
        let newest = old.iter().position(|set| has_template_of(set, deployment));
        Self { new: newest.map(|at| old.remove(at)), old }
    }

    /// Returns the old sets and then the new one.
    pub fn all(&self) -> impl DoubleEndedIterator<Item = &Arc<ReplicaSet>> + Clone {
        self.old.iter().chain(&self.new)
    }

    /// Returns those of [`Sets::all`] that should have pods. Upstream: pkg/controller, FilterActiveReplicaSets.
    pub fn active(&self) -> impl Iterator<Item = &Arc<ReplicaSet>> + Clone {
        self.all().filter(|set| set.replicas > 0)
    }

    /// Replaces the record with the same UID. A set that is not contained yet becomes the new one.
    pub fn replace(&mut self, updated: Arc<ReplicaSet>) {
        match self.old.iter_mut().find(|set| set.meta.uid == updated.meta.uid) {
            Some(place) => *place = updated,
            None => self.new = Some(updated),
        }
    }

    /// Returns the number of pods that all sets together should have.
    pub fn total(&self) -> i32 {
        sum(self.all().map(|set| set.replicas))
    }
}

/// Returns the sum of numbers of pods. It saturates, because a scale may be the largest number of its type.
pub fn sum(counts: impl IntoIterator<Item = i32>) -> i32 {
    counts.into_iter().fold(0, i32::saturating_add)
}

/// Returns true if the set has the Deployment's template. Upstream: pkg/controller/deployment/util, EqualIgnoreHash.
pub fn has_template_of(set: &ReplicaSet, deployment: &Deployment) -> bool {
    matches!((&set.template, &deployment.template), (Some(a), Some(b)) if a.equal_ignoring_hash(b))
}

/// Returns the oldest old set that may have the Deployment's template in another form: different versions of the API
/// server may write the same template differently.
pub fn possible_match<'a>(deployment: &Deployment, sets: &'a Sets) -> Option<&'a Arc<ReplicaSet>> {
    let wanted = deployment.template.as_ref()?;
    sets.old.iter().find(|set| set.template.as_ref().is_some_and(|template| template.may_equal_ignoring_hash(wanted)))
}

/// Adds an edit unless the annotation has that value already.
pub fn edit(edits: &mut AnnotationEdits, current: Option<&str>, key: &str, value: &str) {
    if current != Some(value) {
        edits.push((key.into(), Some(value.into())));
    }
}
