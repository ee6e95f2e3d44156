//! The HTTPS server of a manager against the real API server, queried by real TLS clients: which clients have access to
//! which paths.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use cluster_tests::certificates::{Pair, client_config, inline_pair, sign};
use control_plane::{ControlPlane, Identity, Options};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use rcgen::{DnType, ExtendedKeyUsagePurpose, KeyPair};
use runtime::metrics::Metrics;
use runtime::serve::{
    AuthenticationOptions, AuthorizationOptions, Check, Health, ProcessStatus, ServeError, ServeOptions, ServedContent,
    Server, TlsOptions, Zpages, configz,
};
use tokio::io::AsyncReadExt as _;

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Paths that are served, and some that are not.
const PATHS: &[&str] = &[
    "/healthz",
    "/healthz/ping",
    "/healthz/leaderElection",
    "/healthz?verbose",
    "/livez",
    "/livez/leaderElection",
    "/readyz",
    "/readyz/stores",
    "/metrics",
    "/metrics/slis",
    "/%6detrics",
    "//metrics",
    "/configz",
    "/flagz",
    "/statusz",
    "/debug/flags",
    "/debug/flags/v",
    "/debug/pprof/",
    "/",
    "/nothing",
];
const OPEN: &[&str] = &["/healthz", "/healthz?verbose", "/livez", "/readyz"];

/// A function that changes the options.
type Change = fn(&mut ServeOptions);

/// The credentials of a client.
#[derive(Clone, Default)]
struct Credentials {
    certificate: Option<Pair>,
    token: Option<String>,
    headers: Vec<(&'static str, &'static str)>,
    http1: bool,
}

impl Credentials {
    fn certificate(pair: &Pair) -> Self {
        Self { certificate: Some(pair.clone()), ..Self::default() }
    }

    fn token(token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..Self::default() }
    }
}

/// A response.
struct Response {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

/// A running server, with the data that clients need.
struct TestServer {
    inner: Server,
    /// The server's certificate, which clients trust.
    folder: tempfile::TempDir,
    verbosity: Arc<Mutex<String>>,
}

impl TestServer {
    async fn start(change: impl FnOnce(&mut ServeOptions)) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut options = ServeOptions {
            bind_address: LOCAL,
            tls: TlsOptions {
                cert_dir: Some(folder.path().to_owned()),
                pair_name: "manager".into(),
                ..TlsOptions::default()
            },
            ..ServeOptions::default()
        };
        change(&mut options);
        let verbosity = Arc::new(Mutex::new(String::new()));
        let set = verbosity.clone();
        let content = ServedContent {
            health: Arc::new(Health::new(
                vec![Check::new("leaderElection", || Some(Ok(())))],
                vec![Check::new("stores", || Some(Ok(())))],
            )),
            metrics: Arc::new(Metrics::new()),
            configz: configz("example.config.k8s.io", serde_json::json!({"limit": 42})),
            zpages: Zpages {
                component: "manager",
                flags: Some([("v".to_owned(), "2".to_owned())].into()),
                status: Some(ProcessStatus::new("1.2.3", "", vec!["/flagz"])),
            },
            explainer: None,
            pages: Vec::new(),
            page_runtime: None,
            set_verbosity: Some(Arc::new(move |text: &str| {
                text.parse::<u32>().map_err(|error| error.to_string())?;
                text.clone_into(&mut set.lock().expect("poisoned lock"));
                Ok(())
            })),
        };
        Ok(Self { inner: Server::start(options, content).await?, folder, verbosity })
    }

    /// Sends a request with these credentials, over a new connection.
    async fn send(
        &self,
        credentials: &Credentials,
        method: Method,
        path: &str,
        body: &'static str,
    ) -> Result<Response> {
        let own = std::fs::read(self.folder.path().join("manager.crt"))?;
        let tls = client_config(&own, credentials.certificate.as_ref())?;
        let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_only();
        let https = if credentials.http1 { https.enable_http1().build() } else { https.enable_all_versions().build() };
        let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build(https);
        let uri = format!("https://{}{path}", self.inner.address());
        let mut request = Request::builder().method(method).uri(uri).body(Full::from(body))?;
        if let Some(token) = &credentials.token {
            request.headers_mut().insert(header::AUTHORIZATION, format!("Bearer {token}").parse()?);
        }
        for (name, value) in &credentials.headers {
            request.headers_mut().append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let (head, body) = client.request(request).await?.into_parts();
        let body = String::from_utf8(body.collect().await?.to_bytes().to_vec())?;
        Ok(Response { status: head.status, headers: head.headers, body })
    }

    async fn status(&self, credentials: &Credentials, path: &str) -> Result<u16> {
        Ok(self.send(credentials, Method::GET, path, "").await?.status.as_u16())
    }
}

fn key_of(file: &Path) -> Result<KeyPair> {
    Ok(KeyPair::from_pem(&std::fs::read_to_string(file)?)?)
}

const SCRAPER: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: scraper}
rules: [{nonResourceURLs: ["/metrics"], verbs: ["get"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: scraper}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: scraper}
subjects:
- {kind: ServiceAccount, name: scraper, namespace: default}
- {kind: User, apiGroup: rbac.authorization.k8s.io, name: proxied-scraper}
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_credential_gives_access_to_its_paths_only() -> Result<()> {
    let options_without_nodes = Options { kwok: false, scheduler: false, ..Options::default() };
    let cluster = ControlPlane::start(options_without_nodes).await?;
    cluster.kubectl_with_input(&["apply", "-f", "-"], SCRAPER)?;
    for account in ["scraper", "other"] {
        cluster.kubectl(&["create", "serviceaccount", account])?;
    }
    let token =
        |account: &str| -> Result<String> { Ok(cluster.kubectl(&["create", "token", account])?.trim().to_owned()) };
    let manager = cluster.kubeconfig(Identity::ControllerManager)?;
    let server = TestServer::start(|options| {
        options.authentication.kubeconfig = Some(manager.clone());
        options.authorization.kubeconfig = Some(manager.clone());
    })
    .await?;

    unauthenticated_clients_get_only_open_paths(&server, &cluster).await?;
    let scraper = Credentials::token(&token("scraper")?);
    permitted_clients_have_access(&server, &cluster, &scraper, &Credentials::token(&token("other")?)).await?;
    front_proxies_may_name_users(&server, &cluster).await?;
    administrator_has_access_to_everything(&server, &cluster).await?;

    let begun = Instant::now();
    let address = server.inner.address();
    let mut open = tokio::net::TcpStream::connect(address).await?;
    server.inner.stop().await;
    // An open connection without a request would last for minutes.
    ensure!(begun.elapsed() < Duration::from_secs(30), "stopping took {:?}", begun.elapsed());
    ensure!(matches!(open.read(&mut [0]).await, Ok(0) | Err(_)), "a connection stayed open after the server stopped");
    ensure!(
        tokio::net::TcpStream::connect(address).await.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    );

    lookups_may_fail_only_if_that_is_tolerated(&cluster).await
}

/// Clients without credentials have access only to paths that are open to all; clients with wrong, foreign or expired
/// ones have access to none.
async fn unauthenticated_clients_get_only_open_paths(server: &TestServer, cluster: &ControlPlane) -> Result<()> {
    let ca = cluster.ca_key();
    let expired = sign(("kubernetes", key_of(&ca)?), "kubernetes-admin", |params| {
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    })?;
    let foreign = sign(("kubernetes", KeyPair::generate()?), "kubernetes-admin", |_| {})?;
    let for_servers = sign(("kubernetes", key_of(&ca)?), "kubernetes-admin", |params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    })?;
    let forged_headers = Credentials {
        headers: vec![("x-remote-user", "kubernetes-admin"), ("x-remote-group", "system:masters")],
        ..Credentials::default()
    };
    let wrong = Credentials::token("wrong");
    let http1 = Credentials { http1: true, ..Credentials::default() };
    // (client, status of a closed path, status of an open path)
    for (who, credentials, closed, open) in [
        ("anonymous", Credentials::default(), 403, 200),
        ("anonymous over HTTP/1.1", http1, 403, 200),
        ("a client with headers of a proxy", forged_headers, 403, 200),
        ("a wrong token", wrong, 401, 401),
        ("an expired certificate", Credentials::certificate(&expired), 401, 401),
        ("a foreign certificate", Credentials::certificate(&foreign), 401, 401),
        ("a server's certificate", Credentials::certificate(&for_servers), 401, 401),
    ] {
        for path in PATHS {
            let wanted = if OPEN.contains(path) { open } else { closed };
            let got = server.status(&credentials, path).await.with_context(|| format!("{who} at {path}"))?;
            ensure!(got == wanted, "{who} at {path}: {got} instead of {wanted}");
        }
        for method in [Method::PUT, Method::POST, Method::DELETE, Method::HEAD] {
            let got = server.send(&credentials, method.clone(), "/debug/flags/v", "9").await?.status;
            ensure!(got == closed, "{who}: {method} {got}");
        }
    }
    ensure!(server.verbosity.lock().expect("poisoned lock").is_empty(), "the verbosity was set");

    let refused = server.send(&Credentials::default(), Method::GET, "/metrics", "").await?;
    let status: serde_json::Value = serde_json::from_str(&refused.body)?;
    ensure!(status["message"] == "forbidden: User \"system:anonymous\" cannot get path \"/metrics\"", "{status}");
    ensure!(
        refused.headers["content-type"] == "application/json" && refused.headers["x-content-type-options"] == "nosniff"
    );
    let refused = server.send(&Credentials::token("wrong"), Method::GET, "/metrics", "").await?;
    ensure!(serde_json::from_str::<serde_json::Value>(&refused.body)?["reason"] == "Unauthorized", "{}", refused.body);
    Ok(())
}

/// A role permits its path and verb to its subjects; an invalid certificate does not invalidate a valid token.
async fn permitted_clients_have_access(
    server: &TestServer,
    cluster: &ControlPlane,
    scraper: &Credentials,
    other: &Credentials,
) -> Result<()> {
    let metrics = server.send(scraper, Method::GET, "/metrics", "").await?;
    ensure!(metrics.status == 200 && metrics.body.contains("# TYPE process_cpu_seconds_total counter"));
    ensure!(metrics.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8; escaping=underscores");
    ensure!(server.status(scraper, "/%6detrics").await? == 200, "the decoded path is not the one that is authorized");
    for path in ["/configz", "/metrics/slis", "//metrics", "/debug/flags/v"] {
        ensure!(server.status(scraper, path).await? == 403, "the scraper at {path}");
    }
    let posted = server.send(scraper, Method::POST, "/metrics", "").await?;
    ensure!(posted.status == 403, "the role permits more than get");
    ensure!(server.status(other, "/metrics").await? == 403, "an account without a role has access");
    let foreign = sign(("kubernetes", KeyPair::generate()?), "kubernetes-admin", |_| {})?;
    let both = Credentials { certificate: Some(foreign), ..scraper.clone() };
    ensure!(server.status(&both, "/metrics").await? == 200);
    let named = sign(("kubernetes", key_of(&cluster.ca_key())?), "ann", |params| {
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "ann");
    })?;
    let refused = server.send(&Credentials::certificate(&named), Method::GET, "/configz", "").await?;
    ensure!(refused.status == 403 && refused.body.contains("User \\\"ann\\\" cannot get path"), "{}", refused.body);
    Ok(())
}

/// Only a client with a certificate of the front proxies' authority and an allowed common name may name another user.
async fn front_proxies_may_name_users(server: &TestServer, cluster: &ControlPlane) -> Result<()> {
    let folder = cluster.front_proxy_ca().parent().context("no parent folder")?.to_owned();
    let read = |name: &str| std::fs::read_to_string(folder.join(name));
    let proxy = (read("front-proxy-client.crt")?, read("front-proxy-client.key")?);
    let for_user = |pair: &Pair, user: &'static str| Credentials {
        headers: vec![("x-remote-user", user)],
        ..Credentials::certificate(pair)
    };
    ensure!(server.status(&for_user(&proxy, "proxied-scraper"), "/metrics").await? == 200);
    ensure!(server.status(&for_user(&proxy, "somebody"), "/metrics").await? == 403);
    ensure!(
        server.status(&Credentials::certificate(&proxy), "/metrics").await? == 401,
        "a request without a user is accepted"
    );
    let key = key_of(&folder.join("front-proxy-ca.key"))?;
    let not_allowed = sign(("front-proxy-ca", key), "not-allowed", |_| {})?;
    ensure!(server.status(&for_user(&not_allowed, "proxied-scraper"), "/metrics").await? == 401);
    Ok(())
}

async fn administrator_has_access_to_everything(server: &TestServer, cluster: &ControlPlane) -> Result<()> {
    let admin = Credentials::certificate(&inline_pair(&cluster.kubeconfig(Identity::Admin)?)?);
    for path in PATHS {
        let wanted = match *path {
            "/healthz/ping" | "//metrics" | "/debug/pprof/" | "/" | "/nothing" => 404,
            "/debug/flags/v" => 406,
            _ => 200,
        };
        let got = server.status(&admin, path).await?;
        ensure!(got == wanted, "{path}: {got} instead of {wanted}");
    }
    let get = |path: &'static str| server.send(&admin, Method::GET, path, "");
    ensure!(get("/healthz").await?.body == "ok");
    ensure!(get("/readyz?verbose").await?.body == "[+]leaderElection ok\n[+]stores ok\nreadyz check passed\n");
    ensure!(get("/configz").await?.body == r#"{"example.config.k8s.io":{"limit":42}}"#);
    ensure!(get("/metrics/slis").await?.body.contains("kubernetes_healthcheck{name=\"stores\",type=\"readyz\"} 1"));
    let head = server.send(&admin, Method::HEAD, "/metrics", "").await?;
    ensure!(head.status == 200 && head.body.is_empty());
    let set = server.send(&admin, Method::PUT, "/debug/flags/v", "7").await?;
    ensure!(set.status == 200 && set.body == "successfully set klog.logging.verbosity to 7\n", "{}", set.body);
    ensure!(*server.verbosity.lock().expect("poisoned lock") == "7");
    ensure!(server.send(&admin, Method::PUT, "/debug/flags/v", "loud").await?.status == 400);
    Ok(())
}

async fn lookups_may_fail_only_if_that_is_tolerated(cluster: &ControlPlane) -> Result<()> {
    let unknown_user = cluster.kubeconfig(Identity::User { name: "nobody".into(), groups: Vec::new() })?;
    let with = |tolerate: bool, skip: bool| {
        let authentication = AuthenticationOptions {
            kubeconfig: Some(unknown_user.clone()),
            tolerate_lookup_failure: tolerate,
            skip_lookup: skip,
            ..AuthenticationOptions::default()
        };
        TestServer::start(move |options| options.authentication = authentication)
    };
    let refused = with(false, false).await.err().context("a failed lookup was tolerated")?;
    ensure!(matches!(refused.downcast_ref(), Some(ServeError::Lookup { .. })), "{refused}");
    let admin = Credentials::certificate(&inline_pair(&cluster.kubeconfig(Identity::Admin)?)?);
    for (tolerate, skip) in [(true, false), (false, true)] {
        let server = with(tolerate, skip).await?;
        ensure!(server.status(&admin, "/metrics").await? == 403, "a certificate without a known authority is accepted");
        ensure!(server.status(&Credentials::default(), "/healthz").await? == 200);
        ensure!(
            server.status(&Credentials::token("any"), "/metrics").await? == 401,
            "a server that cannot review tokens accepts one"
        );
    }
    Ok(())
}

#[tokio::test]
async fn tokens_are_refused_without_an_api_server() -> Result<()> {
    let server = TestServer::start(|_| {}).await?;
    for credentials in [Credentials::default(), Credentials::token("any")] {
        for path in PATHS {
            let wanted = if OPEN.contains(path) { 200 } else { 403 };
            ensure!(server.status(&credentials, path).await? == wanted, "{path}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn taken_port_is_reported_with_its_flag() -> Result<()> {
    for bind_address in [LOCAL, IpAddr::V4(Ipv4Addr::UNSPECIFIED)] {
        let taken = std::net::TcpListener::bind((bind_address, 0))?;
        let port = taken.local_addr()?.port();
        let refused = TestServer::start(|options| {
            options.bind_address = bind_address;
            options.port = port;
        });
        let message = refused.await.err().context("the server started on a used port")?.to_string();
        ensure!(message.contains("--secure-port") && message.contains(&port.to_string()), "{message}");
    }
    Ok(())
}

#[tokio::test]
async fn invalid_settings_are_reported_with_their_flag() -> Result<()> {
    let cases: [(&str, Change); 5] = [
        ("--tls-min-version", |options| options.tls.min_version = "TLS1.2".into()),
        ("--tls-cipher-suites", |options| options.tls.cipher_suites = vec!["NULL".into()]),
        ("--client-ca-file", |options| options.authentication.client_ca_file = Some("/no/such/file".into())),
        ("--authentication-kubeconfig", |options| options.authentication.kubeconfig = Some("/no/such/file".into())),
        ("--authorization-always-allow-paths", |options| {
            options.authorization =
                AuthorizationOptions { always_allow_paths: vec!["/a*b".into()], ..AuthorizationOptions::default() };
        }),
    ];
    for (flag, change) in cases {
        let message = TestServer::start(change).await.err().with_context(|| flag)?.to_string();
        ensure!(message.starts_with(flag), "{message}");
    }
    Ok(())
}

/// A health check that panics fails only itself.
#[tokio::test]
async fn panic_affects_one_response() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let calls = Arc::new(AtomicU32::new(0));
    let count = calls.clone();
    let content = ServedContent {
        health: Arc::new(Health::new(
            vec![Check::new("first", move || {
                assert!(count.fetch_add(1, Ordering::Relaxed) > 0, "as scripted");
                Some(Ok(()))
            })],
            Vec::new(),
        )),
        metrics: Arc::new(Metrics::new()),
        configz: serde_json::Value::Null,
        zpages: Zpages::default(),
        explainer: None,
        pages: Vec::new(),
        page_runtime: None,
        set_verbosity: None,
    };
    let options = ServeOptions {
        bind_address: LOCAL,
        tls: TlsOptions { cert_dir: Some(folder.path().into()), pair_name: "manager".into(), ..TlsOptions::default() },
        ..ServeOptions::default()
    };
    let server = Server::start(options, content).await?;
    let test_server = TestServer { inner: server, folder, verbosity: Arc::default() };
    ensure!(test_server.status(&Credentials::default(), "/healthz").await? == 500);
    ensure!(test_server.status(&Credentials::default(), "/healthz").await? == 200);
    Ok(())
}
