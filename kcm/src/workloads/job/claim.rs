//! Claims the pods of a Job. An adoption also adds the tracking finalizer, and a release removes it.
//!
//! An adopted pod without the finalizer would never be counted. A released pod with it could not be deleted until
//! [`super::orphans`] removes it.

use std::sync::Arc;

use kinds::job::TRACKING_FINALIZER;
use kinds::{Job, Kind, Pod};
use runtime::controller_ref::{Claim, adoption, claim, release};
use runtime::write::{WriteError, Writer};
use serde_json::{Value, json};

/// The result of claiming pods.
#[derive(Debug, Default)]
pub struct ClaimResult {
    /// The Job's pods.
    pub pods: Vec<Arc<Pod>>,
    /// The resourceVersions of the pods that were written.
    pub written: Vec<u64>,
    /// Failed adoptions and releases.
    pub errors: Vec<String>,
}

/// Adopts and releases pods by the Job's selector. An adopted pod is not in the result of this call, but in that of
/// the first call after the cache contains the adoption. Upstream: pkg/controller, PodControllerRefManager.
pub async fn claim_pods(writer: &Writer, job: &Job, children: Vec<Arc<Pod>>) -> ClaimResult {
    let mut claimed = ClaimResult::default();
    let mut may_adopt: Option<Result<(), String>> = None;
    for pod in children {
        let meta = &pod.meta;
        match claim(&job.meta, meta, job.selector.matches(&meta.labels)) {
            Claim::Ours => claimed.pods.push(pod),
            Claim::Ignore => {}
            Claim::Release => match patch(writer, &pod, releasing(job, &pod)).await {
                Ok(version) => claimed.written.extend(version),
                // `Invalid` means that the pod no longer refers to the Job, or was replaced by another pod.
                Err(error) if error.is_not_found() || error.is_invalid() => {}
                Err(error) => claimed.errors.push(error.to_string()),
            },
            Claim::Adopt => {
                if may_adopt.is_none() {
                    may_adopt = Some(check_still_exists(writer, job).await);
                }
                if let Some(Err(why)) = &may_adopt {
                    claimed.errors.push(format!("can't adopt Pod {} ({}): {why}", meta.key(), meta.uid));
                    continue;
                }
                match patch(writer, &pod, adopting(job, &pod)).await {
                    Ok(version) => claimed.written.extend(version),
                    Err(error) if error.is_not_found() => {}
                    Err(error) => claimed.errors.push(error.to_string()),
                }
            }
        }
    }
    claimed
}

fn adopting(job: &Job, pod: &Pod) -> Value {
    let mut patch = adoption(&job.controller_ref(), &pod.meta);
    patch["metadata"]["finalizers"] = json!([TRACKING_FINALIZER]);
    patch
}

fn releasing(job: &Job, pod: &Pod) -> Value {
    let mut patch = release(&job.meta, &pod.meta);
    patch["metadata"]["$deleteFromPrimitiveList/finalizers"] = json!([TRACKING_FINALIZER]);
    patch
}

/// Returns the patch that removes the tracking finalizer from a pod. The patch fails if another pod has replaced this
/// one.
pub fn untracking(pod: &Pod) -> Value {
    json!({"metadata": {
        "uid": pod.meta.uid.to_string(),
        "$deleteFromPrimitiveList/finalizers": [TRACKING_FINALIZER],
    }})
}

/// Patches a pod. Returns the resulting resourceVersion, or `None` if the response cannot be decoded.
pub async fn patch(writer: &Writer, pod: &Pod, patch: Value) -> Result<Option<u64>, WriteError> {
    let response = writer.patch(&Pod::RESOURCE, &pod.meta.key(), &patch).await?;
    Ok(response.meta().ok().map(|meta| meta.version))
}

/// Checks on the API server that the Job is the cached one and is not being deleted.
async fn check_still_exists(writer: &Writer, job: &Job) -> Result<(), String> {
    let key = job.meta.key();
    let fresh = writer.get(&Job::RESOURCE, &key).await.map_err(|error| error.to_string())?;
    let fresh = fresh.meta().map_err(|error| error.to_string())?;
    if fresh.uid != job.meta.uid {
        return Err(format!("original Job {key} is gone: got uid {}, wanted {}", fresh.uid, job.meta.uid));
    }
    if fresh.is_deleting() {
        let at = jiff::Timestamp::from_second(fresh.deletion.0).unwrap_or_default();
        return Err(format!("{key} has just been deleted at {at}"));
    }
    Ok(())
}
