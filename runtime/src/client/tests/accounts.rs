//! Service accounts: tokens are shared, renewed after a 401, and never shown.

use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::BodyExt as _;

use super::server::ReceivedRequest;
use super::*;

/// A fake server: the n-th TokenRequest returns `token-<n>`. Other requests are accepted or refused by their token.
struct FakeTokenServer {
    requests: AtomicUsize,
    /// The account exists.
    exists: std::sync::atomic::AtomicBool,
    /// Tokens up to this number get a 401.
    refused: AtomicUsize,
    /// TokenRequests get a 500.
    broken: std::sync::atomic::AtomicBool,
}

impl FakeTokenServer {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            requests: AtomicUsize::new(0),
            exists: true.into(),
            refused: AtomicUsize::new(0),
            broken: false.into(),
        })
    }

    fn script(self: &Arc<Self>) -> Script {
        let server = self.clone();
        Arc::new(move |request| {
            let reply = server.reply(&request);
            Box::pin(async move { Some(reply) })
        })
    }

    fn reply(&self, request: &ReceivedRequest) -> http::Response<http_body_util::Full<Bytes>> {
        if request.path.ends_with("/token") {
            let nth = self.requests.fetch_add(1, Ordering::SeqCst) + 1;
            if self.broken.load(Ordering::SeqCst) {
                return response(500, r#"{"kind":"Status","message":"etcd is unavailable"}"#);
            }
            if !self.exists.load(Ordering::SeqCst) {
                return response(404, r#"{"kind":"Status","message":"not found"}"#);
            }
            let expires = jiff::Timestamp::now() + Duration::from_secs(3600);
            let granted = json!({
                "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []},
                "status": {"token": format!("token-{nth}"), "expirationTimestamp": expires.to_string()},
            });
            return response(201, &granted.to_string());
        }
        if request.path.ends_with("/serviceaccounts") {
            let is_new = !self.exists.swap(true, Ordering::SeqCst);
            return response(if is_new { 201 } else { 409 }, "{}");
        }
        let number = request
            .headers
            .get("authorization")
            .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer token-")?.parse().ok())
            .unwrap_or(0);
        response(if number > self.refused.load(Ordering::SeqCst) { 200 } else { 401 }, "{}")
    }
}

#[tokio::test]
async fn missing_service_account_is_created_and_callers_share_a_token() {
    let server = FakeTokenServer::new();
    server.exists.store(false, Ordering::SeqCst);
    let bed = Bed::new(User::Certificate, &["h2"], server.script()).await;
    let clients = bed.connect().await;
    let account = Arc::new(ServiceAccountToken::new(clients.own.clone(), "job-controller"));
    let identity = Identity::ServiceAccount(account.clone());
    let many = (0..10).map(|_| clients.send(&identity, request(Method::POST, "/x"), MAX_BODY_BYTES));
    for response in futures::future::join_all(many).await {
        assert_eq!(response.expect("a response").status(), 200);
    }
    // The first request fails, the second follows the creation of the account.
    assert_eq!(server.requests.load(Ordering::SeqCst), 2);
    let seen = bed.server.seen();
    let writes: Vec<_> = seen.iter().filter(|seen| seen.path == "/x").collect();
    assert_eq!(writes.len(), 10);
    for write in writes {
        assert_eq!(write.headers["authorization"], "Bearer token-2");
        assert_eq!(write.certificate, None);
        assert_eq!(
            write.headers["user-agent"],
            "kcm/v1 (linux/amd64)/system:serviceaccount:kube-system:job-controller"
        );
    }
    let token_request = seen.iter().find(|seen| seen.path.ends_with("/token")).expect("a TokenRequest");
    assert_eq!(token_request.path, "/api/v1/namespaces/kube-system/serviceaccounts/job-controller/token");
    let body: serde_json::Value = serde_json::from_slice(&token_request.body).expect("JSON");
    assert_eq!(body["spec"]["expirationSeconds"], 3600);
    assert!(!format!("{identity:?} {account:?}").contains("token-"), "{identity:?}");
}

#[tokio::test]
async fn request_is_retried_once_with_a_new_token_after_a_401() {
    // (number of the last refused token, status of the response, received writes, TokenRequests)
    for (refused, wanted, writes, requests) in [(0, 200, 1, 1), (1, 200, 2, 2), (9, 401, 2, 2)] {
        let server = FakeTokenServer::new();
        server.refused.store(refused, Ordering::SeqCst);
        let bed = Bed::new(User::Certificate, &["h2"], server.script()).await;
        let clients = bed.connect().await;
        let account = Arc::new(ServiceAccountToken::new(clients.own.clone(), "a"));
        let identity = Identity::ServiceAccount(account);
        let response = clients.send(&identity, request(Method::POST, "/x"), MAX_BODY_BYTES).await;
        assert_eq!(response.expect("a response").status(), wanted);
        let seen = bed.server.seen();
        let bodies: Vec<_> = seen.iter().filter(|seen| seen.path == "/x").collect();
        assert_eq!(bodies.len(), writes);
        assert!(bodies.iter().all(|seen| seen.body == "{}" && seen.method == Method::POST));
        assert_eq!(server.requests.load(Ordering::SeqCst), requests);
    }
}

#[tokio::test]
async fn failed_token_request_is_cached_for_a_second() {
    let server = FakeTokenServer::new();
    server.broken.store(true, Ordering::SeqCst);
    let bed = Bed::new(User::Certificate, &["h2"], server.script()).await;
    let clients = bed.connect().await;
    let account = Arc::new(ServiceAccountToken::new(clients.own.clone(), "a"));
    let identity = Identity::ServiceAccount(account.clone());
    let started = std::time::Instant::now();
    for _ in 0..20 {
        let error = clients.send(&identity, request(Method::POST, "/x"), MAX_BODY_BYTES).await;
        let error = error.expect_err("no token");
        assert!(error.not_sent());
        let text = error.to_string();
        assert!(text.contains("kube-system/a") && text.contains("etcd is unavailable"), "{text}");
    }
    let requests = server.requests.load(Ordering::SeqCst);
    assert!(requests as u64 <= 1 + started.elapsed().as_secs(), "{requests} requests");
    server.broken.store(false, Ordering::SeqCst);
    until("the server is called again", async || account.token().await.is_ok()).await;
    assert_eq!(server.requests.load(Ordering::SeqCst), requests + 1);
}

#[tokio::test]
async fn error_about_missing_permissions_names_the_fix() {
    let forbids: Script =
        Arc::new(|_| Box::pin(async { Some(response(403, r#"{"kind":"Status","message":"cannot create"}"#)) }));
    let bed = Bed::new(User::Certificate, &["h2"], forbids).await;
    let clients = bed.connect().await;
    let account = ServiceAccountToken::new(clients.own.clone(), "a");
    let text = account.token().await.expect_err("forbidden").to_string();
    assert!(text.contains("kube-system/a") && text.contains("cannot create"), "{text}");
    assert!(text.contains("system:kube-controller-manager"), "{text}");
}

#[tokio::test]
async fn only_the_used_token_is_discarded() {
    let server = FakeTokenServer::new();
    let bed = Bed::new(User::Certificate, &["h2"], server.script()).await;
    let clients = bed.connect().await;
    let account = ServiceAccountToken::new(clients.own.clone(), "a");
    let first = account.token().await.expect("a token");
    account.invalidate("another");
    assert_eq!(account.token().await.expect("a token"), first);
    account.invalidate(&first);
    let second = account.token().await.expect("a token");
    assert_ne!(second, first);
    account.invalidate(&first);
    assert_eq!(account.token().await.expect("a token"), second);
}

#[tokio::test(start_paused = true)]
async fn refused_token_request_is_repeated_when_the_server_allows_it() {
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = requests.clone();
    let layer = RequestLayer::new(move |_, _, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            let mut refused = response(429, r#"{"kind":"Status","message":"too many requests"}"#);
            refused.headers_mut().insert(http::header::RETRY_AFTER, http::HeaderValue::from_static("30"));
            Ok(refused.map(|body| body.map_err(Into::into).boxed_unsync()))
        })
    });
    let options = ConnectOptions {
        master: Some("http://127.0.0.1:9".into()),
        proxies: ProxyEnvironment::default(),
        layer: Some(layer),
        ..ConnectOptions::default()
    };
    let clients = connect(&options).await.expect("clients");
    let account = ServiceAccountToken::new(clients.control, "a");
    for (seconds, expected) in [(0, 1), (2, 1), (27, 1), (2, 2)] {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        let error = account.token().await.expect_err("a refusal");
        assert_eq!(error.retry_after(), Some(Duration::from_secs(30)));
        assert_eq!(requests.load(Ordering::SeqCst), expected);
    }
}

/// A server that hangs must not block requests whose token is valid for another twelve minutes.
#[tokio::test(start_paused = true)]
async fn aging_token_is_used_while_its_renewal_hangs() {
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = requests.clone();
    let layer = RequestLayer::new(move |_, _, _| {
        let number = counted.fetch_add(1, Ordering::SeqCst) + 1;
        Box::pin(async move {
            if number == 2 {
                std::future::pending::<()>().await;
            }
            let expires = jiff::Timestamp::now() + Duration::from_secs(3600);
            let granted = json!({
                "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []},
                "status": {"token": format!("token-{number}"), "expirationTimestamp": expires.to_string()},
            });
            Ok(response(201, &granted.to_string()).map(|body| body.map_err(Into::into).boxed_unsync()))
        })
    });
    let options = ConnectOptions {
        master: Some("http://127.0.0.1:9".into()),
        proxies: ProxyEnvironment::default(),
        layer: Some(layer),
        ..ConnectOptions::default()
    };
    let clients = connect(&options).await.expect("clients");
    let account = ServiceAccountToken::new(clients.control, "a");
    assert_eq!(&*account.token().await.expect("a token"), "token-1");
    tokio::time::advance(Duration::from_secs(2900)).await;
    let started = tokio::time::Instant::now();
    assert_eq!(&*account.token().await.expect("the old token"), "token-1");
    assert!(started.elapsed() < Duration::from_secs(1), "the caller waited for the renewal");
    tokio::time::sleep(Duration::from_secs(45)).await;
    account.token().await.expect("a token");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(&*account.token().await.expect("the new token"), "token-3");
}
