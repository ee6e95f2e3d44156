//! horizontal-pod-autoscaler-controller: scales targets by their metrics.
//!
//! It watches HorizontalPodAutoscalers and Pods, reads the metrics APIs every sync period, and writes the scale of
//! targets of any kind and the autoscalers' status. Upstream: pkg/controller/podautoscaler.

mod counts;
mod decide;
mod keys;
mod measure;
mod metrics_api;
mod overlap;
mod pace;
mod replicas;
mod requests;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use kinds::{HorizontalPodAutoscaler, Pod, Sections};
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::scale::Scales;
use runtime::store::by_namespace;
use runtime::watch::Builder;
use runtime::worker::WorkOptions;
use tokio::time::Instant;

use crate::context::{Context, Descriptor, QueueKeys, Verb, Write};
use crate::pods::indexes::by_label;
use counts::Counts;
use decide::Gates;
use measure::{Measuring, MetricResponses};
use replicas::StartupPeriods;
use sync::{Autoscalers, Settings};

/// Name of the event source.
const COMPONENT: &str = "horizontal-pod-autoscaler";

/// Request rate and burst, as multiples of other controllers' limits: each sync may read a scale and several
/// metrics. Upstream has several clients, each with its own limit.
const QPS_FACTOR: u16 = 25;
const BURST_FACTOR: u32 = 10;

/// Maximum time for which syncs share a response of a metrics API; samples are taken far less often.
const SHARED_FOR: Duration = Duration::from_secs(1);

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "horizontal-pod-autoscaler-controller",
    service_account: "horizontal-pod-autoscaler",
    watches,
    writes: &[
        Write { verb: Verb::Update, group: "autoscaling", resource: "horizontalpodautoscalers/status" },
        Write { verb: Verb::Update, group: "*", resource: "*/scale" },
        Write { verb: Verb::Create, group: "", resource: "events" },
        Write { verb: Verb::Patch, group: "", resource: "events" },
    ],
    queues: &[QueueKeys::of("horizontalpodautoscaler", "HorizontalPodAutoscaler")],
    start,
    ..Descriptor::NONE
};

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<HorizontalPodAutoscaler>(Sections::default(), &[]);
    builder.need::<Pod>(Pod::REQUESTS, &[by_label(), by_namespace()]);
}

fn start(manager: &mut Manager, context: &Context) {
    let flag = |name: &str| context.options.values.get_duration(&format!("horizontal-pod-autoscaler-{name}"));
    let gate = |name: &str| context.options.gates.enabled(name);
    let period = flag("sync-period").max(Duration::from_millis(10));
    // A failed autoscaler is reconciled a period later, like all others: no backoff.
    let queue = Queue::new(QueueOptions {
        base_delay: period,
        max_delay: period,
        ..QueueOptions::named("horizontalpodautoscaler")
    });
    let writer = manager.faster_writer(DESCRIPTOR.service_account, QPS_FACTOR, BURST_FACTOR);
    let registry = manager.registry();
    let (autoscalers, pods) = (registry.store::<HorizontalPodAutoscaler>(), registry.store::<Pod>());
    let gates = Gates {
        scale_to_zero: gate("HPAScaleToZero"),
        generation: gate("HPAGeneration"),
        configurable_tolerance: gate("HPAConfigurableTolerance"),
        pod_level_resources: gate("PodLevelResources"),
        optimized_selectors: gate("HPAOptimizedSelectorStore"),
    };
    let startup_periods = StartupPeriods {
        cpu_initialization: flag("cpu-initialization-period"),
        initial_readiness: flag("initial-readiness-delay"),
    };
    let counts = Arc::new(Counts::new(autoscalers.clone()));
    let reconciler = Arc::new(Autoscalers {
        autoscalers: autoscalers.clone(),
        pods,
        measuring: Measuring {
            responses: MetricResponses::new(writer.clone(), SHARED_FOR.min(period / 10)),
            scales: Scales { discovery: manager.discovery(), watched: registry.watched(), writer },
            startup_periods,
            gates,
        },
        overlaps: Default::default(),
        memories: Default::default(),
        scales: Default::default(),
        recorder: manager.recorder(COMPONENT, DESCRIPTOR.service_account),
        queue: queue.clone(),
        counts: counts.clone(),
        clock: context.clock.clone(),
        settings: Settings {
            period,
            window: flag("downscale-stabilization"),
            tolerance: context.options.values.get_f64("horizontal-pod-autoscaler-tolerance"),
        },
        start: Instant::now(),
        interner: Default::default(),
    });
    keys::subscribe(&autoscalers, &queue, gates.generation);
    let workers = context.workers("concurrent-horizontal-pod-autoscaler-syncs");
    manager.collect(counts);
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers }, queue, reconciler);
}
