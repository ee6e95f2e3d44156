//! The objects of one migration: they are listed, then patched.

use kinds::meta::ObjectKey;
use kinds::{Resource, StorageVersionMigration, Uid};
use runtime::write::{PageSize, WriteError, Writer};
use serde_json::json;
use tracing::{debug, info};

use super::NAME;
use super::decide::{ListFailure, PatchResult, classify, list_failure, read_version};

/// Maximum number of patches in one reconcile.
const BATCH: usize = 200;
/// Maximum number of pages that are listed in one reconcile.
const PAGES: usize = 20;

/// The reason why a page of objects could not be listed.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The request failed.
    #[error(transparent)]
    Request(#[from] WriteError),
    /// The version of an object is not a number, so it cannot be compared.
    #[error("{0}")]
    Version(String),
}

/// The objects of a migration that are not patched yet, and the state of their list.
pub struct Pass {
    uid: Uid,
    version: u64,
    /// Token of the next page while the objects are listed; `None` when all pages were read.
    next: Option<String>,
    page_size: PageSize,
    left: Vec<(ObjectKey, u64)>,
    total: usize,
}

impl Pass {
    /// Starts a migration of the objects that were last written at `version` or before.
    pub fn new(uid: Uid, version: u64) -> Self {
        let page_size = PageSize::default();
        Self { uid, version, next: Some(String::new()), page_size, left: Vec::new(), total: 0 }
    }

    /// Returns true if this pass belongs to this migration and begins at this version.
    pub fn is_of(&self, migration: &StorageVersionMigration, version: u64) -> bool {
        self.uid == migration.meta.uid && self.version == version
    }

    /// Returns true if all objects were listed.
    pub fn is_listed(&self) -> bool {
        self.next.is_none()
    }

    /// Returns true if all objects were listed and patched.
    pub fn is_complete(&self) -> bool {
        self.is_listed() && self.left.is_empty()
    }

    /// Returns the numbers of objects that are left and of all objects.
    pub fn objects(&self) -> (usize, usize) {
        (self.left.len(), self.total)
    }

    /// Lists at most `PAGES` pages of objects. The list is read from the API server, so it is no older than the
    /// version that was recorded. Pages that were read before an error are not read again, unless the list has to start
    /// again.
    ///
    /// A list whose token has expired continues in a newer state of the server: objects that were not written since the
    /// migration began are in both states, and all other objects need no patch.
    ///
    /// # Errors
    /// When a page cannot be read. The next call continues at that page, or at the first page if the list cannot be
    /// continued.
    pub async fn list_pages(&mut self, patcher: &Writer, resource: &Resource) -> Result<(), ListError> {
        for _ in 0..PAGES {
            let Some(token) = &self.next else { break };
            let page = match patcher.list_versions(resource, token, &mut self.page_size).await {
                Ok(page) => page,
                Err(error) => match list_failure(&error) {
                    ListFailure::ContinueAt(token) => {
                        self.next = Some(token);
                        continue;
                    }
                    ListFailure::StartAgain => {
                        *self = Self::new(self.uid.clone(), self.version);
                        return Err(error.into());
                    }
                    ListFailure::Retry | ListFailure::Fatal => return Err(error.into()),
                },
            };
            self.total += page.objects.len();
            for (key, written) in page.objects {
                let written = read_version(&written).map_err(ListError::Version)?;
                if written <= self.version {
                    self.left.push((key, written));
                }
            }
            self.next = Some(page.next).filter(|next| !next.is_empty());
            if self.is_listed() {
                self.left.shrink_to_fit();
                let (left, total) = self.objects();
                info!(resource = resource.plural, left, total, "migrating stored objects");
            }
        }
        Ok(())
    }

    /// Patches at most `BATCH` objects.
    ///
    /// # Errors
    /// When an object cannot be patched. It stays in the pass.
    pub async fn patch_batch(&mut self, patcher: &Writer, resource: &Resource) -> Result<(), WriteError> {
        for _ in 0..BATCH {
            let Some((key, version)) = self.left.last() else { break };
            let patch = json!({
                "apiVersion": resource.api_version(), "kind": resource.kind,
                "metadata": { "resourceVersion": version.to_string() },
            });
            let result = patcher.merge_patch_as(resource, key, NAME, &patch).await.map(drop);
            if classify(&result) != PatchResult::Migrated {
                return result;
            }
            debug!(object = %key, resource = resource.plural, "object is stored in the current version");
            self.left.pop();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use kinds::envelope;
    use kinds::schema::{list_meta, object_meta};
    use kinds::wire::Put;
    use runtime::lock::lock;
    use runtime::testing::writer;

    use super::*;

    const RESOURCE: Resource =
        Resource { group: "", version: "v1", kind: "ConfigMap", plural: "configmaps", namespaced: true };

    fn page(objects: &[(&str, u64)], next: &str) -> (u16, Vec<u8>) {
        let mut list = Vec::new();
        list.put_message(1, |meta| {
            meta.put_str(list_meta::RESOURCE_VERSION, "20");
            meta.put_str(list_meta::CONTINUE, next);
        });
        for (name, version) in objects {
            list.put_message(2, |object| {
                object.put_message(1, |meta| {
                    meta.put_str(object_meta::NAME, name);
                    meta.put_str(object_meta::RESOURCE_VERSION, &version.to_string());
                });
            });
        }
        (200, envelope::wrap(&RESOURCE, &list))
    }

    fn error(code: u16, reason: &str, next: &str) -> (u16, Vec<u8>) {
        let status = json!({"kind": "Status", "code": code, "reason": reason, "metadata": {"continue": next}});
        (code, status.to_string().into_bytes())
    }

    type Responses = Vec<(&'static str, (u16, Vec<u8>))>;

    /// Lists until the pass is complete, with these responses to the tokens in this order. Returns the names that are
    /// left and the number of all objects.
    async fn listed(responses: Responses) -> (Vec<String>, usize) {
        let responses = Arc::new(Mutex::new(responses.into_iter()));
        let expected = responses.clone();
        let writer = writer(move |_, path| {
            let (token, response) = lock(&expected).next().expect("a request after the last response");
            let requested = path.split_once("&continue=").map_or("", |(_, token)| token);
            assert_eq!(requested, token);
            response
        })
        .await;
        let mut pass = Pass::new(Uid::default(), 10);
        while !pass.is_listed() {
            let _ = pass.list_pages(&writer, &RESOURCE).await;
        }
        assert!(lock(&responses).next().is_none(), "a response was not requested");
        (pass.left.iter().map(|(key, _)| key.name.to_string()).collect(), pass.total)
    }

    #[tokio::test]
    async fn list_continues_after_an_error_at_the_same_page() {
        let left = listed(vec![
            ("", page(&[("a", 1), ("new", 11)], "t1")),
            ("t1", error(429, "TooManyRequests", "")),
            ("t1", (404, b"404 page not found".to_vec())),
            ("t1", page(&[("b", 10)], "")),
        ])
        .await;
        assert_eq!(left, (vec!["a".to_owned(), "b".to_owned()], 3));
    }

    #[tokio::test]
    async fn list_with_an_expired_token_continues_with_the_token_of_the_error() {
        let left = listed(vec![
            ("", page(&[("a", 1)], "t1")),
            ("t1", error(410, "Expired", "t2")),
            ("t2", page(&[("b", 2)], "")),
        ])
        .await;
        assert_eq!(left, (vec!["a".to_owned(), "b".to_owned()], 2));
    }

    #[tokio::test]
    async fn list_that_cannot_be_continued_starts_again() {
        let left = listed(vec![
            ("", page(&[("a", 1), ("deleted", 2)], "t1")),
            ("t1", error(410, "Expired", "")),
            ("", page(&[("a", 1)], "t3")),
            ("t3", page(&[("b", 2)], "")),
        ])
        .await;
        assert_eq!(left, (vec!["a".to_owned(), "b".to_owned()], 2));
    }

    #[tokio::test]
    async fn object_of_a_resource_that_is_briefly_not_served_is_patched_later() {
        let is_served = Arc::new(Mutex::new(false));
        let served = is_served.clone();
        let writer = writer(move |_, _| {
            let is_served = *lock(&served);
            if is_served { error(404, "NotFound", "") } else { (404, b"404 page not found".to_vec()) }
        })
        .await;
        let mut pass = Pass::new(Uid::default(), 10);
        pass.next = None;
        pass.left = vec![(ObjectKey::new("ns", "a"), 1)];
        pass.total = 1;
        assert!(pass.patch_batch(&writer, &RESOURCE).await.is_err() && !pass.is_complete());
        *lock(&is_served) = true;
        assert!(pass.patch_batch(&writer, &RESOURCE).await.is_ok() && pass.is_complete(), "the object was deleted");
    }

    #[tokio::test]
    async fn object_with_a_malformed_version_ends_the_list() {
        let writer = writer(move |_, _| {
            let mut list = Vec::new();
            list.put_message(1, |meta| meta.put_str(list_meta::RESOURCE_VERSION, "20"));
            list.put_message(2, |object| {
                object.put_message(1, |meta| {
                    meta.put_str(object_meta::NAME, "a");
                    meta.put_str(object_meta::RESOURCE_VERSION, "abcde");
                });
            });
            (200, envelope::wrap(&RESOURCE, &list))
        })
        .await;
        let error =
            Pass::new(Uid::default(), 10).list_pages(&writer, &RESOURCE).await.expect_err("a malformed version");
        assert_eq!(error.to_string(), "resource version is not well formed: abcde");
    }
}
