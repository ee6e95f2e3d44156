//! For any input, each kind's decoder returns a record or an error, and the same result each time.

#[macro_use]
mod every_kind;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kinds::{Decode, Interner, Kind, Sections, envelope};
use proptest::collection::vec;
use proptest::prelude::*;

/// The content of a field of a message.
#[derive(Debug, Clone)]
enum Content {
    Number(u64),
    Fixed64([u8; 8]),
    Fixed32([u8; 4]),
    Bytes(Vec<u8>),
    Message(Vec<(u32, Content)>),
}

fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        out.push(u8::try_from(number & 0x7f).expect("seven bits") | 0x80);
        number >>= 7;
    }
    out.push(u8::try_from(number).expect("seven bits"));
}

fn encode(message: &[(u32, Content)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (field, content) in message {
        let mut tag = |wire: u64| varint(&mut out, u64::from(*field) << 3 | wire);
        match content {
            Content::Number(number) => {
                tag(0);
                varint(&mut out, *number);
            }
            Content::Fixed64(bytes) => {
                tag(1);
                out.extend(bytes);
            }
            Content::Fixed32(bytes) => {
                tag(5);
                out.extend(bytes);
            }
            Content::Bytes(bytes) => put_delimited(&mut out, *field, bytes),
            Content::Message(fields) => put_delimited(&mut out, *field, &encode(fields)),
        }
    }
    out
}

fn put_delimited(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    varint(out, u64::from(field) << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend(bytes);
}

/// Generates texts that decoders interpret, and arbitrary ones.
fn text() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(b"True".to_vec()),
        Just(b"app".to_vec()),
        Just(b"100%".to_vec()),
        Just(b"1500m".to_vec()),
        Just(b"*/5 * * * *".to_vec()),
        Just(b"10.0.0.0/8".to_vec()),
        Just(b"-----BEGIN CERTIFICATE REQUEST-----".to_vec()),
        Just(b"{\"a\":[1,{\"b\":null}]}".to_vec()),
        ".{0,12}".prop_map(String::into_bytes),
        vec(any::<u8>(), 0..12),
    ]
}

/// Generates messages similar to objects: low field numbers, and nested messages.
fn message() -> impl Strategy<Value = Vec<(u32, Content)>> {
    let leaf = prop_oneof![
        3 => text().prop_map(Content::Bytes),
        2 => prop_oneof![0..4_u64, any::<u64>()].prop_map(Content::Number),
        1 => any::<[u8; 8]>().prop_map(Content::Fixed64),
        1 => any::<[u8; 4]>().prop_map(Content::Fixed32),
    ];
    let content = leaf.prop_recursive(5, 60, 6, |inner| vec((1..30_u32, inner), 0..6).prop_map(Content::Message));
    // Valid metadata lets decoders reach everything else.
    let meta = Just(Content::Message(vec![
        (1, Content::Bytes(b"name".to_vec())),
        (3, Content::Bytes(b"space".to_vec())),
        (5, Content::Bytes(b"6f1f6c0e-0000-4000-8000-000000000001".to_vec())),
        (6, Content::Bytes(b"42".to_vec())),
    ]));
    (prop::option::weighted(0.8, meta), vec((1..30_u32, content), 0..8))
        .prop_map(|(meta, fields)| meta.map(|meta| (1, meta)).into_iter().chain(fields).collect())
}

/// Generates messages that were truncated, or of which one byte was changed.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    (message(), any::<prop::sample::Index>(), any::<u8>(), any::<bool>()).prop_map(|(message, place, byte, cut)| {
        let mut bytes = encode(&message);
        if !bytes.is_empty() {
            let place = place.index(bytes.len());
            if cut { bytes.truncate(place) } else { bytes[place] = byte }
        }
        bytes
    })
}

/// Decodes the bytes as each kind, twice; returns true for each kind that was decoded.
fn read(bytes: &[u8]) -> Vec<bool> {
    let context = || Decode { interner: Arc::new(Interner::default()), sections: Sections(u32::MAX) };
    fn kind<K: Kind>(context: &Decode, bytes: &[u8]) -> bool {
        let read = || K::decode(context, bytes).map(|record| record.meta().clone()).map_err(|error| error.to_string());
        let (once, again) = (read(), read());
        assert_eq!(format!("{once:?}"), format!("{again:?}"), "{}", K::RESOURCE.kind);
        once.is_ok()
    }
    macro_rules! read_as {
        ($($module:ident::$kind:ident),* $(,)?) => { vec![$(kind::<kinds::$module::$kind>(&context(), bytes)),*] };
    }
    every_kind!(read_as)
}

proptest! {
    #[test]
    fn any_message_is_decoded_or_refused(message in message()) {
        read(&encode(&message));
    }

    #[test]
    fn any_damaged_message_is_decoded_or_refused(bytes in damaged()) {
        read(&bytes);
    }

    #[test]
    fn any_envelope_is_decoded_or_refused(bytes in prop_oneof![damaged(), vec(any::<u8>(), 0..64)], magic: bool) {
        let bytes = if magic { [&b"k8s\0"[..], &bytes].concat() } else { bytes };
        let _ = envelope::unwrap(&bytes);
        let _ = envelope::watch_event(&bytes);
        let _ = envelope::page(&bytes);
        let _ = envelope::ApiStatus::decode(&bytes);
    }
}

#[test]
fn most_kinds_decode_from_metadata_alone() {
    let whole = [(1, "web"), (3, "shop"), (5, "6f1f6c0e-0000-4000-8000-000000000001"), (6, "42")];
    let meta = whole.map(|(field, text)| (field, Content::Bytes(text.as_bytes().to_vec()))).to_vec();
    let decoded = read(&encode(&[(1, Content::Message(meta))]));
    assert!(decoded.iter().filter(|decoded| **decoded).count() > decoded.len() / 2, "{decoded:?}");
    assert!(read(&[0xff]).iter().all(|decoded| !decoded), "a kind was decoded from a truncated number");
}

/// Collects the names in `impl Kind for <name>` below a folder.
fn collect_kinds(folder: &Path, found: &mut BTreeSet<String>) {
    let entries = fs::read_dir(folder).expect("failed to list the sources");
    for path in entries.map(|entry| entry.expect("failed to list the sources").path()) {
        if path.is_dir() {
            collect_kinds(&path, found);
        } else {
            let text = fs::read_to_string(&path).expect("failed to read a source file");
            let names = text.lines().filter_map(|line| line.strip_prefix("impl Kind for ")?.strip_suffix(" {"));
            found.extend(names.map(str::to_owned));
        }
    }
}

#[test]
fn every_kind_is_covered() {
    macro_rules! names {
        ($($module:ident::$kind:ident),* $(,)?) => { BTreeSet::from([$(stringify!($kind).to_owned()),*]) };
    }
    let mut found = BTreeSet::new();
    collect_kinds(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    assert_eq!(every_kind!(names), found);
}
