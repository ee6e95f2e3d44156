//! Builders of Jobs and pods.

use std::collections::HashSet;
use std::sync::Arc;

use jiff::Timestamp;
use kinds::job::TRACKING_FINALIZER;
use kinds::meta::OwnerRef;
use kinds::pod::{Ending, Phase};
use kinds::schema::{job, job_spec, object_meta, pod as pod_message};
use kinds::wire::Put;
use kinds::{Decode, Job, Kind, Pod, Time, Uid};

use crate::workloads::job::backoff::Backoff;
use crate::workloads::job::decide::View;

pub const NOW: i64 = 1_700_000_000;

pub fn now() -> Timestamp {
    Timestamp::from_second(NOW).expect("in range")
}

pub fn context() -> Decode {
    Decode { interner: Arc::default(), sections: Job::TEMPLATE | Pod::ENDING }
}

fn put_meta(object: &mut Vec<u8>, name: &str) {
    object.put_message(job::METADATA, |meta| {
        meta.put_str(object_meta::NAME, name);
        meta.put_str(object_meta::NAMESPACE, "default");
        meta.put_str(object_meta::UID, name);
        meta.put_str(object_meta::RESOURCE_VERSION, "1");
        Time(NOW - 1000).put(meta, object_meta::CREATION_TIMESTAMP);
    });
}

/// Returns a Job with this parallelism and number of completions.
pub fn a_job(parallelism: i32, completions: Option<i32>) -> Job {
    let mut object = Vec::new();
    put_meta(&mut object, "pi");
    object.put_message(job::SPEC, |spec| {
        spec.put_int(job_spec::PARALLELISM, parallelism.into());
        if let Some(completions) = completions {
            spec.put_int(job_spec::COMPLETIONS, completions.into());
        }
    });
    Job::decode(&context(), &object).expect("well-formed")
}

/// Returns a pod of the Job, with the finalizer.
pub fn a_pod(name: &str, phase: Phase, index: Option<i32>) -> Pod {
    let mut object = Vec::new();
    put_meta(&mut object, name);
    object.put_message(pod_message::SPEC, |_| {});
    let mut pod = Pod::decode(&context(), &object).expect("well-formed");
    pod.phase = phase;
    pod.meta.owners = Arc::new([OwnerRef {
        api_version: "batch/v1".into(),
        kind: "Job".into(),
        name: "pi".into(),
        uid: Uid::parse("pi"),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }]);
    pod.meta.finalizers = Arc::new([TRACKING_FINALIZER.into()]);
    pod.ending = Some(Box::new(Ending { index, ..Ending::default() }));
    pod
}

/// Returns the input of a decision with defaults.
pub fn view<'a>(job: &'a Job, pods: &'a [Arc<Pod>], settled: &'a HashSet<Uid>) -> View<'a> {
    View { job, pods, settled, backoff: Backoff::default(), are_deletions_cached: true, clears_start: true, now: now() }
}

/// Returns a Job with an edit applied.
pub fn with(mut job: Job, change: impl FnOnce(&mut Job)) -> Job {
    change(&mut job);
    job
}
