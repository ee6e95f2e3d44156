//! The bytes of an event: its name, the body of its creation and the body of its patch.

use bytes::Bytes;
use jiff::Timestamp;
use kinds::names::is_dns_subdomain;
use rand::Rng;
use serde::Serialize;

use super::{EventType, ObjectReference};
use crate::text::api_time;

/// One core/v1 Event in its desired state on the server.
#[derive(Debug, Clone)]
pub(super) struct Event {
    pub(super) name: String,
    pub(super) about: ObjectReference,
    pub(super) kind: EventType,
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) component: &'static str,
    /// `reportingComponent` is set. Upstream leaves it empty in combined events.
    pub(super) reporting: bool,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
    pub(super) count: u32,
}

/// Returns the namespace of an event about an object in `namespace`: `default` for cluster-scoped objects.
pub(super) fn event_namespace(namespace: &str) -> &str {
    if namespace.is_empty() { "default" } else { namespace }
}

/// Returns the name of an event: `<object>.<hexadecimal Unix nanoseconds>`, or a random UUID if that is not a DNS
/// subdomain: too long, or with characters that names of events may not have. Upstream: `tools/record/util`,
/// `GenerateEventName`.
pub(super) fn event_name(object: &str, at: Timestamp) -> String {
    // Go prints the low 64 bits of the nanoseconds, so the cast is intended.
    let name = format!("{object}.{:x}", at.as_nanosecond() as i64);
    if is_dns_subdomain(&name) { name } else { random_uuid() }
}

/// Returns a random version 4 UUID in its usual text form.
pub(crate) fn random_uuid() -> String {
    let random: u128 = rand::rng().random();
    let versioned = (random & !(0xf << 76)) | (0x4 << 76);
    let hex = format!("{:032x}", (versioned & !(0b11 << 62)) | (0b10 << 62));
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    parts.join("-")
}

fn is_empty(text: &str) -> bool {
    text.is_empty()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: Metadata<'a>,
    involved_object: Involved<'a>,
    #[serde(skip_serializing_if = "is_empty")]
    reason: &'a str,
    #[serde(skip_serializing_if = "is_empty")]
    message: &'a str,
    source: Source<'a>,
    first_timestamp: String,
    last_timestamp: String,
    count: u32,
    r#type: &'static str,
    event_time: Option<String>,
    reporting_component: &'a str,
    reporting_instance: &'static str,
}

#[derive(Serialize)]
struct Metadata<'a> {
    name: &'a str,
    namespace: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Involved<'a> {
    kind: &'a str,
    #[serde(skip_serializing_if = "is_empty")]
    namespace: &'a str,
    name: &'a str,
    #[serde(skip_serializing_if = "is_empty")]
    uid: &'a str,
    api_version: &'a str,
    #[serde(skip_serializing_if = "is_empty")]
    resource_version: &'a str,
}

#[derive(Serialize)]
struct Source<'a> {
    component: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PatchBody<'a> {
    count: u32,
    last_timestamp: String,
    #[serde(skip_serializing_if = "is_empty")]
    message: &'a str,
}

impl Event {
    /// Returns true if the event combines several events with different messages.
    pub(super) fn is_combined(&self) -> bool {
        !self.reporting
    }

    /// Returns the namespace that the event is written to.
    pub(super) fn namespace(&self) -> &str {
        event_namespace(&self.about.namespace)
    }

    /// Returns the JSON of the whole event, for a POST.
    pub(super) fn create_body(&self) -> Bytes {
        json(&Body {
            kind: "Event",
            api_version: "v1",
            metadata: Metadata { name: &self.name, namespace: self.namespace() },
            involved_object: Involved {
                kind: &self.about.kind,
                namespace: &self.about.namespace,
                name: &self.about.name,
                uid: &self.about.uid,
                api_version: &self.about.api_version,
                resource_version: &self.about.resource_version,
            },
            reason: self.reason,
            message: &self.message,
            source: Source { component: self.component },
            first_timestamp: api_time(self.first),
            last_timestamp: api_time(self.last),
            count: self.count,
            r#type: self.kind.as_str(),
            event_time: None,
            reporting_component: if self.reporting { self.component } else { "" },
            reporting_instance: "",
        })
    }

    /// Returns the strategic merge patch that increases the count of the event on the server.
    pub(super) fn patch_body(&self) -> Bytes {
        json(&PatchBody { count: self.count, last_timestamp: api_time(self.last), message: &self.message })
    }
}

fn json(body: &impl Serialize) -> Bytes {
    Bytes::from(serde_json::to_vec(body).expect("structs of strings and numbers always have a JSON form"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_name_is_object_and_nanoseconds_or_a_uuid() {
        let at = Timestamp::from_nanosecond(105_999_103_295_324_396).unwrap();
        assert_eq!(event_name("test-pod", at), "test-pod.178959f726d80ec");
        let long = "x".repeat(300);
        for odd in [long.as_str(), "test.POD", "a:b", "--pod", "system:node:n1", "a..b", ""] {
            let name = event_name(odd, at);
            assert!(is_dns_subdomain(&name), "{odd:?} gave {name:?}");
            let lengths: Vec<usize> = name.split('-').map(str::len).collect();
            assert_eq!(lengths, [8, 4, 4, 4, 12], "{odd:?} gave {name:?}");
        }
    }

    #[test]
    fn uuids_contain_version_and_variant_and_differ() {
        let uuid = random_uuid();
        assert_eq!(&uuid[14..15], "4");
        assert!("89ab".contains(&uuid[19..20]), "{uuid}");
        assert_ne!(uuid, random_uuid());
    }
}
