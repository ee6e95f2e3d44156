//! A scenario is a list of steps; each has a deadline and ends with a sentence.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use futures::future::BoxFuture;

use super::stage::Stage;

/// A step of the scenario.
pub struct Step {
    /// Describes the step.
    pub title: &'static str,
    /// Maximum duration, on a machine that is busy with other programs.
    pub deadline: Duration,
    /// Runs the step; returns a sentence about the result.
    pub play: for<'a> fn(&'a Stage) -> BoxFuture<'a, Result<String>>,
}

/// Plays the steps in order, up to the first that fails or exceeds its deadline.
pub async fn play(stage: &Stage, steps: &[Step]) -> Result<()> {
    let start = Instant::now();
    for (index, step) in steps.iter().enumerate() {
        let number = format!("{}/{}", index + 1, steps.len());
        stage.page.title(&format!("{number} {}", step.title));
        stage.begin_step();
        let played = tokio::time::timeout(step.deadline, (step.play)(stage)).await;
        let outcome = played.unwrap_or_else(|_| Err(exceeded(step, &stage.last_seen())));
        let outcome = outcome.with_context(|| format!("step {number} failed ({})", step.title))?;
        stage.page.done(stage.since_step(), &outcome);
    }
    stage.page.line(&format!("\nAll {} steps succeeded, in {:.1} s.", steps.len(), start.elapsed().as_secs_f64()));
    Ok(())
}

fn exceeded(step: &Step, last_seen: &str) -> anyhow::Error {
    anyhow!("not done after {} s; last event: {last_seen}", step.deadline.as_secs())
}
