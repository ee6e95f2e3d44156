//! Creates a certificate from the contents of a request and the policy of the authority, in upstream's form.
//!
//! Upstream: pkg/controller/certificates/authority, PermissiveSigningPolicy.

use std::collections::BTreeSet;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;
use ring::rand::{SecureRandom as _, SystemRandom};

use crate::certificates::request::Contents;
use crate::credentials::authority::Authority;
use crate::credentials::der::{BIT_STRING, INTEGER, OCTET_STRING, SEQUENCE, bits, der, nested, unsigned};

/// Seconds before now at which a validity begins, because clocks of clients may be behind.
const BACKDATE: i64 = 5 * 60;
/// Lifetime in seconds from which [`BACKDATE`] also moves the end of the validity back.
const SHORT_LIFETIME_SECONDS: i64 = 8 * 60 * 60;

/// Object identifiers of extensions, as DER.
const KEY_USAGE: &[u8] = &[0x06, 0x03, 0x55, 0x1d, 0x0f];
const EXTENDED_KEY_USAGE: &[u8] = &[0x06, 0x03, 0x55, 0x1d, 0x25];
const BASIC_CONSTRAINTS: &[u8] = &[0x06, 0x03, 0x55, 0x1d, 0x13];
const AUTHORITY_KEY_ID: &[u8] = &[0x06, 0x03, 0x55, 0x1d, 0x23];
const SUBJECT_ALT_NAME: &[u8] = &[0x06, 0x03, 0x55, 0x1d, 0x11];

/// Usages of a key, by their bit.
const USAGES: [(&str, u8); 10] = [
    ("signing", 0),
    ("digital signature", 0),
    ("content commitment", 1),
    ("key encipherment", 2),
    ("data encipherment", 3),
    ("key agreement", 4),
    ("cert sign", 5),
    ("crl sign", 6),
    ("encipher only", 7),
    ("decipher only", 8),
];

/// Purposes of a certificate and the contents of their object identifiers, in the order in which Go numbers them.
const PURPOSES: [(&str, &[u8]); 13] = [
    ("any", &[0x55, 0x1d, 0x25, 0x00]),
    ("server auth", &[0x2b, 6, 1, 5, 5, 7, 3, 1]),
    ("client auth", &[0x2b, 6, 1, 5, 5, 7, 3, 2]),
    ("code signing", &[0x2b, 6, 1, 5, 5, 7, 3, 3]),
    ("email protection", &[0x2b, 6, 1, 5, 5, 7, 3, 4]),
    ("s/mime", &[0x2b, 6, 1, 5, 5, 7, 3, 4]),
    ("ipsec end system", &[0x2b, 6, 1, 5, 5, 7, 3, 5]),
    ("ipsec tunnel", &[0x2b, 6, 1, 5, 5, 7, 3, 6]),
    ("ipsec user", &[0x2b, 6, 1, 5, 5, 7, 3, 7]),
    ("timestamping", &[0x2b, 6, 1, 5, 5, 7, 3, 8]),
    ("ocsp signing", &[0x2b, 6, 1, 5, 5, 7, 3, 9]),
    ("microsoft sgc", &[0x2b, 6, 1, 4, 1, 0x82, 0x37, 0x0a, 3, 3]),
    ("netscape sgc", &[0x60, 0x86, 0x48, 1, 0x86, 0xf8, 0x42, 4, 1]),
];

/// Returns the first and last second of a certificate's validity, as Unix times.
pub fn validity(lifetime: Duration, now: i64, authority_end: i64) -> Result<(i64, i64), String> {
    let lifetime = i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX / 2);
    let end = now.saturating_add(if lifetime < SHORT_LIFETIME_SECONDS { lifetime } else { lifetime - BACKDATE });
    if now >= authority_end {
        return Err(format!("the signer has expired: NotAfter={}", readable(authority_end)));
    }
    Ok((now - BACKDATE, end.min(authority_end)))
}

fn readable(seconds: i64) -> String {
    Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |time| time.to_string())
}

/// Returns a signed certificate as PEM.
///
/// # Errors
/// When a usage is unknown, the authority has expired, or the system provides no random numbers.
pub fn sign<'a>(
    authority: &Authority,
    contents: &Contents,
    usages: impl Iterator<Item = &'a str>,
    lifetime: Duration,
    now: Timestamp,
) -> Result<String, String> {
    let subject = contents.subject.to_der();
    let extensions = extensions(authority, contents, &subject, usages)?;
    let (start, end) = validity(lifetime, now.as_second(), authority.not_after)?;
    let mut serial = [0; 16];
    SystemRandom::new().fill(&mut serial).map_err(|_| "the system provides no random numbers")?;
    let algorithm = authority.key.certificate_algorithm();
    let body = nested(
        SEQUENCE,
        &[
            // Version 3.
            &nested(0xa0, &[&der(INTEGER, &[2])]),
            &unsigned(&serial),
            &algorithm,
            &authority.subject,
            &nested(SEQUENCE, &[&time(start)?, &time(end)?]),
            &subject,
            &contents.public_key,
            &nested(0xa3, &[&der(SEQUENCE, &extensions.concat())]),
        ],
    );
    let signature = authority.key.sign_certificate(&body).map_err(|error| error.to_string())?;
    let certificate = nested(SEQUENCE, &[&body, &algorithm, &bits(&signature)]);
    Ok(pem(&certificate))
}

fn pem(certificate: &[u8]) -> String {
    let text = BASE64.encode(certificate);
    let lines = text.as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line) + "\n").collect::<String>();
    format!("-----BEGIN CERTIFICATE-----\n{lines}-----END CERTIFICATE-----\n")
}

/// Returns a time as DER: a UTCTime before 2050, a GeneralizedTime from then on.
fn time(seconds: i64) -> Result<Vec<u8>, String> {
    let time = Timestamp::from_second(seconds).map_err(|error| error.to_string())?;
    let long = time.strftime("%Y%m%d%H%M%SZ").to_string();
    Ok(if long.as_str() < "2050" { der(0x17, &long.as_bytes()[2..]) } else { der(0x18, long.as_bytes()) })
}

fn extensions<'a>(
    authority: &Authority,
    contents: &Contents,
    subject: &[u8],
    usages: impl Iterator<Item = &'a str>,
) -> Result<Vec<Vec<u8>>, String> {
    let mut flags = 0u16;
    let mut purposes = BTreeSet::new();
    let mut unknown = Vec::new();
    for usage in usages {
        let purpose = PURPOSES.iter().position(|(name, _)| *name == usage);
        match (USAGES.iter().find(|(name, _)| *name == usage), purpose) {
            (Some((_, bit)), _) => flags |= 0x8000 >> bit,
            // Several names can have the same identifier: the first of them is used.
            (None, Some(found)) => {
                let first = PURPOSES.iter().position(|(_, id)| *id == PURPOSES[found].1);
                purposes.extend(first);
            }
            (None, None) => unknown.push(usage),
        }
    }
    if !unknown.is_empty() {
        return Err(format!("unrecognized usage values: {unknown:?}"));
    }
    let mut extensions = Vec::new();
    if flags != 0 {
        extensions.push(extension(KEY_USAGE, true, &flag_bits(flags)));
    }
    if !purposes.is_empty() {
        let ids: Vec<u8> = purposes.into_iter().flat_map(|purpose| der(0x06, PURPOSES[purpose].1)).collect();
        extensions.push(extension(EXTENDED_KEY_USAGE, false, &der(SEQUENCE, &ids)));
    }
    extensions.push(extension(BASIC_CONSTRAINTS, true, &der(SEQUENCE, &[])));
    if !authority.key_id.is_empty() && authority.subject != subject {
        extensions.push(extension(AUTHORITY_KEY_ID, false, &nested(SEQUENCE, &[&der(0x80, &authority.key_id)])));
    }
    let names = names(contents);
    if !names.is_empty() {
        // Without a subject, only the names in this extension identify the holder. In this case the extension is
        // critical.
        let critical = subject == der(SEQUENCE, &[]);
        extensions.push(extension(SUBJECT_ALT_NAME, critical, &der(SEQUENCE, &names)));
    }
    Ok(extensions)
}

fn extension(id: &[u8], critical: bool, value: &[u8]) -> Vec<u8> {
    let critical: &[u8] = if critical { &[0x01, 0x01, 0xff] } else { &[] };
    nested(SEQUENCE, &[id, critical, &der(OCTET_STRING, value)])
}

/// Returns flags as a bit string without trailing zero bits.
fn flag_bits(flags: u16) -> Vec<u8> {
    let bytes = flags.to_be_bytes();
    let used = if bytes[1] == 0 { &bytes[..1] } else { &bytes[..] };
    let unused = used[used.len() - 1].trailing_zeros() as u8;
    der(BIT_STRING, &[&[unused], used].concat())
}

/// Returns an IPv4 address in four bytes, even if it was requested as an IPv4-mapped IPv6 address. Clients compare the
/// bytes.
fn shortest(address: &[u8]) -> &[u8] {
    const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    address.strip_prefix(&MAPPED).unwrap_or(address)
}

fn names(contents: &Contents) -> Vec<u8> {
    let texts = |tag: u8, all: &[String]| all.iter().flat_map(|text| der(tag, text.as_bytes())).collect::<Vec<u8>>();
    let addresses = contents.addresses.iter().flat_map(|address| der(0x87, shortest(address))).collect::<Vec<u8>>();
    [texts(0x82, &contents.dns_names), texts(0x81, &contents.emails), addresses, texts(0x86, &contents.uris)].concat()
}
