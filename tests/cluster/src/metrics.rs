//! The metrics APIs of a shared control plane; each test sets metrics for its namespace.

use std::sync::Arc;

use anyhow::Result;

use crate::space::Space;

/// The metrics that tests set, by namespace and name. `cpu` and `memory` are the usage of each pod of the namespace.
#[derive(Clone)]
pub struct Metrics(Arc<control_plane::metrics::Metrics>);

impl Metrics {
    /// Returns the metrics of the space's control plane, which are served after the first call.
    ///
    /// # Errors
    /// If the API server does not accept them.
    pub async fn serve(space: &Space) -> Result<Self> {
        let serve = || control_plane::metrics::Metrics::serve(&space.bed.cluster);
        space.bed.metrics.get_or_try_init(serve).await.cloned().map(Self)
    }

    /// Sets a metric of a namespace.
    pub fn set(&self, space: &Space, metric: &str, quantity: &str) {
        self.0.set(&space.namespace, metric, quantity);
    }
}
