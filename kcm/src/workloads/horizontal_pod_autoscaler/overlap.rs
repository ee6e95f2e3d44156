//! Autoscalers that select the same pods: each is indexed by a label of its selector, so that a search compares only a
//! few of them. Upstream: pkg/controller/podautoscaler, hpaSelectorStore.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use kinds::Pod;
use kinds::meta::ObjectKey;
use kinds::selector::{Requirement, Selector};
use runtime::lock::lock;
use runtime::store::{Store, index_key};

use crate::pods::indexes::by_label;

/// The selectors of all autoscalers' targets.
#[derive(Debug, Default)]
pub struct Overlaps(Mutex<SelectorIndex>);

#[derive(Debug, Default)]
struct SelectorIndex {
    by_pair: HashMap<u64, Vec<ObjectKey>>,
    selectors: HashMap<ObjectKey, (u64, Arc<Selector>)>,
}

/// Returns the index value of a label that every matching pod has; `None` if the selector requires no label value.
fn required_label(namespace: &str, selector: &Selector) -> Option<u64> {
    let Selector::All(requirements) = selector else { return None };
    required_labels(namespace, requirements).next()
}

/// Returns the index values of the labels that every matching pod has.
fn required_labels(namespace: &str, requirements: &[Requirement]) -> impl Iterator<Item = u64> {
    let labels = requirements.iter().filter_map(Requirement::only_label);
    labels.map(move |(key, value)| index_key((namespace, &**key, &**value)))
}

/// Returns false if a selector is invalid, selects nothing, or requires a label that none of the pods has. `labels` are
/// the index values of the labels of all pods.
fn may_select(namespace: &str, selector: &Selector, labels: &HashSet<u64>) -> bool {
    let Selector::All(requirements) = selector else { return false };
    required_labels(namespace, requirements).all(|label| labels.contains(&label))
}

/// Returns the index value of selectors that require no label to have a certain value.
fn without_label(namespace: &str) -> u64 {
    index_key((namespace, "anywhere"))
}

/// Returns the pods that a selector matches, sorted by name. If the selector requires label values, only the pods with
/// the rarest of these are compared.
pub fn pods_of(namespace: &str, selector: &Selector, pods: &Store<Pod>) -> Vec<Arc<Pod>> {
    let Selector::All(requirements) = selector else { return Vec::new() };
    let certain: Vec<u64> = required_labels(namespace, requirements).collect();
    let mut found = if certain.is_empty() {
        pods.by_index(&runtime::store::by_namespace(), index_key(namespace))
    } else {
        pods.by_rarest(&by_label(), certain.into_iter())
    };
    found.retain(|pod| *pod.meta.namespace == *namespace && selector.matches(&pod.meta.labels));
    found.sort_unstable_by(|a, b| a.meta.name.cmp(&b.meta.name));
    found
}

impl Overlaps {
    /// Replaces an autoscaler's selector.
    pub fn put(&self, key: &ObjectKey, selector: &Arc<Selector>) {
        let mut index = self.lock();
        if index.selectors.get(key).is_some_and(|(_, known)| known == selector) {
            return;
        }
        index.remove(key);
        let place = required_label(&key.namespace, selector).unwrap_or_else(|| without_label(&key.namespace));
        index.by_pair.entry(place).or_default().push(key.clone());
        index.selectors.insert(key.clone(), (place, selector.clone()));
    }

    /// Removes an autoscaler.
    pub fn forget(&self, key: &ObjectKey) {
        self.lock().remove(key);
    }

    /// Returns the first `max` autoscalers of a namespace that select some of these pods.
    ///
    /// Autoscalers are compared in the order of their names, each with the pods' distinct labels until one pod matches:
    /// a tenant may have thousands of autoscalers for the same thousands of pods.
    pub fn selecting(&self, namespace: &str, pods: &[Arc<Pod>], max: usize) -> Vec<ObjectKey> {
        // Pods with equal labels share one interned list, so the lists' addresses differ for distinct labels only.
        let mut seen = HashSet::new();
        let labels = pods.iter().map(|pod| &pod.meta.labels);
        let distinct: Vec<_> = labels.filter(|labels| seen.insert(Arc::as_ptr(labels).cast::<()>())).collect();
        let pairs = distinct.iter().flat_map(|labels| labels.iter());
        let pairs = pairs.map(|(key, value)| index_key((namespace, &**key, &**value)));
        let places: HashSet<u64> = pairs.chain([without_label(namespace)]).collect();
        let selects = |selector: &Selector| {
            may_select(namespace, selector, &places) && distinct.iter().any(|labels| selector.matches(labels))
        };
        let candidates = self.lock().candidates(namespace, &places);
        let selecting = candidates.into_iter().filter(|(_, selector)| selects(selector)).map(|(key, _)| key);
        selecting.take(max).collect()
    }

    fn lock(&self) -> MutexGuard<'_, SelectorIndex> {
        lock(&self.0)
    }
}

impl SelectorIndex {
    /// Returns the autoscalers of a namespace under these index values, sorted by name, with their selectors.
    fn candidates(&self, namespace: &str, places: &HashSet<u64>) -> Vec<(ObjectKey, Arc<Selector>)> {
        let keys = places.iter().filter_map(|place| self.by_pair.get(place)).flatten();
        let keys = keys.filter(|key| *key.namespace == *namespace);
        let with_selector = |key: &ObjectKey| Some((key.clone(), self.selectors.get(key)?.1.clone()));
        let mut candidates: Vec<_> = keys.filter_map(with_selector).collect();
        candidates.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        candidates
    }

    fn remove(&mut self, key: &ObjectKey) {
        let Some((place, _)) = self.selectors.remove(key) else { return };
        if let Some(keys) = self.by_pair.get_mut(&place) {
            keys.retain(|other| other != key);
            if keys.is_empty() {
                self.by_pair.remove(&place);
            }
        }
    }
}

/// Formats the autoscalers for messages, as upstream prints them.
pub fn printed(keys: &[ObjectKey]) -> String {
    let each: Vec<_> = keys.iter().map(|key| format!("{{{} {}}}", key.name, key.namespace)).collect();
    format!("[{}]", each.join(" "))
}
