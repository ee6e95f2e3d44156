//! The loop that keeps one store equal to what the API server has.
//!
//! It lists once by streaming (by pages where the server refuses, in one answer what there is much of), then watches on
//! from there. A broken watch goes
//! on from the last version; only when the server no longer has that version is everything listed anew, in its newest
//! state, so that time never runs backwards. If the server itself went back (its storage was restored), the loop says
//! so and starts over.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hashbrown::HashSet;
use kinds::envelope::{WatchEvent, page, watch_event};
use kinds::meta::ObjectKey;
use kinds::schema::object_meta;
use kinds::wire::find;
use kinds::{DecodeError, Form, Kind};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing::{debug, error, info, warn};

use super::frames::Frames;
use super::items::Items;
use super::json;
use super::request::{self, Backoff, Scope, WatchError};
use crate::client::Clients;
use crate::store::Store;

/// A watch that ends sooner is not normal and must not be opened again at once.
const SHORT_WATCH: Duration = Duration::from_secs(1);

/// Keeps one store up to date for ever.
pub struct Reflector<K: Kind> {
    pub clients: Arc<Clients>,
    pub scope: Scope,
    pub store: Arc<Store<K>>,
    /// Permits for initial lists, shared by all kinds.
    pub lists: Arc<Semaphore>,
    lag: Duration,
    listing: Listing,
}

/// How everything there is comes at first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Listing {
    /// One answer over a connection of its own.
    Whole,
    /// As the first events of the watch.
    Streamed,
    /// Page by page.
    Paged,
}

impl<K: Kind> Reflector<K> {
    pub fn new(clients: Arc<Clients>, scope: Scope, store: Arc<Store<K>>, lists: Arc<Semaphore>) -> Self {
        let listing = if K::MANY { Listing::Whole } else { Listing::Streamed };
        Self { clients, scope, store, lists, lag: Duration::ZERO, listing }
    }

    /// The store may lag so far behind the watch, so that changes are taken in together.
    pub fn lagging(self, lag: Duration) -> Self {
        Self { lag, ..self }
    }

    /// Runs until it is dropped.
    pub async fn run(mut self) {
        let mut backoff = Backoff::default();
        let mut listed = false;
        loop {
            let begun = Instant::now();
            let outcome = if listed { self.watch().await } else { self.list_and_watch(&mut listed).await };
            let kind = self.scope.resource.plural;
            match outcome {
                Ok(()) if begun.elapsed() > SHORT_WATCH => {
                    debug!(kind, "the watch ended in order; going on");
                    continue;
                }
                Ok(()) => warn!(kind, "the watch ended as soon as it began; trying again"),
                Err(error) if error.is_expired() => {
                    info!(kind, %error, "the watched version is gone; listing anew");
                    listed = false;
                }
                Err(error) if !listed && self.listing == Listing::Streamed && error.no_streaming() => {
                    info!(kind, %error, "no streaming lists here; listing by pages");
                    self.listing = Listing::Paged;
                    continue;
                }
                Err(error @ WatchError::BackInTime { .. }) => {
                    error!(kind, %error, "the server's state went back: was its storage restored? Starting over");
                    listed = false;
                }
                Err(error @ WatchError::Unreadable(_)) => {
                    error!(kind, %error, "listing anew");
                    listed = false;
                }
                Err(error) => warn!(kind, %error, "watch failed; trying again"),
            }
            self.store.progress().count_restart();
            tokio::time::sleep(backoff.next()).await;
        }
    }

    async fn list_and_watch(&mut self, listed: &mut bool) -> Result<(), WatchError> {
        let permit = self.lists.clone().acquire_owned().await;
        match self.listing {
            Listing::Streamed => {
                let frames = self.list_streamed().await?;
                *listed = frames.is_some();
                drop(permit);
                return match frames {
                    Some(frames) => self.follow(frames).await,
                    // The server may end the watch before the list is complete; nothing is concluded from half a list.
                    None => Ok(()),
                };
            }
            Listing::Whole => self.list_whole().await?,
            Listing::Paged => self.list_pages().await?,
        }
        drop(permit);
        *listed = true;
        self.watch().await
    }

    /// The watch behind its initial events; `None` when it ended before them.
    async fn list_streamed(
        &self,
    ) -> Result<Option<Frames<impl futures::Stream<Item = Result<Bytes, String>> + Unpin + use<K>>>, WatchError> {
        let mut frames = self.frames(self.scope.streaming_list()).await?;
        let mut unseen = self.store.keys();
        loop {
            let Some(frame) = frames.next().await? else { return Ok(None) };
            match watch_event(&frame)? {
                WatchEvent::Bookmark { version, initial_end: true } => {
                    self.finish_list(&unseen, version);
                    return Ok(Some(frames));
                }
                WatchEvent::Added(object) | WatchEvent::Modified(object) => self.see(&mut unseen, object),
                WatchEvent::Deleted(object) => self.take_out(object),
                WatchEvent::Bookmark { .. } => {}
                WatchEvent::Error(status) => return Err(WatchError::Refused(status)),
            }
        }
    }

    async fn list_whole(&self) -> Result<(), WatchError> {
        let mut items = Items::new(request::whole(&self.clients, self.scope.whole(), self.scope.list_type()).await?);
        let mut unseen = self.store.keys();
        while let Some(object) = items.next().await? {
            self.see(&mut unseen, &object);
        }
        self.finish_list(&unseen, items.version()?);
        Ok(())
    }

    async fn list_pages(&self) -> Result<(), WatchError> {
        let mut unseen = self.store.keys();
        let mut next = String::new();
        loop {
            let body = request::page(&self.clients, self.scope.page(&next), self.scope.list_type()).await?;
            let body = if self.scope.form == Form::Json { json::page(&body)? } else { body };
            let page = page(&body)?;
            for object in page.items {
                self.see(&mut unseen, object);
            }
            if page.next.is_empty() {
                self.finish_list(&unseen, page.version);
                return Ok(());
            }
            next = page.next.to_owned();
        }
    }

    /// Takes in an object of a list. At the start nothing was there before, so nothing is kept in mind.
    fn see(&self, unseen: &mut HashSet<ObjectKey>, object: &[u8]) {
        self.take_in(object);
        if !unseen.is_empty()
            && let Some(key) = bare_key(object)
        {
            unseen.remove(&key);
        }
    }

    /// The list is complete: what was there before and is not in it is gone.
    fn finish_list(&self, unseen: &HashSet<ObjectKey>, version: u64) {
        for gone in unseen {
            self.store.remove(&gone.namespace, &gone.name);
        }
        let progress = self.store.progress();
        if version < progress.version() {
            self.store.restart(version);
        } else {
            progress.advance(version);
        }
        progress.set_synced();
        info!(kind = self.scope.resource.plural, objects = self.store.len(), version, "listed");
    }

    async fn watch(&self) -> Result<(), WatchError> {
        let version = self.store.progress().version();
        self.follow(self.frames(self.scope.watch(version)).await?).await
    }

    async fn frames(
        &self,
        uri: String,
    ) -> Result<Frames<impl futures::Stream<Item = Result<Bytes, String>> + Unpin + use<K>>, WatchError> {
        let body = request::open(&self.clients, uri, self.scope.stream_type()).await?;
        Ok(Frames::new(self.scope.form, body))
    }

    async fn follow<S>(&self, mut frames: Frames<S>) -> Result<(), WatchError>
    where
        S: futures::Stream<Item = Result<Bytes, String>> + Unpin,
    {
        frames.pause = self.lag;
        while let Some(frame) = frames.next().await? {
            match watch_event(&frame)? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    self.take_in(object);
                    self.advance_to(object);
                }
                WatchEvent::Deleted(object) => {
                    self.take_out(object);
                    self.advance_to(object);
                }
                WatchEvent::Bookmark { version, .. } => {
                    let before = self.store.progress().version();
                    if version < before {
                        return Err(WatchError::BackInTime { now: version, before });
                    }
                    self.store.progress().advance(version);
                }
                WatchEvent::Error(status) => return Err(WatchError::Refused(status)),
            }
        }
        Ok(())
    }

    /// Stores an object. One that cannot be decoded is kept in mind instead.
    fn take_in(&self, object: &[u8]) {
        match K::decode(self.store.decoding(), object) {
            Ok(record) => self.store.put(record),
            Err(error) => {
                let key = bare_key(object);
                let object = key.as_ref().map_or_else(|| "(unreadable name)".to_owned(), ToString::to_string);
                error!(
                    kind = self.scope.resource.plural,
                    object, %error,
                    "cannot be decoded; nothing of its kind is scaled down or deleted until it can"
                );
                if let Some(key) = key {
                    self.store.set_undecodable(key);
                }
            }
        }
    }

    fn take_out(&self, object: &[u8]) {
        if let Some(key) = bare_key(object) {
            self.store.remove(&key.namespace, &key.name);
        }
    }

    fn advance_to(&self, object: &[u8]) {
        if let Ok(version) = bare_version(object) {
            self.store.progress().advance(version);
        }
    }
}

/// Metadata is field 1 of every object.
fn bare_key(object: &[u8]) -> Option<ObjectKey> {
    let meta = find(object, 1);
    let text = |number| std::str::from_utf8(find(meta, number)).ok();
    let name = text(object_meta::NAME).filter(|name| !name.is_empty())?;
    Some(ObjectKey::new(text(object_meta::NAMESPACE)?, name))
}

fn bare_version(object: &[u8]) -> Result<u64, DecodeError> {
    let version = std::str::from_utf8(find(find(object, 1), object_meta::RESOURCE_VERSION)).unwrap_or_default();
    kinds::meta::parse_version(version)
}
