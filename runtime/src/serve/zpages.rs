//! `/flagz` and `/statusz`: the command line and the version of a process, as text and as versioned objects (apiserver,
//! server/flagz and server/statusz).

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use http::{HeaderMap, HeaderValue, StatusCode, header};
use jiff::Timestamp;
use serde_json::Value;

use super::response::{self, FullResponse};
use crate::text::query;

const GROUP: &str = "config.k8s.io";
const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha1"];
const DEPRECATED: &str = "v1alpha1";
/// The offered formats, in upstream's order.
const OFFERED: [(&str, &str); 3] = [("application", "json"), ("application", "yaml"), ("text", "plain")];

/// Information about a process. Each page is `None` if it is disabled.
#[derive(Debug, Clone, Default)]
pub struct Zpages {
    /// The component's name, such as `kube-controller-manager`.
    pub component: &'static str,
    /// `/flagz`: every flag with its value, formatted as pflag does.
    pub flags: Option<BTreeMap<String, String>>,
    /// `/statusz`.
    pub status: Option<ProcessStatus>,
}

/// The content of `/statusz`.
#[derive(Debug, Clone)]
pub struct ProcessStatus {
    /// Start time of the process.
    pub started: Timestamp,
    /// Its version, such as `1.37.0`.
    pub binary_version: String,
    /// The emulated version of Kubernetes, such as `1.37`; empty if none is emulated.
    pub emulation_version: String,
    /// First segments of the served paths, sorted.
    pub paths: Vec<&'static str>,
}

impl Zpages {
    /// Returns the response for a path; `None` if there is no such page.
    pub(super) fn respond(&self, path: &str, query_text: &str, headers: &HeaderMap) -> Option<FullResponse> {
        self.respond_at(Timestamp::now(), path, query_text, headers)
    }

    /// Like [`Zpages::respond`], at this time.
    fn respond_at(&self, now: Timestamp, path: &str, query_text: &str, headers: &HeaderMap) -> Option<FullResponse> {
        let page = match path {
            "/flagz" => {
                Page { kind: "Flagz", name: "flagz", zpages: self, content: Content::Flags(self.flags.as_ref()?) }
            }
            "/statusz" => {
                let status = self.status.as_ref()?;
                let content = Content::Status(status, status.uptime_seconds(now));
                Page { kind: "Statusz", name: "statusz", zpages: self, content }
            }
            _ => return None,
        };
        Some(page.respond(query_text, headers))
    }
}

enum Content<'a> {
    Flags(&'a BTreeMap<String, String>),
    /// A process, and the seconds since its start.
    Status(&'a ProcessStatus, i64),
}

struct Page<'a> {
    kind: &'static str,
    name: &'static str,
    zpages: &'a Zpages,
    content: Content<'a>,
}

impl Page<'_> {
    fn respond(&self, query_text: &str, headers: &HeaderMap) -> FullResponse {
        let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).unwrap_or_default();
        let accept = text(header::ACCEPT);
        if accept.trim().is_empty() {
            return response::plain(StatusCode::OK, self.text());
        }
        let Some(form) = negotiate(accept, self.kind) else {
            let offered: Vec<String> = OFFERED.iter().map(|(kind, subtype)| format!("{kind}/{subtype}")).collect();
            return response::not_acceptable(&offered);
        };
        let Form::Object { version, yaml, pretty } = form else { return response::plain(StatusCode::OK, self.text()) };
        let object = self.object(version);
        let mut response = if yaml {
            response::yaml(as_yaml(&object))
        } else if pretty || is_indented(query_text, text(header::USER_AGENT)) {
            response::raw_json(as_json(&object, true))
        } else {
            response::raw_json(as_json(&object, false) + "\n")
        };
        if version == DEPRECATED {
            let warning = format!(
                "299 - \"This version of the {} endpoint is deprecated. Please use a newer version.\"",
                self.name
            );
            if let Ok(warning) = HeaderValue::try_from(warning) {
                response.headers_mut().insert(header::WARNING, warning);
            }
        }
        response
    }

    fn text(&self) -> String {
        let (component, name) = (self.zpages.component, self.name);
        let mut text = format!(
            "\n{component} {name}\nWarning: This endpoint is not meant to be machine parseable, has no formatting \
             compatibility guarantees and is for debugging purposes only.\n"
        );
        // Writing to a String cannot fail.
        let _ = match &self.content {
            Content::Flags(flags) => flags.iter().try_for_each(|(flag, value)| writeln!(text, "{flag}={value}")),
            Content::Status(status, uptime_seconds) => status.write(&mut text, *uptime_seconds),
        };
        text
    }

    /// Returns the fields in the order of upstream's types.
    fn object(&self, version: &str) -> Vec<(&'static str, Value)> {
        let mut object = vec![
            ("kind", self.kind.into()),
            ("apiVersion", format!("{GROUP}/{version}").into()),
            ("metadata", serde_json::json!({"name": self.zpages.component})),
        ];
        match &self.content {
            Content::Flags(flags) if flags.is_empty() => {}
            Content::Flags(flags) => object.push(("flags", serde_json::json!(flags))),
            Content::Status(status, uptime_seconds) => {
                object.extend([
                    ("startTime", format!("{:.0}", status.started).into()),
                    ("uptimeSeconds", (*uptime_seconds).into()),
                    ("goVersion", "".into()),
                    ("binaryVersion", status.binary_version.as_str().into()),
                ]);
                if !status.emulation_version.is_empty() {
                    object.push(("emulationVersion", status.emulation_version.as_str().into()));
                }
                object.push(("paths", serde_json::json!(status.paths)));
            }
        }
        object
    }
}

impl ProcessStatus {
    /// Creates the status of a process that starts now.
    pub fn new(
        binary_version: impl Into<String>,
        emulation_version: impl Into<String>,
        paths: Vec<&'static str>,
    ) -> Self {
        Self {
            started: Timestamp::now(),
            binary_version: binary_version.into(),
            emulation_version: emulation_version.into(),
            paths,
        }
    }

    /// Returns the number of whole seconds since the start.
    fn uptime_seconds(&self, now: Timestamp) -> i64 {
        now.duration_since(self.started).as_secs().max(0)
    }

    fn write(&self, text: &mut String, up: i64) -> std::fmt::Result {
        let started = self.started.strftime("%a %b %e %H:%M:%S UTC %Y");
        writeln!(text, "\nStarted: {started}")?;
        writeln!(text, "Up: {} hr {:02} min {:02} sec", up / 3600, (up / 60) % 60, up % 60)?;
        writeln!(text, "Go version: \nBinary version: {}", self.binary_version)?;
        match self.emulation_version.as_str() {
            "" => writeln!(text)?,
            version => writeln!(text, "Emulation version: {version}")?,
        }
        writeln!(text, "Paths: {}", self.paths.join(" "))
    }
}

/// The format of a page.
#[derive(Debug, PartialEq, Eq)]
enum Form {
    Text,
    Object { version: &'static str, yaml: bool, pretty: bool },
}

/// Returns the format of the first acceptable clause; `None` if none is offered. Objects must be requested by kind,
/// group and version. Upstream: apiserver, handlers/negotiation.
fn negotiate(accept: &str, kind: &str) -> Option<Form> {
    let mut clauses: Vec<Clause> = accept.split(',').filter_map(Clause::parse).collect();
    clauses.sort_by_key(|clause| (Reverse(clause.quality), clause.kind == "*", clause.subtype == "*"));
    let forms = clauses.iter().flat_map(|clause| OFFERED.iter().map(move |offer| clause.form(offer, kind)));
    forms.flatten().next()
}

/// One part of an `Accept` header.
struct Clause<'a> {
    kind: &'a str,
    subtype: &'a str,
    /// `q` in thousandths.
    quality: u32,
    params: Vec<(&'a str, &'a str)>,
}

impl<'a> Clause<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let media = parts.next()?;
        let (kind, subtype) = if media == "*" { ("*", "*") } else { media.split_once('/')? };
        let (mut quality, mut params) = (1000, Vec::new());
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            let value = value.trim_matches('"');
            match name {
                "q" => quality = (value.parse::<f32>().unwrap_or(1.0).clamp(0.0, 1.0) * 1000.0) as u32,
                _ => params.push((name, value)),
            }
        }
        Some(Self { kind: kind.trim(), subtype: subtype.trim(), quality, params })
    }

    fn form(&self, offer: &(&str, &str), object: &str) -> Option<Form> {
        let matches = (self.kind == offer.0 && (self.subtype == offer.1 || self.subtype == "*"))
            || (self.kind == "*" && self.subtype == "*");
        let param = |wanted| self.params.iter().rev().find(|(name, _)| *name == wanted).map(|(_, value)| *value);
        let refused = ["stream", "sv"].into_iter().any(|name| param(name).is_some_and(|value| !value.is_empty()));
        if !matches || refused {
            return None;
        }
        let requested = (param("as"), param("g"), param("v"));
        if *offer == ("text", "plain") {
            return (requested == (None, None, None)).then_some(Form::Text);
        }
        let version = VERSIONS.into_iter().find(|version| requested == (Some(object), Some(GROUP), Some(version)))?;
        Some(Form::Object { version, yaml: offer.1 == "yaml", pretty: param("pretty") == Some("1") })
    }
}

/// Returns true if JSON is indented: if the query requests it, or for interactive clients.
fn is_indented(query_text: &str, agent: &str) -> bool {
    match query(query_text).into_iter().find(|(name, value)| name == "pretty" && !value.is_empty()) {
        Some((_, value)) => matches!(value.as_str(), "1" | "t" | "T" | "true" | "TRUE" | "True"),
        None => ["curl", "Wget", "Mozilla/5.0"].into_iter().any(|known| agent.starts_with(known)),
    }
}

/// Returns the fields as a JSON object, escaped as Go does.
fn as_json(object: &[(&'static str, Value)], pretty: bool) -> String {
    let fields: Vec<String> = object
        .iter()
        .map(|(name, value)| {
            if pretty {
                format!("  \"{name}\": {}", format!("{value:#}").replace('\n', "\n  "))
            } else {
                format!("\"{name}\":{value}")
            }
        })
        .collect();
    let json = if pretty { format!("{{\n{}\n}}", fields.join(",\n")) } else { format!("{{{}}}", fields.join(",")) };
    // In JSON, these characters occur only inside strings.
    json.replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e")
}

/// Returns the fields as YAML, sorted; strings in JSON's quotes, which are valid YAML.
fn as_yaml(object: &[(&'static str, Value)]) -> String {
    let mut object = object.to_vec();
    object.sort_by_key(|(name, _)| *name);
    let mut yaml = String::new();
    for (name, value) in object {
        // Writing to a String cannot fail.
        let _ = match value {
            Value::Object(fields) => {
                let _ = writeln!(yaml, "{name}:");
                fields.iter().try_for_each(|(field, value)| writeln!(yaml, "  {field}: {value}"))
            }
            Value::Array(items) => {
                let _ = writeln!(yaml, "{name}:");
                items.iter().try_for_each(|item| writeln!(yaml, "- {item}"))
            }
            value => writeln!(yaml, "{name}: {value}"),
        };
    }
    yaml
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    fn zpages() -> Zpages {
        Zpages {
            component: "kube-controller-manager",
            flags: Some([("v", "2"), ("a", "<b>")].map(|(name, value)| (name.into(), value.into())).into()),
            status: Some(ProcessStatus::new("1.37.0", "1.37", vec!["/flagz", "/metrics"])),
        }
    }

    /// Returns status, media type, warning and body.
    async fn request_page(zpages: &Zpages, path: &str, query: &str, accept: &str) -> (u16, String, String, String) {
        let mut headers = HeaderMap::new();
        if !accept.is_empty() {
            headers.insert(header::ACCEPT, accept.parse().expect("a header"));
        }
        // A millisecond before an hour, two minutes and three seconds have passed.
        let started = zpages.status.as_ref().expect("a status").started;
        let now = started + jiff::SignedDuration::from_millis(3_722_999);
        let response = zpages.respond_at(now, path, query, &headers).expect("a page");
        let header =
            |name: &str| response.headers().get(name).map_or("", |value| value.to_str().expect("text")).to_owned();
        let (status, kind, warning) = (response.status().as_u16(), header("content-type"), header("warning"));
        let body = response.into_body().collect().await.expect("whole").to_bytes().to_vec();
        (status, kind, warning, String::from_utf8(body).expect("text"))
    }

    #[test]
    fn accept_header_selects_the_format_as_upstream() {
        let object = |version, yaml| Some(Form::Object { version, yaml, pretty: false });
        for (accept, wanted) in [
            ("text/plain", Some(Form::Text)),
            ("text/*", Some(Form::Text)),
            ("*/*", Some(Form::Text)),
            ("application/json;v=v1beta1;g=config.k8s.io;as=Flagz", object("v1beta1", false)),
            ("application/json; v=v1alpha1; g=config.k8s.io; as=Flagz", object("v1alpha1", false)),
            ("application/yaml;v=v1beta1;g=config.k8s.io;as=Flagz", object("v1beta1", true)),
            ("application/json;v=foo;g=config.k8s.io;as=Flagz,*/*", Some(Form::Text)),
            ("application/json;v=v1beta1;g=config.k8s.io;as=Flagz;q=0.1,text/plain", Some(Form::Text)),
            ("*/*,application/yaml;v=v1beta1;g=config.k8s.io;as=Flagz", object("v1beta1", true)),
            ("application/xml", None),
            ("application/json", None),
            ("application/json;v=v1beta1;g=config.k8s.io", None),
            ("application/json;v=v1beta1;g=config.k8s.io;as=Statusz", None),
            ("application/cbor;v=v1beta1;g=config.k8s.io;as=Flagz", None),
            ("application/json;v=v1beta1;g=config.k8s.io;as=Flagz;stream=watch", None),
        ] {
            assert_eq!(negotiate(accept, "Flagz"), wanted, "{accept}");
        }
    }

    #[tokio::test]
    async fn flagz_is_served_in_each_format() {
        let zpages = zpages();
        let (status, kind, _, text) = request_page(&zpages, "/flagz", "", "").await;
        assert_eq!((status, kind.as_str()), (200, "text/plain; charset=utf-8"));
        assert!(
            text.starts_with("\nkube-controller-manager flagz\nWarning: ") && text.ends_with("\na=<b>\nv=2\n"),
            "{text}"
        );
        let json = "application/json;v=v1beta1;g=config.k8s.io;as=Flagz";
        let (_, kind, warning, body) = request_page(&zpages, "/flagz", "", json).await;
        assert_eq!((kind.as_str(), warning.as_str()), ("application/json", ""));
        assert_eq!(
            body,
            "{\"kind\":\"Flagz\",\"apiVersion\":\"config.k8s.io/v1beta1\",\"metadata\":{\"name\":\
             \"kube-controller-manager\"},\"flags\":{\"a\":\"\\u003cb\\u003e\",\"v\":\"2\"}}\n"
        );
        let (.., pretty) = request_page(&zpages, "/flagz", "pretty=true", json).await;
        let value = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
        assert!(pretty.starts_with("{\n  \"kind\": \"Flagz\",\n") && value(&pretty) == value(&body), "{pretty}");
        let (_, kind, warning, yaml) =
            request_page(&zpages, "/flagz", "", "application/yaml;v=v1alpha1;g=config.k8s.io;as=Flagz").await;
        assert_eq!(kind, "application/yaml");
        assert!(warning.contains("version of the flagz endpoint is deprecated"), "{warning}");
        assert_eq!(
            yaml,
            "apiVersion: \"config.k8s.io/v1alpha1\"\nflags:\n  a: \"<b>\"\n  v: \"2\"\nkind: \"Flagz\"\n\
             metadata:\n  name: \"kube-controller-manager\"\n"
        );
        let (status, _, _, body) = request_page(&zpages, "/flagz", "", "application/xml").await;
        assert_eq!((status, value(&body)["reason"].as_str()), (406, Some("NotAcceptable")));
        let message = value(&body)["message"].as_str().map(str::to_owned).unwrap_or_default();
        assert!(message.ends_with("application/json, application/yaml, text/plain"), "{message}");
    }

    #[tokio::test]
    async fn statusz_is_served_in_each_format() {
        let zpages = zpages();
        let (.., text) = request_page(&zpages, "/statusz", "", "*/*").await;
        for line in
            ["Up: 1 hr 02 min 02 sec", "Binary version: 1.37.0", "Emulation version: 1.37", "Paths: /flagz /metrics"]
        {
            assert!(text.lines().any(|own| own == line), "{line} is not in {text}");
        }
        let (.., json) =
            request_page(&zpages, "/statusz", "", "application/json;v=v1beta1;g=config.k8s.io;as=Statusz").await;
        let status: Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!((&status["binaryVersion"], &status["uptimeSeconds"]), (&"1.37.0".into(), &3722.into()));
        assert_eq!(status["paths"], serde_json::json!(["/flagz", "/metrics"]));
        assert!(status["startTime"].as_str().is_some_and(|time| time.len() == 20 && time.ends_with('Z')), "{status}");
        let off = Zpages::default();
        assert!(off.respond("/statusz", "", &HeaderMap::new()).is_none());
        assert!(zpages.respond("/flagz/", "", &HeaderMap::new()).is_none());
    }
}
