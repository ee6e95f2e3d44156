//! Sharing of the tasks that a reconcile wakes, so that other threads can run them.
//!
//! A thread of tokio's runtime keeps the task that it has woken last in a slot of its own, from which no other thread
//! can take it. The task waits until the current one yields. A reconcile may compute for seconds before it yields.

use tokio::runtime::{Handle, RuntimeFlavor};

tokio::task_local! {
    static RECONCILING: ();
}

/// Runs a reconcile, in which [`share_woken_task`] has an effect.
pub(crate) async fn reconciling<F: Future>(reconcile: F) -> F::Output {
    RECONCILING.scope((), reconcile).await
}

/// Lets other threads run the task that this reconcile has woken last: an empty task takes its place in the slot. Does
/// nothing outside of a reconcile: all other tasks have short steps.
pub(crate) fn share_woken_task() {
    if RECONCILING.try_with(|()| ()).is_ok()
        && let Ok(runtime) = Handle::try_current()
        && runtime.runtime_flavor() == RuntimeFlavor::MultiThread
    {
        runtime.spawn(async {});
    }
}
