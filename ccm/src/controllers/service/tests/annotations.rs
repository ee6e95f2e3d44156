//! Annotations that the provider writes to Services.

use std::collections::BTreeMap;

use kinds::service::ServiceType;
use provider_mock::MockConfig;

use super::simulation::{Process, Simulation, annotated, key, pass, service};
use crate::controllers::service::annotations::{AnnotationEdits, edits};

#[test]
fn only_annotations_with_the_prefix_are_edited() {
    let mut service = service("web");
    annotated(&mut service, &[("own/old", "1"), ("own/same", "1"), ("own/other", "1"), ("users", "1")]);
    let wanted: BTreeMap<String, String> = [("own/same", "1"), ("own/other", "2"), ("own/new", "1"), ("users", "2")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    let expected: AnnotationEdits = [("own/old", None), ("own/other", Some("2")), ("own/new", Some("1"))]
        .map(|(name, value)| (name.to_owned(), value.map(str::to_owned)))
        .into();
    assert_eq!(edits(&service, &wanted, Some("own/")), expected);
    assert!(edits(&service, &wanted, None).is_empty());
    assert!(edits(&service, &wanted, Some("")).is_empty());
}

#[tokio::test(start_paused = true)]
async fn annotations_of_the_provider_are_written_repaired_and_removed() {
    const NAME: &str = "status.mock.cloud/balancer";
    let sim = Simulation::new(MockConfig::default());
    let mut web = service("web");
    annotated(&mut web, &[("mock.cloud/report", "true"), ("users", "1")]);
    sim.create(web);
    let process = Process::start(&sim, 1);
    pass(1.0).await;
    let annotations = || -> Vec<(String, String)> {
        let web = sim.get(&key("web")).expect("it exists");
        web.annotations.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    };
    let written = annotations();
    assert_eq!(written.len(), 3, "{written:?}");
    assert!(written.iter().any(|(name, value)| name == NAME && value.starts_with('a')), "{written:?}");
    assert_eq!(sim.writes(), 2, "the finalizer; the status with the annotation");

    // The annotations of the provider are not part of the request: neither their write nor their repair leads to a call
    // that changes the cloud.
    let calls = sim.cloud.changing_calls();
    sim.change(&key("web"), |web| annotated(web, &[("mock.cloud/report", "true"), ("users", "1"), (NAME, "odd")]));
    process.deliver(&key("web"));
    pass(1.0).await;
    assert_eq!(annotations().len(), 3);
    assert!(annotations().iter().all(|(_, value)| value != "odd"), "{:?}", annotations());
    assert_eq!((sim.cloud.changing_calls(), sim.writes()), (calls, 3));

    sim.change(&key("web"), |service| service.kind = ServiceType::ClusterIp);
    process.deliver(&key("web"));
    pass(1.0).await;
    let left = annotations();
    assert!(left.len() == 2 && left.iter().all(|(name, _)| name != NAME), "{left:?}");
}
