//! Certificate requests, read as Go reads them. Upstream: pkg/apis/certificates/v1, ParseCSR.

use std::collections::HashSet;

use x509_parser::asn1_rs::BitString;
use x509_parser::prelude::FromDer;
use x509_parser::verify::verify_signature;
use x509_parser::x509::{AlgorithmIdentifier, SubjectPublicKeyInfo};

use super::der_reader::DerValue;
use super::subject::Subject;
use crate::credentials::der::{BIT_STRING, OCTET_STRING, SEQUENCE, SET};
use crate::credentials::pem::first_block;

/// 1.2.840.113549.1.9.14: extensions that the certificate should have.
const EXTENSION_REQUEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 14];
/// 2.5.29.17: the names of the subject besides its distinguished name.
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];
/// The attributes in the body of a request.
const ATTRIBUTES: u8 = 0xa0;

const MALFORMED: &str = "the request is malformed";

/// The contents of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    /// The subject of the certificate.
    pub subject: Subject,
    /// DNS names.
    pub dns_names: Vec<String>,
    /// E-mail addresses.
    pub emails: Vec<String>,
    /// IP addresses: four or sixteen bytes each.
    pub addresses: Vec<Vec<u8>>,
    /// URIs.
    pub uris: Vec<String>,
    /// The public key, as DER.
    pub public_key: Vec<u8>,
    /// The whole request, as DER.
    pub der: Vec<u8>,
}

impl Contents {
    /// Reads a request. Only [`Contents::check_signature`] checks its signature.
    ///
    /// # Errors
    /// When the text contains no request; the error has the reason.
    pub fn read(pem: &[u8]) -> Result<Self, String> {
        let block = first_block(pem).filter(|block| block.label == b"CERTIFICATE REQUEST");
        let der = block.ok_or("PEM block type must be CERTIFICATE REQUEST")?.der;
        let request = DerValue::only(&der, SEQUENCE).and_then(DerValue::sequence).ok_or(MALFORMED)?;
        let [body, _algorithm, _signature] = &*request else { return Err(MALFORMED.into()) };
        let body = body.sequence().ok_or(MALFORMED)?;
        let [_version, name, key, attributes @ ..] = &*body else { return Err(MALFORMED.into()) };
        if key.tag != SEQUENCE {
            return Err(MALFORMED.into());
        }
        let mut contents =
            Self { subject: Subject::read(*name)?, public_key: key.raw.to_vec(), der: der.clone(), ..Self::default() };
        if let Some(attributes) = attributes.first().filter(|value| value.tag == ATTRIBUTES) {
            contents.add_extensions(*attributes)?;
        }
        Ok(contents)
    }

    /// Checks that the requester has the private key. The other contents need not have a form that certificate parsers
    /// accept: the API server accepts requests without attributes, for example.
    ///
    /// # Errors
    /// When the signature is wrong, or of a kind that is not known.
    pub fn check_signature(&self) -> Result<(), String> {
        let request = DerValue::only(&self.der, SEQUENCE).and_then(DerValue::sequence).ok_or(MALFORMED)?;
        let [body, algorithm, signature] = &*request else { return Err(MALFORMED.into()) };
        let signature =
            Some(signature).filter(|value| value.tag == BIT_STRING).and_then(|value| value.content.split_first());
        let Some((0, signature)) = signature else { return Err(MALFORMED.into()) };
        let (_, key) = SubjectPublicKeyInfo::from_der(&self.public_key).map_err(|error| error.to_string())?;
        let (_, algorithm) = AlgorithmIdentifier::from_der(algorithm.raw).map_err(|error| error.to_string())?;
        let checked = verify_signature(&key, &algorithm, &BitString::new(0, signature), body.raw);
        checked.map_err(|error| format!("unable to verify certificate request signature: {error}"))
    }

    /// Adds the contents of all extension requests. Attributes of other types may have any form.
    fn add_extensions(&mut self, attributes: DerValue<'_>) -> Result<(), String> {
        let mut present = HashSet::new();
        for attribute in attributes.parts() {
            let attribute = attribute.ok_or(MALFORMED)?;
            let Some([id, values]) = attribute.sequence().and_then(|parts| <[_; 2]>::try_from(parts).ok()) else {
                continue;
            };
            if id.content != EXTENSION_REQUEST || values.tag != SET {
                continue;
            }
            // An attribute should have only one list of extensions; further ones are ignored.
            let Some(Some(list)) = values.parts().next() else { continue };
            for extension in list.sequence().ok_or(MALFORMED)? {
                let parts = extension.sequence().ok_or(MALFORMED)?;
                let ([id, value] | [id, _, value]) = &*parts else { return Err(MALFORMED.into()) };
                if value.tag != OCTET_STRING {
                    return Err(MALFORMED.into());
                }
                if !present.insert(id.content) {
                    return Err("certificate request contains duplicate requested extensions".into());
                }
                if id.content == SUBJECT_ALT_NAME {
                    self.add_names(value.content)?;
                }
            }
        }
        Ok(())
    }

    fn add_names(&mut self, names: &[u8]) -> Result<(), String> {
        // Go ignores bytes after the names.
        let names = DerValue::split(names).map(|(names, _)| names).filter(|names| names.tag == SEQUENCE);
        let names = names.ok_or("invalid subject alternative names")?;
        for name in names.parts() {
            let name = name.ok_or("invalid subject alternative name")?;
            match name.tag {
                0x81 => self.emails.push(ascii(name, "rfc822Name")?),
                0x82 => self.dns_names.push(ascii(name, "dNSName")?),
                0x86 => self.uris.push(ascii(name, "uniformResourceIdentifier")?),
                0x87 if matches!(name.content.len(), 4 | 16) => self.addresses.push(name.content.to_vec()),
                0x87 => return Err(format!("cannot parse IP address of length {}", name.content.len())),
                _ => {}
            }
        }
        Ok(())
    }
}

fn ascii(name: DerValue<'_>, kind: &str) -> Result<String, String> {
    let text = str::from_utf8(name.content).ok().filter(|text| text.is_ascii());
    text.map(ToOwned::to_owned).ok_or_else(|| format!("SAN {kind} is malformed"))
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD as BASE64;
    use proptest::prelude::*;

    use super::*;
    use crate::credentials::authority::{LEGACY_UNKNOWN, Signers};
    use crate::credentials::der::{INTEGER, bits, der, nested};

    fn pem(der: &[u8]) -> Vec<u8> {
        format!("-----BEGIN CERTIFICATE REQUEST-----\n{}\n-----END CERTIFICATE REQUEST-----\n", BASE64.encode(der))
            .into_bytes()
    }

    /// Returns a request without a subject, with these attributes; its key and its signature are empty.
    fn request(attributes: &[Vec<u8>]) -> Vec<u8> {
        let empty = der(SEQUENCE, &[]);
        let body = nested(SEQUENCE, &[&der(INTEGER, &[0]), &empty, &empty, &der(ATTRIBUTES, &attributes.concat())]);
        pem(&nested(SEQUENCE, &[&body, &empty, &der(BIT_STRING, &[0])]))
    }

    /// Returns an attribute that requests these extensions.
    fn requesting(extensions: &[Vec<u8>]) -> Vec<u8> {
        let list = der(SEQUENCE, &extensions.concat());
        nested(SEQUENCE, &[&der(0x06, EXTENSION_REQUEST), &der(SET, &list)])
    }

    fn extension(id: &[u8], value: &[u8]) -> Vec<u8> {
        nested(SEQUENCE, &[&der(0x06, id), &der(OCTET_STRING, value)])
    }

    fn names(names: &[(u8, &[u8])]) -> Vec<u8> {
        let names: Vec<u8> = names.iter().flat_map(|(tag, name)| der(*tag, name)).collect();
        extension(SUBJECT_ALT_NAME, &der(SEQUENCE, &names))
    }

    const KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x0f];

    #[test]
    fn names_of_every_extension_request_are_read() {
        let usage = || requesting(&[extension(KEY_USAGE, &[3, 2, 5, 0xa0])]);
        let dns = || names(&[(0x82, b"a.example.com"), (0x87, &[10, 0, 0, 1]), (0x84, b"ignored")]);
        let without_values = der(SEQUENCE, &der(0x06, &[0x2a, 3]));
        let with_more = extension(SUBJECT_ALT_NAME, &[der(SEQUENCE, &der(0x82, b"a")), vec![0]].concat());
        for (attributes, expected) in [
            (vec![usage(), requesting(&[dns()])], Ok(1)),
            (vec![requesting(&[dns(), extension(KEY_USAGE, &[])])], Ok(1)),
            (vec![without_values, requesting(&[dns()])], Ok(1)),
            (vec![requesting(&[with_more])], Ok(1)),
            (vec![usage()], Ok(0)),
            (vec![], Ok(0)),
            (vec![requesting(&[dns()]), requesting(&[dns()])], Err("duplicate")),
            (vec![usage(), usage()], Err("duplicate")),
            (vec![requesting(&[names(&[(0x82, &[0xc3, 0xbc])])])], Err("dNSName")),
            (vec![requesting(&[names(&[(0x87, &[1, 2, 3])])])], Err("length 3")),
            (vec![requesting(&[extension(SUBJECT_ALT_NAME, &[4, 0])])], Err("alternative names")),
        ] {
            let read = Contents::read(&request(&attributes)).map(|contents| contents.dns_names.len());
            match (&read, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(*found, expected),
                (Err(error), Err(words)) => assert!(error.contains(words), "{error}"),
                _ => panic!("{read:?} instead of {expected:?}"),
            }
        }
    }

    #[test]
    fn text_without_a_request_is_refused() {
        for (text, words) in [
            (b"".to_vec(), "PEM block type must be CERTIFICATE REQUEST"),
            (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_vec(), "PEM block type"),
            (pem(&[]), MALFORMED),
            (pem(&der(SEQUENCE, &[])), MALFORMED),
            (pem(&[&der(SEQUENCE, &[])[..], &[0]].concat()), MALFORMED),
        ] {
            let error = Contents::read(&text).expect_err("no request");
            assert!(error.starts_with(words), "{error}");
        }
    }

    /// The API server accepts all of these.
    #[test]
    fn request_is_read_however_its_text_is_formatted() {
        let good = String::from_utf8_lossy(include_bytes!("../signing/testdata/kubelet.csr"));
        let expected = Contents::read(good.as_bytes()).expect("well-formed");
        let (first, rest) = good.split_once('\n').expect("lines");
        for text in [
            format!("{first}\nComment: of node a\n\n{rest}"),
            format!("-----BEGIN X-----\n?\n-----END X-----\n{good}"),
            good.replace('\n', " \r\n"),
        ] {
            assert_eq!(Contents::read(text.as_bytes()), Ok(expected.clone()), "{text}");
        }
    }

    #[test]
    fn signature_is_checked_apart_from_the_contents() {
        let contents = Contents::read(&request(&[])).expect("well-formed");
        assert!(contents.check_signature().is_err());
        let good = include_bytes!("../signing/testdata/kubelet.csr");
        Contents::read(good).expect("well-formed").check_signature().expect("signed by its key");
    }

    #[test]
    fn signature_of_a_request_is_checked_whatever_its_attributes() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/certificates/signing/testdata");
        let signers = Signers::one(LEGACY_UNKNOWN, &format!("{folder}/p256-ca.crt"), &format!("{folder}/p256-ca.key"));
        let authority = signers.of(LEGACY_UNKNOWN).expect("a signer").current().expect("a pair");
        let key = &authority.key;
        let without_values = nested(SEQUENCE, &[&der(0x06, EXTENSION_REQUEST), &der(SET, &[])]);
        for attributes in [Vec::new(), der(ATTRIBUTES, &[]), der(ATTRIBUTES, &without_values)] {
            let body = nested(SEQUENCE, &[&der(INTEGER, &[0]), &der(SEQUENCE, &[]), &key.public_key(), &attributes]);
            let signature = key.sign_certificate(&body).expect("signed");
            for (signature, is_good) in [(&signature[..], true), (&signature[1..], false)] {
                let request = nested(SEQUENCE, &[&body, &key.certificate_algorithm(), &bits(signature)]);
                let contents = Contents::read(&pem(&request)).expect("well-formed");
                assert_eq!(contents.check_signature().is_ok(), is_good, "{attributes:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(
            text in "\\PC{0,60}|-----BEGIN [A-Z ]{0,24}-----\n[A-Za-z0-9+/=\n]{0,60}(-----END [A-Z ]{0,24}-----)?",
            attributes in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..4),
        ) {
            drop(Contents::read(text.as_bytes()));
            drop(Contents::read(&request(&attributes)));
            let wrapped: Vec<Vec<u8>> = attributes.iter().map(|bytes| requesting(&[extension(SUBJECT_ALT_NAME, bytes)])).collect();
            drop(Contents::read(&request(&wrapped)));
        }

        /// A damaged request is read or refused, without a panic.
        #[test]
        fn any_damaged_request_is_read_or_refused(damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
            let good = include_bytes!("../signing/testdata/kubelet.csr");
            let mut bytes = first_block(good).expect("PEM").der;
            for (place, byte) in damage {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            if let Ok(contents) = Contents::read(&pem(&bytes)) {
                drop(contents.check_signature());
                drop(contents.subject.to_der());
            }
        }
    }
}
