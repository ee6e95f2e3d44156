//! The TLS configuration of the server: versions, ciphers, groups, and certificates, which are reloaded at runtime.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};
use rustls::crypto::ring::{self, cipher_suite};
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{DistinguishedName, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion, version};
use time::{Duration, OffsetDateTime};
use tracing::{info, warn};

use super::options::{ServeError, TlsOptions};
use super::peer::AnyClientCertificate;
use super::sni::{ByName, CertificateResolver, NamedFiles};
use crate::lock::{read, write};

/// Upstream's names of TLS 1.2 cipher suites, with their implementations.
const SUITES: &[(&str, SupportedCipherSuite)] = &[
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", cipher_suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", cipher_suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", cipher_suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];

/// Names of TLS 1.3 suites. Upstream accepts them without effect, because these suites are always enabled.
const ALWAYS_ON: &[&str] = &["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];

/// Suites that upstream accepts and that are not offered here, because they are broken, or lack forward secrecy or
/// authenticated encryption.
const NOT_OFFERED: &[&str] = &[
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];

/// Go's numbers of key exchange groups, with their implementations.
const GROUPS: &[(i32, &dyn SupportedKxGroup)] =
    &[(23, ring::kx_group::SECP256R1), (24, ring::kx_group::SECP384R1), (29, ring::kx_group::X25519)];
/// Groups that upstream accepts and that are not offered here: P-521 and the hybrids with ML-KEM.
const GROUPS_NOT_OFFERED: &[i32] = &[25, 4587, 4588, 4589];

/// Validated versions, ciphers and groups.
pub(super) struct Settings {
    pub(super) provider: Arc<CryptoProvider>,
    versions: &'static [&'static SupportedProtocolVersion],
    http1_only: bool,
}

impl Settings {
    /// Validates the flags. Upstream: component-base, cli/flag: TLSVersion, TLSCipherSuites, TLSCurvePreferences.
    pub(super) fn new(options: &TlsOptions, http1_only: bool) -> Result<Self, ServeError> {
        let versions = versions(&options.min_version)?;
        let mut provider = ring::default_provider();
        if !options.cipher_suites.is_empty() {
            let chosen = suites(&options.cipher_suites)?;
            provider.cipher_suites.retain(|suite| suite.tls13().is_some() || chosen.contains(suite));
            if chosen.is_empty() && versions.contains(&&version::TLS12) {
                warn!("none of --tls-cipher-suites is offered in TLS 1.2: only TLS 1.3 is served");
            }
        }
        if !options.curves.is_empty() {
            provider.kx_groups = groups(&options.curves)?;
        }
        let versions = match versions {
            _ if provider.cipher_suites.iter().all(|suite| suite.tls13().is_some()) => TLS13,
            versions => versions,
        };
        Ok(Self { provider: Arc::new(provider), versions, http1_only })
    }

    /// Returns the configurations with certificates; `subjects` are the authorities that are named to clients, `None`
    /// requests no certificate.
    fn configs(&self, keys: &Keys, subjects: Option<Vec<DistinguishedName>>) -> Result<Configs, rustls::Error> {
        let builder =
            ServerConfig::builder_with_provider(self.provider.clone()).with_protocol_versions(self.versions)?;
        let builder = match subjects {
            Some(subjects) => builder.with_client_cert_verifier(Arc::new(AnyClientCertificate {
                provider: self.provider.clone(),
                subjects,
            })),
            None => builder.with_no_client_auth(),
        };
        let resolver = |unnamed: &Arc<CertifiedKey>| {
            Arc::new(CertificateResolver {
                named: keys.named.clone(),
                default: keys.default.clone(),
                unnamed: unnamed.clone(),
            })
        };
        let mut config = builder.with_cert_resolver(resolver(&keys.default));
        let protocols: &[&[u8]] = if self.http1_only { &[b"http/1.1"] } else { &[b"h2", b"http/1.1"] };
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let with_certificate = |(address, key): (IpAddr, &Arc<CertifiedKey>)| {
            let mut own = config.clone();
            own.cert_resolver = resolver(key);
            (address, Arc::new(own))
        };
        let by_address = keys.named.addresses().map(with_certificate).collect();
        Ok(Configs { default: Arc::new(config), by_address })
    }
}

/// The certificates by address and host name.
struct Keys {
    default: Arc<CertifiedKey>,
    named: Arc<ByName>,
}

/// One default configuration, and those for certain addresses.
struct Configs {
    default: Arc<ServerConfig>,
    by_address: HashMap<IpAddr, Arc<ServerConfig>>,
}

const TLS13: &[&SupportedProtocolVersion] = &[&version::TLS13];
const TLS12_AND_TLS13: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];

/// Parses `--tls-min-version`.
fn versions(minimum: &str) -> Result<&'static [&'static SupportedProtocolVersion], ServeError> {
    match minimum {
        "" | "VersionTLS12" => Ok(TLS12_AND_TLS13),
        "VersionTLS13" => Ok(TLS13),
        "VersionTLS10" | "VersionTLS11" => {
            warn!(given = minimum, "--tls-min-version: the lowest version served is TLS 1.2");
            Ok(TLS12_AND_TLS13)
        }
        other => Err(ServeError::Setting {
            flag: "--tls-min-version",
            problem: format!(
                "unknown tls version {other:?}; possible are VersionTLS10, VersionTLS11, VersionTLS12, VersionTLS13"
            ),
        }),
    }
}

/// Parses `--tls-cipher-suites`; returns the selected suites of TLS 1.2.
fn suites(names: &[String]) -> Result<Vec<SupportedCipherSuite>, ServeError> {
    let mut chosen = Vec::new();
    for name in names {
        if let Some((_, suite)) = SUITES.iter().find(|(known, _)| known == name) {
            chosen.push(*suite);
        } else if NOT_OFFERED.contains(&name.as_str()) {
            warn!(name, "--tls-cipher-suites: this suite is not secure and is not offered");
        } else if !ALWAYS_ON.contains(&name.as_str()) {
            let known: Vec<&str> = SUITES.iter().map(|(name, _)| *name).chain(ALWAYS_ON.iter().copied()).collect();
            let problem =
                format!("Cipher suite {name} not supported or doesn't exist; possible are {}", known.join(", "));
            return Err(ServeError::Setting { flag: "--tls-cipher-suites", problem });
        }
    }
    Ok(chosen)
}

/// Parses `--tls-curve-preferences`.
fn groups(numbers: &[i32]) -> Result<Vec<&'static dyn SupportedKxGroup>, ServeError> {
    const FLAG: &str = "--tls-curve-preferences";
    let wrong = |problem: String| ServeError::Setting { flag: FLAG, problem };
    for (at, number) in numbers.iter().enumerate() {
        if numbers[..at].contains(number) {
            return Err(wrong(format!("duplicate curve preference {number}")));
        }
        if GROUPS_NOT_OFFERED.contains(number) {
            warn!(number, "{FLAG}: this group is not offered here");
        } else if GROUPS.iter().all(|(known, _)| known != number) {
            return Err(wrong(format!("curve preference {number} is not supported; possible are 23, 24, 29")));
        }
    }
    // The order is the library's; upstream ignores the flag's order, too.
    let mut groups = ring::default_provider().kx_groups;
    groups
        .retain(|group| GROUPS.iter().any(|(number, known)| known.name() == group.name() && numbers.contains(number)));
    if groups.is_empty() {
        return Err(wrong("none of the given groups is offered here; add 29 (X25519) or 23 (P-256)".into()));
    }
    Ok(groups)
}

/// A certificate with its intermediates, and its key, as PEM.
type PemPair = (Vec<u8>, Vec<u8>);

/// Parses a pair and checks that its key matches its certificate.
fn certified((certificate, key): &PemPair, provider: &CryptoProvider) -> Result<Arc<CertifiedKey>, String> {
    let chain = CertificateDer::pem_slice_iter(certificate)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| format!("the certificate is malformed: {error}"))?;
    if chain.is_empty() {
        return Err("the certificate file holds no PEM certificate".into());
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| format!("the key is malformed: {error}"))?;
    CertifiedKey::from_der(chain, key, provider).map(Arc::new).map_err(|error| error.to_string())
}

/// The source of a certificate and its key.
enum Source {
    Memory(PemPair),
    Files { flag: &'static str, certificate: PathBuf, key: PathBuf },
}

impl Source {
    /// Returns the error of this pair.
    fn wrong(&self, problem: impl ToString) -> ServeError {
        match self {
            Self::Memory(_) => {
                ServeError::Pair { flag: "self-signed", files: "in memory".into(), problem: problem.to_string() }
            }
            Self::Files { flag, certificate, key } => ServeError::Pair {
                flag,
                files: format!("{}, {}", certificate.display(), key.display()),
                problem: problem.to_string(),
            },
        }
    }

    /// Reads the current pair. Blocks the thread.
    fn read(&self) -> Result<PemPair, ServeError> {
        let read = |file: &Path| {
            std::fs::read(file).map_err(|error| self.wrong(format!("{} cannot be read: {error}", file.display())))
        };
        match self {
            Self::Memory(text) => Ok(text.clone()),
            Self::Files { certificate, key, .. } => Ok((read(certificate)?, read(key)?)),
        }
    }
}

/// The configurations for new connections, kept up to date.
pub(super) struct Tls {
    settings: Settings,
    default: Source,
    /// Further pairs, each with the names that were given for it.
    named: Vec<(Source, Vec<String>)>,
    loaded: RwLock<Loaded>,
}

/// The certificates in use.
struct Loaded {
    /// The default pair, then those with names.
    pairs: Vec<PemPair>,
    /// The authorities that a handshake names to clients.
    subjects: Option<Vec<DistinguishedName>>,
    configs: Configs,
}

impl Tls {
    /// Reads or creates the certificates. Blocks the thread. Upstream: apiserver,
    /// SecureServingOptions.MaybeDefaultWithSelfSignedCerts.
    pub(super) fn new(
        options: &TlsOptions,
        settings: Settings,
        bound: IpAddr,
        subjects: Option<Vec<DistinguishedName>>,
    ) -> Result<Self, ServeError> {
        let default = default_source(options, bound)?;
        let named = options.sni.iter().map(|given| named(given)).collect::<Result<Vec<_>, _>>()?;
        let pairs = read_pairs(&default, &named)?;
        let configs = configs(&settings, &default, &named, &pairs, subjects.clone())?;
        Ok(Self { settings, default, named, loaded: RwLock::new(Loaded { pairs, subjects, configs }) })
    }

    /// Returns the configuration for a connection to this local address.
    pub(super) fn config(&self, local: Option<IpAddr>) -> Arc<ServerConfig> {
        let loaded = read(&self.loaded);
        let own = local.and_then(|local| loaded.configs.by_address.get(&local.to_canonical()));
        own.unwrap_or(&loaded.configs.default).clone()
    }

    /// Loads changed pairs and changed authorities. Returns true if anything changed. Blocks the thread.
    ///
    /// # Errors
    /// When a pair cannot be used, as in the middle of a rotation: the old pairs stay in use.
    pub(super) fn refresh(&self, subjects: Option<Vec<DistinguishedName>>) -> Result<bool, ServeError> {
        let pairs = read_pairs(&self.default, &self.named)?;
        {
            let loaded = read(&self.loaded);
            if loaded.pairs == pairs && bytes(&loaded.subjects) == bytes(&subjects) {
                return Ok(false);
            }
        }
        let configs = configs(&self.settings, &self.default, &self.named, &pairs, subjects.clone())?;
        *write(&self.loaded) = Loaded { pairs, subjects, configs };
        Ok(true)
    }
}

/// Parses a value of `--tls-sni-cert-key`.
fn named(given: &str) -> Result<(Source, Vec<String>), ServeError> {
    const FLAG: &str = "--tls-sni-cert-key";
    let NamedFiles { certificate, key, names } = NamedFiles::parse(given).ok_or_else(|| ServeError::Setting {
        flag: FLAG,
        problem: format!("{given:?} names no certificate and key; use certfile,keyfile or certfile,keyfile:host,host"),
    })?;
    Ok((Source::Files { flag: FLAG, certificate, key }, names))
}

fn read_pairs(default: &Source, named: &[(Source, Vec<String>)]) -> Result<Vec<PemPair>, ServeError> {
    std::iter::once(default).chain(named.iter().map(|(source, _)| source)).map(Source::read).collect()
}

fn configs(
    settings: &Settings,
    default: &Source,
    named: &[(Source, Vec<String>)],
    pairs: &[PemPair],
    subjects: Option<Vec<DistinguishedName>>,
) -> Result<Configs, ServeError> {
    let key = |(source, text): (&Source, &PemPair)| {
        certified(text, &settings.provider).map_err(|problem| source.wrong(problem))
    };
    let sources = std::iter::once(default).chain(named.iter().map(|(source, _)| source));
    let keys = sources.zip(pairs).map(key).collect::<Result<Vec<_>, _>>()?;
    let names_and_keys: Vec<_> =
        named.iter().zip(&keys[1..]).map(|((_, names), key)| (&names[..], key.clone())).collect();
    let keys = Keys { default: keys[0].clone(), named: Arc::new(ByName::new(&names_and_keys)) };
    settings.configs(&keys, subjects).map_err(|error| default.wrong(error))
}

fn bytes(subjects: &Option<Vec<DistinguishedName>>) -> Option<Vec<&[u8]>> {
    subjects.as_ref().map(|subjects| subjects.iter().map(AsRef::as_ref).collect())
}

/// Returns the source of the default pair; creates a pair if none was given or stored before.
fn default_source(options: &TlsOptions, bound: IpAddr) -> Result<Source, ServeError> {
    if options.cert_file.is_some() || options.key_file.is_some() {
        let source = Source::Files {
            flag: "--tls-cert-file, --tls-private-key-file",
            certificate: options.cert_file.clone().unwrap_or_default(),
            key: options.key_file.clone().unwrap_or_default(),
        };
        if options.cert_file.is_none() || options.key_file.is_none() {
            return Err(source.wrong("both flags are needed, or neither"));
        }
        return Ok(source);
    }
    let Some(folder) = &options.cert_dir else {
        let made = self_signed(bound).map_err(|error| Source::Memory(PemPair::default()).wrong(error))?;
        info!("serving with a self-signed certificate in memory");
        return Ok(Source::Memory((made.0.into(), made.1.into())));
    };
    let certificate = folder.join(format!("{}.crt", options.pair_name));
    let key = folder.join(format!("{}.key", options.pair_name));
    let source = Source::Files { flag: "--cert-dir", certificate: certificate.clone(), key: key.clone() };
    if certificate.exists() != key.exists() {
        return Err(source.wrong("one of the two is missing; certificate and key go together: add it or remove both"));
    }
    if !certificate.exists() {
        let (made, secret) = self_signed(bound).map_err(|error| source.wrong(error))?;
        write_new_file(folder, &certificate, &made, 0o644).map_err(|error| source.wrong(error))?;
        write_new_file(folder, &key, &secret, 0o600).map_err(|error| {
            // A certificate without a key would make each later start fail.
            let _ = std::fs::remove_file(&certificate);
            source.wrong(error)
        })?;
        info!(certificate = %certificate.display(), "created a self-signed certificate");
    }
    Ok(source)
}

/// Writes a file that must not exist yet.
fn write_new_file(folder: &Path, file: &Path, text: &str, mode: u32) -> io::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    std::fs::create_dir_all(folder)?;
    std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(file)?.write_all(text.as_bytes())
}

/// Returns a certificate for localhost and the bound address, valid for a year from an hour ago, as PEM; and its key.
fn self_signed(bound: IpAddr) -> Result<(String, String), rcgen::Error> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    if !bound.is_unspecified() && !names.contains(&bound.to_string()) {
        names.push(bound.to_string());
    }
    let now = OffsetDateTime::now_utc();
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("localhost@{}", now.unix_timestamp()));
    params.not_before = now - Duration::hours(1);
    params.not_after = now + Duration::days(365);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn tls(options: &TlsOptions) -> Result<Tls, ServeError> {
        Tls::new(options, Settings::new(options, false)?, LOCAL, None)
    }

    #[test]
    fn tls_versions_are_upstreams_and_at_least_1_2() {
        for (given, count) in [("", 2), ("VersionTLS10", 2), ("VersionTLS12", 2), ("VersionTLS13", 1)] {
            assert_eq!(versions(given).expect("known").len(), count, "{given:?}");
        }
        let error = versions("TLS12").expect_err("unknown").to_string();
        assert!(error.contains("--tls-min-version") && error.contains("VersionTLS12"), "{error}");
    }

    #[test]
    fn ciphers_are_validated_and_selected() {
        let of =
            |list: &[&str]| Settings::new(&TlsOptions { cipher_suites: names(list), ..TlsOptions::default() }, false);
        let settings = of(&["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_RSA_WITH_AES_128_CBC_SHA"]).expect("known");
        assert_eq!(settings.provider.cipher_suites.len(), 4, "three of TLS 1.3 and the chosen one");
        assert_eq!(settings.versions.len(), 2);
        assert_eq!(
            of(&["TLS_RSA_WITH_AES_128_CBC_SHA"]).expect("known").versions,
            TLS13,
            "no suite of TLS 1.2 is left"
        );
        let error = of(&["AES128-GCM"]).err().expect("unknown").to_string();
        assert!(error.starts_with("--tls-cipher-suites: Cipher suite AES128-GCM not supported"), "{error}");
    }

    #[test]
    fn groups_are_validated_and_selected() {
        assert_eq!(groups(&[29, 25]).expect("known").len(), 1);
        for bad in [&[29, 29][..], &[7], &[25], &[-1]] {
            assert!(groups(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn stored_pair_is_created_once_with_a_private_key_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let options = TlsOptions {
            cert_dir: Some(folder.path().join("pki")),
            pair_name: "kube-controller-manager".into(),
            ..TlsOptions::default()
        };
        tls(&options).expect("made");
        let key = folder.path().join("pki/kube-controller-manager.key");
        let made = std::fs::read(&key).expect("kept");
        assert_eq!(std::fs::metadata(&key).expect("kept").permissions().mode() & 0o777, 0o600);
        tls(&options).expect("read");
        assert_eq!(std::fs::read(&key).expect("kept"), made);
        std::fs::remove_file(folder.path().join("pki/kube-controller-manager.crt")).expect("removed");
        let error = tls(&options).err().expect("half a pair").to_string();
        assert!(error.contains("--cert-dir") && error.contains("one of the two is missing"), "{error}");
    }

    #[test]
    fn new_pair_is_loaded_and_half_a_rotation_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let (certificate, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
        let write = |pair: &(String, String)| {
            std::fs::write(&certificate, &pair.0).expect("written");
            std::fs::write(&key, &pair.1).expect("written");
        };
        let (first, second) = (self_signed(LOCAL).expect("a pair"), self_signed(LOCAL).expect("a pair"));
        write(&first);
        let options =
            TlsOptions { cert_file: Some(certificate.clone()), key_file: Some(key.clone()), ..TlsOptions::default() };
        let tls = tls(&options).expect("a pair");
        let before = tls.config(None);
        assert!(!tls.refresh(None).expect("readable"));
        write(&(second.0.clone(), first.1.clone()));
        assert!(tls.refresh(None).is_err(), "certificate and key do not match");
        assert!(Arc::ptr_eq(&before, &tls.config(None)));
        write(&second);
        assert!(tls.refresh(None).expect("a pair"));
        assert!(!Arc::ptr_eq(&before, &tls.config(None)));
        assert!(
            tls.refresh(Some(Vec::new())).expect("readable"),
            "the names of the authorities are part of the handshake"
        );
    }

    #[test]
    fn sni_pairs_are_reloaded_and_an_invalid_one_is_reported() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let pair = self_signed(LOCAL).expect("a pair");
        std::fs::write(at("a.crt"), &pair.0).expect("written");
        std::fs::write(at("a.key"), &pair.1).expect("written");
        let given = format!("{},{}", at("a.crt").display(), at("a.key").display());
        let with = |sni: String| TlsOptions { sni: vec![sni], ..TlsOptions::default() };
        let tls = Tls::new(
            &with(format!("{given}:10.0.0.1,x.io")),
            Settings::new(&TlsOptions::default(), false).expect("usable"),
            LOCAL,
            None,
        )
        .expect("two pairs");
        let address = "::ffff:10.0.0.1".parse().ok();
        assert!(!Arc::ptr_eq(&tls.config(address), &tls.config(None)), "an address has a certificate of its own");
        assert!(Arc::ptr_eq(&tls.config(Some(LOCAL)), &tls.config(None)));
        assert!(!tls.refresh(None).expect("readable"));
        let other = self_signed(LOCAL).expect("a pair");
        std::fs::write(at("a.crt"), &other.0).expect("written");
        let error = tls.refresh(None).expect_err("certificate and key do not match").to_string();
        assert!(error.starts_with("--tls-sni-cert-key: ") && error.contains("a.crt"), "{error}");
        std::fs::write(at("a.key"), &other.1).expect("written");
        assert!(tls.refresh(None).expect("a pair"));
    }

    #[test]
    fn incomplete_flags_and_missing_files_are_reported() {
        let folder = tempfile::tempdir().expect("a folder");
        let missing = Some(folder.path().join("none"));
        let half = TlsOptions { cert_file: missing.clone(), ..TlsOptions::default() };
        assert!(tls(&half).err().expect("half").to_string().contains("both flags are needed"));
        let both = TlsOptions { key_file: missing, ..half };
        assert!(tls(&both).err().expect("missing").to_string().contains("cannot be read"));
    }
}
