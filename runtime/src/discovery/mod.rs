//! Discovery: the kinds that the API server serves, their verbs, and the groups that are unavailable.
//!
//! Two requests cover all groups (aggregated discovery), and an unchanged document is not sent again. A group whose
//! aggregated API server is down is listed as failed and does not affect the others. Upstream: client-go, discovery.

mod names;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use kinds::Resource;
use kinds::envelope::ApiStatus;
use serde::{Deserialize, Deserializer};
use tokio::time::Instant;

use crate::client::{Clients, Identity, Lane, SendError, refusal, retry_after};
use crate::lock::{read, write};
use names::{KeepName, is_name, static_name};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Maximum size of a discovery document in bytes. Each kind of the cluster takes about 500 bytes.
const MAX_BODY_BYTES: usize = 64 << 20;

/// The paths of discovery: the first for the core group, the second for all other groups.
const ROOTS: [&str; 2] = ["/api", "/apis"];

/// The reason why discovery failed.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// The request was not sent, or has no complete response.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The server returned an error.
    #[error("discovery at {path} was refused: {status}")]
    Refused {
        /// The requested path.
        path: &'static str,
        /// The error of the server.
        status: ApiStatus,
    },
    /// The response was truncated, is not a discovery document, or contains no groups.
    #[error("discovery at {path} cannot be read: {problem}")]
    Unreadable {
        /// The requested path.
        path: &'static str,
        /// The problem.
        problem: String,
    },
}

/// A set of verbs that a resource supports, limited to those that controllers need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Verbs(u8);

impl Verbs {
    /// Create an object (POST).
    pub const CREATE: Self = Self(1);
    /// Delete one object (DELETE).
    pub const DELETE: Self = Self(2);
    /// Delete all objects of a collection (DELETE).
    pub const DELETE_COLLECTION: Self = Self(4);
    /// Read one object (GET).
    pub const GET: Self = Self(8);
    /// Read a collection (GET).
    pub const LIST: Self = Self(16);
    /// Receive the changes of a collection (GET).
    pub const WATCH: Self = Self(32);
    /// Replace an object (PUT).
    pub const UPDATE: Self = Self(64);
    /// Change fields of an object (PATCH).
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

    /// Returns true if all of `wanted` are included.
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
    /// The group, version, kind and plural name.
    pub resource: Resource,
    /// The supported verbs.
    pub verbs: Verbs,
    /// The resource has a `scale` subresource.
    pub scales: bool,
}

/// The resources that the server served at one time.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The groups of each path; no group is in two of them. Shared with the cache of responses.
    roots: Vec<Arc<Groups>>,
    /// Unavailable versions (`group/version`), with the reason.
    failed: BTreeMap<String, String>,
}

/// The resources of one discovery document. There may be thousands, so that each is stored without copies of its names.
#[derive(Debug, Default, PartialEq, Eq)]
struct Groups {
    /// All kinds in all versions, sorted by [`kind_key`].
    kinds: Vec<Served>,
    preferred: Vec<Served>,
    /// Unavailable versions (`group/version`), with the reason.
    failed: BTreeMap<String, String>,
    /// Groups in which a resource was read in one version only: the names of another version exceeded the limit.
    incomplete: HashSet<String>,
    /// The versions of each group, the preferred one first.
    versions: HashMap<String, Vec<String>>,
}

/// The group, version and kind, by which [`Groups`] are sorted.
fn kind_key(served: &Served) -> (&'static str, &'static str, &'static str) {
    (served.resource.group, served.resource.version, served.resource.kind)
}

impl Snapshot {
    /// Returns each resource once, in the preferred version of its group if that version contains it. Upstream:
    /// client-go, ServerPreferredResources.
    pub fn preferred(&self) -> impl Iterator<Item = &Served> {
        self.roots.iter().flat_map(|groups| &groups.preferred)
    }

    /// Returns the resource with this group and plural name, in the most preferred version that contains it.
    pub fn of_group_resource(&self, group: &str, plural: &str) -> Option<Served> {
        self.preferred().find(|served| (served.resource.group, served.resource.plural) == (group, plural)).copied()
    }

    /// Returns the resource of a kind in exactly this version; `None` if it is not served, or its group is unavailable.
    /// The kind may be in lower case. Upstream: client-go, restmapper.NewDiscoveryRESTMapper.
    pub fn of_kind(&self, api_version: &str, kind: &str) -> Option<Served> {
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        self.of_version(group, version, kind)
    }

    fn of_version(&self, group: &str, version: &str, kind: &str) -> Option<Served> {
        self.roots.iter().find_map(|groups| groups.of_version(group, version, kind))
    }

    /// Returns the resource of a kind in the most preferred version of the group that contains it. Upstream:
    /// apimachinery, RESTMapper.RESTMapping.
    pub fn of_group_kind(&self, group: &str, kind: &str) -> Option<Served> {
        self.versions_of(group).iter().find_map(|version| self.of_version(group, version, kind))
    }

    /// Returns all kinds in all versions, in no particular order.
    pub fn kinds(&self) -> impl Iterator<Item = Resource> {
        self.roots.iter().flat_map(|groups| &groups.kinds).map(|served| served.resource)
    }

    /// Returns the versions of a group, the preferred one first, including unavailable ones; empty if it is not
    /// registered.
    pub fn versions_of(&self, group: &str) -> &[String] {
        self.roots.iter().find_map(|groups| groups.versions.get(group)).map_or(&[], Vec::as_slice)
    }

    /// Returns the versions (`group/version`) that are registered but unavailable, with the reason.
    pub fn failed(&self) -> &BTreeMap<String, String> {
        &self.failed
    }

    /// Returns true if some version of the group is unavailable, or its kinds were not read.
    pub fn has_failed(&self, group: &str) -> bool {
        // A version of the core group has no slash.
        self.roots.iter().any(|groups| groups.incomplete.contains(group))
            || self.failed.keys().any(|version| version.rsplit_once('/').map_or("", |(failed, _)| failed) == group)
    }

    /// Merges the documents of all paths.
    fn join(roots: Vec<Arc<Groups>>) -> Self {
        let failed = roots.iter().flat_map(|groups| &groups.failed);
        Self { failed: failed.map(|(version, problem)| (version.clone(), problem.clone())).collect(), roots }
    }

    /// Creates a snapshot of one discovery document, for tests.
    ///
    /// # Panics
    /// When the text is not a discovery document.
    #[cfg(test)]
    pub(crate) fn from_json(document: &str) -> Self {
        let document = serde_json::from_str(document).expect("a discovery document");
        Self::join(vec![Arc::new(Groups::read(&document))])
    }
}

impl Groups {
    fn read(document: &Document) -> Self {
        Self::read_with(document, &static_name)
    }

    /// Like [`Groups::read`]; `keep` returns a name with static lifetime, or `None` if there are too many.
    fn read_with(document: &Document, keep: &KeepName) -> Self {
        let mut groups = Self::default();
        for group in &document.items {
            groups.add_group(group, keep);
        }
        // Several resources may have the same kind, such as a virtual resource for creations only. The first one with
        // the verb `get` is kept, because it serves the objects. The sort is stable, so that the order of the document
        // decides.
        groups.kinds.sort_by_key(kind_key);
        groups.kinds.dedup_by(|later, known| {
            let is_same = kind_key(later) == kind_key(known);
            if is_same && !known.verbs.contains(Verbs::GET) {
                *known = *later;
            }
            is_same
        });
        groups.kinds.shrink_to_fit();
        groups.preferred.shrink_to_fit();
        groups
    }

    fn of_version(&self, group: &str, version: &str, kind: &str) -> Option<Served> {
        let place = self.kinds.binary_search_by(|served| kind_key(served).cmp(&(group, version, kind)));
        place.ok().map(|place| self.kinds[place]).or_else(|| self.of_lowercase(group, version, kind))
    }

    /// Returns the resource of a kind by its name in lower case.
    fn of_lowercase(&self, group: &str, version: &str, kind: &str) -> Option<Served> {
        if kind.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return None;
        }
        let start = self.kinds.partition_point(|served| kind_key(served) < (group, version, ""));
        let of_version = self.kinds[start..].iter().take_while(|served| {
            let (of_group, of_version, _) = kind_key(served);
            (of_group, of_version) == (group, version)
        });
        of_version.filter(|served| served.resource.kind.eq_ignore_ascii_case(kind)).last().copied()
    }

    fn add_group(&mut self, group: &Group, keep: &KeepName) {
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
                // Metrics adapters list metrics as resources; a metric's name may be invalid in a URL.
                if ![name, &version.version, &kind.kind, &listed.resource].into_iter().all(is_name) {
                    continue;
                }
                let names = (keep(name), keep(&version.version), keep(&kind.kind), keep(&listed.resource));
                let (Some(group), Some(version), Some(kind_name), Some(plural)) = names else {
                    // The resource was already read in another version, which serves the same objects. This version is
                    // not listed as failed: otherwise no namespace could be deleted.
                    if seen.contains(&*listed.resource) {
                        self.incomplete.insert(name.to_owned());
                    } else {
                        let problem = format!("{api_version}: there are too many names of resources");
                        self.failed.insert(api_version.clone(), problem);
                    }
                    continue;
                };
                let namespaced = listed.scope == "Namespaced";
                let served = Served {
                    resource: Resource { group, version, kind: kind_name, plural, namespaced },
                    verbs: listed.verbs.iter().fold(Verbs::default(), |verbs, word| verbs | Verbs::read(word)),
                    scales: listed.subresources.iter().any(Subresource::is_scale),
                };
                self.kinds.push(served);
                if seen.insert(plural) {
                    self.preferred.push(served);
                }
            }
        }
    }
}

/// Deserializes null as the default: metrics adapters have resources whose verbs are null.
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

/// The last response for one path, with its ETag: the server does not send an unchanged document again.
#[derive(Default)]
struct RootResponse {
    etag: Option<header::HeaderValue>,
    groups: Arc<Groups>,
}

#[derive(Default)]
struct Cache {
    /// The responses by path, in the order of [`ROOTS`].
    roots: [RootResponse; 2],
    requested_at: Option<Instant>,
    /// A response is new, and the snapshot does not contain it yet.
    is_changed: bool,
    /// The last refusal with a Retry-After, and the time until which it allows no request.
    refused: Option<(Instant, Refusal)>,
}

/// A refused request.
#[derive(Debug, Clone)]
struct Refusal {
    path: &'static str,
    status: ApiStatus,
}

impl From<Refusal> for DiscoveryError {
    fn from(Refusal { path, status }: Refusal) -> Self {
        Self::Refused { path, status }
    }
}

/// The resources that the server serves, shared by all controllers.
pub struct Discovery {
    clients: Arc<Clients>,
    current: RwLock<Arc<Snapshot>>,
    /// Locked during the requests, so that concurrent callers share the responses.
    cache: tokio::sync::Mutex<Cache>,
}

impl Discovery {
    /// Creates an empty cache; no request is sent before the first call.
    pub fn new(clients: Arc<Clients>) -> Self {
        Self { clients, current: RwLock::default(), cache: tokio::sync::Mutex::default() }
    }

    /// Returns the last known snapshot; empty until the documents of both paths were read once.
    pub fn current(&self) -> Arc<Snapshot> {
        read(&self.current).clone()
    }

    /// Returns the resources that the server serves; requests them again if the known state is older than `age`.
    ///
    /// # Errors
    /// When a request fails or a response cannot be read; the known state is kept. After a refusal with a Retry-After,
    /// the same error is returned without another request until that time.
    pub async fn no_older_than(&self, age: Duration) -> Result<Arc<Snapshot>, DiscoveryError> {
        let mut cache = self.cache.lock().await;
        if cache.requested_at.is_some_and(|requested_at| requested_at.elapsed() <= age) {
            return Ok(self.current());
        }
        if let Some((until, refusal)) = &cache.refused
            && Instant::now() < *until
        {
            return Err(refusal.clone().into());
        }
        for (index, path) in ROOTS.into_iter().enumerate() {
            // Stored in the cache, because the next request may fail. The retry then gets "not modified" for this path,
            // although the snapshot lacks the response.
            let fetched = self.fetch_root(path, &mut cache.roots[index]).await;
            if let Err(DiscoveryError::Refused { path, status }) = &fetched
                && let Some(delay) = retry_after(status)
            {
                cache.refused = Some((Instant::now() + delay, Refusal { path, status: status.clone() }));
            }
            cache.is_changed |= fetched?;
        }
        cache.requested_at = Some(Instant::now());
        if std::mem::take(&mut cache.is_changed) {
            let snapshot = Snapshot::join(cache.roots.iter().map(|root| root.groups.clone()).collect());
            *write(&self.current) = Arc::new(snapshot);
        }
        Ok(self.current())
    }

    /// Requests one path. Returns true if the response is new.
    async fn fetch_root(&self, path: &'static str, root: &mut RootResponse) -> Result<bool, DiscoveryError> {
        let mut request = Request::builder().method(Method::GET).uri(path).header(header::ACCEPT, AGGREGATED);
        if let Some(etag) = &root.etag {
            request = request.header(header::IF_NONE_MATCH, etag);
        }
        let request = request
            .extension(Lane::Control)
            .body(Bytes::new())
            .map_err(|error| DiscoveryError::Unreadable { path, problem: error.to_string() })?;
        let response = self.clients.send(&Identity::Own, request, MAX_BODY_BYTES).await?;
        match response.status() {
            StatusCode::NOT_MODIFIED => return Ok(false),
            StatusCode::OK => {}
            _ => return Err(DiscoveryError::Refused { path, status: refusal(response).await }),
        }
        let unreadable = |problem: String| DiscoveryError::Unreadable { path, problem };
        let etag = response.headers().get(header::ETAG).cloned();
        let body = response.into_body().collect().await.map_err(|error| unreadable(error.to_string()))?.to_bytes();
        let document: Document = serde_json::from_slice(&body).map_err(|error| unreadable(error.to_string()))?;
        if document.items.is_empty() {
            return Err(unreadable("it contains no groups; an API server of 1.30 or later is needed".to_owned()));
        }
        *root = RootResponse { etag, groups: Arc::new(Groups::read(&document)) };
        Ok(true)
    }
}
