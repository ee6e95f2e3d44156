//! Histograms with classic buckets and, where the process has enabled them, native ones.

use std::sync::atomic::{AtomicBool, Ordering};

use prometheus_client::metrics::histogram::{Histogram, NativeHistogramConfig};

/// The largest ratio of a native bucket's bounds. Upstream: component-base, metrics/internal.
const GROWTH: f64 = 1.1;

/// The number of native buckets above which their resolution is halved. Upstream: component-base, metrics/internal.
pub(super) const MAX_BUCKETS: usize = 160;

static NATIVE: AtomicBool = AtomicBool::new(false);

/// Sets whether histograms that are created afterwards have native buckets, too (upstream's gate NativeHistograms).
///
/// This is a setting of the process, as in upstream: queues, watches and clients create their histograms before they
/// have a registry. Scrapers receive native buckets in protobuf only. A histogram without values needs the same memory
/// with and without them; a histogram with values needs at most 16 bytes more per native bucket.
pub fn set_native_histograms(are_native: bool) {
    NATIVE.store(are_native, Ordering::Relaxed);
}

/// Creates a histogram with these upper bounds.
pub(crate) fn histogram(bounds: impl IntoIterator<Item = f64>) -> Histogram {
    if NATIVE.load(Ordering::Relaxed) { with_native_buckets(bounds) } else { Histogram::new(bounds) }
}

/// Creates a histogram with these upper bounds and native buckets.
///
/// Upstream sets neither a reset interval nor a maximum of the zero bucket's width: above [`MAX_BUCKETS`], only the
/// resolution changes.
pub(super) fn with_native_buckets(bounds: impl IntoIterator<Item = f64>) -> Histogram {
    Histogram::new_classic_and_native(
        bounds,
        NativeHistogramConfig::with_bucket_factor(GROWTH).max_buckets(MAX_BUCKETS),
    )
}
