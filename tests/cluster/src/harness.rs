//! Runs a table of tests concurrently. Tests mostly wait, so a host can run more of them than it has cores.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::BoxFuture;
use futures::{StreamExt as _, stream};

use crate::report;
use crate::space::{Bed, Space};

/// Number of concurrent tests.
const CONCURRENT_TESTS: usize = 6;

/// The time limit of a usual test; a test that takes longer is stuck. The longest ones need seven minutes on two cores.
const LIMIT: Duration = Duration::from_secs(1800);

/// The time limit of an ignored test: some of them try hundreds of variants.
const LONG_LIMIT: Duration = Duration::from_secs(3600);

/// Number of concurrent variants of a test.
const CONCURRENT_VARIANTS: usize = 6;

/// Runs a test's variants, each in a separate namespace; fails with all failures.
pub async fn variants<T, F: Future<Output = Result<()>>>(
    space: &Space,
    variants: Vec<(String, T)>,
    run: impl Fn(Space, T) -> F,
) -> Result<()> {
    let run = &run;
    let count = variants.len();
    let failures: Vec<String> = stream::iter(variants)
        .map(|(what, variant)| async move {
            let space = space.bed.space("variant").await?;
            let namespace = space.namespace.clone();
            run(space, variant).await.with_context(|| format!("{what}, in {namespace}"))
        })
        .buffer_unordered(CONCURRENT_VARIANTS)
        .filter_map(|result| async move { result.err().map(|error| format!("{error:#}")) })
        .collect()
        .await;
    ensure!(failures.is_empty(), "{} of {count} variants failed:\n{}", failures.len(), failures.join("\n"));
    Ok(())
}

/// The arguments with which a test runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// By default; not with `--ignored`.
    Usual,
    /// Only with `--ignored` or `--include-ignored`.
    Ignored,
}

impl Tier {
    fn limit(self) -> Duration {
        match self {
            Tier::Usual => LIMIT,
            Tier::Ignored => LONG_LIMIT,
        }
    }
}

/// A test's function, whose argument is the test's namespace.
pub type Run = Arc<dyn Fn(Space) -> BoxFuture<'static, Result<()>> + Send + Sync>;

/// A test.
pub struct Case {
    /// Its path.
    pub name: String,
    /// The arguments with which the test runs.
    pub tier: Tier,
    /// Its function.
    pub run: Run,
}

/// Makes [`Case`]s from async functions of a [`Space`].
#[macro_export]
macro_rules! cases {
    ($tier:ident: $($domain:ident::$module:ident::{$($test:ident),* $(,)?}),* $(,)?) => {
        [$($($crate::Case {
            name: concat!(stringify!($domain), "::", stringify!($module), "::", stringify!($test)).to_owned(),
            tier: $crate::Tier::$tier,
            run: ::std::sync::Arc::new(|space| Box::pin($domain::$module::$test(space))),
        }),*),*]
    };
    ($tier:ident: $($module:ident::{$($test:ident),* $(,)?}),* $(,)?) => {
        [$($($crate::Case {
            name: concat!(stringify!($module), "::", stringify!($test)).to_owned(),
            tier: $crate::Tier::$tier,
            run: ::std::sync::Arc::new(|space| Box::pin($module::$test(space))),
        }),*),*]
    };
}

/// The selection of tests on the command line. Supports `--test-threads` and libtest's flags that select tests, and
/// ignores its other flags.
#[derive(Debug, Default, PartialEq, Eq)]
struct Selection {
    filters: Vec<String>,
    skip: Vec<String>,
    exact: bool,
    list: bool,
    usual: bool,
    ignored: bool,
    concurrent_tests: Option<usize>,
}

impl Selection {
    fn read(arguments: impl IntoIterator<Item = String>) -> Self {
        let mut selection = Self { usual: true, ..Self::default() };
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let (name, value) =
                argument.split_once('=').map_or((argument.as_str(), None), |(n, v)| (n, Some(v.to_owned())));
            match name {
                "--ignored" => (selection.usual, selection.ignored) = (false, true),
                "--include-ignored" => selection.ignored = true,
                "--exact" => selection.exact = true,
                "--list" => selection.list = true,
                "--skip" => selection.skip.extend(value.or_else(|| arguments.next())),
                "--test-threads" => {
                    selection.concurrent_tests =
                        value.or_else(|| arguments.next()).and_then(|n| n.parse().ok()).filter(|n| *n > 0)
                }
                "--format" | "--color" | "--logfile" | "-Z" if value.is_none() => drop(arguments.next()),
                flag if flag.starts_with('-') => {}
                filter => selection.filters.push(filter.to_owned()),
            }
        }
        selection
    }

    fn includes(&self, name: &str, tier: Tier) -> bool {
        let matches = |pattern: &String| if self.exact { name == pattern } else { name.contains(pattern.as_str()) };
        let tier = match tier {
            Tier::Usual => self.usual,
            Tier::Ignored => self.ignored,
        };
        tier && (self.filters.is_empty() || self.filters.iter().any(matches)) && !self.skip.iter().any(matches)
    }
}

/// Runs the selected tests; fails if one of them does.
pub fn run(cases: Vec<Case>) -> ExitCode {
    let selection = Selection::read(std::env::args().skip(1));
    let chosen: Vec<Case> = cases.into_iter().filter(|case| selection.includes(&case.name, case.tier)).collect();
    if selection.list {
        chosen.iter().for_each(|case| println!("{}: test", case.name));
        return ExitCode::SUCCESS;
    }
    if chosen.is_empty() {
        println!("no test matches the arguments");
        return ExitCode::SUCCESS;
    }
    if let Ok(filter) = std::env::var("RUST_LOG") {
        let filter = tracing_subscriber::EnvFilter::new(filter);
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    }
    // The stack size of kcm's and ccm's threads.
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    let runtime = threads.thread_stack_size(8 << 20).enable_all().build().expect("threads can be started");
    runtime.block_on(run_all(chosen, selection.concurrent_tests.unwrap_or(CONCURRENT_TESTS)))
}

async fn run_all(cases: Vec<Case>, concurrent_tests: usize) -> ExitCode {
    let bed = match Bed::start().await {
        Ok(bed) => bed,
        Err(error) => {
            println!("no control plane: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    let begun = Instant::now();
    let count = cases.len();
    println!("running {count} tests, up to {concurrent_tests} concurrently");
    let failures: Vec<(String, String)> = stream::iter(cases)
        .map(|case| {
            let bed = bed.clone();
            async move { (case.name.clone(), run_one(&bed, case).await) }
        })
        .buffer_unordered(concurrent_tests)
        .filter_map(|(name, failure)| async move { Some((name, failure?)) })
        .collect()
        .await;
    for (name, failure) in &failures {
        println!("\n{}", report::short(name, failure));
    }
    let passed = count - failures.len();
    println!("\ntest result: {passed} passed; {} failed; {:.1} s", failures.len(), begun.elapsed().as_secs_f64());
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs one test in a separate task; returns the reason if it fails.
async fn run_one(bed: &Arc<Bed>, case: Case) -> Option<String> {
    let begun = Instant::now();
    let (name, limit) = (&case.name, case.tier.limit());
    let space = match bed.space(name).await {
        Ok(space) => space,
        Err(error) => return Some(format!("no namespace: {error:#}")),
    };
    let namespace = space.namespace.clone();
    let task = tokio::spawn((case.run)(space));
    let abort = task.abort_handle();
    let failure = match tokio::time::timeout(limit, task).await {
        Ok(Ok(Ok(()))) => None,
        Ok(Ok(Err(error))) => Some(format!("{error:#}")),
        Ok(Err(panic)) => Some(format!("panicked: {panic}")),
        Err(_) => {
            abort.abort();
            Some(format!("not finished after {} s", limit.as_secs()))
        }
    };
    let verdict = if failure.is_none() { "ok" } else { "FAILED" };
    println!("test {name} ... {verdict} ({:.1} s)", begun.elapsed().as_secs_f64());
    let failure = failure.map(|failure| format!("namespace {namespace}: {failure}"))?;
    println!("{failure}");
    Some(failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(arguments: &str) -> Selection {
        Selection::read(arguments.split_whitespace().map(String::from))
    }

    #[test]
    fn command_line_selects_tests() {
        for (arguments, name, tier, expected) in [
            ("", "a::b", Tier::Usual, true),
            ("", "a::b", Tier::Ignored, false),
            ("--ignored", "a::b", Tier::Usual, false),
            ("--ignored", "a::b", Tier::Ignored, true),
            ("--include-ignored", "a::b", Tier::Usual, true),
            ("a::", "a::b", Tier::Usual, true),
            ("a --exact", "a::b", Tier::Usual, false),
            ("--skip b", "a::b", Tier::Usual, false),
            ("--skip=b", "a::b", Tier::Usual, false),
            ("--nocapture --format pretty x", "a::b", Tier::Usual, false),
        ] {
            assert_eq!(selection(arguments).includes(name, tier), expected, "{arguments}");
        }
        assert_eq!(selection("--test-threads=3").concurrent_tests, Some(3));
        assert_eq!(selection("--test-threads=0").concurrent_tests, None);
    }
}
