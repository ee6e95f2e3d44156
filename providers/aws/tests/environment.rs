//! Credentials, proxies and certificate authorities of the environment: the real SDK, in a process with just that
//! environment, against endpoints on this machine.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, PoisonError};

use providers::BuildContext;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivateKeyDer;

/// The variable with the content of `--cloud-config` for the process that a test starts.
const CONFIG: &str = "PROBE_CONFIG";
/// A host that only a proxy can reach.
const FAR: &str = "ec2.far.test";

/// The process that the other tests start: it makes the first EC2 call of the provider.
#[test]
fn probe() {
    let Ok(config) = std::env::var(CONFIG) else { return };
    let context = BuildContext { cluster_name: "c".into(), config: config.into(), ..BuildContext::default() };
    let provider = (provider_aws::factory().build)(&context).expect("the configuration was refused");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(provider.initialize()).expect("the first call to EC2 failed");
}

/// A request: its first line, its headers with names in lower case, and its body.
#[derive(Debug, Clone, Default)]
struct Request {
    line: String,
    headers: BTreeMap<String, String>,
    body: String,
}

impl Request {
    fn read(stream: &mut impl Read) -> Option<Self> {
        let mut reader = BufReader::new(stream);
        let mut request = Self::default();
        reader.read_line(&mut request.line).ok().filter(|read| *read > 0)?;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
            let Some((name, value)) = line.split_once(':') else { break };
            request.headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let length = request.headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        request.body = String::from_utf8_lossy(&body).into_owned();
        Some(request)
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

/// A mock of EC2, STS, SSO, the credentials service of pods, and a proxy, all at one port.
struct Endpoint {
    port: u16,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Endpoint {
    /// Serves until the process ends. With `tls`, a connection continues with TLS after `CONNECT`.
    fn start(tls: Option<Arc<rustls::ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
        let record = requests.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let tls = tls.clone();
                let record = record.clone();
                std::thread::spawn(move || serve(stream, tls, &record));
            }
        });
        Self { port, requests }
    }

    fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the only call to EC2.
    fn call(&self) -> Request {
        let requests = self.requests();
        let calls: Vec<&Request> = requests.iter().filter(|request| request.body.contains("DescribeVpcs")).collect();
        assert_eq!(calls.len(), 1, "{requests:?}");
        calls[0].clone()
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

fn serve(mut stream: TcpStream, tls: Option<Arc<rustls::ServerConfig>>, record: &Mutex<Vec<Request>>) {
    let Some(request) = Request::read(&mut stream) else { return };
    record.lock().unwrap_or_else(PoisonError::into_inner).push(request.clone());
    if !request.line.starts_with("CONNECT ") {
        respond(&mut stream, &request);
        return;
    }
    let Some(mut session) = tls.and_then(|tls| rustls::ServerConnection::new(tls).ok()) else { return };
    if stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").is_err() {
        return;
    }
    let mut stream = rustls::Stream::new(&mut session, &mut stream);
    if let Some(request) = Request::read(&mut stream) {
        record.lock().unwrap_or_else(PoisonError::into_inner).push(request.clone());
        respond(&mut stream, &request);
    }
}

fn respond(stream: &mut impl Write, request: &Request) {
    let body = match request {
        _ if request.body.contains("AssumeRoleWithWebIdentity") => {
            let role = "<AssumedRoleUser><AssumedRoleId>r:s</AssumedRoleId><Arn>arn:aws:sts::1:assumed-role/r/s</Arn></AssumedRoleUser>";
            let keys = "<AccessKeyId>AKIDWEB</AccessKeyId><SecretAccessKey>secret</SecretAccessKey>\
                        <SessionToken>web-session</SessionToken><Expiration>2999-01-01T00:00:00Z</Expiration>";
            format!(
                "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>{keys}</Credentials>{role}\
                 </AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
            )
        }
        _ if request.line.starts_with("GET /v1/credentials") => {
            r#"{"AccessKeyId": "AKIDPOD", "SecretAccessKey": "secret", "Token": "pod-session", "Expiration": "2999-01-01T00:00:00Z"}"#
                .to_owned()
        }
        _ if request.line.starts_with("GET /federation/credentials") => {
            r#"{"roleCredentials": {"accessKeyId": "AKIDSSO", "secretAccessKey": "secret", "sessionToken": "sso-session", "expiration": 32503680000000}}"#
                .to_owned()
        }
        _ if request.line.starts_with("POST /token") => {
            r#"{"accessToken": "refreshed-token", "tokenType": "Bearer", "expiresIn": 28800}"#.to_owned()
        }
        _ => "<DescribeVpcsResponse><requestId>1</requestId><vpcSet/></DescribeVpcsResponse>".to_owned(),
    };
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
    let _ = stream.flush();
}

/// Runs the probe with EC2 at this URL and only these environment variables, besides those that each run needs.
fn run(ec2: &str, home: &Path, environment: &[(&str, &str)]) -> Output {
    let config = format!(
        "[Global]\nRegion = eu-west-1\nVPC = vpc-1\nSubnetID = subnet-1\nKubernetesClusterID = c\n\
         [ServiceOverride \"1\"]\nService = EC2\nRegion = eu-west-1\nURL = {ec2}\nSigningRegion = eu-west-1\n"
    );
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(["--exact", "probe", "--nocapture"]).env_clear().env(CONFIG, config).env("HOME", home);
    command.env("PATH", "/usr/bin:/bin").env("AWS_EC2_METADATA_DISABLED", "true");
    command.envs(environment.iter().copied()).output().expect("the probe did not start")
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("a file");
    path.to_string_lossy().into_owned()
}

/// The profile of a user of SSO, and the name of the file with the token of the session with the same name: the SHA-1
/// of that name.
const PEOPLE: (&str, &str) = ("people", "ab3ccc8dba2a0cf7a1ce4d830bb8a6238ff03833.json");
/// The profile and the file name of a user whose token is no longer valid.
const GUESTS: (&str, &str) = ("guests", "f8122851dbc0a94f62e4439f94d68e158d1030b6.json");

/// Writes the configuration of both users of SSO, with the tokens that `aws sso login` stored; returns its path.
fn sign_in(home: &Path) -> String {
    let profile = |name: &str| {
        format!(
            "[profile {name}]\nsso_session = {name}\nsso_account_id = 123456789012\nsso_role_name = operator\n\
             [sso-session {name}]\nsso_region = eu-west-1\nsso_start_url = https://{name}.awsapps.com/start\n"
        )
    };
    let cache = home.join(".aws/sso/cache");
    std::fs::create_dir_all(&cache).expect("a folder");
    for ((name, file), expires) in [(PEOPLE, "2999-01-01T00:00:00Z"), (GUESTS, "2020-01-01T00:00:00Z")] {
        let token = format!(
            r#"{{"accessToken": "{name}-token", "expiresAt": "{expires}", "refreshToken": "{name}-refresh", "clientId": "id",
                 "clientSecret": "secret", "registrationExpiresAt": "2999-01-01T00:00:00Z", "region": "eu-west-1",
                 "startUrl": "https://{name}.awsapps.com/start"}}"#
        );
        write(&cache, file, &token);
    }
    write(home, "sso", &[PEOPLE, GUESTS].map(|(name, _)| profile(name)).concat())
}

fn assert_success(output: &Output) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
}

/// Returns true if a request with this token is for the credentials of the role in the profile.
fn is_of_role(request: &Request, token: &str) -> bool {
    let named = request.line.contains("role_name=operator") && request.line.contains("account_id=123456789012");
    named && request.header("x-amz-sso_bearer_token") == token
}

/// The call is signed with the credentials of each source.
#[test]
fn credentials_are_found_in_the_environment() {
    let folder = tempfile::tempdir().expect("a folder");
    let home = folder.path();
    let keys = write(home, "keys", "[default]\naws_access_key_id = AKIDFILE\naws_secret_access_key = secret\n");
    let printed = r#"{"Version": 1, "AccessKeyId": "AKIDPROCESS", "SecretAccessKey": "secret", "SessionToken": "process-session"}"#;
    let printed = write(home, "printed", printed);
    let process = write(home, "process", &format!("[profile roles]\ncredential_process = cat {printed}\n"));
    let token = write(home, "token", "service-account-token");
    let sso = sign_in(home);
    for (name, key, session, environment) in [
        ("variables", "AKIDENV", "", vec![("AWS_ACCESS_KEY_ID", "AKIDENV"), ("AWS_SECRET_ACCESS_KEY", "secret")]),
        ("a file", "AKIDFILE", "", vec![("AWS_SHARED_CREDENTIALS_FILE", &*keys)]),
        ("a process", "AKIDPROCESS", "process-session", vec![("AWS_CONFIG_FILE", &*process), ("AWS_PROFILE", "roles")]),
        (
            "web identity",
            "AKIDWEB",
            "web-session",
            vec![("AWS_WEB_IDENTITY_TOKEN_FILE", &*token), ("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/ccm")],
        ),
        ("SSO", "AKIDSSO", "sso-session", vec![("AWS_CONFIG_FILE", &*sso), ("AWS_PROFILE", PEOPLE.0)]),
        (
            "SSO with an old token",
            "AKIDSSO",
            "sso-session",
            vec![("AWS_CONFIG_FILE", &*sso), ("AWS_PROFILE", GUESTS.0)],
        ),
        ("Pod Identity", "AKIDPOD", "pod-session", vec![("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", &*token)]),
    ] {
        let endpoint = Endpoint::start(None);
        let url = endpoint.url();
        let pod = format!("{}/v1/credentials", endpoint.url());
        let mut environment = environment;
        for service in ["AWS_ENDPOINT_URL_STS", "AWS_ENDPOINT_URL_SSO", "AWS_ENDPOINT_URL_SSO_OIDC"] {
            environment.push((service, &url));
        }
        if name == "Pod Identity" {
            environment.push(("AWS_CONTAINER_CREDENTIALS_FULL_URI", &pod));
        }
        assert_success(&run(&url, home, &environment));
        let call = endpoint.call();
        assert!(call.header("authorization").contains(&format!("Credential={key}/")), "{name}: {call:?}");
        assert_eq!(call.header("x-amz-security-token"), session, "{name}");
        let requests = endpoint.requests();
        let proof = match name {
            "web identity" => requests.iter().any(|one| one.body.contains("WebIdentityToken=service-account-token")),
            "Pod Identity" => requests.iter().any(|one| one.header("authorization") == "service-account-token"),
            "SSO" => requests.iter().any(|one| is_of_role(one, "people-token")),
            "SSO with an old token" => {
                let refreshes = |one: &Request| one.body.contains("guests-refresh");
                requests.iter().any(refreshes) && requests.iter().any(|one| is_of_role(one, "refreshed-token"))
            }
            _ => requests.len() == 1,
        };
        assert!(proof, "{name}: {requests:?}");
    }
}

/// TLS for [`FAR`], and the certificate of its authority.
fn certificates() -> (Arc<rustls::ServerConfig>, String) {
    let mut authority = CertificateParams::new(Vec::new()).expect("parameters");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let pem = authority.self_signed(&key).expect("a certificate").pem();
    let issuer = Issuer::new(authority, key);
    let key = KeyPair::generate().expect("a key");
    let own = CertificateParams::new(vec![FAR.to_owned()]).expect("parameters");
    let own = own.signed_by(&key, &issuer).expect("a certificate");
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    let tls = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let tls = tls.with_safe_default_protocol_versions().expect("versions").with_no_client_auth();
    (Arc::new(tls.with_single_cert(vec![own.der().clone()], key).expect("the certificate does not fit the key")), pem)
}

/// Calls are sent through the proxy, and the certificate authorities in the bundle are trusted. Hosts in `NO_PROXY` are
/// called directly.
#[test]
fn call_goes_through_the_proxy_of_the_environment() {
    let folder = tempfile::tempdir().expect("a folder");
    let home = folder.path();
    let (tls, pem) = certificates();
    let bundle = write(home, "bundle.pem", &pem);
    let keys = [("AWS_ACCESS_KEY_ID", "AKIDENV"), ("AWS_SECRET_ACCESS_KEY", "secret")];
    let connect = format!("CONNECT {FAR}:443 HTTP/1.1");
    let far = format!("https://{FAR}");
    for (name, more, connects, works) in [
        ("proxy and bundle", vec![("AWS_CA_BUNDLE", &*bundle)], true, true),
        ("proxy without the bundle", vec![], true, false),
        ("no proxy for the host", vec![("AWS_CA_BUNDLE", &*bundle), ("NO_PROXY", FAR)], false, false),
        ("no proxy for the domain", vec![("AWS_CA_BUNDLE", &*bundle), ("NO_PROXY", ".far.test")], false, false),
    ] {
        let endpoint = Endpoint::start(Some(tls.clone()));
        let proxy = endpoint.url();
        let environment = [&keys[..], &[("HTTPS_PROXY", &*proxy)], &more].concat();
        let output = run(&far, home, &environment);
        let requests = endpoint.requests();
        assert_eq!(requests.iter().any(|one| one.line.trim() == connect), connects, "{name}: {requests:?}");
        assert_eq!(output.status.success(), works, "{name}: {}", String::from_utf8_lossy(&output.stderr));
        if works {
            assert!(endpoint.call().header("authorization").contains("Credential=AKIDENV/"), "{name}");
        }
    }
}
