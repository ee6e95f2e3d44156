//! Uncached lists with their version.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use kinds::meta::{Meta, ObjectKey, OwnerRef, parse_version};
use kinds::schema::object_meta;
use kinds::wire::{fields, find, find_str};
use kinds::{DecodeError, Interner, Resource, envelope};
use tokio::time::Instant;
use tracing::warn;

use super::{ObjectResponse, WriteError, Writer};
use crate::client::media::{METADATA_LIST, PROTOBUF};
use crate::text::percent_encode;

/// A namespace that cannot exist, so that a list of it is empty. Upstream: pkg/controller/storageversionmigrator,
/// fakeSVMNamespaceName.
const NO_NAMESPACE: &str = "@fake:svm_ns!";

/// The number of objects in a page.
///
/// It is halved, down to one, while a page is longer than a response may be: tenants determine the size of objects, and
/// an API server accepts more of the largest ones than fit into a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageSize(u32);

impl PageSize {
    /// For pages of metadata: large, because a list may have very many objects. A Job may have 100,000 pods.
    pub const METADATA: Self = Self(1000);

    /// Halves the size; returns false if it is 1 already.
    fn halve(&mut self) -> bool {
        let can_halve = self.0 > 1;
        self.0 = (self.0 / 2).max(1);
        can_halve
    }
}

impl Default for PageSize {
    /// For pages of whole objects, and of versions.
    fn default() -> Self {
        Self(500)
    }
}

/// Maximum time of a list that is read as a whole: many times the duration of the largest list at the default rate
/// limit.
const MAX_LIST_TIME: Duration = Duration::from_secs(600);

/// Returns the error of a list whose pages never end: some aggregated APIs return the same continue token repeatedly. A
/// worker that waits for the end would never return.
fn endless(resource: &Resource) -> DecodeError {
    DecodeError::field("continue", format!("does not lead to the end of the list of {}", resource.plural))
}

/// Maximum size of the metadata of a list in memory, in bytes: about 400,000 objects with labels and an owner.
///
/// Without this limit, an aggregated API whose every page names a next page could fill the memory within
/// [`MAX_LIST_TIME`].
const MAX_METADATA_BYTES: usize = 256 << 20;

/// Returns the memory that an object's metadata takes at most, from its encoding. An element of a list takes memory
/// even if it is empty.
fn size_in_memory(meta: &[u8]) -> usize {
    const ELEMENT: usize = 64;
    let kept = fields(meta).map_while(Result::ok).map(|field| match field.number {
        object_meta::NAME | object_meta::NAMESPACE => field.value.bytes().len(),
        object_meta::LABELS | object_meta::FINALIZERS => ELEMENT + field.value.bytes().len(),
        object_meta::OWNER_REFERENCES => size_of::<OwnerRef>() + field.value.bytes().len(),
        _ => 0,
    });
    size_of::<Meta>() + kept.sum::<usize>()
}

/// Returns the error of a list whose metadata takes too much memory.
fn too_large(resource: &Resource) -> DecodeError {
    let (group, plural) = (resource.group, resource.plural);
    warn!(
        group,
        resource = plural,
        max_bytes = MAX_METADATA_BYTES,
        "list given up: its metadata takes too much memory"
    );
    DecodeError::field("items", format!("of the list of {plural} take more than {} MiB", MAX_METADATA_BYTES >> 20))
}

/// Metadata of the objects of a list, and the version that the API server had reached.
#[derive(Debug)]
pub struct MetaList {
    /// The version of the list. It is comparable with versions of objects of the same resource.
    pub version: u64,
    /// The objects.
    pub items: Vec<Meta>,
}

/// A page of a list of keys and versions.
#[derive(Debug)]
pub struct VersionPage {
    /// The objects, with their versions as the server has written them.
    pub objects: Vec<(ObjectKey, String)>,
    /// Token for the next page; empty on the last one.
    pub next: String,
}

/// The requests for the pages of a list.
struct Pages {
    /// Path and query, up to the parameters of a page.
    collection: String,
    /// The media type.
    accept: &'static str,
    size: PageSize,
}

impl Pages {
    /// Returns the pages of a list of metadata: of the objects that match a label selector, in a namespace, or in all
    /// namespaces if `namespace` is empty.
    fn of_metadata(resource: &Resource, namespace: &str, selector: &str) -> Result<Self, WriteError> {
        let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
        let collection = super::path::collection(resource, namespace)?;
        let collection = format!("{collection}?labelSelector={}&", percent_encode(selector));
        Ok(Self { collection, accept: METADATA_LIST, size: PageSize::METADATA })
    }
}

impl Writer {
    /// Reads from the API server the metadata of the objects that match a label selector, in a namespace, or in all
    /// namespaces if `namespace` is empty. Returns it with the version of the list.
    ///
    /// # Errors
    /// When a request fails, a page cannot be decoded, the pages never end, or the metadata takes more than 256 MiB.
    pub async fn list_metadata(
        &self,
        resource: &Resource,
        namespace: &str,
        selector: &str,
    ) -> Result<MetaList, WriteError> {
        let list = Pages::of_metadata(resource, namespace, selector)?;
        let (interner, mut items) = (Interner::default(), Vec::new());
        let mut free = MAX_METADATA_BYTES;
        let decode = |item: &[u8]| {
            let meta = find(item, 1);
            free = free.checked_sub(size_in_memory(meta)).ok_or_else(|| too_large(resource))?;
            items.push(Meta::decode(&interner, meta, |_, _| {})?);
            Ok(())
        };
        let version = parse_version(&self.read_pages(resource, list, decode).await?)?;
        Ok(MetaList { version, items })
    }

    /// Reads the metadata of all objects of a namespace from the API server page by page, and passes each to `visit` as
    /// an encoded ObjectMeta. Nothing is kept, so that the number of objects is not limited.
    ///
    /// # Errors
    /// When a request fails, a page cannot be decoded, or the pages never end.
    pub async fn list_each_metadata(
        &self,
        resource: &Resource,
        namespace: &str,
        mut visit: impl FnMut(&[u8]),
    ) -> Result<(), WriteError> {
        let pass = |item: &[u8]| {
            visit(find(item, 1));
            Ok(())
        };
        self.read_pages(resource, Pages::of_metadata(resource, namespace, "")?, pass).await.map(drop)
    }

    /// Reads one page of the metadata of a namespace's objects, like [`Writer::list_each_metadata`]: the first page if
    /// `token` is empty, otherwise the page that the token names. Reduces `size` if the page is too long. Returns the
    /// token of the next page; empty if this was the last one.
    ///
    /// # Errors
    /// When a request fails, a response cannot be decoded, or a page names itself as the next one.
    pub async fn metadata_page(
        &self,
        resource: &Resource,
        namespace: &str,
        token: &str,
        size: &mut PageSize,
        mut visit: impl FnMut(&[u8]),
    ) -> Result<String, WriteError> {
        let mut pages = Pages { size: *size, ..Pages::of_metadata(resource, namespace, "")? };
        let response = self.read_page(&mut pages, token).await?;
        *size = pages.size;
        let page = envelope::page(&response.0)?;
        page.items.iter().for_each(|item| visit(find(item, 1)));
        if !token.is_empty() && page.next == token {
            return Err(endless(resource).into());
        }
        Ok(page.next.to_owned())
    }

    /// Reads all objects of a namespace, or of all namespaces if `namespace` is empty, from the API server page by
    /// page, and passes each object to `visit`, without its envelope.
    ///
    /// # Errors
    /// When a request fails, a page cannot be decoded, or the pages never end.
    pub async fn list_each(
        &self,
        resource: &Resource,
        namespace: &str,
        mut visit: impl FnMut(&[u8]),
    ) -> Result<(), WriteError> {
        let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
        let list = Pages {
            collection: format!("{}?", super::path::collection(resource, namespace)?),
            accept: PROTOBUF,
            size: PageSize::default(),
        };
        let pass = |item: &[u8]| {
            visit(item);
            Ok(())
        };
        self.read_pages(resource, list, pass).await.map(drop)
    }

    /// Reads a list from its first page on, and passes each object to `visit`. Returns the version of the list
    /// as the server has written it.
    async fn read_pages(
        &self,
        resource: &Resource,
        mut pages: Pages,
        mut visit: impl FnMut(&[u8]) -> Result<(), DecodeError>,
    ) -> Result<String, WriteError> {
        let deadline = Instant::now() + MAX_LIST_TIME;
        let mut next = String::new();
        loop {
            let response = self.read_page(&mut pages, &next).await?;
            let page = envelope::page(&response.0)?;
            page.items.iter().try_for_each(|item| visit(item))?;
            if page.next.is_empty() {
                return Ok(page.version.to_owned());
            }
            if page.next == next || Instant::now() >= deadline {
                return Err(endless(resource).into());
            }
            page.next.clone_into(&mut next);
        }
    }

    /// Reads the page that a token names, or the first page if the token is empty. Reduces the page size if the page is
    /// too long.
    async fn read_page(&self, pages: &mut Pages, token: &str) -> Result<ObjectResponse, WriteError> {
        loop {
            let mut path = format!("{}limit={}", pages.collection, pages.size.0);
            if !token.is_empty() {
                path += &format!("&continue={}", percent_encode(token));
            }
            match self.send(Method::GET, path, "", pages.accept, Bytes::new()).await {
                Err(WriteError::TooLong(_)) if pages.size.halve() => {}
                response => return response,
            }
        }
    }

    /// Reads the version that the API server has reached for a resource.
    ///
    /// # Errors
    /// When the request fails or the response cannot be decoded.
    pub async fn latest_version(&self, resource: &Resource) -> Result<u64, WriteError> {
        Ok(parse_version(&self.latest_version_text(resource).await?)?)
    }

    /// Reads the version that the API server has reached for a resource, as it has written it: the version of an
    /// aggregated API need not be a number. If the resource is namespaced, the response contains no objects.
    ///
    /// # Errors
    /// When the request fails or the response cannot be decoded.
    pub async fn latest_version_text(&self, resource: &Resource) -> Result<String, WriteError> {
        let path = format!("{}?limit=1", super::path::collection(resource, Some(NO_NAMESPACE))?);
        let response = self.send(Method::GET, path, "", METADATA_LIST, Bytes::new()).await?;
        Ok(envelope::list_version_text(&response.0)?.to_owned())
    }

    /// Reads from the API server one page of the keys and versions of a resource's objects: the first page if `token`
    /// is empty, otherwise the page that the token names. Reduces `size` if the page is too long.
    ///
    /// # Errors
    /// When a request fails, a response cannot be decoded, or a page names itself as the next one.
    pub async fn list_versions(
        &self,
        resource: &Resource,
        token: &str,
        size: &mut PageSize,
    ) -> Result<VersionPage, WriteError> {
        let collection = format!("{}?", super::path::collection(resource, None)?);
        let mut pages = Pages { collection, accept: METADATA_LIST, size: *size };
        let response = self.read_page(&mut pages, token).await?;
        *size = pages.size;
        let page = envelope::page(&response.0)?;
        let keyed = |item: &&[u8]| {
            let meta = find(item, 1);
            let text = |field| find_str(meta, field);
            let key = ObjectKey::new(text(object_meta::NAMESPACE), text(object_meta::NAME));
            (key, text(object_meta::RESOURCE_VERSION).to_owned())
        };
        let objects = page.items.iter().map(keyed).collect();
        if !token.is_empty() && page.next == token {
            return Err(endless(resource).into());
        }
        Ok(VersionPage { objects, next: page.next.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use kinds::schema::list_meta;
    use kinds::wire::Put;

    use super::*;
    use crate::client::Identity;
    use crate::client::rate::TokenBucket;
    use crate::fence::Fence;
    use crate::testing::clients;

    const THINGS: Resource =
        Resource { group: "example.com", version: "v1", kind: "Thing", plural: "things", namespaced: true };

    /// A writer with one request per second whose API server returns endless pages, all with the same token if
    /// `is_repeated`.
    async fn endless_pages(is_repeated: bool) -> Writer {
        let pages = AtomicUsize::new(0);
        let clients = clients(move |_, _, _| {
            let number = pages.fetch_add(1, Ordering::Relaxed);
            let mut list = Vec::new();
            list.put_message(1, |meta| {
                let token = if is_repeated { "next".to_owned() } else { format!("next-{number}") };
                meta.put_str(list_meta::CONTINUE, &token);
                meta.put_str(list_meta::RESOURCE_VERSION, "5");
            });
            (200, envelope::wrap_as("example.com/v1", "ThingList", &list))
        });
        Writer::new(clients.await, Identity::Own, Arc::new(TokenBucket::new(1.0, 1)), Fence::open())
    }

    #[tokio::test(start_paused = true)]
    async fn list_whose_pages_never_end_is_given_up() {
        for is_repeated in [true, false] {
            let writer = endless_pages(is_repeated).await;
            let error = writer.list_each(&THINGS, "ns", |_| {}).await.expect_err("no end").to_string();
            assert!(error.contains("does not lead to the end of the list of things"), "{error}");
            let error = writer.list_metadata(&THINGS, "ns", "").await.expect_err("no end").to_string();
            assert!(error.contains("does not lead to the end of the list of things"), "{error}");
        }
    }

    /// A writer whose API server returns endless pages, each with a label of this size in MiB.
    async fn endless_labels(size: usize) -> (Writer, Arc<AtomicUsize>) {
        let pages = Arc::new(AtomicUsize::new(0));
        let counter = pages.clone();
        let clients = clients(move |_, _, _| {
            let number = pages.fetch_add(1, Ordering::Relaxed);
            // Without the limit, the list ends too, so that the test fails instead of filling the memory.
            let next = if number < 40 { format!("next-{number}") } else { String::new() };
            let mut list = Vec::new();
            list.put_message(1, |meta| {
                meta.put_str(list_meta::CONTINUE, &next);
                meta.put_str(list_meta::RESOURCE_VERSION, "5");
            });
            list.put_message(2, |object| {
                object.put_message(1, |meta| {
                    meta.put_str(object_meta::NAME, "a");
                    meta.put_str(object_meta::RESOURCE_VERSION, "4");
                    meta.put_message(object_meta::LABELS, |label| {
                        label.put_str(1, "text");
                        label.put_str(2, &"x".repeat(size << 20));
                    });
                });
            });
            (200, envelope::wrap_as("example.com/v1", "ThingList", &list))
        });
        (Writer::new(clients.await, Identity::Own, Arc::new(TokenBucket::new(-1.0, 1)), Fence::open()), counter)
    }

    #[tokio::test]
    async fn list_is_given_up_when_its_metadata_takes_too_much_memory() {
        const PAGE_MIB: usize = 32;
        let (writer, pages) = endless_labels(PAGE_MIB).await;
        let error = writer.list_metadata(&THINGS, "ns", "").await.expect_err("too large").to_string();
        assert!(error.contains("of the list of things take more than 256 MiB"), "{error}");
        assert!(pages.load(Ordering::Relaxed) <= (MAX_METADATA_BYTES >> 20) / PAGE_MIB);
    }

    #[test]
    fn empty_elements_of_metadata_take_memory() {
        let mut meta = Vec::new();
        (0..1000).for_each(|_| meta.put_message(object_meta::OWNER_REFERENCES, |_| {}));
        assert!(size_in_memory(&meta) >= 1000 * size_of::<OwnerRef>());
    }

    #[tokio::test]
    async fn page_with_the_token_of_its_request_is_refused() {
        let writer = endless_pages(true).await;
        let mut size = PageSize::default();
        let first = writer.list_versions(&THINGS, "", &mut size).await.expect("a page");
        assert_eq!(first.next, "next");
        assert!(writer.list_versions(&THINGS, &first.next, &mut size).await.is_err());
    }

    /// A writer whose API server has as many objects as `sizes`, of these sizes in MiB; the token of a page is the
    /// index of its first object.
    async fn large_objects(sizes: &'static [usize]) -> Writer {
        let clients = clients(move |_, uri, _| {
            let parameter = |name: &str| -> usize {
                let value = uri.split(['?', '&']).find_map(|pair| pair.strip_prefix(name)).unwrap_or_default();
                value.parse().unwrap_or_default()
            };
            let (first, limit) = (parameter("continue="), parameter("limit="));
            let end = (first + limit).min(sizes.len());
            let mut list = Vec::new();
            list.put_message(1, |meta| {
                meta.put_str(list_meta::CONTINUE, &if end < sizes.len() { end.to_string() } else { String::new() });
                meta.put_str(list_meta::RESOURCE_VERSION, "5");
            });
            for (number, size) in sizes.iter().enumerate().take(end).skip(first) {
                list.put_message(2, |object| {
                    object.put_message(1, |meta| {
                        meta.put_str(object_meta::NAME, &number.to_string());
                        meta.put_str(object_meta::RESOURCE_VERSION, "4");
                    });
                    // A field that no controller reads.
                    object.put_bytes(15, &vec![0; size << 20]);
                });
            }
            (200, envelope::wrap_as("example.com/v1", "ThingList", &list))
        });
        Writer::new(clients.await, Identity::Own, Arc::new(TokenBucket::new(-1.0, 1)), Fence::open())
    }

    #[tokio::test]
    async fn list_is_read_in_smaller_pages_when_a_page_is_too_long() {
        const SIZES: [usize; 4] = [30, 1, 40, 1];
        let names: Vec<String> = (0..SIZES.len()).map(|number| number.to_string()).collect();
        let writer = large_objects(&SIZES).await;
        let list = writer.list_metadata(&THINGS, "ns", "").await.expect("a list");
        assert_eq!(list.items.iter().map(|item| item.name.to_string()).collect::<Vec<_>>(), names);
        assert_eq!(writer.list_meta(&THINGS, "", "").await.expect("a list").len(), SIZES.len());
        let mut visited = 0;
        writer.list_each(&THINGS, "", |_| visited += 1).await.expect("a list");
        assert_eq!(visited, SIZES.len());

        let (mut size, mut token, mut listed) = (PageSize::default(), String::new(), Vec::new());
        loop {
            let page = writer.list_versions(&THINGS, &token, &mut size).await.expect("a page");
            listed.extend(page.objects.into_iter().map(|(key, _)| key.name.to_string()));
            token = page.next;
            if token.is_empty() {
                break;
            }
        }
        assert_eq!(listed, names);
    }

    #[tokio::test]
    async fn object_that_is_longer_than_a_page_ends_the_list() {
        let writer = large_objects(&[1, 65]).await;
        let error = writer.list_metadata(&THINGS, "ns", "").await.expect_err("too long");
        assert!(matches!(error, WriteError::TooLong(_)), "{error}");
    }

    #[tokio::test]
    async fn version_is_returned_as_the_server_has_written_it() {
        for text in ["5", "abcde", ""] {
            let clients = clients(move |_, _, _| {
                let mut list = Vec::new();
                list.put_message(1, |meta| meta.put_str(list_meta::RESOURCE_VERSION, text));
                (200, envelope::wrap_as("example.com/v1", "ThingList", &list))
            });
            let bucket = Arc::new(TokenBucket::new(100.0, 100));
            let writer = Writer::new(clients.await, Identity::Own, bucket, Fence::open());
            assert_eq!(writer.latest_version_text(&THINGS).await.expect("a version"), text);
            assert_eq!(writer.latest_version(&THINGS).await.ok(), text.parse().ok());
        }
    }

    #[tokio::test]
    async fn metadata_of_all_pages_is_listed() {
        let clients = clients(|_, uri, _| {
            let is_second = uri.to_string().contains("continue=next");
            let mut list = Vec::new();
            list.put_message(1, |meta| {
                meta.put_str(list_meta::CONTINUE, if is_second { "" } else { "next" });
                meta.put_str(list_meta::RESOURCE_VERSION, "5");
            });
            list.put_message(2, |object| {
                object.put_message(1, |meta| {
                    meta.put_str(object_meta::NAME, if is_second { "b" } else { "a" });
                    meta.put_str(object_meta::RESOURCE_VERSION, "4");
                });
            });
            (200, envelope::wrap_as("example.com/v1", "ThingList", &list))
        });
        let bucket = Arc::new(TokenBucket::new(100.0, 100));
        let writer = Writer::new(clients.await, Identity::Own, bucket, Fence::open());
        let list = writer.list_metadata(&THINGS, "ns", "app=web").await.expect("a list");
        assert_eq!(list.version, 5);
        assert_eq!(list.items.iter().map(|item| &*item.name).collect::<Vec<_>>(), ["a", "b"]);
    }
}
