//! Pods that are started, moved and deleted in a few lanes: one after the other in each lane, all lanes at the same
//! time.
//!
//! If many pods change together, the API server is the bottleneck: it serves as many requests of the bench as of the
//! manager. Here the API server is idle most of the time, and the manager's reaction time determines the result.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use tokio::time::sleep;

use super::attach::{ManagerRun, Place, name};
use super::{DEADLINE, objects};

/// The number of lanes.
const LANES: u32 = 4;

/// The interval at which a pod's state is read: short compared with the measured reactions.
const PERIOD: Duration = Duration::from_millis(5);

impl ManagerRun<'_> {
    /// Starts, moves and deletes all pods.
    pub async fn run_lanes(&self) -> Result<()> {
        try_join_all((0..LANES).map(|lane| self.lane(lane))).await.map(drop)
    }

    async fn lane(&self, lane: u32) -> Result<()> {
        for number in (lane..self.size.pods).step_by(LANES as usize) {
            self.create(number, Place::First).await?;
            self.until_pod_runs(number, Place::First).await?;
            self.end(number, Place::First).await?;
            self.create(number, Place::Moved).await?;
            self.until_pod_runs(number, Place::Moved).await?;
            self.end(number, Place::Moved).await?;
            let volume = objects::volume_name(&objects::claim_name(number));
            self.until_soon(|| format!("{volume} is attached"), || !self.attacher.has_attachment(&volume)).await?;
        }
        Ok(())
    }

    async fn until_pod_runs(&self, number: u32, place: Place) -> Result<()> {
        let pod = name(number, place);
        self.until_soon(|| format!("{pod} does not run"), || self.kubelets.is_running(&pod)).await
    }

    async fn until_soon(&self, obstacle: impl Fn() -> String, reached: impl Fn() -> bool) -> Result<()> {
        let start = Instant::now();
        while !reached() {
            self.manager.check()?;
            ensure!(
                start.elapsed() < DEADLINE,
                "given up: {}; the manager's last lines:\n{}",
                obstacle(),
                self.manager.last_lines()
            );
            sleep(PERIOD).await;
        }
        Ok(())
    }
}
