//! Finds the Services that select a pod, and the pods that a Service selects, by label and without a scan.
//!
//! Each Service is indexed under one label of its selector, the one with the fewest other Services. So a label that
//! many Services share, such as the name of a Helm release, does not make look-ups slow.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use kinds::intern::Labels;
use kinds::meta::ObjectKey;
use kinds::service::ServiceType;
use kinds::{Pod, Service};
use runtime::lock::lock;
use runtime::store::{Change, Store};

use crate::pods::indexes::{by_label, pair};

/// Returns true if a label set has all labels of a selector; both are sorted.
pub fn selects(selector: &Labels, labels: &Labels) -> bool {
    selector.iter().all(|wanted| labels.binary_search(wanted).is_ok())
}

/// Returns the pods that a Service with a selector selects, in no particular order.
pub fn pods_of(service: &Service, pods: &Store<Pod>) -> Vec<Arc<Pod>> {
    let namespace = &service.meta.namespace;
    let mut found = pods.by_rarest(&by_label(), service.selector.iter().map(|label| pair(namespace, label)));
    found.retain(|pod| pod.meta.namespace == *namespace && selects(&service.selector, &pod.meta.labels));
    found
}

/// The selectors of all Services whose endpoints are made from pods.
#[derive(Debug, Default)]
pub struct Selectors {
    index: Mutex<SelectorIndex>,
}

#[derive(Debug, Default)]
struct SelectorIndex {
    by_pair: HashMap<u64, Vec<(ObjectKey, Labels)>>,
    pairs: HashMap<ObjectKey, u64>,
}

impl Selectors {
    /// Applies a change of a Service.
    pub fn apply(&self, change: &Change<'_, Service>) {
        if let Some(service) = change.new {
            let selector = (service.kind != ServiceType::ExternalName).then_some(&service.selector);
            self.put(service.meta.key(), selector.filter(|selector| !selector.is_empty()));
        } else if let Some(service) = change.old {
            self.put(service.meta.key(), None);
        }
    }

    fn put(&self, key: ObjectKey, selector: Option<&Labels>) {
        let mut index = self.lock();
        if let Some(pair) = index.pairs.remove(&key)
            && let Some(services) = index.by_pair.get_mut(&pair)
        {
            services.retain(|(indexed, _)| *indexed != key);
            if services.is_empty() {
                index.by_pair.remove(&pair);
            }
        }
        let Some(selector) = selector else { return };
        let pairs = selector.iter().map(|label| pair(&key.namespace, label));
        let Some(pair) = pairs.min_by_key(|pair| index.by_pair.get(pair).map_or(0, Vec::len)) else { return };
        index.by_pair.entry(pair).or_default().push((key.clone(), selector.clone()));
        index.pairs.insert(key, pair);
    }

    /// Calls `found` with each Service that selects pods with these labels.
    pub fn matching(&self, namespace: &str, labels: &Labels, mut found: impl FnMut(&ObjectKey)) {
        let index = self.lock();
        for label in &**labels {
            for (key, selector) in index.by_pair.get(&pair(namespace, label)).into_iter().flatten() {
                if *key.namespace == *namespace && selects(selector, labels) {
                    found(key);
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, SelectorIndex> {
        lock(&self.index)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use kinds::Interner;
    use proptest::prelude::*;

    use super::*;

    fn labels(pairs: &[(u8, u8)]) -> Labels {
        let interner = Interner::default();
        let unique: std::collections::BTreeMap<u8, u8> = pairs.iter().copied().collect();
        let text = |number: u8| interner.str(&number.to_string());
        interner.labels(unique.into_iter().map(|(key, value)| (text(key), text(value))).collect())
    }

    fn found(selectors: &Selectors, namespace: &str, pod: &Labels) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        selectors.matching(namespace, pod, |key| assert!(found.insert(key.to_string()), "{key} was found twice"));
        found
    }

    #[test]
    fn services_are_not_indexed_under_a_pair_that_all_share() {
        let selectors = Selectors::default();
        for app in 0..100 {
            selectors.put(ObjectKey::new("n", app.to_string()), Some(&labels(&[(0, 0), (1, app)])));
        }
        let max = selectors.lock().by_pair.values().map(Vec::len).max();
        assert_eq!(max, Some(1));
        assert_eq!(found(&selectors, "n", &labels(&[(0, 0), (1, 7), (2, 2)])), ["n/7".to_owned()].into());
        assert!(found(&selectors, "m", &labels(&[(0, 0), (1, 7)])).is_empty());
    }

    proptest! {
        /// After any sequence of changes, a look-up finds the same Services as a scan.
        #[test]
        fn look_ups_agree_with_a_scan(
            changes in prop::collection::vec((0u8..6, prop::option::of(prop::collection::vec((0u8..3, 0u8..3), 1..3))), 1..40),
            pod in prop::collection::vec((0u8..3, 0u8..3), 0..3),
        ) {
            let (selectors, mut plain) = (Selectors::default(), std::collections::BTreeMap::new());
            for (name, selector) in changes {
                let selector = selector.map(|pairs| labels(&pairs));
                selectors.put(ObjectKey::new("n", name.to_string()), selector.as_ref());
                plain.insert(format!("n/{name}"), selector);
            }
            let pod = labels(&pod);
            let wanted = plain.into_iter().filter(|(_, selector)| selector.as_ref().is_some_and(|s| selects(s, &pod)));
            prop_assert_eq!(found(&selectors, "n", &pod), wanted.map(|(name, _)| name).collect());
        }
    }
}
