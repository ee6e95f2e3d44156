//! Client certificates: their verification, and the user in their subject.
//!
//! A handshake requests a certificate and accepts any. Certificates are verified per request, with the authorities that
//! are trusted at that moment. A certificate that is expired, or signed by another authority, therefore leads
//! to a 401 and not to a broken connection, as in upstream.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};
use webpki::EndEntityCert;

use super::user::User;

const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const ORGANIZATION: &[u8] = &[0x55, 0x04, 0x0a];
/// 1.3.6.1.4.1.57683.2. Upstream: apimachinery, apis/asn1, X509UID.
const UID: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0x83, 0xc2, 0x53, 0x02];

/// The attribute of a user that identifies its credentials in audit logs. Upstream: apiserver, authentication/user,
/// CredentialIDKey.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// The reason why a certificate is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum PeerError {
    /// No trusted authority has signed the certificate for this use, or it is not valid now.
    #[error("the client certificate is not valid: {0}")]
    Untrusted(String),
    /// The subject of the certificate cannot be read.
    #[error("the subject of the client certificate cannot be read")]
    Subject,
    /// The subject contains more than one uid, or an empty one.
    #[error("the subject of the client certificate has more than one uid, or an empty one")]
    Uid,
}

/// Certificate authorities that are trusted to sign client certificates.
#[derive(Debug, Clone)]
pub(super) struct Bundle {
    verifier: Arc<dyn ClientCertVerifier>,
    subjects: Vec<DistinguishedName>,
}

impl Bundle {
    /// Parses the authorities of a PEM text.
    ///
    /// # Errors
    /// The reason why the text is not usable; for example, that it contains no certificate.
    pub(super) fn parse(pem: &[u8], provider: &Arc<CryptoProvider>) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            roots
                .add(certificate.map_err(|error| error.to_string())?)
                .map_err(|error| format!("certificate {} cannot be used: {error}", roots.len() + 1))?;
        }
        let subjects = roots.subjects();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self { verifier, subjects })
    }

    /// Returns the names of the authorities, as a handshake sends them to clients.
    pub(super) fn subjects(&self) -> &[DistinguishedName] {
        &self.subjects
    }

    /// Verifies that an authority signed the chain (the client's certificate first) for client authentication, and that
    /// it is valid now.
    pub(super) fn verify(&self, chain: &[CertificateDer<'_>]) -> Result<(), PeerError> {
        let [own, intermediates @ ..] = chain else {
            return Err(PeerError::Untrusted("no certificate was sent".into()));
        };
        self.verifier
            .verify_client_cert(own, intermediates, UnixTime::now())
            .map(drop)
            .map_err(|error| PeerError::Untrusted(error.to_string()))
    }
}

/// Returns the user of a certificate; `None` without common name. Its UID is read only if `reads_uid` (gate
/// AllowParsingUserUIDFromCertAuth). Upstream: apiserver, request/x509, CommonNameUserConversion.
pub(super) fn user(certificate: &CertificateDer<'_>, reads_uid: bool) -> Result<Option<User>, PeerError> {
    let subject = subject(certificate)?;
    let Some(name) = subject.last(COMMON_NAME).filter(|name| !name.is_empty()) else { return Ok(None) };
    let uids: Vec<&str> = subject.all(UID).filter(|_| reads_uid).collect();
    let uid = match uids[..] {
        [] => "",
        [uid] if !uid.is_empty() => uid,
        _ => return Err(PeerError::Uid),
    };
    Ok(Some(User {
        name: name.to_owned(),
        uid: uid.to_owned(),
        groups: subject.all(ORGANIZATION).map(ToOwned::to_owned).collect(),
        extra: BTreeMap::from([(CREDENTIAL_ID.to_owned(), vec![credential_id(certificate)])]),
    }))
}

/// Returns the identifier of a certificate: its SHA-256 in hexadecimal.
fn credential_id(certificate: &CertificateDer<'_>) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, certificate);
    digest.as_ref().iter().fold("X509SHA256=".to_owned(), |id, byte| format!("{id}{byte:02x}"))
}

/// Returns the common name of a certificate; empty if it has none.
pub(super) fn common_name(certificate: &CertificateDer<'_>) -> Result<String, PeerError> {
    Ok(subject(certificate)?.last(COMMON_NAME).unwrap_or_default().to_owned())
}

/// The attributes of a subject in their order: object identifier and text.
struct Subject(Vec<(Vec<u8>, String)>);

impl Subject {
    fn all(&self, oid: &[u8]) -> impl DoubleEndedIterator<Item = &str> {
        self.0.iter().filter(move |(own, _)| own == oid).map(|(_, text)| text.as_str())
    }

    fn last(&self, oid: &[u8]) -> Option<&str> {
        self.all(oid).next_back()
    }
}

fn subject(certificate: &CertificateDer<'_>) -> Result<Subject, PeerError> {
    let certificate = EndEntityCert::try_from(certificate).map_err(|_| PeerError::Subject)?;
    attributes(certificate.subject()).map(Subject).ok_or(PeerError::Subject)
}

/// Parses the attributes of a Name without its outer tag: SETs of SEQUENCEs of an identifier and a value (RFC 5280,
/// 4.1.2.4).
fn attributes(mut name: &[u8]) -> Option<Vec<(Vec<u8>, String)>> {
    const OID: u8 = 0x06;
    const SEQUENCE: u8 = 0x30;
    const SET: u8 = 0x31;
    let mut found = Vec::new();
    while !name.is_empty() {
        let (SET, mut set, rest) = element(name)? else { return None };
        name = rest;
        while !set.is_empty() {
            let (SEQUENCE, attribute, rest) = element(set)? else { return None };
            set = rest;
            let (OID, oid, value) = element(attribute)? else { return None };
            let (tag, value, end) = element(value)?;
            if !end.is_empty() {
                return None;
            }
            // Attributes without meaning for user names and groups may have any type.
            if [COMMON_NAME, ORGANIZATION, UID].contains(&oid) {
                found.push((oid.to_owned(), text(tag, value)?));
            }
        }
    }
    Some(found)
}

/// Returns the value of a directory string, for the types whose bytes are UTF-8 or ASCII.
fn text(tag: u8, value: &[u8]) -> Option<String> {
    const UTF8: u8 = 0x0c;
    const NUMERIC: u8 = 0x12;
    const PRINTABLE: u8 = 0x13;
    const IA5: u8 = 0x16;
    let text = std::str::from_utf8(value).ok()?;
    match tag {
        UTF8 => Some(text.to_owned()),
        NUMERIC | PRINTABLE | IA5 if text.is_ascii() => Some(text.to_owned()),
        _ => None,
    }
}

/// Splits off the first DER element: its tag, its content, and the rest.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, first], rest) = der.split_first_chunk::<2>()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81 => rest.split_first().map(|(length, rest)| (usize::from(*length), rest))?,
        0x82 => rest.split_first_chunk::<2>().map(|(length, rest)| (usize::from(u16::from_be_bytes(*length)), rest))?,
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// Accepts any client certificate whose key the client has; the certificate is verified with each request.
#[derive(Debug)]
pub(super) struct AnyClientCertificate {
    pub(super) provider: Arc<CryptoProvider>,
    pub(super) subjects: Vec<DistinguishedName>,
}

impl ClientCertVerifier for AnyClientCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.subjects
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

    use super::*;

    fn provider() -> Arc<CryptoProvider> {
        Arc::new(rustls::crypto::ring::default_provider())
    }

    fn authority() -> (Issuer<'static, KeyPair>, Bundle) {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "ca");
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        let bundle = Bundle::parse(pem.as_bytes(), &provider()).expect("a bundle");
        (Issuer::new(params, key), bundle)
    }

    fn signed(
        ca: &Issuer<'static, KeyPair>,
        configure: impl FnOnce(&mut CertificateParams),
    ) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        configure(&mut params);
        params.signed_by(&KeyPair::generate().expect("a key"), ca).expect("a certificate").der().clone()
    }

    #[test]
    fn subject_contains_user_groups_and_uid() {
        let (ca, _) = authority();
        let uid = DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]);
        let full = signed(&ca, |params| {
            params.distinguished_name.push(DnType::CommonName, "änn");
            params.distinguished_name.push(DnType::OrganizationName, "system:masters");
            params.distinguished_name.push(DnType::CountryName, "AT");
            params.distinguished_name.push(uid, "u-1");
        });
        let named = user(&full, true).expect("readable").expect("a user");
        assert_eq!((named.name.as_str(), named.uid.as_str()), ("änn", "u-1"));
        assert_eq!(named.groups, ["system:masters"]);
        assert_eq!(named.extra, BTreeMap::from([(CREDENTIAL_ID.to_owned(), vec![credential_id(&full)])]));
        assert_eq!(user(&full, false).expect("readable").expect("a user").uid, "", "with the gate off");
        let unnamed = signed(&ca, |params| params.distinguished_name.push(DnType::OrganizationName, "dev"));
        assert_eq!(user(&unnamed, true), Ok(None));
    }

    #[test]
    fn credential_id_is_the_digest_of_the_certificate() {
        // From `printf abc | sha256sum`.
        let expected = "X509SHA256=ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(credential_id(&CertificateDer::from_slice(b"abc")), expected);
    }

    #[test]
    fn only_valid_client_certificates_of_trusted_authorities_are_accepted() {
        let ((ca, bundle), (other, _)) = (authority(), authority());
        let good = signed(&ca, |_| {});
        assert_eq!(bundle.verify(&[good]), Ok(()));
        let foreign = signed(&other, |_| {});
        let expired = signed(&ca, |params| params.not_after = rcgen::date_time_ymd(2020, 1, 1));
        let early = signed(&ca, |params| params.not_before = rcgen::date_time_ymd(3000, 1, 1));
        let for_servers = signed(&ca, |params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]);
        for bad in [foreign, expired, early, for_servers] {
            assert!(matches!(bundle.verify(&[bad]), Err(PeerError::Untrusted(_))));
        }
        assert!(bundle.verify(&[]).is_err());
    }

    #[test]
    fn bundle_without_certificate_is_refused() {
        for text in ["", "no PEM at all", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            assert!(Bundle::parse(text.as_bytes(), &provider()).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_certificate_bytes_are_parsed_without_panic(name: Vec<u8>) {
            let _ = attributes(&name);
            if let Some((_, content, rest)) = element(&name) {
                prop_assert!(content.len() + rest.len() + 2 <= name.len());
            }
        }
    }
}
