//! `cargo xtask test`: all checks and tests in stages, the cheap ones first.

#[cfg(test)]
mod conflict_marks;
mod failures;
#[cfg(test)]
mod feature_gates;
#[cfg(test)]
mod file_rules;
#[cfg(test)]
mod files;
#[cfg(test)]
mod flags;
#[cfg(test)]
mod fuzzed_readers;
#[cfg(test)]
mod ignored_tests;
#[cfg(test)]
mod layers;
#[cfg(test)]
mod packages;
mod plan;
mod run;
mod sources;
mod tally;
#[cfg(test)]
mod upstream_cases;
#[cfg(test)]
mod words;

use anyhow::Result;

pub use plan::one_program;

/// Check and test everything: lints, unit and property tests, tests on a real control plane.
///
/// The output ends with a table of the stages and, on a separate line, the sum of all tests: "N passed, N failed". The
/// exit status is 0 only if no stage failed.
///
/// Requirements: Rust with rustfmt and clippy; Go, which builds the control plane once (about ten minutes) and finds
/// upstream's files with the field numbers; Python 3.10 or later, for a mock of AWS.
#[derive(clap::Args)]
#[command(after_long_help = "Examples:
  cargo xtask test                       # everything, up to the first stage that fails
  cargo xtask test lints unit            # without a control plane
  cargo xtask test unit -- rollout       # the unit tests with 'rollout' in their names
  cargo xtask test -- rollout            # ... and the cluster tests
  cargo xtask test --keep-going
  cargo xtask test --all-gates           # the cluster tests and faults, with every alpha and beta gate on
  cargo xtask test --all-gates -- rollout")]
pub struct Arguments {
    /// Stages to run; all by default
    #[arg(value_enum, value_name = "SELECTOR")]
    selectors: Vec<plan::Selector>,

    /// Only tests with one of these texts in their names; lints and the real cluster only if they are selected (with
    /// only the selector faults, the name after 'faults::' must begin with the text)
    #[arg(last = true, value_name = "TEST NAME")]
    names: Vec<String>,

    /// Continue after a stage has failed
    #[arg(long)]
    keep_going: bool,

    /// Only the stages cluster and faults, with every alpha and beta feature gate on in the API server, the scheduler
    /// and the managers
    #[arg(long)]
    all_gates: bool,

    /// Check for security advisories, too, which needs a network and cargo-deny
    #[arg(long)]
    advisories: bool,
}

/// Runs the stages. A failure ends the process after the closing line.
pub fn run(arguments: Arguments) -> Result<()> {
    let request = plan::Request {
        selectors: arguments.selectors,
        names: arguments.names,
        advisories: arguments.advisories,
        all_gates: arguments.all_gates,
        packages: crate::cargo::packages()?,
    };
    let stages = plan::plan(&request)?;
    if !run::run(&stages, arguments.keep_going, !request.names.is_empty())? {
        std::process::exit(1);
    }
    Ok(())
}
