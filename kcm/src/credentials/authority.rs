//! The authorities that sign: a certificate and its key from files, parsed again when they have changed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use ring::digest;
use runtime::lock::lock;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use x509_parser::extensions::ParsedExtension;
use x509_parser::parse_x509_certificate;
use zeroize::Zeroizing;

use crate::credentials::signing_key::{KeyError, SigningKey};
use crate::flags::Options;

/// Signer of client certificates for kubelets.
pub const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Signer of serving certificates for kubelets.
pub const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
/// Signer of client certificates for other clients of the API server.
pub const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
/// Signer of approved requests with any contents.
pub const LEGACY_UNKNOWN: &str = "kubernetes.io/legacy-unknown";

/// The reason why an authority cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// The reason.
        source: std::io::Error,
    },
    /// A file does not hold exactly one certificate.
    #[error("{path}: expected 1 certificate, found {count}; give a file with only the signing certificate")]
    Count {
        /// The file.
        path: String,
        /// The number of certificates.
        count: usize,
    },
    /// The certificate cannot be read.
    #[error("{path}: an unreadable certificate: {problem}")]
    Certificate {
        /// The file.
        path: String,
        /// The reason.
        problem: String,
    },
    /// The key cannot be used.
    #[error("{path} {source}")]
    Key {
        /// The file.
        path: String,
        /// The reason.
        source: KeyError,
    },
    /// The key does not belong to the certificate.
    #[error("the key in {key} does not belong to the certificate in {certificate}; give a matching pair")]
    Mismatch {
        /// The certificate's file.
        certificate: String,
        /// The key's file.
        key: String,
    },
}

/// An authority, ready to sign.
#[derive(Debug)]
pub struct Authority {
    /// Its name, as DER.
    pub subject: Vec<u8>,
    /// The identifier of its key; empty if its certificate has none.
    pub key_id: Vec<u8>,
    /// The end of its certificate's validity, as a Unix time in seconds.
    pub not_after: i64,
    /// Its key.
    pub key: SigningKey,
}

/// The files of an authority.
#[derive(Debug)]
pub struct Files {
    certificate: String,
    key: String,
    /// The authority that was read last, with the hash of its files.
    read: Mutex<Option<(Vec<u8>, Arc<Authority>)>>,
}

impl Files {
    fn new(certificate: &str, key: &str) -> Self {
        Self { certificate: certificate.to_owned(), key: key.to_owned(), read: Mutex::default() }
    }

    /// Returns the authority in the current files.
    ///
    /// # Errors
    /// When they cannot be read or do not form a pair.
    pub fn current(&self) -> Result<Arc<Authority>, AuthorityError> {
        let (certificate, key) = (read(&self.certificate)?, read(&self.key)?);
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(&certificate);
        context.update(&key);
        let hash = context.finish().as_ref().to_vec();
        let mut known = lock(&self.read);
        if let Some((read_from, authority)) = &*known
            && *read_from == hash
        {
            return Ok(authority.clone());
        }
        let authority = Arc::new(self.parse(&certificate, &key)?);
        *known = Some((hash, authority.clone()));
        Ok(authority)
    }

    fn parse(&self, certificate: &[u8], key: &[u8]) -> Result<Authority, AuthorityError> {
        let path = || self.certificate.clone();
        let problem = |problem: String| AuthorityError::Certificate { path: path(), problem };
        let all: Vec<_> = CertificateDer::pem_slice_iter(certificate)
            .collect::<Result<_, _>>()
            .map_err(|error| problem(error.to_string()))?;
        let [certificate] = &all[..] else { return Err(AuthorityError::Count { path: path(), count: all.len() }) };
        let (_, parsed) = parse_x509_certificate(certificate).map_err(|error| problem(error.to_string()))?;
        let key = SigningKey::from_pem(key).map_err(|source| AuthorityError::Key { path: self.key.clone(), source })?;
        if key.public_key() != parsed.public_key().raw {
            return Err(AuthorityError::Mismatch { certificate: path(), key: self.key.clone() });
        }
        let key_id = parsed.extensions().iter().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
            _ => None,
        });
        Ok(Authority {
            subject: parsed.subject().as_raw().to_vec(),
            key_id: key_id.unwrap_or_default(),
            not_after: parsed.validity().not_after.timestamp(),
            key,
        })
    }
}

fn read(path: &str) -> Result<Zeroizing<Vec<u8>>, AuthorityError> {
    std::fs::read(path).map(Zeroizing::new).map_err(|source| AuthorityError::Read { path: path.to_owned(), source })
}

/// The authority of each signer that has one.
#[derive(Debug, Default)]
pub struct Signers(HashMap<&'static str, Arc<Files>>);

impl Signers {
    /// Reads the files that the flags name: one pair for all signers, or a pair for each of several signers.
    ///
    /// # Errors
    /// When a pair cannot be used.
    pub fn read(options: &Options) -> Result<Self, AuthorityError> {
        const SIGNERS: [(&str, &str, &str); 4] = [
            (KUBELET_SERVING, "cluster-signing-kubelet-serving-cert-file", "cluster-signing-kubelet-serving-key-file"),
            (KUBELET_CLIENT, "cluster-signing-kubelet-client-cert-file", "cluster-signing-kubelet-client-key-file"),
            (
                CLIENT,
                "cluster-signing-kube-apiserver-client-cert-file",
                "cluster-signing-kube-apiserver-client-key-file",
            ),
            (LEGACY_UNKNOWN, "cluster-signing-legacy-unknown-cert-file", "cluster-signing-legacy-unknown-key-file"),
        ];
        let files = |certificate: &str, key: &str| {
            let (certificate, key) = (options.values.get_str(certificate), options.values.get_str(key));
            (!certificate.is_empty() && !key.is_empty()).then(|| Arc::new(Files::new(certificate, key)))
        };
        let all = files("cluster-signing-cert-file", "cluster-signing-key-file");
        let mut signers = HashMap::new();
        for (signer, certificate, key) in SIGNERS {
            if let Some(files) = all.clone().or_else(|| files(certificate, key)) {
                files.current()?;
                signers.insert(signer, files);
            }
        }
        Ok(Self(signers))
    }

    /// Returns the files of a signer's authority.
    pub fn of(&self, signer: &str) -> Option<&Arc<Files>> {
        self.0.get(signer)
    }

    /// Returns true if nothing can be signed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[cfg(test)]
    pub(crate) fn one(signer: &'static str, certificate: &str, key: &str) -> Self {
        Self(HashMap::from([(signer, Arc::new(Files::new(certificate, key)))]))
    }
}
