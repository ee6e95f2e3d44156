//! Watches and lists in JSON, converted to the layout of protobuf, so that one loop reads both formats.
//!
//! Field 1 is the object's metadata, as in every kind, reduced to the parts that the loop needs; field 2 is the JSON,
//! from which [`typed_object`] reads the whole object.

use std::collections::BTreeMap;

use bytes::Bytes;
use kinds::DecodeError;
use kinds::envelope::wrap_as;
use kinds::schema::{api_status, list_meta, object_meta, raw_extension, watch_event};
use kinds::wire::{Put, find};
use serde::Deserialize;
use serde::de::DeserializeOwned;

const METADATA: u32 = 1;
const CONTENT: u32 = 2;

/// The type of an event, with any object.
#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
}

/// A value with an `object` field.
#[derive(Default, Deserialize)]
#[serde(default)]
struct WithObject<T> {
    object: T,
}

/// The parts of an object that the loop needs. All other fields are skipped without parsing: a user may give them any
/// type and depth.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Head {
    metadata: Metadata,
}

/// The Status of an ERROR event.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    code: u16,
    reason: String,
    message: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: String,
    namespace: String,
    resource_version: String,
    r#continue: String,
    annotations: BTreeMap<String, String>,
}

/// Converts a line of a watch to a frame.
pub fn frame(line: &[u8]) -> Result<Bytes, serde_json::Error> {
    let event: Event = serde_json::from_slice(line)?;
    let mut object = Vec::with_capacity(line.len() + 256);
    match &*event.kind {
        "ERROR" => {
            let WithObject { object: status } = serde_json::from_slice::<WithObject<Status>>(line).unwrap_or_default();
            object.put_int(api_status::CODE, status.code.into());
            object.put_str(api_status::REASON, &status.reason);
            object.put_str(api_status::MESSAGE, &status.message);
        }
        "BOOKMARK" => {
            let WithObject { object: head } = serde_json::from_slice::<WithObject<Head>>(line)?;
            put_object(&mut object, &head.metadata, true, &[]);
        }
        _ => {
            // An object without readable metadata must not end the watch of all others: it gets a frame without a
            // name, which the loop logs and skips.
            let WithObject { object: head } = serde_json::from_slice::<WithObject<Head>>(line).unwrap_or_default();
            put_object(&mut object, &head.metadata, false, line);
        }
    }
    let mut frame = Vec::with_capacity(object.len() + 64);
    frame.put_str(watch_event::TYPE, &event.kind);
    frame.put_message(watch_event::OBJECT, |message| message.put_bytes(raw_extension::RAW, &wrap_as("", "", &object)));
    Ok(frame.into())
}

fn put_object(out: &mut Vec<u8>, metadata: &Metadata, annotations: bool, content: &[u8]) {
    out.put_message(METADATA, |message| {
        message.put_str(object_meta::NAME, &metadata.name);
        message.put_str(object_meta::NAMESPACE, &metadata.namespace);
        message.put_str(object_meta::RESOURCE_VERSION, &metadata.resource_version);
        for (key, value) in metadata.annotations.iter().filter(|_| annotations) {
            message.put_entry(object_meta::ANNOTATIONS, key, value);
        }
    });
    out.put_bytes(CONTENT, content);
}

#[derive(Deserialize)]
struct List {
    metadata: Metadata,
}

/// Converts a page of a list to the layout of a protobuf list.
pub fn page(body: &[u8]) -> Result<Bytes, DecodeError> {
    let list: List = serde_json::from_slice(body).map_err(|error| unreadable(&error))?;
    let mut page = Vec::with_capacity(body.len() + 64);
    page.put_message(1, |message| {
        message.put_str(list_meta::RESOURCE_VERSION, &list.metadata.resource_version);
        message.put_str(list_meta::CONTINUE, &list.metadata.r#continue);
    });
    for item in items(body) {
        let head: Head = serde_json::from_slice(item).unwrap_or_default();
        let content = [b"{\"object\":", item, b"}"].concat();
        page.put_message(2, |message| put_object(message, &head.metadata, false, &content));
    }
    Ok(wrap_as("", "", &page).into())
}

/// Returns the JSON texts of a list's items. `list` must be valid JSON; its nesting depth is not limited.
fn items(list: &[u8]) -> Vec<&[u8]> {
    let mut items = Vec::new();
    let (mut depth, mut at, mut begin) = (0_usize, 0, None);
    // The last string at the top level: the name of the field whose value follows.
    let mut field: &[u8] = &[];
    // The position is inside the array of items.
    let mut inside = false;
    while let Some(byte) = list.get(at) {
        match byte {
            b'"' => {
                let end = end_of_text(list, at);
                if depth == 1 {
                    field = &list[at..end];
                }
                at = end;
                continue;
            }
            b'{' | b'[' => {
                if inside && depth == 2 {
                    begin = Some(at);
                }
                depth += 1;
                inside |= depth == 2 && *byte == b'[' && field == b"\"items\"";
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                inside &= depth >= 2;
                if inside && depth == 2 {
                    items.extend(begin.take().map(|begin| &list[begin..=at]));
                }
            }
            _ => {}
        }
        at += 1;
    }
    items
}

/// Returns the position after the string that begins at `at`.
fn end_of_text(json: &[u8], at: usize) -> usize {
    let mut end = at + 1;
    while let Some(byte) = json.get(end) {
        match byte {
            b'\\' => end += 2,
            b'"' => return end + 1,
            _ => end += 1,
        }
    }
    json.len()
}

/// Deserializes the object in a frame or in a page's item.
pub fn typed_object<T: DeserializeOwned>(object: &[u8]) -> Result<T, DecodeError> {
    #[derive(Deserialize)]
    struct Content<T> {
        object: T,
    }
    let read: Result<Content<T>, _> = serde_json::from_slice(find(object, CONTENT));
    Ok(read.map_err(|error| unreadable(&error))?.object)
}

fn unreadable(error: &serde_json::Error) -> DecodeError {
    DecodeError::field("object", format!("is not of its kind: {error}"))
}

#[cfg(test)]
mod tests {
    use kinds::envelope::{self, WatchEvent};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn line(kind: &str, object: Value) -> Bytes {
        frame(json!({"type": kind, "object": object}).to_string().as_bytes()).expect("a watch event")
    }

    #[test]
    fn json_events_decode_like_protobuf_events() {
        let object = json!({"metadata": {"name": "a", "namespace": "ns", "resourceVersion": "7"}, "spec": {"n": 1}});
        let bytes = line("ADDED", object.clone());
        let Ok(WatchEvent::Added(inner)) = envelope::watch_event(&bytes) else { panic!("{bytes:?}") };
        let text = |number| std::str::from_utf8(find(find(inner, 1), number)).expect("text");
        assert_eq!([text(object_meta::NAME), text(object_meta::NAMESPACE)], ["a", "ns"]);
        assert_eq!(typed_object::<Value>(inner).expect("the object"), object);

        let end = json!({"metadata": {"resourceVersion": "9", "annotations": {"k8s.io/initial-events-end": "true"}}});
        let bytes = line("BOOKMARK", end);
        let read = envelope::watch_event(&bytes).expect("a bookmark");
        assert_eq!(read, WatchEvent::Bookmark { version: 9, initial_end: true });

        let bytes = line("ERROR", json!({"kind": "Status", "metadata": {}, "code": 410, "reason": "Expired"}));
        let Ok(WatchEvent::Error(status)) = envelope::watch_event(&bytes) else { panic!("{bytes:?}") };
        assert_eq!((status.code, &*status.reason), (410, "Expired"));
        assert!(frame(b"{\"type\":1}").is_err());
    }

    #[test]
    fn json_page_keeps_its_items_and_token() {
        let item = json!({"metadata": {"name": "a", "resourceVersion": "3"}});
        let body = json!({"metadata": {"resourceVersion": "5", "continue": "more"}, "items": [item]}).to_string();
        let body = page(body.as_bytes()).expect("a page");
        let read = envelope::page(&body).expect("a list");
        assert_eq!((read.version, read.next, read.items.len()), ("5", "more", 1));
        assert_eq!(typed_object::<Value>(read.items[0]).expect("the item"), item);
    }

    /// Objects whose fields have the names of a Status, but not the types.
    fn odd_objects() -> Vec<String> {
        let odd = |fields: &str| format!(r#"{{"metadata": {{"name": "odd", "resourceVersion": "8"}}, {fields}}}"#);
        let deep = format!(r#""spec": {}{}"#, "[".repeat(500), "]".repeat(500));
        let fields = [r#""message": {}"#, r#""code": "x", "reason": [1]"#, r#""code": -1"#, r#""code": 1e300"#, &deep];
        fields.into_iter().map(odd).collect()
    }

    #[test]
    fn object_with_odd_fields_stops_neither_watch_nor_list() {
        for odd in odd_objects() {
            let bytes = frame(format!(r#"{{"type": "ADDED", "object": {odd}}}"#).as_bytes()).expect("a frame");
            let Ok(WatchEvent::Added(inner)) = envelope::watch_event(&bytes) else { panic!("{odd}") };
            assert_eq!(find(find(inner, 1), object_meta::NAME), b"odd");

            let good = r#"{"metadata": {"name": "a"}, "items": [{}], "text": "}]\"items\":[{"}"#;
            let body = format!(r#"{{"items": [{good}, {odd},{good}], "metadata": {{"resourceVersion": "9"}}}}"#);
            let page = page(body.as_bytes()).expect("a page");
            let read = envelope::page(&page).expect("a list");
            let names: Vec<&[u8]> = read.items.iter().map(|item| find(find(item, 1), object_meta::NAME)).collect();
            assert_eq!(names, [&b"a"[..], b"odd", b"a"]);
        }
    }

    #[test]
    fn object_without_readable_metadata_stops_neither_watch_nor_list() {
        let line = br#"{"type": "ADDED", "object": {"metadata": {"name": 1}}}"#;
        assert!(matches!(envelope::watch_event(&frame(line).expect("a frame")), Ok(WatchEvent::Added(_))));
        let body =
            br#"{"metadata": {"resourceVersion": "9"}, "items": [{"metadata": []}, {"metadata": {"name": "a"}}]}"#;
        let page = page(body).expect("a page");
        assert_eq!(envelope::page(&page).expect("a list").items.len(), 2);
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let text = "[a\\\\\"{}\\[\\],:é]{0,6}|items|metadata|object|type";
        let leaf = prop_oneof![Just(Value::Null), any::<i64>().prop_map(Value::from), text.prop_map(Value::from)];
        leaf.prop_recursive(5, 40, 4, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map(text, inner, 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn objects_of_any_list_are_found(list in proptest::collection::vec(any_json(), 0..5), more in any_json()) {
            let objects: Vec<Value> = list.into_iter().map(|inner| json!({"metadata": {}, "x": inner})).collect();
            let body = json!({"a": more, "items": objects, "metadata": {"resourceVersion": "9"}, "z": more}).to_string();
            let page = page(body.as_bytes()).expect("a page");
            let read = envelope::page(&page).expect("a list");
            let found: Vec<Value> = read.items.iter().map(|item| typed_object(item).expect("the item")).collect();
            prop_assert_eq!(found, objects);
        }

        #[test]
        fn any_json_and_any_bytes_are_read_without_panic(json in any_json(), bytes: Vec<u8>) {
            let text = json.to_string();
            for input in [text.as_bytes(), &bytes] {
                let _ = frame(input);
                let _ = page(input);
                let _ = typed_object::<Value>(input);
                let _ = items(input);
            }
        }
    }
}
