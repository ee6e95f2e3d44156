//! The mock passes the conformance suite; no capability that it has is skipped, and its lists have no pages.

use std::collections::BTreeSet;

use crate::fixture::make;

provider_conformance::conformance_tests!(make());

#[test]
fn suite_reports_skipped_cases_with_reasons() {
    let report = provider_conformance::block_on(async {
        let (provider, fixture) = make().await;
        let report = provider_conformance::run(&provider, &fixture).await;
        let left = fixture.0.snapshot();
        assert!(left.balancers.is_empty() && left.instances.is_empty(), "the suite left {left:?}");
        assert!(left.routes.iter().all(|route| route.target.is_none()), "the suite left {:?}", left.routes);
        report
    });
    println!("{report}");
    assert!(report.conforms(), "{report}");
    let ran: Vec<_> = report.results.iter().map(|result| result.name).collect();
    assert!(ran.iter().copied().eq(provider_conformance::case_names()));
    assert_eq!(ran.iter().collect::<BTreeSet<_>>().len(), ran.len(), "each case once");
    let skipped: Vec<_> = report.skipped().map(|result| result.name).collect();
    assert_eq!(skipped, ["lists_are_read_to_the_last_page"], "{report}");
}
