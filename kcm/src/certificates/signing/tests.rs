//! Tests of signed requests, lifetimes, and the certificates as two independent parsers read them.

use std::time::Duration;

use jiff::Timestamp;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::parse_x509_certificate;
use x509_parser::pem::parse_x509_pem;

use super::certificate::{sign, validity};
use super::{is_due, lifetime};
use crate::certificates::request::tests::request;
use crate::certificates::request::{Contents, KUBELET_SERVING};
use crate::credentials::authority::{AuthorityError, Signers};

const TESTDATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/certificates/signing/testdata/");

fn path(name: &str) -> String {
    format!("{TESTDATA}{name}")
}

fn requested() -> Contents {
    let pem = std::fs::read(path("kubelet.csr")).expect("the request");
    Contents::read(&pem).expect("a good request")
}

fn now() -> Timestamp {
    "2026-12-01T00:00:00Z".parse().expect("a time")
}

#[test]
fn only_approved_requests_are_due() {
    for (conditions, certificate, due) in [
        (&[("Approved", 1)][..], "", true),
        (&[], "", false),
        (&[("Denied", 1)], "", false),
        (&[("Approved", 1), ("Denied", 1)], "", false),
        (&[("Approved", 1), ("Failed", 1)], "", false),
        (&[("Approved", 1)], "PEM", false),
    ] {
        assert_eq!(is_due(&request(KUBELET_SERVING, &[], conditions, certificate)), due, "{conditions:?}");
    }
}

#[test]
fn lifetimes_have_bounds() {
    let hours = |hours: u64| Duration::from_secs(hours * 3600);
    for (requested, expected) in [
        (None, hours(24)),
        (Some(3600), hours(1)),
        (Some(48 * 3600), hours(24)),
        (Some(600), Duration::from_secs(600)),
        (Some(540), Duration::from_secs(600)),
        (Some(-1), Duration::from_secs(600)),
    ] {
        assert_eq!(lifetime(requested, hours(24)), expected, "{requested:?}");
    }
}

#[test]
fn long_lived_certificates_are_backdated_as_a_whole() {
    let hour = 3600;
    for (lifetime, authority_end, expected) in [
        (hour, 99 * hour, Ok((-300, hour))),
        (8 * hour - 1, 99 * hour, Ok((-300, 8 * hour - 1))),
        (8 * hour, 99 * hour, Ok((-300, 8 * hour - 300))),
        (200 * hour, 99 * hour, Ok((-300, 99 * hour))),
        (hour, 0, Err(())),
        (hour, -hour, Err(())),
    ] {
        let lifetime = Duration::from_secs(lifetime as u64);
        assert_eq!(validity(lifetime, 0, authority_end).map_err(|_| ()), expected, "{lifetime:?} {authority_end}");
    }
}

/// Signs the kubelet's request with each kind of authority and verifies the result with two other certificate parsers.
#[test]
fn certificates_contain_the_request() {
    for name in ["rsa", "p256"] {
        let (certificate, key) = (path(&format!("{name}-ca.crt")), path(&format!("{name}-ca.key")));
        let signers = Signers::one(KUBELET_SERVING, &certificate, &key);
        let files = signers.of(KUBELET_SERVING).expect("a signer");
        let authority = files.current().expect("a pair");
        let usages = ["server auth", "key encipherment", "digital signature", "client auth"];
        let pem = sign(&authority, &requested(), usages.into_iter(), Duration::from_secs(3600), now()).expect("signed");

        let (_, block) = parse_x509_pem(pem.as_bytes()).expect("PEM");
        let (rest, leaf) = parse_x509_certificate(&block.contents).expect("a certificate");
        assert!(rest.is_empty());
        let parent = std::fs::read(&certificate).expect("the authority");
        let (_, parent) = parse_x509_pem(&parent).expect("PEM");
        let (_, parent) = parse_x509_certificate(&parent.contents).expect("a certificate");
        leaf.verify_signature(Some(parent.public_key())).expect("the authority signed it");
        assert_eq!(leaf.issuer(), parent.subject());
        assert_eq!(leaf.subject().to_string(), "O=system:nodes, CN=system:node:a");
        assert_eq!(leaf.validity().not_before.timestamp(), now().as_second() - 300);
        assert_eq!(leaf.validity().not_after.timestamp(), now().as_second() + 3600);
        assert!(!leaf.is_ca() && leaf.version().0 == 2);
        let usage = leaf.key_usage().expect("unique").expect("present").value;
        assert!(usage.digital_signature() && usage.key_encipherment() && !usage.key_cert_sign());
        let purposes = leaf.extended_key_usage().expect("unique").expect("present").value;
        assert!(purposes.server_auth && purposes.client_auth && !purposes.any);
        let names = leaf.subject_alternative_name().expect("unique").expect("present").value;
        assert_eq!(
            names.general_names,
            [
                GeneralName::DNSName("a.example.com"),
                GeneralName::RFC822Name("a@example.com"),
                GeneralName::IPAddress(&[10, 0, 0, 1]),
                GeneralName::URI("urn:a"),
            ]
        );
        let key_id = leaf.extensions().iter().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::AuthorityKeyIdentifier(id) => id.key_identifier.as_ref().map(|id| id.0.to_vec()),
            _ => None,
        });
        assert_eq!(key_id.expect("the authority's key is named"), authority.key_id);
        rustls::server::ParsedCertificate::try_from(&rustls::pki_types::CertificateDer::from(block.contents.clone()))
            .expect("a TLS library reads it too");
    }
}

/// Upstream's cases of TestKeyUsagesFromStrings.
#[test]
fn usages_become_bits_and_purposes_without_duplicates() {
    let signers = Signers::one(KUBELET_SERVING, &path("p256-ca.crt"), &path("p256-ca.key"));
    let authority = signers.of(KUBELET_SERVING).expect("a signer").current().expect("a pair");
    let email = &[0x2b, 6, 1, 5, 5, 7, 3, 4][..];
    let ocsp = &[0x2b, 6, 1, 5, 5, 7, 3, 9][..];
    let client = &[0x2b, 6, 1, 5, 5, 7, 3, 2][..];
    // The first bit of a usage is the lowest one here.
    for (usages, flags, purposes) in [
        (&["signing"][..], Some(1), &[][..]),
        (&["client auth"], None, &[client]),
        (&["client auth", "client auth"], None, &[client]),
        (&["cert sign", "encipher only"], Some((1 << 5) | (1 << 7)), &[]),
        (&["ocsp signing", "crl sign", "s/mime", "content commitment"], Some((1 << 6) | (1 << 1)), &[email, ocsp]),
    ] {
        let lifetime = Duration::from_secs(3600);
        let pem = sign(&authority, &requested(), usages.iter().copied(), lifetime, now()).expect("signed");
        let (_, block) = parse_x509_pem(pem.as_bytes()).expect("PEM");
        let (_, leaf) = parse_x509_certificate(&block.contents).expect("a certificate");
        let found = leaf.key_usage().expect("unique").map(|usage| usage.value.flags);
        let ids = purposes.iter().flat_map(|id| [&[0x06, 8][..], *id].concat()).collect::<Vec<u8>>();
        let extension = leaf.extensions().iter().find(|extension| extension.oid.as_bytes() == [0x55, 0x1d, 0x25]);
        let expected = (!ids.is_empty()).then(|| [&[0x30, ids.len() as u8][..], &ids].concat());
        assert_eq!((found, extension.map(|extension| extension.value.to_vec())), (flags, expected), "{usages:?}");
    }
}

#[test]
fn ipv4_mapped_address_becomes_an_ipv4_address() {
    let signers = Signers::one(KUBELET_SERVING, &path("p256-ca.crt"), &path("p256-ca.key"));
    let authority = signers.of(KUBELET_SERVING).expect("a signer").current().expect("a pair");
    let v6 = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 1];
    let mapped = [&[0; 10][..], &[0xff, 0xff, 10, 0, 0, 2]].concat();
    let contents = Contents {
        dns_names: Vec::new(),
        emails: Vec::new(),
        uris: Vec::new(),
        addresses: vec![mapped, v6.to_vec()],
        ..requested()
    };
    let pem =
        sign(&authority, &contents, ["server auth"].into_iter(), Duration::from_secs(3600), now()).expect("signed");
    let (_, block) = parse_x509_pem(pem.as_bytes()).expect("PEM");
    let (_, leaf) = parse_x509_certificate(&block.contents).expect("a certificate");
    let names = leaf.subject_alternative_name().expect("unique").expect("present").value;
    assert_eq!(names.general_names, [GeneralName::IPAddress(&[10, 0, 0, 2]), GeneralName::IPAddress(&v6)]);
}

#[test]
fn unknown_usages_and_bad_pairs_are_refused() {
    let pair = |certificate: &str, key: &str| {
        let signers = Signers::one(KUBELET_SERVING, &path(certificate), &path(key));
        signers.of(KUBELET_SERVING).expect("a signer").current()
    };
    let authority = pair("p256-ca.crt", "p256-ca.key").expect("a pair");
    let refused = sign(&authority, &requested(), ["magic"].into_iter(), Duration::from_secs(3600), now());
    assert_eq!(refused.expect_err("unknown"), r#"unrecognized usage values: ["magic"]"#);
    assert!(matches!(pair("p256-ca.crt", "rsa-ca.key"), Err(AuthorityError::Mismatch { .. })));
    assert!(matches!(pair("p256-ca.key", "p256-ca.key"), Err(AuthorityError::Count { count: 0, .. })));
    assert!(matches!(pair("absent", "p256-ca.key"), Err(AuthorityError::Read { .. })));
}

#[test]
fn changed_files_are_read_again() {
    let folder = std::env::temp_dir().join(format!("kcm-authority-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let (certificate, key) = (folder.join("ca.crt"), folder.join("ca.key"));
    let put = |name: &str| {
        std::fs::copy(path(&format!("{name}-ca.crt")), &certificate).expect("copied");
        std::fs::copy(path(&format!("{name}-ca.key")), &key).expect("copied");
    };
    put("p256");
    let signers = Signers::one(KUBELET_SERVING, &certificate.display().to_string(), &key.display().to_string());
    let files = signers.of(KUBELET_SERVING).expect("a signer");
    let first = files.current().expect("a pair");
    assert!(std::sync::Arc::ptr_eq(&first, &files.current().expect("the same pair")));
    put("rsa");
    assert_ne!(files.current().expect("the new pair").key.id(), first.key.id());
    std::fs::write(&key, "broken").expect("written");
    assert!(files.current().is_err(), "the previous pair is still used although the key file is damaged");
    std::fs::remove_dir_all(&folder).expect("removed");
}
