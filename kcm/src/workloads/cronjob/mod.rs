//! cronjob-controller: creates Jobs on a schedule, and keeps a history of them.
//!
//! It watches CronJobs, Jobs and Namespaces, creates and deletes Jobs, and writes CronJob statuses. Upstream:
//! pkg/controller/cronjob.

mod decide;
mod keys;
mod schedule;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use kinds::{CronJob, Job, Namespace, Sections};
use runtime::manager::Manager;
use runtime::metrics::powers_of_two;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{by_controller, by_namespace};
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use crate::context::{Context, Descriptor, QueueKeys, Verb, Write};
use crate::pods::creation_gate::CreationGate;
use crate::pods::refusals::Refusals;
use sync::CronJobs;

/// Name of the event source.
const COMPONENT: &str = "cronjob-controller";

/// Metric of the delay of Jobs, under upstream's name. Upstream: pkg/controller/cronjob/metrics.
const SKEW: &str = "cronjob_controller_job_creation_skew_duration_seconds";
const SKEW_HELP: &str = "Time between when a cronjob is scheduled to be run, and when the corresponding job is created";

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "cronjob-controller",
    service_account: "cronjob-controller",
    watches,
    writes: &[
        Write { verb: Verb::Create, group: "batch", resource: "jobs" },
        Write { verb: Verb::Delete, group: "batch", resource: "jobs" },
        Write { verb: Verb::Update, group: "batch", resource: "cronjobs/status" },
        Write { verb: Verb::Create, group: "", resource: "events" },
        Write { verb: Verb::Patch, group: "", resource: "events" },
    ],
    queues: &[QueueKeys::of("cronjob", "CronJob")],
    start,
    ..Descriptor::NONE
};

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<CronJob>(Sections::default(), &[by_namespace()]);
    builder.need::<Job>(Sections::default(), &[by_controller()]);
    builder.need::<Namespace>(Sections::default(), &[]);
}

fn start(manager: &mut Manager, context: &Context) {
    let queue = Queue::new(QueueOptions::named("cronjob"));
    let (cron_jobs, jobs) = (manager.registry().store::<CronJob>(), manager.registry().store::<Job>());
    let gate = CreationGate::new(manager.registry().store());
    gate.wake_on_new_namespace(&cron_jobs, &queue);
    let reconciler = Arc::new(CronJobs {
        cron_jobs: cron_jobs.clone(),
        jobs: jobs.clone(),
        writer: manager.writer(DESCRIPTOR.service_account),
        recorder: manager.recorder(COMPONENT, DESCRIPTOR.service_account),
        consistency: Arc::default(),
        queue: queue.clone(),
        clock: context.clock.clone(),
        skew: manager.metrics().seconds(SKEW, SKEW_HELP, &powers_of_two(1.0, 10)),
        gate,
        refusals: Refusals::default(),
    });
    keys::subscribe(&cron_jobs, &jobs, &queue, &reconciler);
    let workers = context.workers("concurrent-cron-job-syncs");
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers }, queue, reconciler);
}
