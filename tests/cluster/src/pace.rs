//! Time limits that hold on slow and busy machines, too: multiples of another duration that is measured at the same
//! time.

use std::time::Duration;

use anyhow::Result;
use tokio::time::Instant;

/// Durations of some work, and of the slowest probe that ran at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The duration of the work.
    pub work: Duration,
    /// The longest duration of a probe, at least one of which was complete.
    pub probe: Duration,
}

/// Measures some work, and a probe that is repeated until the work is done. The probe needs the same parts of the
/// cluster as the work, except for the tested program. The last probe is completed after the work.
///
/// # Errors
/// The error of the work or of a probe.
pub async fn measure<W, P>(work: W, mut probe: impl FnMut() -> P) -> Result<Pace>
where
    W: Future<Output = Result<()>>,
    P: Future<Output = Result<()>>,
{
    let begun = Instant::now();
    let mut work = std::pin::pin!(work);
    let (mut done, mut longest) = (None, Duration::ZERO);
    while done.is_none() {
        let probe_begun = Instant::now();
        let mut probing = std::pin::pin!(probe());
        tokio::select! {
            probed = &mut probing => probed?,
            worked = &mut work => {
                worked?;
                done = Some(begun.elapsed());
                probing.await?;
            }
        }
        longest = longest.max(probe_begun.elapsed());
    }
    Ok(Pace { work: done.unwrap_or_default(), probe: longest })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use anyhow::bail;
    use tokio::sync::Notify;
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn probe_is_completed_after_the_work() -> Result<()> {
        let (is_probed, complete) = (Notify::new(), Cell::new(0));
        let work = async {
            is_probed.notified().await;
            Ok(())
        };
        let probe = || async {
            is_probed.notify_one();
            yield_now().await;
            complete.set(complete.get() + 1);
            Ok(())
        };
        let pace = measure(work, probe).await?;
        assert!(complete.get() > 0 && pace.probe > Duration::ZERO, "{pace:?}");
        Ok(())
    }

    #[tokio::test]
    async fn error_of_work_or_probe_is_returned() {
        let fails = async || bail!("as expected");
        assert!(measure(fails(), async || Ok(())).await.is_err());
        assert!(measure(std::future::pending(), fails).await.is_err());
    }
}
