//! Watches and lists in JSON, put into the shape of those in protobuf, so that one loop reads both.
//!
//! An object's metadata is field 1, as in every kind, with what the loop itself needs; field 2 is the JSON, from which
//! [`inside`] reads the whole object.

use std::collections::BTreeMap;

use bytes::Bytes;
use kinds::DecodeError;
use kinds::envelope::wrap_as;
use kinds::schema::{api_status, list_meta, object_meta, raw_extension, watch_event};
use kinds::wire::{Put, find};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const METADATA: u32 = 1;
const CONTENT: u32 = 2;

#[derive(Deserialize)]
struct Event<T> {
    #[serde(rename = "type")]
    kind: String,
    object: T,
}

/// What the loop needs of an object. Its other fields may be of any type: a custom resource may have a `message` that is
/// no text, and must not stop the watch of its kind.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Head {
    metadata: Metadata,
}

/// The Status that an ERROR carries.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ErrorStatus {
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

/// A line of a watch as a frame.
pub fn frame(line: &[u8]) -> Result<Bytes, serde_json::Error> {
    let event: Event<Head> = serde_json::from_slice(line)?;
    let mut object = Vec::with_capacity(line.len() + 256);
    match &*event.kind {
        "ERROR" => {
            let status: Event<ErrorStatus> = serde_json::from_slice(line)?;
            object.put_int(api_status::CODE, status.object.code.into());
            object.put_str(api_status::REASON, &status.object.reason);
            object.put_str(api_status::MESSAGE, &status.object.message);
        }
        "BOOKMARK" => put_object(&mut object, &event.object.metadata, true, &[]),
        _ => put_object(&mut object, &event.object.metadata, false, line),
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
    #[serde(default)]
    items: Vec<Value>,
}

/// A page of a list.
pub fn page(body: &[u8]) -> Result<Bytes, DecodeError> {
    let list: List = serde_json::from_slice(body).map_err(|error| unreadable(&error))?;
    let mut page = Vec::with_capacity(body.len() + 64);
    page.put_message(1, |message| {
        message.put_str(list_meta::RESOURCE_VERSION, &list.metadata.resource_version);
        message.put_str(list_meta::CONTINUE, &list.metadata.r#continue);
    });
    for item in list.items {
        let head = Head::deserialize(&item).map_err(|error| unreadable(&error))?;
        let content = json!({ "object": item }).to_string();
        page.put_message(2, |message| put_object(message, &head.metadata, false, content.as_bytes()));
    }
    Ok(wrap_as("", "", &page).into())
}

/// The object that a frame or a page's item holds.
pub fn inside<T: DeserializeOwned>(object: &[u8]) -> Result<T, DecodeError> {
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

    use super::*;

    fn line(kind: &str, object: Value) -> Bytes {
        frame(json!({"type": kind, "object": object}).to_string().as_bytes()).expect("a watch event")
    }

    #[test]
    fn events_are_read_as_those_in_protobuf() {
        let object = json!({"metadata": {"name": "a", "namespace": "ns", "resourceVersion": "7"}, "spec": {"n": 1}});
        let bytes = line("ADDED", object.clone());
        let Ok(WatchEvent::Added(inner)) = envelope::watch_event(&bytes) else { panic!("{bytes:?}") };
        let text = |number| std::str::from_utf8(find(find(inner, 1), number)).expect("text");
        assert_eq!([text(object_meta::NAME), text(object_meta::NAMESPACE)], ["a", "ns"]);
        assert_eq!(inside::<Value>(inner).expect("the object"), object);

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
    fn object_with_fields_of_odd_types_is_read_and_stops_no_other() {
        let odd = [r#""code":"x","message":{},"reason":[1]"#, r#""status":7,"kind":null"#];
        for fields in odd {
            let object = format!(r#"{{"metadata":{{"name":"odd","resourceVersion":"3"}},{fields}}}"#);
            let bytes = frame(format!(r#"{{"type":"MODIFIED","object":{object}}}"#).as_bytes()).expect("a watch event");
            assert!(matches!(envelope::watch_event(&bytes), Ok(WatchEvent::Modified(_))), "{fields}");
            let usual = r#"{"metadata":{"name":"usual","resourceVersion":"4"}}"#;
            let list = format!(r#"{{"metadata":{{"resourceVersion":"5"}},"items":[{object},{usual}]}}"#);
            let body = page(list.as_bytes()).expect("a page");
            assert_eq!(envelope::page(&body).expect("a list").items.len(), 2, "{fields}");
        }
    }

    #[test]
    fn a_page_keeps_its_items_and_its_token() {
        let item = json!({"metadata": {"name": "a", "resourceVersion": "3"}});
        let body = json!({"metadata": {"resourceVersion": "5", "continue": "more"}, "items": [item]}).to_string();
        let body = page(body.as_bytes()).expect("a page");
        let read = envelope::page(&body).expect("a list");
        assert_eq!((read.version, read.next, read.items.len()), (5, "more", 1));
        assert_eq!(inside::<Value>(read.items[0]).expect("the item"), item);
    }
}
