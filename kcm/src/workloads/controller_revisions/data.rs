//! The data of a revision: a patch, byte for byte as Go writes it, made from the workload's JSON on the API server.

use kinds::meta::Uid;
use serde_json::{Map, Value};

/// The part of a workload on the API server that a new revision needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The workload's uid.
    pub uid: Uid,
    /// The generation of its spec.
    pub generation: i64,
    /// The patch that restores its template.
    pub data: Vec<u8>,
    /// Labels of its template.
    pub labels: Vec<(String, String)>,
    /// Its own annotations.
    pub annotations: Vec<(String, String)>,
}

impl Snapshot {
    /// Reads a workload from the API server's JSON.
    ///
    /// # Errors
    /// When `metadata.uid` or `spec.template` is missing. The API server always returns both.
    pub fn read(mut workload: Value) -> Result<Self, String> {
        let meta = &workload["metadata"];
        let uid = Uid::parse(meta["uid"].as_str().ok_or("metadata.uid is missing")?);
        let generation = meta["generation"].as_i64().unwrap_or_default();
        let annotations = strings(&meta["annotations"]);
        let template = workload.pointer_mut("/spec/template").map(Value::take);
        let Some(Value::Object(mut template)) = template else {
            return Err("spec.template is missing".to_owned());
        };
        let labels = template.get("metadata").map(|meta| strings(&meta["labels"])).unwrap_or_default();
        template.insert("$patch".to_owned(), "replace".into());
        let spec = Map::from_iter([("template".to_owned(), Value::Object(template))]);
        let patch = Map::from_iter([("spec".to_owned(), Value::Object(spec))]);
        let mut data = Vec::new();
        write(&Value::Object(patch), &mut data);
        Ok(Self { uid, generation, data, labels, annotations })
    }
}

/// Returns the pod template in a revision's data; `None` if the data is not a patch of a template.
pub fn template_of(data: &[u8]) -> Option<Map<String, Value>> {
    let mut patch: Value = serde_json::from_slice(data).ok()?;
    let Some(Value::Object(mut template)) = patch.pointer_mut("/spec/template").map(Value::take) else { return None };
    template.remove("$patch");
    Some(template)
}

fn strings(map: &Value) -> Vec<(String, String)> {
    let entries = map.as_object().into_iter().flatten();
    entries.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

/// Writes JSON as Go's encoding/json does: with sorted keys, with numbers in the format of a float64, and with some
/// characters escaped although JSON does not require that.
fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        // Go and Rust print whole numbers below 1e21 without an exponent. The API allows only such numbers in a
        // template.
        Value::Number(number) => out.extend_from_slice(number.as_f64().unwrap_or_default().to_string().as_bytes()),
        Value::String(text) => write_string(text, out),
        Value::Array(items) => {
            out.push(b'[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write(item, out);
            }
            out.push(b']');
        }
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_unstable_by_key(|(key, _)| *key);
            out.push(b'{');
            for (at, (key, value)) in entries.into_iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write_string(key, out);
                out.push(b':');
                write(value, out);
            }
            out.push(b'}');
        }
    }
}

fn write_string(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    for letter in text.chars() {
        match letter {
            '"' => out.extend_from_slice(b"\\\""),
            '\\' => out.extend_from_slice(b"\\\\"),
            '\u{8}' => out.extend_from_slice(b"\\b"),
            '\u{c}' => out.extend_from_slice(b"\\f"),
            '\n' => out.extend_from_slice(b"\\n"),
            '\r' => out.extend_from_slice(b"\\r"),
            '\t' => out.extend_from_slice(b"\\t"),
            '\0'..='\u{1f}' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.extend_from_slice(format!("\\u{:04x}", u32::from(letter)).as_bytes());
            }
            _ => out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out.push(b'"');
}
