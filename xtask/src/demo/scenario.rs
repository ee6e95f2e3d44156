//! Scenarios: lists of steps, each of which has a deadline and returns a sentence about its result.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use futures::future::BoxFuture;

use super::environment::DemoEnvironment;

/// A step of the scenario.
pub struct Step {
    /// A description of the step.
    pub title: &'static str,
    /// Maximum duration, on a machine that is busy with other programs.
    pub deadline: Duration,
    /// A function that runs the step and returns a sentence about the result.
    pub run: for<'a> fn(&'a DemoEnvironment) -> BoxFuture<'a, Result<String>>,
}

/// Runs the steps in order, up to the first that fails or exceeds its deadline.
pub async fn run(environment: &DemoEnvironment, steps: &[Step]) -> Result<()> {
    let start = Instant::now();
    for (index, step) in steps.iter().enumerate() {
        let number = format!("{}/{}", index + 1, steps.len());
        environment.console.title(&format!("{number} {}", step.title));
        environment.begin_step();
        let result = tokio::time::timeout(step.deadline, (step.run)(environment)).await;
        let outcome = result.unwrap_or_else(|_| Err(exceeded(step, &environment.last_event())));
        let outcome = outcome.with_context(|| format!("step {number} failed ({})", step.title))?;
        environment.console.done(environment.since_step(), &outcome);
    }
    environment.console.line(&format!(
        "\nAll {} steps succeeded, in {:.1} s.",
        steps.len(),
        start.elapsed().as_secs_f64()
    ));
    Ok(())
}

fn exceeded(step: &Step, last_event: &str) -> anyhow::Error {
    anyhow!("deadline of {} s exceeded; last event: {last_event}", step.deadline.as_secs())
}
