//! job-controller: runs pods until the desired number has succeeded, and counts each finished pod exactly once.
//!
//! It watches Jobs, Pods and Namespaces. It creates, deletes, adopts and releases pods, removes the tracking finalizer
//! from those that are counted or will never be counted, and writes Job statuses. With the gate WorkloadWithJob it also
//! watches PodGroups, and writes Workloads and PodGroups. Upstream: pkg/controller/job.

mod backoff;
mod claim;
mod decide;
mod indexes;
mod keys;
mod manage;
mod metrics;
mod orphans;
mod pods;
mod policy;
mod scheduling;
mod sync;
#[cfg(test)]
mod tests;
mod track;

use std::sync::Arc;
use std::time::Duration;

use kinds::{Job, Namespace, Pod, PodGroup, Sections};
use runtime::consistency::Consistency;
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{by_controller, by_namespace};
use runtime::telemetry::StaleSyncs;
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use crate::context::{Context, Descriptor, Finalizer, QueueKeys, Verb, Write};
use crate::pods::control::PodControl;
use crate::pods::creation_gate::CreationGate;
use crate::pods::refusals::Refusals;
use metrics::JobMetrics;
use orphans::Orphans;
use scheduling::Scheduling;
use sync::Jobs;

/// Name of the event source.
const COMPONENT: &str = "job-controller";

/// Changes of pods and statuses are coalesced over this time. Upstream: pkg/controller/job, SyncJobBatchPeriod.
const BATCH: Duration = Duration::from_secs(1);

/// First and longest delay after a failed request. Upstream: pkg/controller/job, DefaultJobApiBackOff and
/// MaxJobApiBackOff.
const API_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "job-controller",
    service_account: "job-controller",
    watches,
    // The controller's role allows writes of Workloads and PodGroups only with the gate WorkloadWithJob.
    writes: &[
        Write { verb: Verb::Create, group: "", resource: "pods" },
        Write { verb: Verb::Delete, group: "", resource: "pods" },
        Write { verb: Verb::Patch, group: "", resource: "pods" },
        Write { verb: Verb::Update, group: "batch", resource: "jobs/status" },
        Write { verb: Verb::Create, group: "", resource: "events" },
        Write { verb: Verb::Patch, group: "", resource: "events" },
    ],
    queues: &[QueueKeys::of("job", "Job"), QueueKeys::other("job_orphan_pod")],
    finalizers: &[Finalizer {
        name: "batch.kubernetes.io/job-tracking",
        removed: "once the pod is recorded in its Job's status, or no Job will count it",
    }],
    start,
    ..Descriptor::NONE
};

/// The gate with which Jobs have Workloads and PodGroups.
const SCHEDULING_GATE: &str = "WorkloadWithJob";

fn watches(builder: &mut Builder, context: &Context) {
    builder.need::<Pod>(Pod::ENDING, &[by_controller()]);
    builder.need::<Job>(Job::TEMPLATE, &[by_namespace()]);
    builder.need::<Namespace>(Sections::default(), &[]);
    if context.options.gates.enabled(SCHEDULING_GATE) {
        builder.need_if_served::<PodGroup>(Sections::default(), &[]);
    }
}

fn start(manager: &mut Manager, context: &Context) {
    let (base_delay, max_delay) = API_BACKOFF;
    let options = |name| QueueOptions { base_delay, max_delay, ..QueueOptions::named(name) };
    let queue = Queue::new(QueueOptions { window: BATCH, ..options("job") });
    let orphan_queue = Queue::new(options("job_orphan_pod"));
    let (jobs, pods) = (manager.registry().store::<Job>(), manager.registry().store::<Pod>());
    keys::subscribe(&jobs, &pods, &queue, &orphan_queue);
    let tally = Arc::new(JobMetrics::new(manager.metrics()));
    let (of_jobs, of_pods) = (tally.clone(), tally.clone());
    jobs.subscribe(move |change| of_jobs.job_changed(change));
    pods.subscribe(move |change| of_pods.pod_changed(change));
    let writer = manager.writer(DESCRIPTOR.service_account);
    let orphans = Arc::new(Orphans {
        jobs: jobs.clone(),
        pods: pods.clone(),
        writer: writer.clone(),
        queue: orphan_queue.clone(),
        deleted_jobs: Default::default(),
    });
    let gate = CreationGate::new(manager.registry().store());
    gate.wake_on_new_namespace(&jobs, &queue);
    let consistency = Arc::<Consistency>::default();
    let recorder = manager.recorder(COMPONENT, DESCRIPTOR.service_account);
    let scheduling = context.options.gates.enabled(SCHEDULING_GATE);
    let scheduling =
        scheduling.then(|| Scheduling::new(manager.registry().store(), writer.clone(), recorder.clone(), gate.clone()));
    let reconciler = Arc::new(Jobs {
        jobs,
        control: PodControl { pods, writer, recorder, consistency: consistency.clone(), gate },
        queue: queue.clone(),
        clock: context.clock.clone(),
        memory: Default::default(),
        debouncer: Default::default(),
        handover: Default::default(),
        refusals: Refusals::with_delays(base_delay, max_delay),
        clears_start: context.options.gates.enabled("MutableSchedulingDirectivesForSuspendedJobs"),
        scheduling,
        tally,
    });
    manager.collect(StaleSyncs { subsystem: "job_controller", kind: "Job", consistency });
    let workers = context.workers("concurrent-job-syncs");
    let work = WorkOptions { name: DESCRIPTOR.name, workers };
    manager.add(work, queue, reconciler);
    manager.add(work, orphan_queue, orphans);
}
