//! The subject of a certificate: the attributes that are known, and no others.
//!
//! A requester chooses the subject, and the checks of a request cover only a few of its attributes. The API server
//! reads identity from certificates, for example a user's UID from an attribute of Kubernetes' own. A signer that
//! copied the requested subject would let the requester choose this identity. A certificate therefore gets only the
//! attributes below. Upstream: crypto/x509/pkix, Name.FillFromRDNSequence and Name.ToRDNSequence.

use super::der_reader::DerValue;
use crate::credentials::der::{SEQUENCE, SET, der, nested};

/// First bytes of the object identifiers of attributes, as DER: 2.5.4.
const X520: [u8; 2] = [0x55, 0x04];

const OBJECT_IDENTIFIER: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const NUMERIC_STRING: u8 = 0x12;
const PRINTABLE_STRING: u8 = 0x13;
const T61_STRING: u8 = 0x14;
const IA5_STRING: u8 = 0x16;
const BMP_STRING: u8 = 0x1e;

/// The attributes of a subject, in the order in which a certificate has them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subject {
    /// Countries.
    pub countries: Vec<String>,
    /// States or provinces.
    pub provinces: Vec<String>,
    /// Localities.
    pub localities: Vec<String>,
    /// Street addresses.
    pub streets: Vec<String>,
    /// Postal codes.
    pub postal_codes: Vec<String>,
    /// Organizations: the groups of a client.
    pub organizations: Vec<String>,
    /// Organizational units.
    pub units: Vec<String>,
    /// The common name, the name of a client; the last one if there are several.
    pub common_name: String,
    /// The serial number; the last one if there are several.
    pub serial_number: String,
}

impl Subject {
    /// Reads a name. Attributes without a field in [`Subject`], and values that are not text, are left out.
    ///
    /// # Errors
    /// When the name is not well-formed, or a text has bytes that its type does not allow.
    pub fn read(name: DerValue<'_>) -> Result<Self, String> {
        const MALFORMED: &str = "the subject is malformed";
        let mut subject = Self::default();
        for set in name.sequence().ok_or(MALFORMED)? {
            (set.tag == SET).then_some(()).ok_or(MALFORMED)?;
            for attribute in set.parts() {
                let parts = attribute.and_then(DerValue::sequence).ok_or(MALFORMED)?;
                let [id, value, ..] = &*parts else { return Err(MALFORMED.into()) };
                (id.tag == OBJECT_IDENTIFIER).then_some(()).ok_or(MALFORMED)?;
                let Some(text) = text(*value)? else { continue };
                if let [first, second, number] = id.content
                    && [*first, *second] == X520
                {
                    subject.set(*number, text);
                }
            }
        }
        Ok(subject)
    }

    fn set(&mut self, number: u8, text: String) {
        match number {
            3 => self.common_name = text,
            5 => self.serial_number = text,
            6 => self.countries.push(text),
            7 => self.localities.push(text),
            8 => self.provinces.push(text),
            9 => self.streets.push(text),
            10 => self.organizations.push(text),
            11 => self.units.push(text),
            17 => self.postal_codes.push(text),
            _ => {}
        }
    }

    /// Returns the name as DER: one set for the values of each type.
    pub fn to_der(&self) -> Vec<u8> {
        let one = |text: &String| Some(text.clone()).filter(|text| !text.is_empty()).into_iter().collect::<Vec<_>>();
        let (common_name, serial_number) = (one(&self.common_name), one(&self.serial_number));
        let sets = [
            (6, &self.countries),
            (8, &self.provinces),
            (7, &self.localities),
            (9, &self.streets),
            (17, &self.postal_codes),
            (10, &self.organizations),
            (11, &self.units),
            (3, &common_name),
            (5, &serial_number),
        ];
        let sets = sets.iter().filter(|(_, texts)| !texts.is_empty());
        let sets: Vec<u8> = sets.flat_map(|(number, texts)| attributes(*number, texts)).collect();
        der(SEQUENCE, &sets)
    }
}

/// Encodes a set of attributes of one type. DER orders the values of a set by their bytes.
fn attributes(number: u8, texts: &[String]) -> Vec<u8> {
    let id = der(OBJECT_IDENTIFIER, &[X520[0], X520[1], number]);
    let attribute = |text: &String| {
        let tag = if text.bytes().all(is_printable) { PRINTABLE_STRING } else { UTF8_STRING };
        nested(SEQUENCE, &[&id, &der(tag, text.as_bytes())])
    };
    let mut values: Vec<Vec<u8>> = texts.iter().map(attribute).collect();
    values.sort();
    der(SET, &values.concat())
}

fn is_printable(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b" '()+,-./:=?".contains(&byte)
}

/// Returns the text of a value; `None` if its type is not a text type. Upstream: encoding/asn1.
fn text(value: DerValue<'_>) -> Result<Option<String>, String> {
    let ascii = |allowed: fn(u8) -> bool, name: &str| {
        let fits = value.content.iter().all(|byte| byte.is_ascii() && allowed(*byte));
        let text = || value.content.iter().copied().map(char::from).collect();
        fits.then(text).ok_or_else(|| format!("the subject has a {name} with characters that it cannot have"))
    };
    Ok(Some(match value.tag {
        UTF8_STRING => str::from_utf8(value.content).map_err(|_| "the subject has an invalid UTF8String")?.to_owned(),
        PRINTABLE_STRING => ascii(|byte| is_printable(byte) || matches!(byte, b'*' | b'&'), "PrintableString")?,
        NUMERIC_STRING => ascii(|byte| byte.is_ascii_digit() || byte == b' ', "NumericString")?,
        IA5_STRING => ascii(|_| true, "IA5String")?,
        // Read as Latin-1, as other implementations do.
        T61_STRING => value.content.iter().copied().map(char::from).collect(),
        BMP_STRING => bmp(value.content).ok_or("the subject has an invalid BMPString")?,
        _ => return Ok(None),
    }))
}

/// Returns text of two bytes per character; `None` if it has surrogates, noncharacters or an odd number of bytes.
fn bmp(content: &[u8]) -> Option<String> {
    let content = content.strip_suffix(&[0, 0]).unwrap_or(content);
    let (points, []) = content.as_chunks::<2>() else { return None };
    points
        .iter()
        .map(|point| {
            let point = u16::from_be_bytes(*point);
            let reserved = matches!(point, 0xfffe | 0xffff | 0xfdd0..=0xfdef);
            char::from_u32(point.into()).filter(|_| !reserved)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns a name with these attributes: contents of the identifier, tag and content of the value.
    fn name(attributes: &[(&[u8], u8, &[u8])]) -> Vec<u8> {
        let sets = attributes.iter().flat_map(|(id, tag, value)| {
            der(SET, &nested(SEQUENCE, &[&der(OBJECT_IDENTIFIER, id), &der(*tag, value)]))
        });
        der(SEQUENCE, &sets.collect::<Vec<u8>>())
    }

    fn read(name: &[u8]) -> Result<Subject, String> {
        Subject::read(DerValue::only(name, SEQUENCE).ok_or("no sequence")?)
    }

    #[test]
    fn subject_keeps_known_attributes_and_drops_others() {
        // 1.3.6.1.4.1.57683.2: the UID of a user of Kubernetes.
        const UID: &[u8] = &[0x2b, 6, 1, 4, 1, 0x83, 0xc2, 0x53, 2];
        let requested = name(&[
            (&[0x55, 4, 3], UTF8_STRING, b"first"),
            (&[0x55, 4, 10], PRINTABLE_STRING, b"system:nodes"),
            (UID, UTF8_STRING, b"00000000-0000-0000-0000-000000000001"),
            (&[0x55, 4, 12], UTF8_STRING, b"title"),
            (&[0x55, 4, 6], PRINTABLE_STRING, b"NL"),
            (&[0x55, 4, 10], UTF8_STRING, b"a group"),
            (&[0x55, 4, 3], PRINTABLE_STRING, b"system:node:a"),
            (&[0x55, 4, 11], 0x02, &[7]),
        ]);
        let subject = read(&requested).expect("well-formed");
        let expected = Subject {
            countries: vec!["NL".into()],
            organizations: vec!["system:nodes".into(), "a group".into()],
            common_name: "system:node:a".into(),
            ..Subject::default()
        };
        assert_eq!(subject, expected);
        let written = subject.to_der();
        let id = der(OBJECT_IDENTIFIER, UID);
        assert!(!written.windows(id.len()).any(|window| window == id), "the UID attribute was copied");
        assert!(!written.windows(5).any(|window| window == b"title" || window == b"first"));
        let again = read(&written).expect("well-formed");
        assert_eq!(again.organizations, ["a group", "system:nodes"], "a set is sorted");
    }

    #[test]
    fn texts_of_all_types_are_read() {
        for (tag, content, expected) in [
            (UTF8_STRING, "ümlaut".as_bytes(), Ok("ümlaut")),
            (UTF8_STRING, &[0xff], Err(())),
            (PRINTABLE_STRING, b"a*&b", Ok("a*&b")),
            (PRINTABLE_STRING, b"a_b", Err(())),
            (NUMERIC_STRING, b"12 3", Ok("12 3")),
            (NUMERIC_STRING, b"1a", Err(())),
            (IA5_STRING, b"a_b@c", Ok("a_b@c")),
            (IA5_STRING, &[0x80], Err(())),
            (T61_STRING, &[b'a', 0xfc], Ok("aü")),
            (BMP_STRING, &[0, b'a', 1, 0], Ok("aĀ")),
            (BMP_STRING, &[0, b'a', 0, 0], Ok("a")),
            (BMP_STRING, &[0], Err(())),
            (BMP_STRING, &[0xd8, 0], Err(())),
            (BMP_STRING, &[0xff, 0xfe], Err(())),
            // A type that is not text.
            (0x1c, b"abcd", Ok("")),
        ] {
            let read = read(&name(&[(&[0x55, 4, 3], tag, content)]));
            assert_eq!(
                read.as_ref().map(|subject| &*subject.common_name).map_err(|_| ()),
                expected,
                "{tag} {content:?}"
            );
        }
    }

    #[test]
    fn malformed_subject_is_refused() {
        let plain = der(PRINTABLE_STRING, b"x");
        for bytes in [
            der(SEQUENCE, &plain),
            der(SEQUENCE, &der(SET, &plain)),
            der(SEQUENCE, &der(SET, &der(SEQUENCE, &plain))),
            der(SEQUENCE, &der(SET, &nested(SEQUENCE, &[&plain, &plain]))),
            der(SEQUENCE, &[SET, 5, 0]),
        ] {
            assert!(read(&bytes).is_err(), "{bytes:?}");
        }
        assert_eq!(read(&der(SEQUENCE, &[])), Ok(Subject::default()));
        assert_eq!(Subject::default().to_der(), [SEQUENCE, 0]);
    }

    proptest! {
        #[test]
        fn written_subject_is_read_back(common_name in ".{0,40}", organizations in proptest::collection::vec(".{0,20}", 0..4)) {
            let mut subject = Subject { common_name, organizations, ..Subject::default() };
            let again = read(&subject.to_der());
            subject.organizations.sort();
            prop_assert_eq!(again.map(|mut again| { again.organizations.sort(); again }), Ok(subject));
        }
    }
}
