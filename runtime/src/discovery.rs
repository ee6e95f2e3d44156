//! What the API server serves: its kinds, their verbs, and the groups that do not answer.
//!
//! Two requests answer for all groups (aggregated discovery), and an unchanged answer costs no body. A group whose own
//! server is down is listed as failed and keeps nothing else from being known. (client-go, discovery)

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use kinds::Resource;
use kinds::envelope::ApiStatus;
use serde::{Deserialize, Deserializer};
use tokio::time::Instant;

use crate::client::{Clients, Identity, Lane, SendError, refusal};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The core group stands alone; all others are below the second path.
const ROOTS: [&str; 2] = ["/api", "/apis"];

/// Why it is not known what the server serves.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// No answer.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The server answered with an error.
    #[error("discovery at {path} was refused: {status}")]
    Refused {
        /// The path asked.
        path: &'static str,
        /// The server's words.
        status: ApiStatus,
    },
    /// The answer broke off or is no discovery document.
    #[error("discovery at {path} cannot be read: {problem}")]
    Unreadable {
        /// The path asked.
        path: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}

/// What can be done to a resource, as far as controllers ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Verbs(u8);

impl Verbs {
    /// POST.
    pub const CREATE: Self = Self(1);
    /// DELETE of one object.
    pub const DELETE: Self = Self(2);
    /// DELETE of a collection.
    pub const DELETE_COLLECTION: Self = Self(4);
    /// GET of one object.
    pub const GET: Self = Self(8);
    /// GET of a collection.
    pub const LIST: Self = Self(16);
    /// GET of a collection's changes.
    pub const WATCH: Self = Self(32);
    /// PUT.
    pub const UPDATE: Self = Self(64);
    /// PATCH.
    pub const PATCH: Self = Self(128);

    fn read(word: &str) -> Self {
        match word {
            "create" => Self::CREATE,
            "delete" => Self::DELETE,
            "deletecollection" => Self::DELETE_COLLECTION,
            "get" => Self::GET,
            "list" => Self::LIST,
            "watch" => Self::WATCH,
            "update" => Self::UPDATE,
            "patch" => Self::PATCH,
            _ => Self::default(),
        }
    }

    /// True when all of `wanted` are among these.
    pub fn contains(self, wanted: Self) -> bool {
        self.0 & wanted.0 == wanted.0
    }
}

impl std::ops::BitOr for Verbs {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A resource that the server serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// Its coordinates.
    pub resource: Resource,
    /// What can be done to it.
    pub verbs: Verbs,
    /// It has a `scale` subresource.
    pub scales: bool,
}

/// What the server served at one time.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Snapshot {
    kinds: HashMap<(String, String), Served>,
    preferred: Vec<Served>,
    failed: BTreeMap<String, String>,
    versions: HashMap<String, Vec<String>>,
}

impl Snapshot {
    /// Each resource once, in its group's preferred version if that has it (client-go, ServerPreferredResources).
    pub fn preferred(&self) -> &[Served] {
        &self.preferred
    }

    /// The resource of this group and plural name, in its group's preferred version that has it.
    pub fn of_group_resource(&self, group: &str, plural: &str) -> Option<Served> {
        self.preferred.iter().find(|served| (served.resource.group, served.resource.plural) == (group, plural)).copied()
    }

    /// The resource of a kind in exactly this version; `None` if it is not served, or its group does not answer.
    pub fn of_kind(&self, api_version: &str, kind: &str) -> Option<Served> {
        self.kinds.get(&(api_version.to_owned(), kind.to_owned())).copied()
    }

    /// The resource of a kind in its group's preferred version that has it (apimachinery, RESTMapper.RESTMapping).
    pub fn of_group_kind(&self, group: &str, kind: &str) -> Option<Served> {
        let versions = self.versions.get(group)?;
        versions.iter().find_map(|version| {
            let api_version = if group.is_empty() { version.clone() } else { format!("{group}/{version}") };
            self.of_kind(&api_version, kind)
        })
    }

    /// The versions of a group, the preferred one first, whether or not they answer; empty if it is not registered.
    pub fn versions_of(&self, group: &str) -> &[String] {
        self.versions.get(group).map_or(&[], Vec::as_slice)
    }

    /// Groups with versions (`group/version`) that are registered and do not answer, with the reason.
    pub fn failed(&self) -> &BTreeMap<String, String> {
        &self.failed
    }

    /// True when some version of the group does not answer.
    pub fn has_failed(&self, group: &str) -> bool {
        self.failed.keys().any(|version| version.rsplit_once('/').is_some_and(|(failed, _)| failed == group))
    }

    fn read(document: &Document) -> Self {
        let mut snapshot = Self::default();
        for group in &document.items {
            snapshot.take_in(group);
        }
        snapshot
    }

    /// A snapshot of one discovery document, for tests.
    ///
    /// # Panics
    /// When it is none.
    #[cfg(test)]
    pub(crate) fn from_json(document: &str) -> Self {
        Self::read(&serde_json::from_str(document).expect("a discovery document"))
    }

    /// The answers at all paths taken together; no group is in two of them.
    fn join<'a>(parts: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut whole = Self::default();
        for part in parts {
            whole.kinds.extend(part.kinds.iter().map(|(kind, served)| (kind.clone(), *served)));
            whole.preferred.extend(&part.preferred);
            whole.versions.extend(part.versions.iter().map(|(group, versions)| (group.clone(), versions.clone())));
            whole.failed.extend(part.failed.iter().map(|(group, problem)| (group.clone(), problem.clone())));
        }
        whole
    }

    fn take_in(&mut self, group: &Group) {
        let mut seen = HashSet::new();
        let name = group.metadata.name.as_str();
        let versions = group.versions.iter().map(|version| version.version.clone()).collect();
        self.versions.insert(name.to_owned(), versions);
        // The preferred version comes first.
        for version in &group.versions {
            let api_version =
                if name.is_empty() { version.version.clone() } else { format!("{name}/{}", version.version) };
            if version.freshness == "Stale" {
                let problem = format!("stale GroupVersion discovery: {api_version}");
                self.failed.insert(api_version, problem);
                continue;
            }
            for listed in &version.resources {
                let Some(kind) = listed.response_kind.as_ref().filter(|kind| !kind.kind.is_empty()) else { continue };
                // Adapters of metrics list metrics as resources; a metric's name may be no part of a URL.
                if ![name, &version.version, &kind.kind, &listed.resource].into_iter().all(is_name) {
                    continue;
                }
                let names = (lasting(name), lasting(&version.version), lasting(&kind.kind), lasting(&listed.resource));
                let (Some(group), Some(version), Some(kind_name), Some(plural)) = names else {
                    let problem = format!("{api_version}: there are more than {MOST_NAMES} names of resources");
                    self.failed.insert(api_version.clone(), problem);
                    continue;
                };
                let namespaced = listed.scope == "Namespaced";
                let served = Served {
                    resource: Resource { group, version, kind: kind_name, plural, namespaced },
                    verbs: listed.verbs.iter().fold(Verbs::default(), |verbs, word| verbs | Verbs::read(word)),
                    scales: listed.subresources.iter().any(Subresource::is_scale),
                };
                // Two resources of one kind: the one that can be read is the objects' own.
                let known = self.kinds.entry((api_version.clone(), kind.kind.clone())).or_insert(served);
                if !known.verbs.contains(Verbs::GET) {
                    *known = served;
                }
                if seen.insert(listed.resource.clone()) {
                    self.preferred.push(served);
                }
            }
        }
    }
}

/// Longest name of a group, version, kind or resource in bytes.
const LONGEST_NAME: usize = 253;

/// Most different names. Clusters have some thousands; a tenant who may create definitions of resources must not be able to fill
/// the memory with them.
const MOST_NAMES: usize = 65_536;

/// Reports whether a text may be a name of a group (the core group's is empty), version, kind or resource, which become
/// parts of URLs.
fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    text.len() <= LONGEST_NAME && text.bytes().all(is_plain) && !matches!(text, "." | "..")
}

/// Returns a name that lives as long as the process; `None` if there are too many.
fn lasting(text: &str) -> Option<&'static str> {
    static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let names = names.get_or_insert_default();
    if let Some(known) = names.get(text) {
        return Some(known);
    }
    if names.len() >= MOST_NAMES {
        return None;
    }
    let name: &'static str = Box::leak(text.into());
    names.insert(name);
    Some(name)
}

/// A field that is null is as good as none: adapters of metrics have resources without verbs of their own.
fn or_empty<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(value: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or_default())
}

#[derive(Debug, Deserialize)]
struct Document {
    #[serde(default, deserialize_with = "or_empty")]
    items: Vec<Group>,
}

#[derive(Debug, Deserialize)]
struct Group {
    #[serde(default, deserialize_with = "or_empty")]
    metadata: GroupName,
    #[serde(default, deserialize_with = "or_empty")]
    versions: Vec<Version>,
}

#[derive(Debug, Default, Deserialize)]
struct GroupName {
    #[serde(default, deserialize_with = "or_empty")]
    name: String,
}

#[derive(Debug, Deserialize)]
struct Version {
    version: String,
    #[serde(default, deserialize_with = "or_empty")]
    resources: Vec<Listed>,
    #[serde(default, deserialize_with = "or_empty")]
    freshness: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    resource: String,
    response_kind: Option<ListedKind>,
    #[serde(default, deserialize_with = "or_empty")]
    scope: String,
    #[serde(default, deserialize_with = "or_empty")]
    verbs: Vec<String>,
    #[serde(default, deserialize_with = "or_empty")]
    subresources: Vec<Subresource>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Subresource {
    subresource: String,
    response_kind: Option<ListedKind>,
}

impl Subresource {
    fn is_scale(&self) -> bool {
        self.subresource == "scale" && self.response_kind.as_ref().is_some_and(|kind| kind.kind == "Scale")
    }
}

#[derive(Debug, Deserialize)]
struct ListedKind {
    #[serde(default, deserialize_with = "or_empty")]
    kind: String,
}

/// One answer of the server, and the tag by which it says later that nothing changed.
#[derive(Default)]
struct Answered {
    tag: Option<header::HeaderValue>,
    part: Snapshot,
}

#[derive(Default)]
struct Cache {
    answers: [Answered; 2],
    asked: Option<Instant>,
}

/// What the server serves, kept for all who ask.
pub struct Discovery {
    clients: Arc<Clients>,
    current: RwLock<Arc<Snapshot>>,
    /// Held while asking, so that callers share one round.
    cache: tokio::sync::Mutex<Cache>,
}

impl Discovery {
    /// Nothing is asked before the first call.
    pub fn new(clients: Arc<Clients>) -> Self {
        Self { clients, current: RwLock::default(), cache: tokio::sync::Mutex::default() }
    }

    /// What was last known; empty before the first answer.
    pub fn current(&self) -> Arc<Snapshot> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the server serves, asked for again unless that is known from no longer ago than `age`.
    ///
    /// # Errors
    /// When the server does not answer; what was known before stays.
    pub async fn at_most_old(&self, age: Duration) -> Result<Arc<Snapshot>, DiscoveryError> {
        let mut cache = self.cache.lock().await;
        if cache.asked.is_some_and(|asked| asked.elapsed() <= age) {
            return Ok(self.current());
        }
        let mut changed = false;
        for (path, answered) in ROOTS.into_iter().zip(&mut cache.answers) {
            changed |= self.ask(path, answered).await?;
        }
        cache.asked = Some(Instant::now());
        if changed {
            let snapshot = Snapshot::join(cache.answers.iter().map(|answered| &answered.part));
            *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(snapshot);
        }
        Ok(self.current())
    }

    /// Asks one path; returns whether the answer is a new one.
    async fn ask(&self, path: &'static str, answered: &mut Answered) -> Result<bool, DiscoveryError> {
        let mut request = Request::builder().method(Method::GET).uri(path).header(header::ACCEPT, AGGREGATED);
        if let Some(tag) = &answered.tag {
            request = request.header(header::IF_NONE_MATCH, tag);
        }
        let request = request
            .extension(Lane::Control)
            .body(Bytes::new())
            .map_err(|error| DiscoveryError::Unreadable { path, problem: error.to_string() })?;
        let answer = self.clients.send(&Identity::Own, request).await?;
        match answer.status() {
            StatusCode::NOT_MODIFIED => return Ok(false),
            StatusCode::OK => {}
            _ => return Err(DiscoveryError::Refused { path, status: refusal(answer).await }),
        }
        let unreadable = |problem: String| DiscoveryError::Unreadable { path, problem };
        let tag = answer.headers().get(header::ETAG).cloned();
        let body = answer.into_body().collect().await.map_err(|error| unreadable(error.to_string()))?.to_bytes();
        let document: Document = serde_json::from_slice(&body).map_err(|error| unreadable(error.to_string()))?;
        if document.items.is_empty() {
            return Err(unreadable("it lists no group; an API server of 1.30 or later is needed".to_owned()));
        }
        *answered = Answered { tag, part: Snapshot::read(&document) };
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn snapshot(items: serde_json::Value) -> Snapshot {
        Snapshot::from_json(&json!({ "items": items }).to_string())
    }

    fn resource(plural: &str, kind: &str, verbs: &[&str]) -> serde_json::Value {
        json!({"resource": plural, "responseKind": {"kind": kind}, "scope": "Namespaced", "verbs": verbs})
    }

    #[test]
    fn each_resource_is_preferred_in_one_version_and_known_in_all() {
        let served = snapshot(json!([{
            "metadata": {"name": "apps"},
            "versions": [
                {"version": "v1", "freshness": "Current", "resources": [resource("sets", "Set", &["get", "list"])]},
                {"version": "v1beta1", "freshness": "Current", "resources": [
                    resource("sets", "Set", &["get"]), resource("olds", "Old", &["delete", "list", "watch", "patch"]),
                ]},
            ],
        }]));
        let preferred: Vec<_> =
            served.preferred().iter().map(|one| (one.resource.plural, one.resource.version)).collect();
        assert_eq!(preferred, [("sets", "v1"), ("olds", "v1beta1")]);
        let old = served.of_kind("apps/v1beta1", "Old").expect("served");
        assert!(old.verbs.contains(Verbs::DELETE | Verbs::LIST | Verbs::WATCH) && !old.verbs.contains(Verbs::GET));
        assert_eq!(served.of_kind("apps/v1beta1", "Set").expect("served").resource.version, "v1beta1");
        assert_eq!(served.of_kind("apps/v1", "Old"), None);
        assert_eq!(served.of_group_kind("apps", "Old").map(|one| one.resource.version), Some("v1beta1"));
        assert_eq!(served.of_group_kind("apps", "Set").map(|one| one.resource.version), Some("v1"));
        assert_eq!(
            (served.versions_of("apps"), served.versions_of("none").len()),
            (&["v1".to_owned(), "v1beta1".to_owned()][..], 0)
        );
        assert!(served.failed().is_empty());
    }

    #[test]
    fn a_group_that_does_not_answer_is_named_and_hides_no_other() {
        let served = snapshot(json!([
            {"metadata": {"name": "broken.example.com"}, "versions": [{"version": "v1", "freshness": "Stale"}]},
            {"metadata": {}, "versions": [
                {"version": "v1", "freshness": "Current", "resources": [resource("pods", "Pod", &["get"])]},
            ]},
        ]));
        assert!(served.of_kind("v1", "Pod").is_some());
        assert!(served.has_failed("broken.example.com") && !served.has_failed("example.com") && !served.has_failed(""));
        assert_eq!(
            served.failed().iter().map(|(group, problem)| format!("{group}: {problem}")).collect::<Vec<_>>(),
            ["broken.example.com/v1: stale GroupVersion discovery: broken.example.com/v1"]
        );
    }

    #[test]
    fn resource_with_a_name_that_is_no_segment_of_a_path_is_left_out() {
        let odd = ["../secrets", "a/b", "a?watch=true", "a b", "..", "queue:length", "\u{8a9e}"];
        let resources: Vec<_> =
            odd.iter().chain(&["good"]).map(|name| resource(name, &format!("Kind{name}"), &["list"])).collect();
        let served = snapshot(json!([
            {"metadata": {"name": "example.com"}, "versions": [
                {"version": "v1", "freshness": "Current", "resources": resources},
            ]},
            {"metadata": {"name": "example.com/../.."}, "versions": [
                {"version": "v1", "freshness": "Current", "resources": [resource("good", "Good", &["list"])]},
            ]},
        ]));
        let names: Vec<_> = served.preferred().iter().map(|one| (one.resource.group, one.resource.plural)).collect();
        assert_eq!(names, [("example.com", "good")]);
        assert!(served.failed().is_empty(), "nothing waits for them");
    }

    proptest::proptest! {
        #[test]
        fn any_discovery_document_is_read_or_refused(
            names in proptest::collection::vec("[a-z./%?]{0,8}|[A-Z][a-z]{0,5}", 4..8),
            verbs in "null|\\[\\]|\\[\"get\",\"x\"\\]|1",
            freshness in "Current|Stale|.{0,4}",
            text in "[\\[\\]{}\":,a-z]{0,40}",
        ) {
            let resource = format!(
                r#"{{"resource": "{}", "responseKind": {{"kind": "{}"}}, "scope": "Namespaced", "verbs": {verbs}}}"#,
                names[0], names[1],
            );
            let freshness = serde_json::Value::from(freshness);
            let document = format!(
                r#"{{"items": [{{"metadata": {{"name": "{}"}}, "versions": [{{"version": "{}", "freshness": {freshness},
                    "resources": [{resource}, {resource}]}}]}}]}}"#,
                names[2], names[3],
            );
            for text in [&document, &text] {
                let Ok(document) = serde_json::from_str::<Document>(text) else { continue };
                let snapshot = Snapshot::read(&document);
                for served in snapshot.preferred() {
                    let path = served.resource.path(Some("ns"));
                    proptest::prop_assert!(!path.contains(['?', '%', ' ']) && !path.contains("/../"), "{}", path);
                }
            }
        }
    }

    #[test]
    fn what_is_null_is_empty() {
        let length = json!({"resource": "fleets", "responseKind": {"group": "", "version": "", "kind": ""},
            "scope": "Namespaced", "verbs": null, "subresources": [
                {"subresource": "length", "responseKind": {"kind": "MetricValueList"}, "verbs": ["get"]}]});
        let served = snapshot(json!([
            {"metadata": {"name": "custom.metrics.k8s.io"}, "versions": [
                {"version": "v1beta2", "freshness": "Current", "resources": [length]},
                {"version": "v1beta1", "freshness": "Current", "resources": null},
            ]},
        ]));
        assert_eq!(served.versions_of("custom.metrics.k8s.io"), ["v1beta2", "v1beta1"]);
        assert!(served.preferred().is_empty() && served.failed().is_empty());
    }

    #[test]
    fn names_are_kept_once() {
        let name = lasting("widgets").expect("a name");
        assert!(std::ptr::eq(name, lasting(String::from("widgets").as_str()).expect("a name")));
    }
}
