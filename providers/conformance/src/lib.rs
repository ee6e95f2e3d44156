//! The conformance suite for providers: it checks the contract that the controllers rely on against a real provider.
//!
//! A vendor implements a [`Fixture`] (creation and deletion of instances, detection of leaked resources). Then it
//! either [`run`]s the suite and prints the [`Report`], or generates a `#[test]` per case with [`conformance_tests!`].
//! Cases that need a missing capability of the provider or its fixture are skipped and reported as such.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod cases;
mod context;
mod credentials;
mod fixture;
mod incomplete_reads;
mod instances;
mod load_balancer_changes;
mod load_balancer_creation;
mod load_balancer_deletion;
mod report;
mod routes;

use std::sync::Arc;

use providers::CloudProvider;

pub use cases::case_names;
pub use fixture::{Fixture, FixtureError, ReadFailure};
pub use report::{CaseResult, Outcome, Report};

/// Runs every case, one after another, and cleans up after each.
pub async fn run(provider: &Arc<dyn CloudProvider>, fixture: &dyn Fixture) -> Report {
    let mut report = Report::default();
    for case in cases::CASES {
        report.results.push(cases::run_one(case, provider, fixture).await);
    }
    report
}

/// Runs the case with that name; `None` if there is none.
pub async fn run_case(name: &str, provider: &Arc<dyn CloudProvider>, fixture: &dyn Fixture) -> Option<CaseResult> {
    let case = cases::CASES.iter().find(|case| case.name == name)?;
    Some(cases::run_one(case, provider, fixture).await)
}

/// Runs the case with that name, as the tests of [`conformance_tests!`] do.
///
/// # Panics
/// If the case fails, or there is none with that name.
pub async fn check(name: &str, provider: &Arc<dyn CloudProvider>, fixture: &dyn Fixture) {
    let result = run_case(name, provider, fixture).await;
    let result = result.unwrap_or_else(|| panic!("there is no case {name}"));
    println!("{result}");
    assert!(!matches!(result.outcome, Outcome::Failed(_)), "{result}");
}

/// Runs a future to its end, with timers and network, for tests without a runtime.
///
/// # Panics
/// If the system cannot create a runtime.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime for a test").block_on(future)
}

/// Generates a `#[test]` per case. `$make` is an expression of a future that returns an initialized `Arc<dyn
/// CloudProvider>` and a [`Fixture`]; each test creates its own.
///
/// ```ignore
/// async fn make() -> (Arc<dyn CloudProvider>, MyFixture) { ... }
/// provider_conformance::conformance_tests!(make());
/// ```
#[macro_export]
macro_rules! conformance_tests {
    ($make:expr) => {
        $crate::__cases!($crate::__tests, $make);
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __tests {
    ($make:expr, $($module:ident::$case:ident,)*) => {
        $(
            #[test]
            fn $case() {
                $crate::block_on(async {
                    let (provider, fixture) = $make.await;
                    $crate::check(stringify!($case), &provider, &fixture).await;
                });
            }
        )*
    };
}
