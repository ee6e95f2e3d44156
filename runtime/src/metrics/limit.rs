//! A limit on the series of one metric. Some labels have values from objects that any user may create, such as the
//! names of namespaces and drivers: without a limit they would fill the memory of this process and of its scrapers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::labels::Labels;

/// Maximum number of series of a metric. All further ones are counted together, with [`OTHER`] as the value of each
/// label.
pub const MAX_SERIES: usize = 1000;

/// Maximum number of series of a gauge that is counted at each scrape: large clusters have many.
pub const MAX_COUNTED_SERIES: usize = 50_000;

/// The value of labels whose own values are not exposed.
pub const OTHER: &str = "other";

/// The number of series of one metric. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct SeriesLimit(Arc<AtomicUsize>);

impl SeriesLimit {
    /// Returns the labels of the series in which a sample counts: `labels` if the series exists already or may be
    /// created, else [`OTHER`] as each value.
    pub(super) fn admit<const N: usize>(&self, labels: Labels<N>, exists: bool) -> Labels<N> {
        if exists || self.0.fetch_add(1, Ordering::Relaxed) < MAX_SERIES {
            return labels;
        }
        labels.map(|(name, _)| (name, OTHER.to_owned()))
    }
}

/// Returns the value of `key`. If the map lacks it and already has [`MAX_SERIES`] keys, returns the value of the key
/// that `other` returns.
pub fn limited_entry<K: Ord, V: Default>(map: &mut BTreeMap<K, V>, key: K, other: impl FnOnce() -> K) -> &mut V {
    entry_within(MAX_SERIES, map, key, other)
}

/// Counts samples by their labels. Large clusters have a series for each namespace or node: only those beyond
/// [`MAX_COUNTED_SERIES`] are counted together, with [`OTHER`] as the value of each label.
pub fn counted<const N: usize>(samples: impl IntoIterator<Item = Labels<N>>) -> BTreeMap<Labels<N>, f64> {
    let mut counts = BTreeMap::<Labels<N>, f64>::new();
    for labels in samples {
        let names = labels.each_ref().map(|(name, _)| *name);
        let other = || names.map(|name| (name, OTHER.to_owned()));
        *entry_within(MAX_COUNTED_SERIES, &mut counts, labels, other) += 1.0;
    }
    counts
}

fn entry_within<K: Ord, V: Default>(max: usize, map: &mut BTreeMap<K, V>, key: K, other: impl FnOnce() -> K) -> &mut V {
    let is_admitted = map.len() < max || map.contains_key(&key);
    map.entry(if is_admitted { key } else { other() }).or_default()
}

#[cfg(test)]
mod tests {
    use super::super::Metrics;
    use super::*;

    #[test]
    fn metric_with_too_many_label_values_counts_the_rest_together() {
        let metrics = Metrics::default();
        let counts = metrics.counts("calls", "Calls.");
        let times = metrics.histograms("time", "Time.", vec![1.0]);
        for user in 0..MAX_SERIES + 500 {
            counts.add([("user", user.to_string())]);
            times.observe([("user", user.to_string())], 2.0);
        }
        counts.add([("user", "0".to_owned())]);
        let text = metrics.text();
        for line in ["calls_total{user=\"0\"} 2", "calls_total{user=\"other\"} 500", "time_count{user=\"other\"} 500"] {
            assert!(text.lines().any(|own| own == line), "{line} is missing");
        }
        let series = |prefix: &str| text.lines().filter(|line| line.starts_with(prefix)).count();
        assert_eq!((series("calls_total{"), series("time_count{")), (MAX_SERIES + 1, MAX_SERIES + 1));
    }

    #[test]
    fn map_with_too_many_keys_counts_the_rest_together() {
        let mut map = BTreeMap::<String, usize>::new();
        for user in 0..MAX_SERIES + 500 {
            *limited_entry(&mut map, user.to_string(), || OTHER.to_owned()) += 1;
        }
        *limited_entry(&mut map, "0".to_owned(), || OTHER.to_owned()) += 1;
        assert_eq!((map.len(), map["0"], map[OTHER]), (MAX_SERIES + 1, 2, 500));
    }

    #[test]
    fn samples_with_too_many_label_values_are_counted_together() {
        let names = (0..MAX_COUNTED_SERIES + 500).map(|user| user.to_string()).chain(["0".to_owned()]);
        let counts = counted(names.map(|name| [("user", name)]));
        let of = |name: &str| counts[&[("user", name.to_owned())]];
        assert_eq!((counts.len(), of("0"), of("1"), of(OTHER)), (MAX_COUNTED_SERIES + 1, 2.0, 1.0, 500.0));
    }
}
