//! `cargo xtask soak`: long random histories, and a crash at every write instead of a sample.

use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::cargo::cargo;
use crate::test::one_program;

/// Run long random histories, and every scenario once with a crash at each of its writes.
///
/// First the property tests, with --histories histories each and a seed that makes them repeatable; then histories
/// of Services over the mock cloud, and over moto with a fault proxy; then, on real control planes, every scenario with
/// a crash at each of its writes and cloud calls, and with each fault; then a hostile tenant, hundreds of custom kinds,
/// and the metrics and alerts of upstream's programs; last, any bytes and texts for all parsers. A failure names its
/// seed or position. Takes minutes to hours, depending on the arguments.
#[derive(clap::Args)]
#[command(after_long_help = "Examples:
  cargo xtask soak --histories 10000 --seed 7
  cargo xtask soak --histories 100000 --only histories      # without a control plane
  cargo xtask soak --histories 1000000 --only fuzz           # for hours, without a control plane")]
pub struct Arguments {
    /// Number of random histories per property
    #[arg(long, default_value_t = 5000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    histories: u32,

    /// Seed of the histories; random by default, and printed
    #[arg(long, value_name = "S")]
    seed: Option<u64>,

    /// Number of histories of Services, of 50 steps each
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    services: u32,

    /// Number of histories of Services over AWS, of 25 steps each
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    aws: u32,

    /// Run only this part
    #[arg(long, value_name = "PART")]
    only: Option<Part>,
}

/// The parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Random histories against models; no control plane
    Histories,
    /// Random histories of Services over the mock cloud; no control plane
    Services,
    /// Random histories of Services over AWS, simulated by moto and a fault proxy, and a crash at each AWS call
    Aws,
    /// A crash at every write, on a real control plane
    Crashes,
    /// A tenant that disturbs other namespaces, 500 custom kinds, upstream's metrics, and alert rules; on real control
    /// planes, one after the other
    Hostile,
    /// Any bytes and texts that a server or a tenant may send, for all parsers; no control plane
    Fuzz,
}

/// Cluster tests with a crash at each write, by a part of their names.
pub const CRASHES: &str = "faults::";

/// Cluster tests that need much time or the whole host, by parts of their names.
pub const HOSTILE: [&str; 7] = [
    "hostile_tenant::",
    "many_kinds::",
    "monitoring::",
    "refused_creations_of_a_job",
    "refused_job",
    "refused_namespace",
    "second_signal",
];

/// Packages that read bytes and texts from outside.
pub const FUZZ_PACKAGES: [&str; 7] = [
    "kubewright-cel-check",
    "kubewright-kinds",
    "kubewright-runtime",
    "kubewright-component-base",
    "kubewright-provider-aws",
    "kcm",
    "ccm",
];

/// Part of the names of tests that give a reader any input.
pub const FUZZ_NAMES: &str = "any_";

/// Inputs per requested history: an input is read in microseconds.
const FUZZ_CASES: u32 = 100;

/// A call of cargo: arguments and environment.
#[derive(Debug, PartialEq, Eq)]
struct Call {
    arguments: Vec<&'static str>,
    environment: Vec<(&'static str, String)>,
}

impl Part {
    const ALL: [Self; 6] = [Self::Histories, Self::Services, Self::Aws, Self::Crashes, Self::Hostile, Self::Fuzz];

    fn call(self, arguments: &Arguments, seed: u64) -> Call {
        let histories = arguments.histories;
        match self {
            Self::Histories => Call {
                arguments: words(
                    "test --release --no-fail-fast --lib --package kubewright-kinds --package kubewright-runtime \
                     --package kcm",
                ),
                environment: vec![
                    ("PROPTEST_CASES", histories.to_string()),
                    ("PROPTEST_RNG_SEED", seed.to_string()),
                    // In comparisons with models, proptest rejects many inputs, most of which are cheap to generate.
                    ("PROPTEST_MAX_GLOBAL_REJECTS", histories.saturating_mul(10).to_string()),
                ],
            },
            Self::Services => Call {
                arguments: words("test --release --package ccm --no-default-features --lib -- --ignored histories"),
                environment: vec![
                    ("CCM_HISTORIES", arguments.services.to_string()),
                    // Each history has the next seed.
                    ("CCM_SEED", (seed % (1 << 32)).to_string()),
                ],
            },
            Self::Aws => Call {
                // Tests with upstream's controllers are skipped: they need binaries, and an account that nothing else
                // uses.
                arguments: [one_program("moto"), words("--ignored --skip upstream::")].concat(),
                environment: vec![
                    ("MOTO_HISTORIES", arguments.aws.to_string()),
                    ("MOTO_SEED", (seed % (1 << 32)).to_string()),
                ],
            },
            Self::Crashes => Call {
                // The scenarios run one at a time, because each runs several variants concurrently.
                arguments: one_at_a_time(&[CRASHES]),
                environment: Vec::new(),
            },
            Self::Hostile => Call {
                // These tests measure durations, so they run one at a time.
                arguments: one_at_a_time(&HOSTILE),
                environment: Vec::new(),
            },
            Self::Fuzz => Call {
                arguments: words("test --release --no-fail-fast --no-default-features --lib --tests")
                    .into_iter()
                    .chain(FUZZ_PACKAGES.into_iter().flat_map(|package| ["--package", package]))
                    .chain(["--", FUZZ_NAMES])
                    .collect(),
                environment: vec![
                    ("PROPTEST_CASES", histories.saturating_mul(FUZZ_CASES).to_string()),
                    ("PROPTEST_RNG_SEED", seed.to_string()),
                    ("PROPTEST_MAX_GLOBAL_REJECTS", histories.saturating_mul(FUZZ_CASES).to_string()),
                ],
            },
        }
    }
}

/// Returns cargo's arguments for ignored cluster tests with these parts of names, one at a time.
fn one_at_a_time(names: &[&'static str]) -> Vec<&'static str> {
    [one_program("cluster"), words("--ignored --test-threads 1"), names.to_vec()].concat()
}

/// Returns a random seed.
fn random_seed() -> u64 {
    std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0)
}

fn words(text: &'static str) -> Vec<&'static str> {
    text.split_whitespace().collect()
}

/// Runs all parts, or the selected one, even after one has failed.
pub fn run(arguments: Arguments) -> Result<()> {
    let seed = arguments.seed.unwrap_or_else(random_seed);
    println!("histories: {}, seed: {seed}", arguments.histories);
    let mut failed = Vec::new();
    for part in Part::ALL.into_iter().filter(|part| arguments.only.is_none_or(|only| only == *part)) {
        let begun = Instant::now();
        let call = part.call(&arguments, seed);
        let status = cargo().args(&call.arguments).envs(call.environment).status().context("run cargo")?;
        println!(
            "{part:?}: {} after {:.0} s",
            if status.success() { "passed" } else { "FAILED" },
            begun.elapsed().as_secs_f64()
        );
        if !status.success() {
            failed.push(format!("{part:?}"));
        }
    }
    if !failed.is_empty() {
        let Arguments { histories, services, aws, .. } = arguments;
        bail!(
            "{} failed; repeat with --histories {histories} --services {services} --aws {aws} --seed {seed}",
            failed.join(" and ")
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuzzing_selects_packages_and_tests_by_name() {
        let arguments = Arguments { histories: 9, seed: None, services: 3, aws: 4, only: None };
        let call = Part::Fuzz.call(&arguments, 7);
        assert!(call.arguments.ends_with(&["--package", "ccm", "--", "any_"]), "{call:?}");
        assert_eq!(call.environment[0], ("PROPTEST_CASES", "900".into()));
    }

    #[test]
    fn histories_are_repeatable_and_have_the_requested_number() {
        let arguments = Arguments { histories: 9, seed: None, services: 3, aws: 4, only: None };
        let call = Part::Histories.call(&arguments, 7);
        assert_eq!(call.environment[0], ("PROPTEST_CASES", "9".into()));
        assert_eq!(call.environment[1], ("PROPTEST_RNG_SEED", "7".into()));
        let call = Part::Services.call(&arguments, 7);
        assert_eq!(call.environment, [("CCM_HISTORIES", "3".into()), ("CCM_SEED", "7".into())]);
        let call = Part::Aws.call(&arguments, 7);
        assert_eq!(call.environment, [("MOTO_HISTORIES", "4".into()), ("MOTO_SEED", "7".into())]);
        let call = Part::Crashes.call(&arguments, 7);
        assert!(call.arguments.ends_with(&["--test", "cluster", "--", "--ignored", "--test-threads", "1", "faults::"]));
    }
}
