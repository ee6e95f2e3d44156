//! kcm and ccm as separate processes: access to their endpoints, the content of their pages, logs, and termination.
//!
//! The test's binary contains both programs ([`cluster_tests::programs`]).

use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cluster_tests::certificates::{self, Pair, client_config, inline_pair};
use cluster_tests::programs::{CCM, KCM, command};
use cluster_tests::{DEADLINE, ReservedPort, Space, all_gates, eventually};
use control_plane::{ControlPlane, Identity, Options};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, KeyPair};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Served paths in several spellings, and paths that are not served; true: open to all clients.
const PATHS: &[(&str, bool)] = &[
    ("/healthz", true),
    ("/livez", true),
    ("/readyz", true),
    ("/healthz?verbose", true),
    ("/healthz/leaderElection", false),
    ("/livez/leaderElection", false),
    ("/readyz/stores", false),
    ("/metrics", false),
    ("/metrics/slis", false),
    ("/%6detrics", false),
    ("//metrics", false),
    ("/metrics/", false),
    ("/healthz/../metrics", false),
    ("/configz", false),
    ("/flagz", false),
    ("/statusz", false),
    ("/debug/flags", false),
    ("/debug/flags/v", false),
    ("/debug/pprof/", false),
    ("/debug/reconcile", false),
    ("/debug/reconcile?kind=Secret&namespace=kube-system&name=any", false),
    ("/debug/%72econcile", false),
    ("/debug/controllers/garbage-collector-controller/graph", false),
    ("/", false),
    ("/nothing", false),
];

/// The credentials of a client.
#[derive(Clone, Default)]
pub struct Credentials {
    certificate: Option<Pair>,
    headers: Vec<(&'static str, String)>,
}

impl Credentials {
    pub fn certificate(pair: Pair) -> Self {
        Self { certificate: Some(pair), ..Self::default() }
    }

    /// Adds a header.
    pub fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    fn token(token: &str) -> Self {
        Self { headers: vec![("Authorization", format!("Bearer {}", token.trim()))], ..Self::default() }
    }
}

/// A running kcm or ccm.
pub struct ManagerProcess {
    child: Child,
    port: Port,
    folder: PathBuf,
}

/// The HTTPS port of a process.
pub struct Port {
    pub reserved: ReservedPort,
    /// The file with the port's certificates.
    pub certificates: PathBuf,
}

/// A response.
pub struct Response {
    pub status: u16,
    /// Status line and headers, in lower case.
    pub head: String,
    pub body: String,
}

impl Port {
    /// Opens a connection with a client certificate, if given, and these protocols (ALPN).
    async fn connect(&self, certificate: Option<&Pair>, protocols: &[&[u8]]) -> Result<TlsStream<TcpStream>> {
        let own = std::fs::read(&self.certificates)?;
        let mut config = client_config(&own, certificate)?;
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let stream = TcpStream::connect(self.reserved.address()).await?;
        Ok(TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost")?, stream).await?)
    }

    /// Sends a request over a new connection. Returns the status, the head in lower case, and the body.
    pub async fn request(
        &self,
        credentials: &Credentials,
        method: &str,
        path: &str,
        body: &str,
    ) -> Result<(u16, String, Vec<u8>)> {
        let mut stream = self.connect(credentials.certificate.as_ref(), &[]).await?;
        let headers: String = credentials.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await?;
        let mut response = Vec::new();
        // The server may close the connection without a TLS close_notify.
        let _ = stream.read_to_end(&mut response).await;
        let end = response.windows(4).position(|bytes| bytes == b"\r\n\r\n").context("no response")?;
        let body = response.split_off(end + 4);
        let head = String::from_utf8(response)?;
        let status = head.split(' ').nth(1).context("no status")?.parse()?;
        Ok((status, head.to_lowercase(), body))
    }
}

impl ManagerProcess {
    /// Starts a process, and waits until it leads. In a run of the tests with all gates, kcm gets these gates.
    pub async fn start(cluster: &ControlPlane, binary: &'static str, flags: &[String]) -> Result<Self> {
        let folder = cluster.folder().join(format!("serving-{binary}"));
        std::fs::create_dir_all(&folder)?;
        let reserved = ReservedPort::new()?;
        let kubeconfig = cluster.kubeconfig(match binary {
            CCM => Identity::Admin,
            _ => Identity::ControllerManager,
        })?;
        let file = kubeconfig.display();
        let gates = if binary == KCM { all_gates::of_process(flags) } else { Vec::new() };
        let child = Command::new(command(cluster, binary)?)
            .args([
                format!("--kubeconfig={file}"),
                format!("--authentication-kubeconfig={file}"),
                format!("--authorization-kubeconfig={file}"),
                "--bind-address=127.0.0.1".to_owned(),
                format!("--cert-dir={}", folder.display()),
                "--use-service-account-credentials=true".to_owned(),
            ])
            .args(reserved.flags())
            .args(gates)
            .args(flags)
            .stdin(Stdio::null())
            .stdout(File::create(folder.join("output"))?)
            .stderr(File::create(folder.join("log"))?)
            .kill_on_drop(true)
            .spawn()?;
        let certificates = folder.join(format!("{binary}.crt"));
        let running = Self { child, port: Port { reserved, certificates }, folder };
        let leads = eventually(format!("{binary} leads"), || async {
            let readyz = running.request(&Credentials::default(), "GET", "/readyz", "").await?;
            ensure!(readyz.status == 200, "{}", readyz.body);
            let lines = running.log()? + &running.output()?;
            ensure!(lines.contains("all controllers started"), "it does not lead yet");
            Ok(())
        });
        leads.await.with_context(|| running.log().unwrap_or_default())?;
        Ok(running)
    }

    /// Returns the text that the process has written to standard error.
    pub fn log(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.folder.join("log"))?)
    }

    /// Returns the text that the process has written to standard output.
    pub fn output(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.folder.join("output"))?)
    }

    /// Returns the URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.port.reserved.address())
    }

    /// Opens a connection with a client certificate, if given, and these protocols (ALPN).
    pub async fn connect(&self, certificate: Option<&Pair>, protocols: &[&[u8]]) -> Result<TlsStream<TcpStream>> {
        self.port.connect(certificate, protocols).await
    }

    /// Returns the HTTPS port.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// Sends a request over a new connection.
    pub async fn request(&self, credentials: &Credentials, method: &str, path: &str, body: &str) -> Result<Response> {
        let (status, head, body) = self.port.request(credentials, method, path, body).await?;
        Ok(Response { status, head, body: String::from_utf8(body)? })
    }

    /// Sends SIGTERM, and waits until the process has ended.
    pub async fn terminate(mut self) -> Result<()> {
        let pid = self.child.id().context("the process has ended already")?;
        let sent = Command::new("kill").args(["-TERM", &pid.to_string()]).status().await?;
        ensure!(sent.success(), "kill: {sent}");
        let ended = tokio::time::timeout(DEADLINE, self.child.wait()).await.context("the process does not end")??;
        ensure!(ended.success(), "the manager ended with {ended}: {}", self.log()?);
        ensure!(TcpStream::connect(self.port.reserved.address()).await.is_err(), "the port is still open");
        Ok(())
    }
}

/// Returns an administrator's certificate, signed by an authority with this key.
pub fn sign(key: KeyPair, change: impl FnOnce(&mut CertificateParams)) -> Result<Pair> {
    certificates::sign(("kubernetes", key), "kubernetes-admin", change)
}

/// Returns a service account's token with changed times, signed with the API server's key.
fn with_times(cluster: &ControlPlane, token: &str, not_before: i64, expires: i64) -> Result<String> {
    let mut parts = token.trim().split('.');
    let (head, claims) = parts.next().zip(parts.next()).context("no token")?;
    let mut claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims)?)?;
    for (claim, time) in [("iat", not_before), ("nbf", not_before), ("exp", expires)] {
        claims[claim] = time.into();
    }
    let key = KeyPair::from_pem(&std::fs::read_to_string(cluster.service_account_key())?)?;
    let random = SystemRandom::new();
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &key.serialize_der(), &random)
        .map_err(|error| anyhow!("the API server's key: {error}"))?;
    let signed = format!("{head}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
    let signature = key.sign(&random, signed.as_bytes()).map_err(|error| anyhow!("sign a token: {error}"))?;
    Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
}

/// Creates an account with all permissions. Returns three tokens of it that differ only in their times: a valid one, an
/// expired one, and one that is not valid yet.
fn insiders_tokens(cluster: &ControlPlane) -> Result<[String; 3]> {
    const HOUR: i64 = 3600;
    cluster.kubectl(&["create", "serviceaccount", "insider"])?;
    let everything = ["--clusterrole=cluster-admin", "--serviceaccount=default:insider"];
    cluster.kubectl(&[&["create", "clusterrolebinding", "insider"], &everything[..]].concat())?;
    let token = cluster.kubectl(&["create", "token", "insider"])?;
    let now = jiff::Timestamp::now().as_second();
    let times = [(now - HOUR, now + HOUR), (now - 2 * HOUR, now - HOUR), (now + HOUR, now + 2 * HOUR)];
    let [good, expired, early] = times.map(|(from, to)| with_times(cluster, &token, from, to));
    Ok([good?, expired?, early?])
}

/// A client without access.
struct DeniedClient {
    name: &'static str,
    credentials: Credentials,
    /// The expected status at paths that are not open to all clients.
    closed: u16,
    /// The expected status at paths that are open to all clients.
    open: u16,
}

/// Creates accounts without permissions. Returns all clients without access; those with an expired token and with one
/// that is not valid yet get `invalid_tokens`.
fn denied_clients(cluster: &ControlPlane, invalid_tokens: &[String; 2]) -> Result<Vec<DeniedClient>> {
    let ca = || -> Result<KeyPair> { Ok(KeyPair::from_pem(&std::fs::read_to_string(cluster.ca_key())?)?) };
    let expired = sign(ca()?, |params| params.not_after = rcgen::date_time_ymd(2020, 1, 1))?;
    let early = sign(ca()?, |params| params.not_before = rcgen::date_time_ymd(2999, 1, 1))?;
    let foreign = sign(KeyPair::generate()?, |_| {})?;
    let for_servers = sign(ca()?, |params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth])?;
    for account in ["stranger", "leaver"] {
        cluster.kubectl(&["create", "serviceaccount", account])?;
    }
    let token = |account: &str, more: &[&str]| cluster.kubectl(&[&["create", "token", account], more].concat());
    let without_permissions = token("stranger", &[])?;
    let for_another = token("stranger", &["--audience=another"])?;
    let leaver = token("leaver", &[])?;
    cluster.kubectl(&["delete", "serviceaccount", "leaver"])?;
    let (head, signature) = without_permissions.trim().rsplit_once('.').context("no token")?;
    let forged = format!("{head}.{}", signature.chars().rev().collect::<String>());
    let proxied = ["X-Remote-User", "X-Remote-Group", "Impersonate-User", "X-Forwarded-User"];
    let claims = proxied
        .map(|name| (name, if name.ends_with("Group") { "system:masters" } else { "kubernetes-admin" }.to_owned()));
    let unknown = |name, credentials| DeniedClient { name, credentials, closed: 401, open: 401 };
    let unauthorized = |name, credentials| DeniedClient { name, credentials, closed: 403, open: 200 };
    let with_headers = |headers: Vec<_>| Credentials { headers, ..Credentials::default() };
    let password = vec![("Authorization", "Basic YWRtaW46YWRtaW4=".to_owned())];
    Ok(vec![
        unauthorized("an anonymous client", Credentials::default()),
        unauthorized("a client with headers of a proxy", with_headers(claims.into())),
        unknown("a wrong token", Credentials::token("wrong")),
        unauthorized("an empty token", Credentials::token("")),
        unknown("a forged token", Credentials::token(&forged)),
        unknown("a token for another audience", Credentials::token(&for_another)),
        unknown("a token of a deleted account", Credentials::token(&leaver)),
        unknown("an expired token", Credentials::token(&invalid_tokens[0])),
        unknown("a token that is not valid yet", Credentials::token(&invalid_tokens[1])),
        unauthorized("a token without permissions", Credentials::token(&without_permissions)),
        unknown("an expired certificate", Credentials::certificate(expired)),
        unknown("a certificate that is not valid yet", Credentials::certificate(early)),
        unknown("a foreign certificate", Credentials::certificate(foreign)),
        unknown("a server's certificate", Credentials::certificate(for_servers)),
        unauthorized("a basic password", with_headers(password)),
    ])
}

async fn check_refusals(running: &ManagerProcess, denied_clients: &[DeniedClient]) -> Result<()> {
    for DeniedClient { name, credentials, closed, open } in denied_clients {
        for (path, is_open) in PATHS {
            let expected = if *is_open { *open } else { *closed };
            let response = running.request(credentials, "GET", path, "").await;
            let response = response.with_context(|| format!("{name} at {path}"))?;
            ensure!(response.status == expected, "{name} at {path}: {} instead of {expected}", response.status);
            ensure!(*is_open || response.body.len() < 400, "{name} at {path} gets {}", response.body);
        }
        for method in ["PUT", "POST", "DELETE", "PATCH", "HEAD", "OPTIONS"] {
            for path in ["/debug/flags/v", "/metrics/slis", "/debug/reconcile", "/healthz/leaderElection"] {
                let body = if method == "HEAD" { "" } else { "9" };
                let status = running.request(credentials, method, path, body).await?.status;
                ensure!(status == *closed, "{name}: {method} {path}: {status} instead of {closed}");
            }
        }
    }
    Ok(())
}

/// Starts a control plane without kubelets and scheduler.
pub async fn bare_control_plane() -> Result<ControlPlane> {
    all_gates::control_plane(Options { kwok: false, scheduler: false, ..Options::default() }).await
}

/// Requests every path of both binaries as each client without access and as the administrator.
pub async fn clients_without_access_get_only_open_paths(_: Space) -> Result<()> {
    let cluster = bare_control_plane().await?;
    let [valid, invalid @ ..] = insiders_tokens(&cluster)?;
    let denied_clients = denied_clients(&cluster, &invalid)?;
    let admin = Credentials::certificate(inline_pair(&cluster.kubeconfig(Identity::Admin)?)?);
    for (binary, flags) in [
        (KCM, vec!["--controllers=serviceaccount-controller".to_owned()]),
        (CCM, vec!["--cloud-provider=mock".to_owned(), "--controllers=cloud-node".to_owned()]),
    ] {
        let running = ManagerProcess::start(&cluster, binary, &flags).await?;
        check_refusals(&running, &denied_clients).await.with_context(|| binary)?;
        for (path, open) in PATHS {
            let got = running.request(&admin, "GET", path, "").await?;
            ensure!(!open || got.status == 200, "{binary}: the administrator at {path}: {}", got.status);
            ensure!(![401, 403].contains(&got.status), "{binary}: the administrator at {path}: {}", got.status);
        }
        let got = running.request(&Credentials::token(&valid), "GET", "/metrics", "").await?;
        ensure!(got.status == 200, "{binary}: a valid token is refused: {}", got.status);
        let log = running.log()?;
        // All tokens begin with this text.
        ensure!(!log.contains("eyJ"), "a token is in the log");
        running.terminate().await.with_context(|| binary)?;
    }
    Ok(())
}

/// A certificate that is replaced in its files is soon used for new connections, by the same process.
pub async fn new_serving_certificate_is_used_without_a_restart(_: Space) -> Result<()> {
    let cluster = bare_control_plane().await?;
    let folder = cluster.folder().join(format!("serving-{KCM}"));
    std::fs::create_dir_all(&folder)?;
    let (certificate, key) = (folder.join(format!("{KCM}.crt")), folder.join("serving.key"));
    let renew = || -> Result<()> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
        std::fs::write(&certificate, made.cert.pem())?;
        Ok(std::fs::write(&key, made.signing_key.serialize_pem())?)
    };
    renew()?;
    let flags = [
        "--controllers=serviceaccount-controller".to_owned(),
        format!("--tls-cert-file={}", certificate.display()),
        format!("--tls-private-key-file={}", key.display()),
    ];
    let running = ManagerProcess::start(&cluster, KCM, &flags).await?;
    let anonymous = Credentials::default();
    ensure!(
        running.request(&anonymous, "GET", "/healthz", "").await?.status == 200,
        "the first certificate is not used"
    );
    renew()?;
    // The client trusts only the certificate that is now in the file.
    eventually("the second certificate is used", || async {
        ensure!(running.request(&anonymous, "GET", "/healthz", "").await?.status == 200);
        Ok(())
    })
    .await?;
    running.terminate().await
}

/// Logs as JSON, and as text in which only one source file has a higher verbosity. The line of a request names its
/// reconcile.
pub async fn log_follows_its_flags(_: Space) -> Result<()> {
    const CONTROLLER: &str = "--controllers=serviceaccount-controller";
    const REQUEST: &str = "request sent";
    let cluster = bare_control_plane().await?;
    let logged = async |flags: &[&str], namespace: &str| -> Result<String> {
        let flags: Vec<String> = flags.iter().chain(&[CONTROLLER]).map(|flag| (*flag).to_owned()).collect();
        let kcm = ManagerProcess::start(&cluster, KCM, &flags).await?;
        cluster.kubectl(&["create", "namespace", namespace])?;
        let account = ["get", "serviceaccount", "default", "--namespace", namespace];
        eventually("the namespace has its account", || async { cluster.kubectl(&account) }).await?;
        let file = kcm.folder.join("log");
        kcm.terminate().await?;
        // Until the process has ended, its last line may be incomplete.
        Ok(std::fs::read_to_string(file)?)
    };
    let about = |namespace: &str| format!("/api/v1/namespaces/{namespace}/serviceaccounts");

    let log = logged(&["--logging-format=json", "--v=6"], "json").await?;
    let read = |line: &str| serde_json::from_str::<Value>(line).with_context(|| format!("no JSON: {line}"));
    let lines = log.lines().map(read).collect::<Result<Vec<_>>>()?;
    let request =
        lines.iter().find(|line| line["fields"]["request"].as_str().is_some_and(|it| it.contains(&about("json"))));
    let span = &request.context("no request")?["span"];
    ensure!(span["name"] == "reconcile" && span["controller"] == "serviceaccount-controller", "{span}");
    ensure!(span["key"] == "json", "{span}");

    let log = logged(&["--v=0"], "quiet").await?;
    ensure!(!log.contains(REQUEST) && !log.contains("DEBUG") && log.contains("INFO"), "{log}");

    let log = logged(&["--v=0", "--vmodule=write=6"], "text").await?;
    let requests: Vec<&str> = log.lines().filter(|line| line.contains(REQUEST)).collect();
    let span = "reconcile{controller=\"serviceaccount-controller\" key=text}";
    ensure!(requests.iter().any(|line| line.contains(span) && line.contains(&about("text"))), "{log}");
    let fine = log.lines().filter(|line| line.contains(" TRACE ") || line.contains(" DEBUG "));
    ensure!(fine.count() == requests.len(), "more lines than the flags request: {log}");
    Ok(())
}

/// ccm serves metrics under upstream's names, ends on SIGTERM, and releases its Lease.
pub async fn ccm_process_serves_and_releases_its_lease(_: Space) -> Result<()> {
    let cluster = bare_control_plane().await?;
    let admin = Credentials::certificate(inline_pair(&cluster.kubeconfig(Identity::Admin)?)?);
    let flags = [
        "--cloud-provider=mock",
        "--configure-cloud-routes=true",
        "--allocate-node-cidrs=true",
        "--cluster-cidr=10.0.0.0/16",
    ];
    let running = ManagerProcess::start(&cluster, CCM, &flags.map(str::to_owned)).await?;
    let lease = || {
        cluster.kubectl(&[
            "get",
            "lease",
            "cloud-controller-manager",
            "-n",
            "kube-system",
            "-o",
            "jsonpath={.spec.holderIdentity}",
        ])
    };
    ensure!(!lease()?.is_empty(), "the Lease has no holder");
    let metrics = running.request(&admin, "GET", "/metrics", "").await?.body;
    let manager = "manager=\"cloud-controller-manager\"";
    for line in [
        "leader_election_master_status{name=\"cloud-controller-manager\"} 1.0".to_owned(),
        format!("running_managed_controllers{{name=\"cloud-node\",{manager}}} 1.0"),
        format!("running_managed_controllers{{name=\"cloud-node-lifecycle\",{manager}}} 1.0"),
        format!("running_managed_controllers{{name=\"route\",{manager}}} 1.0"),
        format!("running_managed_controllers{{name=\"service\",{manager}}} 1.0"),
        "# TYPE service_controller_loadbalancer_sync_total counter".to_owned(),
        "service_controller_nodesync_error_total 0".to_owned(),
        "# TYPE service_controller_update_loadbalancer_host_latency_seconds histogram".to_owned(),
        "# TYPE route_controller_route_sync_total counter".to_owned(),
        "# TYPE workqueue_depth gauge".to_owned(),
        "# TYPE rest_client_requests_total counter".to_owned(),
        "# TYPE process_resident_memory_bytes gauge".to_owned(),
    ] {
        ensure!(metrics.contains(&line), "{line} is not in\n{metrics}");
    }
    ensure!(
        running.request(&admin, "GET", "/flagz", "").await?.status == 404,
        "/flagz is served, which upstream's ccm does not do"
    );
    running.terminate().await?;
    ensure!(lease()?.is_empty(), "the Lease is still held");
    Ok(())
}
