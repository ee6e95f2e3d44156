//! The server's address and the process's credentials: `--kubeconfig`, `--master`, or the pod's service account.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use kube::config::{AuthInfo, Cluster, Kubeconfig, KubeconfigError};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use secrecy::{ExposeSecret as _, SecretString};

use super::connect_error::ConnectError;
use super::exec::Plugin;
use super::options::{ConnectOptions, HOST_VARIABLE, PORT_VARIABLE, PodEnvironment};
use super::proxy::Proxy;

/// A loaded configuration and the files it refers to.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) config: kube::Config,
    /// The file of the certificate authorities that sign the server's certificate; `None` if they are inline or
    /// not configured.
    pub(super) ca_file: Option<PathBuf>,
    /// The file of the bearer token of the process's own identity.
    pub(super) token_file: Option<PathBuf>,
    /// The exec plugin that returns the credentials. It is not part of `config`.
    pub(super) plugin: Option<Arc<Plugin>>,
    /// The proxy between this process and the server.
    pub(super) proxy: Option<Proxy>,
}

impl Source {
    /// Returns a configuration without credentials and files.
    fn without_user(config: kube::Config) -> Self {
        Self { config, ca_file: None, token_file: None, plugin: None, proxy: None }
    }
}

/// Loads the configuration as client-go `tools/clientcmd.BuildConfigFromFlags` does: the kubeconfig file with the
/// server overridden by `master`; without a file, the bare `master`; without either, the pod's own service
/// account.
pub(super) fn load(options: &ConnectOptions) -> Result<Source, ConnectError> {
    let master = options.master.as_deref().filter(|master| !master.is_empty());
    let file = options.kubeconfig.as_deref().filter(|file| !file.as_os_str().is_empty());
    let mut source = match (file, master) {
        (Some(file), master) => from_file(file, options.kubeconfig_setting, master)?,
        (None, Some(master)) => {
            let server = parse_server(&server_url(master, false), master)?;
            Source::without_user(kube::Config::new(server))
        }
        (None, None) => in_cluster(&options.pod)?,
    };
    if source.proxy.is_none() {
        source.proxy = Proxy::of_environment(&source.config.cluster_url, &options.proxies)?;
    }
    if let Some(proxy) = &source.proxy {
        tracing::info!(?proxy, server = %source.config.cluster_url, "the API server is reached through a proxy");
    }
    Ok(without_credentials_unless_https(source))
}

/// Returns the PEM text of the server's certificate authorities if the kubeconfig contains it inline; `None` if it
/// names a file instead, names none, or if there is no kubeconfig. Upstream: client-go/rest, Config, CAData.
///
/// # Errors
/// When the kubeconfig cannot be read, or the text is not base64.
pub fn inline_authority(options: &ConnectOptions) -> Result<Option<Vec<u8>>, ConnectError> {
    let Some(file) = options.kubeconfig.as_deref().filter(|file| !file.as_os_str().is_empty()) else {
        return Ok(None);
    };
    let kubeconfig = read(file, options.kubeconfig_setting)?;
    let context = kubeconfig.current_context.unwrap_or_default();
    let cluster = kubeconfig
        .contexts
        .iter()
        .find(|named| named.name == context)
        .and_then(|named| named.context.as_ref())
        .map(|context| context.cluster.clone());
    let text = kubeconfig
        .clusters
        .into_iter()
        .find(|named| Some(&named.name) == cluster.as_ref())
        .and_then(|named| named.cluster?.certificate_authority_data);
    text.map(|text| BASE64.decode(text.trim())).transpose().map_err(|error| ConnectError::UseKubeconfig {
        file: file.to_owned(),
        problem: format!("certificate-authority-data is not base64: {error}"),
        fix: "put the base64 text of a PEM certificate there",
    })
}

/// Reads a kubeconfig. Names, certificates and secrets that are empty count as missing, as in client-go.
fn read(file: &Path, setting: &'static str) -> Result<Kubeconfig, ConnectError> {
    let mut kubeconfig = Kubeconfig::read_from(file).map_err(|error| read_error(file, setting, error))?;
    // `kube` resolves an empty file name to the folder of the kubeconfig.
    let resolved = file.parent().map(|folder| folder.join("")).unwrap_or_default();
    let clear = |field: &mut Option<String>| {
        if field.as_ref().is_some_and(|text| text.is_empty() || OsStr::new(text) == resolved.as_os_str()) {
            *field = None;
        }
    };
    for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        let fields =
            [&mut cluster.certificate_authority, &mut cluster.certificate_authority_data, &mut cluster.tls_server_name];
        fields.into_iter().for_each(clear);
    }
    for user in kubeconfig.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut()) {
        let fields = [
            &mut user.client_certificate,
            &mut user.client_certificate_data,
            &mut user.client_key,
            &mut user.token_file,
            &mut user.username,
            &mut user.impersonate,
        ];
        fields.into_iter().for_each(clear);
        for secret in [&mut user.token, &mut user.client_key_data] {
            if secret.as_ref().is_some_and(|secret| secret.expose_secret().is_empty()) {
                *secret = None;
            }
        }
        // A user name without a password is sent with an empty password.
        let has_password = user.password.as_ref().is_some_and(|password| !password.expose_secret().is_empty());
        if user.username.is_some() {
            user.password.get_or_insert_with(|| SecretString::from(""));
        } else if !has_password {
            user.password = None;
        }
    }
    Ok(kubeconfig)
}

/// Converts the error of reading a kubeconfig.
fn read_error(file: &Path, setting: &'static str, error: KubeconfigError) -> ConnectError {
    match error {
        KubeconfigError::ReadConfig(source, _) => {
            ConnectError::ReadKubeconfig { file: file.to_owned(), setting, source }
        }
        // The parser's message may quote the lines around the error, and with them a token.
        KubeconfigError::Parse(error) => {
            ConnectError::ParseKubeconfig { file: file.to_owned(), problem: first_line(&error.to_string()) }
        }
        other => ConnectError::ParseKubeconfig { file: file.to_owned(), problem: other.to_string() },
    }
}

/// Loads the pod's own service account. Upstream: client-go/rest, InClusterConfig.
fn in_cluster(pod: &PodEnvironment) -> Result<Source, ConnectError> {
    let missing = |variable: &str| ConnectError::InCluster(format!("the variable {variable} is not set"));
    let host = Some(&pod.host).filter(|host| !host.is_empty()).ok_or_else(|| missing(HOST_VARIABLE))?;
    let port = Some(&pod.port).filter(|port| !port.is_empty()).ok_or_else(|| missing(PORT_VARIABLE))?;
    // An IPv6 address needs brackets before a port.
    let server = if host.contains(':') { format!("https://[{host}]:{port}") } else { format!("https://{host}:{port}") };
    let (ca_file, token_file) = (pod.folder.join("ca.crt"), pod.folder.join("token"));
    let mut config = kube::Config::new(parse_server(&server, &server)?);
    config.root_cert = Some(authorities(&ca_file)?);
    if let Ok(namespace) = std::fs::read_to_string(pod.folder.join("namespace")) {
        config.default_namespace = namespace.trim().to_owned();
    }
    Ok(Source { ca_file: Some(ca_file), token_file: Some(token_file), ..Source::without_user(config) })
}

/// Returns the name and content of the current context, or the problem and its fix.
fn current_context(kubeconfig: &Kubeconfig) -> Result<(String, kube::config::Context), (String, &'static str)> {
    let name = kubeconfig.current_context.clone().filter(|name| !name.is_empty()).ok_or_else(|| {
        ("current-context is not set".to_owned(), "set current-context to the name of one of the contexts")
    })?;
    let context = kubeconfig.contexts.iter().find(|named| named.name == name);
    match context.and_then(|named| named.context.clone()) {
        Some(context) => Ok((name, context)),
        None => Err((
            format!("current-context {name:?} is not among the contexts"),
            "add that context or set current-context to an existing one",
        )),
    }
}

/// Returns the cluster of a context, or the problem and the fix.
fn find_cluster<'a>(
    kubeconfig: &'a mut Kubeconfig,
    name: &str,
    context: &str,
) -> Result<&'a mut Cluster, (String, &'static str)> {
    let cluster = kubeconfig.clusters.iter_mut().find(|named| named.name == name);
    cluster.and_then(|named| named.cluster.as_mut()).ok_or_else(|| {
        (
            format!("cluster {name:?} of context {context:?} is not among the clusters"),
            "add that cluster or correct the context's cluster field",
        )
    })
}

fn from_file(file: &Path, setting: &'static str, master: Option<&str>) -> Result<Source, ConnectError> {
    let invalid =
        |problem: String, fix: &'static str| ConnectError::UseKubeconfig { file: file.to_owned(), problem, fix };
    let mut kubeconfig = read(file, setting)?;

    let (context, entry) = current_context(&kubeconfig).map_err(|(problem, fix)| invalid(problem, fix))?;
    let cluster_name = entry.cluster;
    let has_certificate = has_certificate(&kubeconfig, entry.user.as_deref());
    let cluster = find_cluster(&mut kubeconfig, &cluster_name, &context);
    let cluster = cluster.map_err(|(problem, fix)| invalid(problem, fix))?;

    let proxy = cluster.proxy_url.take().filter(|proxy| !proxy.is_empty()).map(|url| Proxy::parse(&url)).transpose();
    let proxy = proxy.map_err(|problem| {
        invalid(
            format!("the proxy-url of cluster {cluster_name:?} cannot be used: {problem}"),
            "correct proxy-url, as in http://HOST:PORT",
        )
    })?;
    if let Some(master) = master {
        cluster.server = Some(master.to_owned());
        cluster.tls_server_name = None;
    }
    let server = cluster.server.take().filter(|url| !url.is_empty()).ok_or_else(|| {
        invalid(
            format!("cluster {cluster_name:?} has no server"),
            "set the cluster's server field or pass --master=URL",
        )
    })?;
    let secure = has_certificate
        || cluster.certificate_authority.is_some()
        || cluster.certificate_authority_data.is_some()
        || cluster.insecure_skip_tls_verify == Some(true);
    let url = server_url(&server, secure);
    parse_server(&url, &server)?;
    cluster.server = Some(url);
    let ca_file = cluster
        .certificate_authority
        .clone()
        .filter(|_| cluster.certificate_authority_data.is_none())
        .map(PathBuf::from);

    let mut config = config_of(kubeconfig, &cluster_name).map_err(|(problem, fix)| invalid(problem, fix))?;
    // The crate `kube` would run the provider's command under a lock that all requests need, without a time limit.
    if config.auth_info.auth_provider.as_ref().is_some_and(|provider| provider.name == "gcp") {
        return Err(invalid(
            format!("the auth-provider gcp of context {context:?} is not supported, as in client-go"),
            "use an exec plugin, such as gke-gcloud-auth-plugin",
        ));
    }
    let token_file = config.auth_info.token_file.take().map(PathBuf::from);
    if token_file.is_some() {
        config.auth_info.token = None;
    }
    let plugin = config.auth_info.exec.take().filter(|_| token_file.is_none() && !identifies_user(&config.auth_info));
    Ok(Source { config, ca_file, token_file, plugin: plugin.map(|exec| Arc::new(Plugin::new(exec))), proxy })
}

/// Returns true if a user has credentials of its own, so its exec plugin is not used. Upstream: client-go
/// plugin/pkg/client/auth/exec, UpdateTransportConfig.
fn identifies_user(user: &AuthInfo) -> bool {
    user.token.is_some()
        || user.username.is_some()
        || user.auth_provider.is_some()
        || user.client_certificate.is_some()
        || user.client_certificate_data.is_some()
}

/// Returns true if a user of a kubeconfig has a client certificate.
fn has_certificate(kubeconfig: &Kubeconfig, user: Option<&str>) -> bool {
    kubeconfig
        .auth_infos
        .iter()
        .find(|named| Some(&*named.name) == user)
        .and_then(|named| named.auth_info.as_ref())
        .is_some_and(|user| user.client_certificate.is_some() || user.client_certificate_data.is_some())
}

/// Loads the files of a kubeconfig, or returns the problem and its fix.
fn config_of(kubeconfig: Kubeconfig, cluster_name: &str) -> Result<kube::Config, (String, &'static str)> {
    let mut config = kube::Config::try_from(kubeconfig)
        .map_err(|error| (error.to_string(), "correct that field, or the file that it names"))?;
    if config.root_cert.as_ref().is_some_and(Vec::is_empty) {
        return Err((
            format!("the certificate authority of cluster {cluster_name:?} holds no certificate"),
            "put a PEM certificate into certificate-authority-data or the file of certificate-authority",
        ));
    }
    // `kube` has set this from the environment. Discard it: the environment is evaluated later, by Go's rules.
    config.proxy_url = None;
    Ok(config)
}

/// Removes credentials from a connection without TLS. Upstream: client-go tools/clientcmd,
/// DirectClientConfig.ClientConfig.
fn without_credentials_unless_https(mut source: Source) -> Source {
    if source.config.cluster_url.scheme_str() != Some("https") {
        source.config.auth_info = AuthInfo::default();
        source.token_file = None;
        source.plugin = None;
    }
    source
}

/// Completes a server given as `host:port`. Upstream: client-go, rest.DefaultServerURL.
fn server_url(server: &str, secure: bool) -> String {
    if server.contains("://") {
        server.to_owned()
    } else if secure {
        format!("https://{server}")
    } else {
        format!("http://{server}")
    }
}

fn parse_server(url: &str, given: &str) -> Result<http::Uri, ConnectError> {
    let server = |problem: String| ConnectError::Server { value: given.to_owned(), problem };
    let uri: http::Uri = url.parse().map_err(|error| server(format!("{error}")))?;
    match uri.scheme_str() {
        Some("http" | "https") if uri.authority().is_some() => {}
        other => {
            return Err(server(format!("scheme {:?} is not http or https", other.unwrap_or(""))));
        }
    }
    if given != url && !matches!(uri.path(), "" | "/") {
        return Err(server("a path needs a scheme in front of the host".into()));
    }
    Ok(uri)
}

/// Returns the certificates of a PEM bundle in DER.
pub(super) fn authorities(file: &Path) -> Result<Vec<Vec<u8>>, ConnectError> {
    let bytes = std::fs::read(file).map_err(|source| ConnectError::ReadFile {
        field: "certificate authority",
        file: file.to_owned(),
        source,
    })?;
    let found: Vec<Vec<u8>> = CertificateDer::pem_slice_iter(&bytes)
        .map(|certificate| certificate.map(|der| der.to_vec()))
        .collect::<Result<_, _>>()
        .map_err(|error| ConnectError::BadAuthority { file: file.to_owned(), problem: error.to_string() })?;
    if found.is_empty() {
        return Err(ConnectError::BadAuthority { file: file.to_owned(), problem: "no PEM certificate in it".into() });
    }
    Ok(found)
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}
