//! Certificates of clients, and TLS clients that present them.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// A certificate and its key, as PEM.
pub type Pair = (String, String);

/// Returns the configuration of a client that trusts a server's certificates (PEM), and presents its own if it has one.
pub fn client_config(server: &[u8], own: Option<&Pair>) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(server) {
        roots.add(root?)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    Ok(match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect::<Result<_, _>>()?;
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes())?)?
        }
    })
}

/// Returns the client certificate in a kubeconfig of a control plane, which has one user. It is read as text, because
/// kube's types hide keys.
pub fn inline_pair(kubeconfig: &Path) -> Result<Pair> {
    let text = std::fs::read_to_string(kubeconfig)?;
    let field = |name: &str| -> Result<String> {
        let line =
            text.lines().find_map(|line| line.trim().trim_start_matches("- ").strip_prefix(name)?.strip_prefix(':'));
        let value = line.with_context(|| format!("no {name}"))?;
        Ok(String::from_utf8(BASE64.decode(value.trim().trim_matches('"'))?)?)
    };
    Ok((field("client-certificate-data")?, field("client-key-data")?))
}

/// Returns a client certificate of a member of `system:masters`, signed by an authority with the common name
/// `authority` and this key. `change` adjusts the certificate before it is signed.
pub fn sign(
    (authority, key): (&str, KeyPair),
    common_name: &str,
    change: impl FnOnce(&mut CertificateParams),
) -> Result<Pair> {
    let named = |name: &str| {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params
    };
    let mut params = named(common_name);
    params.distinguished_name.push(DnType::OrganizationName, "system:masters");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    change(&mut params);
    let own = KeyPair::generate()?;
    Ok((params.signed_by(&own, &Issuer::new(named(authority), key))?.pem(), own.serialize_pem()))
}
