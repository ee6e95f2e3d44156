//! The mock over HTTP, as used by a script, through the factory.

use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use provider_mock::{MockConfig, Snapshot};
use providers::{BuildContext, ErrorKind, InstanceRef, InstanceState, Targets, build};
use serde_json::{Value, json};

use crate::fixture::{CLUSTER, cloud, spec};

async fn send(address: &str, method: Method, path: &str, body: Option<Value>) -> (StatusCode, Value) {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    let request =
        Request::builder().method(method).uri(format!("http://{address}{path}")).body(Full::<bytes::Bytes>::from(body));
    let response = client.request(request.unwrap()).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap())
}

#[tokio::test]
async fn script_can_read_and_change_all_state() {
    let cloud = cloud(MockConfig::default());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = tokio::spawn(cloud.clone().serve(listener));
    let provider = cloud.provider(CLUSTER);

    let (code, created) = send(&address, Method::PUT, "/instances/a", None).await;
    assert_eq!((code, &created["provider_id"]), (StatusCode::OK, &json!("mock://mock-1/a")));
    let state = async || provider.instances().unwrap().describe(&[InstanceRef::named("a")]).await.remove(0);
    assert!(matches!(state().await, InstanceState::Running(_)));
    send(&address, Method::POST, "/instances/a/stop", None).await;
    assert_eq!(state().await, InstanceState::Stopped);
    send(&address, Method::POST, "/instances/a/start", None).await;
    assert!(matches!(state().await, InstanceState::Running(_)));
    send(&address, Method::DELETE, "/instances/a", None).await;
    assert_eq!(state().await, InstanceState::Gone);
    let (code, error) = send(&address, Method::DELETE, "/instances/a", None).await;
    assert_eq!((code, &error["error"]), (StatusCode::NOT_FOUND, &json!("there is no instance a")));

    let fault = json!({"operation": "CreateBalancer", "effect": "quota"});
    let (_, armed) = send(&address, Method::POST, "/faults", Some(fault)).await;
    let balancers = provider.load_balancers().unwrap();
    let error = balancers.ensure(&spec("web", "1"), &Targets::default()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Quota);
    let (_, faults) = send(&address, Method::GET, "/faults", None).await;
    assert_eq!((&faults[0]["seen"], &faults[0]["fired"]), (&json!(1), &json!(1)));
    let (code, _) = send(&address, Method::DELETE, &format!("/faults/{}", armed["id"]), None).await;
    assert_eq!(code, StatusCode::OK);
    balancers.ensure(&spec("web", "1"), &Targets::default()).await.unwrap();

    let (_, calls) = send(&address, Method::GET, "/calls", None).await;
    assert_eq!(calls["CreateBalancer"], json!({"calls": 2, "failed": 1}));
    let (_, reported) = send(&address, Method::GET, "/state", None).await;
    let balancer = &reported["balancers"][0];
    assert_eq!((&balancer["id"]["name"], &balancer["phase"]), (&json!("web"), &json!("active")));
    assert_eq!(balancer["addresses"], json!(["198.18.0.1"]));
    let snapshot: Snapshot = serde_json::from_value(reported).unwrap();
    assert_eq!(snapshot.balancers, cloud.snapshot().balancers);

    for (path, body) in [
        ("/quotas", json!({"routes": 1})),
        ("/foreign-routes", json!({"destination": "10.9.0.0/24"})),
        ("/health", json!({"target": {"instance": "mock://mock-1/a"}, "health": "unhealthy"})),
    ] {
        let (code, response) = send(&address, Method::PUT, path, Some(body)).await;
        assert_eq!(code, StatusCode::OK, "{path}: {response}");
        let (code, response) = send(&address, Method::PUT, path, Some(json!({"nonsense": 1}))).await;
        assert_eq!(code, StatusCode::BAD_REQUEST, "{path}: {response}");
    }
    assert_eq!(cloud.snapshot().routes.len(), 1);
    let (code, _) = send(&address, Method::GET, "/nothing", None).await;
    assert_eq!(code, StatusCode::NOT_FOUND);
    server.abort();
}

#[tokio::test]
async fn factory_serves_http_once_initialized() {
    // The port was free a moment ago, and is closed before the mock uses it. No other test listens at this address.
    let free = std::net::TcpListener::bind("127.0.0.77:0").unwrap().local_addr().unwrap().to_string();
    let config = json!({"listen": free, "auto_instances": true}).to_string();
    let context = BuildContext { cluster_name: CLUSTER.into(), config: config.into(), ..BuildContext::default() };
    let provider = build(&[provider_mock::factory()], "mock", &context).unwrap();
    provider.initialize().await.unwrap();
    provider.initialize().await.expect("a second time does nothing");
    provider.instances().unwrap().describe(&[InstanceRef::named("n")]).await;
    let (code, reported) = send(&free, Method::GET, "/state", None).await;
    assert_eq!((code, &reported["instances"]["n"]["running"]), (StatusCode::OK, &json!(true)));
}
