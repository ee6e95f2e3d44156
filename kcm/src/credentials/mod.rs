//! Keys and certificates that the command line names: read and checked when a controller that needs them
//! is prepared, before anything starts.

pub mod authority;
pub mod der;
pub mod pem;
mod signing_key;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use runtime::client::{ConnectError, ConnectOptions, inline_authority};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::ParsedCertificate;
use zeroize::Zeroizing;

pub use signing_key::{KeyError, SigningKey};

use crate::credentials::authority::{AuthorityError, Signers};
use crate::flags::Options;

/// Keys and certificates of controllers.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    /// The cluster's root certificates in PEM, with which clients verify the API server; empty if unknown.
    pub root_ca: Arc<[u8]>,
    /// The authorities that sign certificates.
    pub signers: Arc<Signers>,
    /// The key that signs the tokens of service accounts; `None` if no key is given.
    pub token_key: Option<Arc<SigningKey>>,
    connection: ConnectOptions,
}

/// The reason why keys or certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// A file cannot be read.
    #[error("--{flag}={path}: cannot be read: {source}; correct the path or the file's permissions")]
    Read {
        /// The flag.
        flag: &'static str,
        /// Its value.
        path: String,
        /// The reason.
        source: std::io::Error,
    },
    /// A file holds no usable certificates.
    #[error("--{flag}={path}: {problem}; give a file with PEM blocks of CERTIFICATE")]
    Certificates {
        /// The flag.
        flag: &'static str,
        /// Its value.
        path: String,
        /// The reason.
        problem: String,
    },
    /// A file holds no usable key.
    #[error("--{flag}={path}: {source}")]
    Key {
        /// The flag.
        flag: &'static str,
        /// Its value.
        path: String,
        /// The reason.
        source: KeyError,
    },
    /// A pair that signs certificates cannot be used.
    #[error("--cluster-signing-*: {0}")]
    Signer(#[from] AuthorityError),
    /// The kubeconfig cannot be read.
    #[error(transparent)]
    Kubeconfig(#[from] ConnectError),
}

impl Credentials {
    /// Creates credentials that read their files later. The kubeconfig of `connection` may hold the root certificates.
    #[must_use]
    pub fn new(connection: &ConnectOptions) -> Self {
        Self { connection: connection.clone(), ..Self::default() }
    }

    /// Reads the key of service account tokens; returns false if the command line names none. Upstream:
    /// cmd/kube-controller-manager/app, newServiceAccountTokenController.
    ///
    /// # Errors
    /// When the file cannot be read or holds no usable key.
    pub fn read_token_key(&mut self, options: &Options) -> Result<bool, CredentialError> {
        let flag = "service-account-private-key-file";
        let path = options.values.get_str(flag);
        if path.is_empty() {
            return Ok(false);
        }
        let pem = Zeroizing::new(read(flag, path)?);
        let key = SigningKey::from_pem(&pem).map_err(|source| CredentialError::Key {
            flag,
            path: path.to_owned(),
            source,
        })?;
        self.token_key = Some(Arc::new(key));
        Ok(true)
    }

    /// Reads the authorities that sign certificates; returns false if the command line names no pair of certificate and
    /// key.
    ///
    /// # Errors
    /// When a pair of certificate and key cannot be used.
    pub fn read_signers(&mut self, options: &Options) -> Result<bool, CredentialError> {
        self.signers = Arc::new(Signers::read(options)?);
        Ok(!self.signers.is_empty())
    }

    /// Reads the cluster's root certificates; returns false if neither the command line nor the kubeconfig has any.
    /// Upstream: cmd/kube-controller-manager/app, getKubeAPIServerCAFileContents.
    ///
    /// # Errors
    /// When the file or the kubeconfig cannot be read, or the file has no certificate, or one that cannot be decoded.
    pub fn read_root_ca(&mut self, options: &Options) -> Result<bool, CredentialError> {
        self.root_ca = root_ca(options, &self.connection)?.into();
        Ok(!self.root_ca.is_empty())
    }
}

fn root_ca(options: &Options, connection: &ConnectOptions) -> Result<Vec<u8>, CredentialError> {
    let flag = "root-ca-file";
    let path = options.values.get_str(flag);
    if path.is_empty() {
        return Ok(inline_authority(connection)?.unwrap_or_default());
    }
    let pem = read(flag, path)?;
    check_certificates(&pem).map_err(|problem| CredentialError::Certificates {
        flag,
        path: path.to_owned(),
        problem,
    })?;
    Ok(pem)
}

fn read(flag: &'static str, path: &str) -> Result<Vec<u8>, CredentialError> {
    fs::read(Path::new(path)).map_err(|source| CredentialError::Read { flag, path: path.to_owned(), source })
}

/// Checks that there is at least one certificate and each can be decoded. Upstream: client-go/util/cert, ParseCertsPEM.
fn check_certificates(pem: &[u8]) -> Result<(), String> {
    let mut count = 0;
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| format!("is not PEM: {error}"))?;
        ParsedCertificate::try_from(&certificate).map_err(|error| format!("an unreadable certificate: {error}"))?;
        count += 1;
    }
    if count == 0 { Err("contains no certificate".to_owned()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_without_readable_certificates_is_refused() {
        let garbled = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for (pem, problem) in [("", "no certificate"), ("text", "no certificate"), (garbled, "unreadable")] {
            let error = check_certificates(pem.as_bytes()).expect_err(pem);
            assert!(error.contains(problem), "{error}");
        }
    }
}
