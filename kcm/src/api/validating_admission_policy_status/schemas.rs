//! The schemas of kinds, from the API server's OpenAPI documents.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use cel_check::schema::{Document, GroupVersionKind, type_of_kind};
use cel_check::types::Type;
use runtime::lock::lock;
use runtime::openapi::{Index, OpenApi, OpenApiError};
use tokio::time::Instant;
use tracing::warn;

/// Maximum number of documents in memory.
const MAX_DOCUMENTS: usize = 8;
/// Maximum idle time of a document, which may have megabytes. Policies that are created together share a document; the
/// next policy may be created months later.
const UNUSED_TIME: Duration = Duration::from_secs(10);
/// Time without failures after which a document counts as readable: its next failure delays policies.
const FAILURE_AGE: Duration = Duration::from_secs(300);
/// The time during which a document that cannot be read delays policies. After that they are checked without it.
const UNREADABLE_DELAY: Duration = Duration::from_secs(60);
/// Maximum number of recorded failed documents.
const MAX_FAILURES: usize = 1_024;

/// A document that was read.
struct Entry {
    document: Arc<Document>,
    used: Instant,
}

/// A document that could not be read.
struct Failure {
    first: Instant,
    last: Instant,
}

#[derive(Default)]
struct Cache {
    /// Documents by path. A path contains a hash of its document.
    documents: HashMap<String, Entry>,
    failures: HashMap<String, Failure>,
}

/// Reads schemas and keeps some of them for the next policy.
pub struct Schemas {
    openapi: OpenApi,
    cache: Arc<Mutex<Cache>>,
}

impl Schemas {
    /// Returns a reader without documents.
    pub fn new(openapi: OpenApi) -> Self {
        Self { openapi, cache: Arc::default() }
    }

    /// Reads the list of documents.
    ///
    /// # Errors
    /// When the API server does not return the list.
    pub async fn index(&self) -> Result<Index, OpenApiError> {
        self.openapi.index().await
    }

    /// Returns the type of a kind; `None` if the API server has no schema for it, or its document has not been readable
    /// for some time.
    ///
    /// # Errors
    /// When the document cannot be read now, so a retry may succeed.
    pub async fn type_of(&self, index: &Index, kind: &GroupVersionKind) -> Result<Option<Type>, OpenApiError> {
        let Some(path) = index.path(&kind.group, &kind.version) else { return Ok(None) };
        Ok(self.document(path).await?.and_then(|document| type_of_kind(&document, kind)))
    }

    async fn document(&self, path: &str) -> Result<Option<Arc<Document>>, OpenApiError> {
        {
            let mut cache = lock(&self.cache);
            if let Some(entry) = cache.documents.get_mut(path) {
                entry.used = Instant::now();
                return Ok(Some(entry.document.clone()));
            }
            if cache.is_unreadable(path) {
                return Ok(None);
            }
        }
        let read = match self.openapi.document(path).await {
            Ok(text) => parse(text).await,
            Err(error) => Err(error.to_string()),
        };
        let mut cache = lock(&self.cache);
        match read {
            Ok(document) => {
                if cache.documents.is_empty() {
                    tokio::spawn(drop_unused(Arc::downgrade(&self.cache)));
                }
                cache.keep(path, document.clone());
                Ok(Some(document))
            }
            Err(problem) if cache.record_failure(path) => {
                warn!(path, problem, "checking policies without OpenAPI document: it cannot be read");
                Ok(None)
            }
            Err(problem) => Err(OpenApiError::Unreadable { path: path.to_owned(), problem }),
        }
    }
}

/// Parses a document on a thread for blocking work.
async fn parse(text: impl AsRef<[u8]> + Send + 'static) -> Result<Arc<Document>, String> {
    let parsed = tokio::task::spawn_blocking(move || Document::read(text.as_ref()).map(Arc::new)).await;
    parsed.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

/// Drops documents that are not used. Ends when there are none left.
async fn drop_unused(cache: Weak<Mutex<Cache>>) {
    loop {
        tokio::time::sleep(UNUSED_TIME).await;
        let Some(cache) = cache.upgrade() else { return };
        let mut cache = lock(&cache);
        cache.documents.retain(|_, entry| entry.used.elapsed() < UNUSED_TIME);
        if cache.documents.is_empty() {
            cache.documents = HashMap::new();
            return;
        }
    }
}

impl Cache {
    fn keep(&mut self, path: &str, document: Arc<Document>) {
        let now = Instant::now();
        self.failures.remove(path);
        if self.documents.len() >= MAX_DOCUMENTS {
            let oldest = self.documents.iter().min_by_key(|(_, entry)| entry.used).map(|(path, _)| path.clone());
            oldest.map(|path| self.documents.remove(&path));
        }
        self.documents.insert(path.to_owned(), Entry { document, used: now });
    }

    /// Returns true if the failures of a document have lasted for [`UNREADABLE_DELAY`], and the last one is recent.
    fn is_unreadable(&self, path: &str) -> bool {
        self.failures.get(path).is_some_and(|failure| {
            failure.last.duration_since(failure.first) >= UNREADABLE_DELAY && failure.last.elapsed() < UNREADABLE_DELAY
        })
    }

    /// Records a failure. Returns true if the failures of the document have lasted for [`UNREADABLE_DELAY`], or cannot
    /// be recorded because too many other documents fail.
    fn record_failure(&mut self, path: &str) -> bool {
        let now = Instant::now();
        // After [`FAILURE_AGE`] without a failure, the delay begins again.
        self.failures.retain(|_, failure| now.duration_since(failure.last) < FAILURE_AGE);
        if self.failures.len() >= MAX_FAILURES && !self.failures.contains_key(path) {
            return true;
        }
        let failure = self.failures.entry(path.to_owned()).or_insert(Failure { first: now, last: now });
        failure.last = now;
        now.duration_since(failure.first) >= UNREADABLE_DELAY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> Arc<Document> {
        Arc::new(Document::read(b"{}").expect("well-formed"))
    }

    #[tokio::test(start_paused = true)]
    async fn cache_keeps_a_few_documents_and_drops_the_least_recently_used() {
        let mut cache = Cache::default();
        for number in 0..20 {
            tokio::time::advance(Duration::from_secs(1)).await;
            cache.keep(&format!("/openapi/v3/{number}"), document());
        }
        assert_eq!(cache.documents.len(), MAX_DOCUMENTS);
        assert!(cache.documents.contains_key("/openapi/v3/19") && !cache.documents.contains_key("/openapi/v3/0"));
    }

    #[tokio::test(start_paused = true)]
    async fn documents_are_dropped_when_no_policy_uses_them() {
        let cache = Arc::<Mutex<Cache>>::default();
        lock(&cache).keep("used", document());
        lock(&cache).keep("unused", document());
        let dropping = tokio::spawn(drop_unused(Arc::downgrade(&cache)));
        tokio::time::sleep(UNUSED_TIME / 2).await;
        lock(&cache).documents.get_mut("used").expect("a document").used = Instant::now();
        tokio::time::sleep(UNUSED_TIME).await;
        assert_eq!(lock(&cache).documents.keys().collect::<Vec<_>>(), ["used"]);
        tokio::time::timeout(UNUSED_TIME * 2, dropping)
            .await
            .expect("the task ends with the last document")
            .expect("no panic");
        assert_eq!(lock(&cache).documents.capacity(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn document_that_fails_delays_policies_for_a_minute_only() {
        let mut cache = Cache::default();
        assert!(!cache.record_failure("slow") && !cache.is_unreadable("slow"));
        tokio::time::advance(UNREADABLE_DELAY / 2).await;
        assert!(!cache.record_failure("slow"));
        tokio::time::advance(UNREADABLE_DELAY / 2).await;
        assert!(cache.record_failure("slow") && cache.is_unreadable("slow"));
        tokio::time::advance(UNREADABLE_DELAY).await;
        assert!(!cache.is_unreadable("slow"), "the document is read again");
        cache.keep("slow", document());
        assert!(!cache.record_failure("slow"));
    }
}
