//! Trusted authorities for client certificates, from files and from the cluster.
//!
//! Authorities without a flag are read from the ConfigMap `kube-system/extension-apiserver-authentication`, which the
//! API server maintains. Both sources are read periodically; if one cannot be read, its last valid state is kept.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, RwLock};

use k8s_openapi::api::core::v1::ConfigMap;
use rustls::DistinguishedName;
use rustls::crypto::CryptoProvider;
use tracing::{info, warn};

use super::options::{AuthenticationOptions, RequestHeaderOptions, ServeError};
use super::peer::Bundle;
use super::review::{ReviewError, Reviewer};
use crate::lock::{read, write};

const CONFIG_MAP: &str = "kube-system/extension-apiserver-authentication";
const CONFIG_MAP_PATH: &str = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";

/// A front proxy: its certificates, and the headers in which it names the user.
#[derive(Debug, Clone)]
pub(super) struct FrontProxy {
    /// The authorities that sign its certificate.
    pub(super) bundle: Bundle,
    /// The accepted common names; empty: any.
    pub(super) allowed_names: Vec<String>,
    pub(super) username_headers: Vec<String>,
    pub(super) uid_headers: Vec<String>,
    pub(super) group_headers: Vec<String>,
    pub(super) extra_prefixes: Vec<String>,
}

/// The trusted authorities at one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct TrustedAuthorities {
    pub(super) clients: Option<Bundle>,
    pub(super) front_proxy: Option<FrontProxy>,
}

impl TrustedAuthorities {
    /// Returns the authorities that a handshake names to clients.
    pub(super) fn subjects(&self) -> Vec<DistinguishedName> {
        let bundles = self.clients.iter().chain(self.front_proxy.iter().map(|proxy| &proxy.bundle));
        bundles.flat_map(Bundle::subjects).cloned().collect()
    }
}

/// The texts that the authorities are parsed from; equal texts give equal authorities.
#[derive(Clone, Default, PartialEq, Eq)]
struct Texts {
    clients: Option<Vec<u8>>,
    front_proxy: Option<Vec<u8>>,
    headers: Option<RequestHeaderOptions>,
}

/// The sources of authorities and their current state.
pub(super) struct Trust {
    client_ca_file: Option<PathBuf>,
    request_header: RequestHeaderOptions,
    /// Reads the ConfigMap; `None` if that is disabled or impossible.
    lookup: Option<Arc<Reviewer>>,
    provider: Arc<CryptoProvider>,
    /// The last valid texts, and the authorities that were parsed from them.
    current: RwLock<(Texts, Arc<TrustedAuthorities>)>,
}

impl Trust {
    /// Reads all sources for the first time. Files must be readable. So must the ConfigMap, unless failures are
    /// tolerated or the authorities of front proxies are in a file. Upstream: apiserver,
    /// DelegatingAuthenticationOptions.ApplyTo.
    pub(super) async fn new(
        options: &AuthenticationOptions,
        reviewer: Option<Arc<Reviewer>>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, ServeError> {
        let lookup = reviewer.filter(|_| !options.skip_lookup);
        let trust = Self {
            client_ca_file: options.client_ca_file.clone(),
            request_header: options.request_header.clone(),
            lookup,
            provider,
            current: RwLock::default(),
        };
        for (flag, file) in [
            ("--client-ca-file", &options.client_ca_file),
            ("--requestheader-client-ca-file", &options.request_header.client_ca_file),
        ] {
            if let Some(file) = file {
                let pem = tokio::fs::read(file).await.map_err(|error| error.to_string());
                let bundle = pem.and_then(|pem| Bundle::parse(&pem, &trust.provider));
                bundle.map_err(|problem| ServeError::Authority { flag, file: file.clone(), problem })?;
            }
        }
        if trust.lookup.is_none() && trust.needs_lookup() && !options.skip_lookup {
            warn!(
                "no --authentication-kubeconfig to look up {CONFIG_MAP} with: client certificates of its authorities are not trusted"
            );
        }
        match trust.refresh(true).await {
            Err(problem) if trust.request_header.client_ca_file.is_some() || options.tolerate_lookup_failure => {
                warn!(problem, "{CONFIG_MAP} cannot be read; continuing without it");
            }
            Err(problem) => return Err(ServeError::Lookup { problem }),
            Ok(_) => {}
        }
        Ok(trust)
    }

    /// Returns the current authorities.
    pub(super) fn current(&self) -> Arc<TrustedAuthorities> {
        read(&self.current).1.clone()
    }

    /// Returns true if client certificates can ever be accepted.
    pub(super) fn requests_certificates(&self) -> bool {
        self.lookup.is_some() || self.client_ca_file.is_some() || self.request_header.client_ca_file.is_some()
    }

    fn needs_lookup(&self) -> bool {
        self.client_ca_file.is_none() || self.request_header.client_ca_file.is_none()
    }

    /// Reads the files again, and with `lookup` the ConfigMap. Returns true if anything changed.
    ///
    /// # Errors
    /// When a source cannot be read. That source keeps its state, and all others are updated.
    pub(super) async fn refresh(&self, lookup: bool) -> Result<bool, String> {
        let old = read(&self.current).0.clone();
        let mut problems = Vec::new();
        let mut new = old.clone();
        if let Some(lookup) = self.lookup.as_ref().filter(|_| lookup && self.needs_lookup()) {
            match lookup.read::<ConfigMap>(CONFIG_MAP_PATH).await {
                Ok(map) => self.apply(&mut new, &map.data.unwrap_or_default(), &mut problems),
                // The API server has neither a client CA nor a front proxy CA.
                Err(ReviewError::Refused { code: 404, .. }) => {}
                Err(error) => problems.push(error.to_string()),
            }
        }
        for (file, text) in
            [(&self.client_ca_file, &mut new.clients), (&self.request_header.client_ca_file, &mut new.front_proxy)]
        {
            let Some(file) = file else { continue };
            // The read runs on another thread: a file system that hangs must not block this thread, which renews the
            // Lease.
            match tokio::fs::read(file).await {
                Ok(pem) => *text = Some(pem),
                Err(error) => problems.push(format!("{}: {error}", file.display())),
            }
        }
        if self.request_header.client_ca_file.is_some() {
            new.headers = Some(self.request_header.clone());
        }
        let changed = new != old && self.load(old, new, &mut problems);
        if problems.is_empty() { Ok(changed) } else { Err(problems.join("; ")) }
    }

    fn apply(&self, texts: &mut Texts, data: &BTreeMap<String, String>, problems: &mut Vec<String>) {
        let non_empty = |key: &str| data.get(key).filter(|text| !text.is_empty()).map(|text| text.as_bytes().to_vec());
        if self.client_ca_file.is_none() {
            // An API server without client certificates has no such key; that is valid.
            texts.clients = non_empty("client-ca-file").or(texts.clients.take());
        }
        if self.request_header.client_ca_file.is_none() {
            match (non_empty("requestheader-client-ca-file"), header_names(data)) {
                (Some(pem), Ok(headers)) => {
                    texts.front_proxy = Some(pem);
                    texts.headers = Some(headers);
                }
                // An API server without a front proxy CA has no such key; upstream starts without one, too.
                (None, Ok(_)) => {}
                (_, Err(problem)) => problems.push(format!("{CONFIG_MAP}: {problem}")),
            }
        }
    }

    /// Parses new texts. If a bundle is invalid, its old text is kept. Returns true if anything changed.
    fn load(&self, old: Texts, mut new: Texts, problems: &mut Vec<String>) -> bool {
        let mut parse = |what: &str, is_file: bool, text: &mut Option<Vec<u8>>, old: Option<Vec<u8>>| {
            let parsed = text.as_deref().map(|pem| Bundle::parse(pem, &self.provider));
            match parsed {
                Some(Err(problem)) => {
                    let problem = format!("the authorities of {what}: {problem}");
                    // Upstream: apiserver, ConfigMapCAController.RunOnce ignores an invalid bundle of the cluster.
                    if is_file {
                        problems.push(problem);
                    } else {
                        warn!(problem, "{CONFIG_MAP}: CA bundle ignored");
                    }
                    *text = old;
                    text.as_deref().and_then(|pem| Bundle::parse(pem, &self.provider).ok())
                }
                parsed => parsed.and_then(Result::ok),
            }
        };
        let clients = parse("clients", self.client_ca_file.is_some(), &mut new.clients, old.clients.clone());
        let is_file = self.request_header.client_ca_file.is_some();
        let proxies = parse("front proxies", is_file, &mut new.front_proxy, old.front_proxy.clone());
        if new == old {
            return false;
        }
        let front_proxy = proxies.zip(new.headers.clone()).map(|(bundle, headers)| FrontProxy {
            bundle,
            allowed_names: headers.allowed_names,
            username_headers: headers.username_headers,
            uid_headers: headers.uid_headers,
            group_headers: headers.group_headers,
            extra_prefixes: headers.extra_prefixes,
        });
        info!(
            clients = clients.is_some(),
            front_proxies = front_proxy.is_some(),
            "loaded the authorities of client certificates"
        );
        let trusted = Arc::new(TrustedAuthorities { clients, front_proxy });
        *write(&self.current) = (new, trusted);
        true
    }
}

/// Parses the header names of the ConfigMap, each a JSON list; a missing one is empty.
fn header_names(data: &BTreeMap<String, String>) -> Result<RequestHeaderOptions, String> {
    let list = |key: &str| match data.get(key).map(String::as_str) {
        None | Some("") => Ok(Vec::new()),
        Some(text) => {
            serde_json::from_str(text).map_err(|error| format!("{key} is not a JSON list of strings: {error}"))
        }
    };
    Ok(RequestHeaderOptions {
        client_ca_file: None,
        allowed_names: list("requestheader-allowed-names")?,
        username_headers: list("requestheader-username-headers")?,
        uid_headers: list("requestheader-uid-headers")?,
        group_headers: list("requestheader-group-headers")?,
        extra_prefixes: list("requestheader-extra-headers-prefix")?,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn data(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn header_names_are_lists_and_optional() {
        let read = header_names(&data(&[
            ("requestheader-username-headers", r#"["X-Remote-User"]"#),
            ("requestheader-allowed-names", ""),
        ]))
        .expect("readable");
        assert_eq!(read.username_headers, ["X-Remote-User"]);
        assert!(read.allowed_names.is_empty() && read.group_headers.is_empty());
        let error = header_names(&data(&[("requestheader-group-headers", "X-Remote-Group")])).expect_err("no list");
        assert!(error.starts_with("requestheader-group-headers is not a JSON list"), "{error}");
    }

    #[tokio::test]
    async fn config_map_may_lack_authorities_and_its_invalid_bundles_are_ignored() {
        let trust = Trust {
            client_ca_file: None,
            request_header: RequestHeaderOptions::default(),
            lookup: None,
            provider: Arc::new(rustls::crypto::ring::default_provider()),
            current: RwLock::default(),
        };
        let clients = authority();
        let lists = r#"["X-Remote-User"]"#;
        // (name, data of the ConfigMap, problems, has a client CA, has front proxies)
        type Entries<'a> = &'a [(&'a str, &'a str)];
        let cases: [(&str, Entries<'_>, usize, bool, bool); 5] = [
            ("client CA only", &[("client-ca-file", &clients)], 0, true, false),
            ("empty ConfigMap", &[], 0, false, false),
            (
                "client CA and front proxy CA",
                &[
                    ("client-ca-file", &clients),
                    ("requestheader-client-ca-file", &clients),
                    ("requestheader-username-headers", lists),
                ],
                0,
                true,
                true,
            ),
            ("bundle without a certificate", &[("requestheader-client-ca-file", "rubbish")], 0, false, false),
            ("header names that are not a list", &[("requestheader-username-headers", "X")], 1, false, false),
        ];
        for (name, pairs, expected, has_clients, has_proxies) in cases {
            let (mut texts, mut problems) = (Texts::default(), Vec::new());
            trust.apply(&mut texts, &data(pairs), &mut problems);
            *trust.current.write().unwrap() = Default::default();
            trust.load(Texts::default(), texts, &mut problems);
            assert_eq!(problems.len(), expected, "{name}: {problems:?}");
            let now = trust.current();
            assert_eq!((now.clients.is_some(), now.front_proxy.is_some()), (has_clients, has_proxies), "{name}");
        }
    }

    async fn of_files(client_ca: &Path) -> Result<Trust, ServeError> {
        let options =
            AuthenticationOptions { client_ca_file: Some(client_ca.to_owned()), ..AuthenticationOptions::default() };
        Trust::new(&options, None, Arc::new(rustls::crypto::ring::default_provider())).await
    }

    fn authority() -> String {
        let key = rcgen::KeyPair::generate().expect("a key");
        rcgen::CertificateParams::default().self_signed(&key).expect("a certificate").pem()
    }

    #[tokio::test]
    async fn file_that_hangs_does_not_block_the_thread() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("ca.crt");
        std::fs::write(&file, authority()).expect("written");
        let trust = of_files(&file).await.expect("a bundle");
        std::fs::remove_file(&file).expect("removed");
        // Opening a pipe for reading blocks until another process or thread opens it for writing.
        let made = std::process::Command::new("mkfifo").arg(&file).status().expect("mkfifo");
        assert!(made.success(), "{made}");
        let second = std::time::Duration::from_secs(1);
        // Ends the wait of the reader after the test, or if the reader blocks this thread.
        let (ended, end) = std::sync::mpsc::channel::<()>();
        let writer = std::thread::spawn(move || {
            let _ = end.recv_timeout(second * 10);
            std::fs::write(&file, authority()).expect("written");
        });
        let started = std::time::Instant::now();
        tokio::time::timeout(second, trust.refresh(false)).await.expect_err("the file was read");
        assert!(started.elapsed() < second * 5, "{:?}", started.elapsed());
        drop(ended);
        writer.join().expect("it ends");
    }

    #[tokio::test]
    async fn changed_authority_file_is_loaded_and_an_invalid_one_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("ca.crt");
        assert!(matches!(of_files(&file).await, Err(ServeError::Authority { flag: "--client-ca-file", .. })));
        std::fs::write(&file, authority()).expect("written");
        let trust = of_files(&file).await.expect("a bundle");
        assert_eq!(trust.current().subjects().len(), 1);
        assert_eq!(trust.refresh(false).await, Ok(false));
        std::fs::write(&file, authority() + &authority()).expect("written");
        assert_eq!(trust.refresh(false).await, Ok(true));
        assert_eq!(trust.current().subjects().len(), 2);
        std::fs::write(&file, "rubbish").expect("written");
        assert!(trust.refresh(false).await.is_err());
        assert_eq!(trust.current().subjects().len(), 2, "the last valid state is kept");
        assert!(trust.refresh(false).await.is_err(), "and the error is reported again");
    }
}
