//! Selection of a connection's certificate: by the requested host name, or by the local address, or else the default
//! one. Upstream: apiserver, server/dynamiccertificates.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use kinds::names::is_dns_subdomain;
use rustls::pki_types::CertificateDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use webpki::EndEntityCert;

use super::peer;

/// The files of a certificate and its key, for certain names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamedFiles {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
    /// Host names, wildcard names, or addresses; if empty, the names in the certificate apply.
    pub(super) names: Vec<String>,
}

impl NamedFiles {
    /// Parses `certificate,key` or `certificate,key:name,name`. Upstream: component-base, cli/flag, NamedCertKey.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (files, names) = text.split_once(':').unwrap_or((text, ""));
        let (certificate, key) = files.split_once(',')?;
        let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
        Some(Self {
            certificate: certificate.trim().into(),
            key: key.trim().into(),
            names: names.map(str::to_owned).collect(),
        })
    }
}

/// Certificates by name.
#[derive(Debug, Clone, Default)]
pub(super) struct ByName(HashMap<String, Arc<CertifiedKey>>);

impl ByName {
    /// Creates the map from pairs with the names given for them. A given name takes precedence over a name in a
    /// certificate, an earlier pair over a later one.
    pub(super) fn new(pairs: &[(&[String], Arc<CertifiedKey>)]) -> Self {
        let mut found = HashMap::new();
        for (names, key) in pairs {
            for name in *names {
                found.entry(name.to_ascii_lowercase()).or_insert_with(|| key.clone());
            }
        }
        for (_, key) in pairs.iter().filter(|(names, _)| names.is_empty()) {
            for name in key.cert.first().map(own_names).unwrap_or_default() {
                found.entry(name.to_ascii_lowercase()).or_insert_with(|| key.clone());
            }
        }
        Self(found)
    }

    /// Returns the certificate for a host, by its name or by a wildcard for its first label.
    fn host(&self, name: &str) -> Option<&Arc<CertifiedKey>> {
        let name = name.to_ascii_lowercase();
        let starred = || format!("*{}", name.find('.').map_or("", |dot| &name[dot..]));
        self.0.get(&name).or_else(|| self.0.get(&starred()))
    }

    /// Returns the certificates that were given for addresses.
    pub(super) fn addresses(&self) -> impl Iterator<Item = (IpAddr, &Arc<CertifiedKey>)> {
        self.0.iter().filter_map(|(name, key)| Some((name.parse().ok()?, key)))
    }
}

/// Returns the names in a certificate: its common name, if that is a host name, and its alternative names.
fn own_names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let common = peer::common_name(certificate).ok().filter(|name| is_host(name));
    let parsed = EndEntityCert::try_from(certificate).ok();
    let alternative = parsed.iter().flat_map(|parsed| parsed.valid_dns_names().map(str::to_owned));
    common.into_iter().chain(alternative).collect()
}

/// Returns true if a text is `*`, or a DNS subdomain with or without a leading wildcard; an address is neither.
fn is_host(name: &str) -> bool {
    let domain = name.strip_prefix("*.").unwrap_or(name);
    name == "*" || (is_dns_subdomain(domain) && name.parse::<IpAddr>().is_err())
}

/// Selects the certificate of a connection to one address.
#[derive(Debug)]
pub(super) struct CertificateResolver {
    /// For host names with a certificate of their own.
    pub(super) named: Arc<ByName>,
    /// For host names without a certificate of their own.
    pub(super) default: Arc<CertifiedKey>,
    /// For clients that send no host name.
    pub(super) unnamed: Arc<CertifiedKey>,
}

impl ResolvesServerCert for CertificateResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(match hello.server_name() {
            None => self.unnamed.clone(),
            Some(name) => self.named.host(name).unwrap_or(&self.default).clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};
    use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

    use super::*;

    /// Creates a key whose certificate has this common name and these alternative names.
    fn key(common: &str, names: &[&str]) -> Arc<CertifiedKey> {
        let mut params =
            CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).expect("names");
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common);
        let pair = KeyPair::generate().expect("a key");
        let chain = vec![params.self_signed(&pair).expect("a certificate").der().clone()];
        let secret = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pair.serialize_der()));
        Arc::new(CertifiedKey::from_der(chain, secret, &rustls::crypto::ring::default_provider()).expect("a pair"))
    }

    #[test]
    fn sni_flag_contains_files_and_hosts() {
        let parsed = |text: &str| NamedFiles::parse(text).map(|files| (files.certificate, files.key, files.names));
        let (crt, key) = (PathBuf::from("a.crt"), PathBuf::from("a.key"));
        assert_eq!(parsed("a.crt,a.key"), Some((crt.clone(), key.clone(), vec![])));
        assert_eq!(
            parsed("a.crt, a.key: x.io ,*.y.io"),
            Some((crt, key, vec!["x.io".to_owned(), "*.y.io".to_owned()]))
        );
        assert_eq!(parsed("a.crt"), None);
    }

    #[test]
    fn certificate_is_selected_by_host_name() {
        let given = ["Given.io".to_owned(), "*.given.io".to_owned(), "10.0.0.1".to_owned()];
        let keys = [
            key("127.0.0.9", &["own.io", "127.0.0.1", "*.own.io"]),
            key("common.io", &["own.io", "given.io"]),
            key("Not a host", &["x.io"]),
            key("other.io", &[]),
        ];
        let named = ByName::new(&[
            (&[], keys[0].clone()),
            (&[], keys[1].clone()),
            (&given, keys[2].clone()),
            (&given[..1], keys[3].clone()),
        ]);
        for (name, wanted) in [
            ("own.io", Some(0)),
            ("a.own.io", Some(0)),
            ("a.b.own.io", None),
            ("common.io", Some(1)),
            ("given.io", Some(2)),
            ("a.GIVEN.io", Some(2)),
            ("x.io", None),
            ("other.io", None),
            ("127.0.0.1", None),
            ("127.0.0.9", None),
            ("localhost", None),
        ] {
            let found = named.host(name).and_then(|found| keys.iter().position(|key| Arc::ptr_eq(key, found)));
            assert_eq!(found, wanted, "{name}");
        }
        let addresses: Vec<IpAddr> = named.addresses().map(|(address, _)| address).collect();
        assert_eq!(addresses, ["10.0.0.1".parse::<IpAddr>().expect("an address")]);
        assert!(ByName::new(&[(&[], key("*", &[]))]).host("localhost").is_some());
    }
}
