//! The mock passes the conformance suite; only the cases for a firewall and for pages, which it lacks, are skipped.

use std::collections::BTreeSet;

use crate::fixture::start_mock;

provider_conformance::conformance_tests!(start_mock());

#[test]
fn suite_reports_skipped_cases_with_reasons() {
    let report = provider_conformance::block_on(async {
        let (provider, fixture) = start_mock().await;
        let report = provider_conformance::run(&provider, &fixture).await;
        let remaining = fixture.0.snapshot();
        assert!(remaining.balancers.is_empty() && remaining.instances.is_empty(), "the suite leaked {remaining:?}");
        assert!(remaining.routes.iter().all(|route| route.target.is_none()), "the suite leaked {:?}", remaining.routes);
        report
    });
    println!("{report}");
    assert!(report.conforms(), "{report}");
    let names: Vec<_> = report.results.iter().map(|result| result.name).collect();
    assert!(names.iter().copied().eq(provider_conformance::case_names()));
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "each case once");
    let skipped: Vec<_> = report.skipped().map(|result| result.name).collect();
    // The mock has no firewall between load balancers and targets, and does not divide lists into pages.
    assert_eq!(skipped, ["firewall_follows_targets", "lists_are_read_to_the_last_page"], "{report}");
}
