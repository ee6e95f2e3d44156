//! Waiting for a state with a deadline, and checking that nothing happens for a while.

use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Maximum time until an expected state: far longer than needed, for slow and busy hosts. Only a failing test waits for
/// all of it.
pub const DEADLINE: Duration = Duration::from_secs(180);

/// Time without activity after which a cluster counts as quiet: longer than the usual delay between a change and a
/// controller's last write because of it.
pub const QUIET: Duration = Duration::from_secs(3);

const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Repeats `check` until it succeeds and returns its result; fails with the last error once a check fails after
/// [`DEADLINE`]. A check that does not end within twice that time is an error, too.
pub async fn eventually<T, F: Future<Output = Result<T>>>(
    what: impl Display,
    mut check: impl FnMut() -> F,
) -> Result<T> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        // A check that begins before the deadline may end up to `DEADLINE` after it.
        let Ok(checked) = timeout_at(deadline + DEADLINE, check()).await else {
            bail!("timed out within a check while waiting for: {what}");
        };
        match checked {
            Ok(found) => return Ok(found),
            Err(last) if Instant::now() > deadline => {
                return Err(last).context(format!("timed out after {} s waiting for: {what}", DEADLINE.as_secs()));
            }
            Err(_) => sleep(POLL_INTERVAL).await,
        }
    }
}

/// Repeats `check` for `time`; fails when `check` fails, or takes longer than `time` and [`DEADLINE`] together.
pub async fn during<F: Future<Output = Result<()>>>(
    time: Duration,
    what: impl Display,
    mut check: impl FnMut() -> F,
) -> Result<()> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        let Ok(checked) = timeout(time + DEADLINE, check()).await else { bail!("timed out while checking: {what}") };
        checked.with_context(|| format!("did not stay true: {what}"))?;
        sleep(POLL_INTERVAL).await;
    }
    Ok(())
}
