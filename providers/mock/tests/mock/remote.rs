//! A provider over a mock cloud that another process serves: it passes the suite, and the cloud's resources stay when
//! it ends.

use std::sync::Arc;

use provider_mock::{MockCloud, MockConfig};
use providers::{BuildContext, CloudProvider, ErrorKind, InstanceRef, InstanceState, Targets, build};
use serde_json::json;
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinHandle;

use crate::fixture::{CLUSTER, MockFixture, cloud, spec};

fn connect(config: serde_json::Value) -> Result<Arc<dyn CloudProvider>, String> {
    let context =
        BuildContext { cluster_name: CLUSTER.into(), config: config.to_string().into(), ..BuildContext::default() };
    build(&[provider_mock::factory()], "mock", &context).map_err(|error| error.to_string())
}

async fn served(cloud: &MockCloud) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    (url, tokio::spawn(cloud.clone().serve(listener)))
}

async fn make() -> (Arc<dyn CloudProvider>, MockFixture) {
    let cloud = cloud(MockConfig { provisioning_millis: 5, deletion_millis: 5, ..MockConfig::default() });
    let (url, _) = served(&cloud).await;
    let provider = connect(json!({"url": url})).expect("a URL");
    provider.initialize().await.expect("it is served");
    (provider, MockFixture(cloud))
}

mod suite {
    use super::make;

    provider_conformance::conformance_tests!(make());
}

#[tokio::test]
async fn remote_provider_skips_only_cases_that_need_features_it_lacks() {
    let (provider, fixture) = make().await;
    let report = provider_conformance::run(&provider, &fixture).await;
    assert!(report.conforms(), "{report}");
    let skipped: Vec<_> = report.skipped().map(|result| result.name).collect();
    // Secrets are received by the process that serves the cloud.
    let expected =
        ["firewall_follows_targets", "lists_are_read_to_the_last_page", "changed_secret_replaces_the_credentials"];
    assert_eq!(skipped, expected, "{report}");
}

#[tokio::test]
async fn two_processes_share_one_cloud() {
    let cloud = cloud(MockConfig { auto_instances: true, ..MockConfig::default() });
    let (url, server) = served(&cloud).await;
    let [one, two] = [(); 2].map(|()| connect(json!({"url": url})).expect("a URL"));
    let spec = spec("web", "1");
    let first = one.load_balancers().expect("balancers").ensure(&spec, &Targets::default()).await.expect("ensured");
    drop(one);
    let second = two.load_balancers().expect("balancers").ensure(&spec, &Targets::default()).await.expect("ensured");
    assert_eq!(first, second);
    assert_eq!(cloud.snapshot().balancers.len(), 1);
    let states = two.instances().expect("instances").describe(&[InstanceRef::named("a")]).await;
    assert!(matches!(&states[..], [InstanceState::Running(_)]), "{states:?}");
    server.abort();
    let _ = server.await;
}

#[tokio::test]
async fn unreachable_cloud_is_a_transient_error_and_not_absence() {
    // The socket does not listen, and keeps its port from other tests.
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(([127, 0, 0, 1], 0).into()).expect("a port");
    let url = format!("http://{}", socket.local_addr().expect("an address"));
    let provider = connect(json!({"url": url})).expect("a URL");
    assert_eq!(provider.initialize().await.expect_err("not served").kind, ErrorKind::Transient);
    let states = provider.instances().expect("instances").describe(&[InstanceRef::named("a")]).await;
    assert!(matches!(&states[..], [InstanceState::Unknown(_)]), "{states:?}");
    let deleted = provider.load_balancers().expect("balancers").delete(&spec("web", "1").id).await;
    assert_eq!(deleted.expect_err("not served").kind, ErrorKind::Transient);
}

#[test]
fn invalid_url_is_reported_with_the_fix() {
    let refused = |config| connect(config).err().expect("it cannot be used");
    for url in ["127.0.0.1:9902", "https://127.0.0.1", "http://127.0.0.1/state", ""] {
        let message = refused(json!({"url": url}));
        assert!(message.contains(&format!("url is {url:?}: use the address")), "{message}");
    }
    let message = refused(json!({"url": "http://127.0.0.1:1", "auto_instances": true}));
    assert!(message.contains("remove all other fields"), "{message}");
}
