//! What publishers of certificates count: syncs by the server's answer (pkg/controller/certificates).

use std::time::Duration;

use runtime::metrics::{Counts, Histograms, Metrics, powers_of_two};
use runtime::write::WriteError;

/// The code of a sync that went well.
pub const WELL: u16 = 200;

/// Syncs and how long they took.
pub struct Syncs {
    total: Counts<1>,
    duration: Histograms<1>,
}

impl Syncs {
    /// Nothing counted yet; `help` is of the counter and of the histogram.
    pub fn register(metrics: &Metrics, subsystem: &str, help: [&str; 2]) -> Self {
        Self {
            total: metrics.counts(&format!("{subsystem}_sync"), help[0]),
            duration: metrics.histograms(
                &format!("{subsystem}_sync_duration_seconds"),
                help[1],
                powers_of_two(0.001, 15),
            ),
        }
    }

    /// A sync took so long and ended with this code.
    pub fn done(&self, code: u16, time: Duration) {
        let label = || [("code", code.to_string())];
        self.total.add(label());
        self.duration.observe(label(), time.as_secs_f64());
    }
}

/// The code of a failure: the server's, or 500 for one that is not the server's.
pub fn code(error: &WriteError) -> u16 {
    error.refused().map_or(500, |status| status.code)
}
