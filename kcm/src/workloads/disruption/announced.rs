//! Withdraws announced disruptions that did not happen: sets the condition `DisruptionTarget` of a pod to false if the
//! pod is neither being deleted nor finished two minutes after the condition became true.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::pod::DISRUPTION_TARGET;
use kinds::{Kind, Pod};
use runtime::store::Store;
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::Writer;
use serde_json::{Value, json};
use tracing::info;

use super::keys::is_announced;
use crate::context::Clock;

/// The time for which an announcement is valid.
const VALIDITY: Duration = Duration::from_secs(120);

/// The part of the controller that reconciles pods.
pub struct AnnouncedDisruptions {
    pub pods: Arc<Store<Pod>>,
    pub writer: Writer,
    pub clock: Clock,
}

impl Reconcile for AnnouncedDisruptions {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl AnnouncedDisruptions {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let Some(pod) = self.pods.get(key) else { return Ok(Outcome::Done) };
        let now = (self.clock)();
        match remaining(&pod, now) {
            None => return Ok(Outcome::Done),
            Some(wait) if !wait.is_zero() => return Ok(Outcome::RequeueAfter(wait)),
            Some(_) => {}
        }
        match self.writer.patch_status(&Pod::RESOURCE, key, &withdrawal(&pod, now)).await {
            Ok(_) => {
                info!("announced disruption did not happen; condition DisruptionTarget set to False");
                Ok(Outcome::Done)
            }
            // The pod was changed or replaced since it was read: reconcile the current one.
            Err(error) if error.is_conflict() => Ok(Outcome::RequeueWithBackoff),
            Err(error) if error.is_not_found() => Ok(Outcome::Done),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the time for which an announcement remains valid, zero if it has expired; `None` without an announcement.
pub fn remaining(pod: &Pod, now: jiff::Timestamp) -> Option<Duration> {
    let since = pod.disruption.as_ref()?.target_since.filter(|_| is_announced(pod))?;
    let due = i128::from(since.0) * 1_000_000_000 + VALIDITY.as_nanos() as i128;
    // An announcement with a time in the far future has not expired.
    let left = u64::try_from((due - now.as_nanosecond()).max(0)).unwrap_or(u64::MAX);
    Some(Duration::from_nanos(left))
}

/// Returns the patch that sets the condition to false, for this version of the pod only.
pub fn withdrawal(pod: &Pod, now: jiff::Timestamp) -> Value {
    let seconds = jiff::Timestamp::from_second(now.as_second()).unwrap_or(now);
    json!({
        "metadata": {"uid": pod.meta.uid.to_string(), "resourceVersion": pod.meta.version.to_string()},
        "status": {"conditions": [{
            "type": DISRUPTION_TARGET, "status": "False", "reason": null, "message": null,
            "observedGeneration": pod.meta.generation, "lastTransitionTime": seconds.to_string(),
        }]},
    })
}
