//! The loop that keeps one store equal to the API server.
//!
//! It lists once by streaming (large kinds in one response; by pages if streaming fails) and watches from there. A
//! failed or silent watch continues from the last version. If the server no longer has that version, or refuses the
//! watch for another lasting reason, the kind is relisted in its newest state: the store never returns to an older
//! state. After every irregular end of a watch the loop checks whether the server's state is older than before (its
//! storage was restored); if so, it logs that and relists.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use kinds::envelope::{self, WatchEvent, page, watch_event};
use kinds::meta::ObjectKey;
use kinds::schema::object_meta;
use kinds::wire::{find, find_str};
use kinds::{DecodeError, Form};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing::{debug, error, info, warn};

use super::frames::{FrameError, Frames};
use super::items::Items;
use super::json;
use super::list_permit::ListPermit;
use super::list_progress::{Limits, ListProgress};
use super::listing::{ListForm, Listing, Retry};
use super::refusals::Refusals;
use super::request::{self, Backoff, Scope, WatchError};
use super::resync::Resync;
use super::watched_store::WatchedStore;
use crate::client::{Clients, Lane};
use crate::lock::lock;
use crate::store::Progress;
use crate::text::shortened;

/// A watch that ends within this duration is reopened with backoff, not immediately.
const SHORT_WATCH: Duration = Duration::from_secs(1);

/// Slightly less than the minimum duration that is requested for a watch. If a watch ends sooner, its server may have
/// failed and lost state.
const REGULAR_WATCH: Duration = Duration::from_secs(295);

/// Maximum time without data in a watch. The API server sends a bookmark every minute.
const WATCH_SILENCE: Duration = Duration::from_secs(180);

/// Maximum time without data in a streaming list.
const LIST_SILENCE: Duration = Duration::from_secs(30);

/// Maximum number of log lines a minute about objects of a kind that cannot be decoded.
const MAX_LOGGED_PER_MINUTE: u32 = 100;

/// Maximum bytes of an object's kind and key in a log line and an error.
const MAX_KIND_BYTES: usize = 100;
const MAX_KEY_BYTES: usize = 512;

/// Keeps one store up to date until it is dropped.
///
/// There is one reflector for each kind, which waits for the next event of its watch most of the time. The futures of
/// requests are several times larger than the future of that wait, and are therefore on the heap only while they run.
pub struct Reflector {
    pub clients: Arc<Clients>,
    pub scope: Scope,
    store: Arc<dyn WatchedStore>,
    /// Permits for lists, shared by all kinds with a typed store, or by all others.
    pub lists: Arc<Semaphore>,
    /// The allowed lag of the store behind the watch.
    lag: Duration,
    resync: Resync,
    listing: Listing,
    limits: Limits,
    logs: Mutex<LogLimit>,
    /// The store holds a complete list.
    is_listed: bool,
    /// Objects that incomplete lists have added to the store since the last complete list.
    unconfirmed: Vec<ObjectKey>,
    refusals: Refusals,
    /// The last watch ended irregularly: the server may have lost state since.
    is_history_doubtful: bool,
}

impl Reflector {
    pub(super) fn new(
        clients: Arc<Clients>,
        scope: Scope,
        store: Arc<dyn WatchedStore>,
        lists: Arc<Semaphore>,
    ) -> Self {
        let listing = Listing::new(if store.has_large_list() { ListForm::Whole } else { ListForm::Streamed });
        let (lag, resync) = (Duration::ZERO, Resync::new(Duration::ZERO));
        let (limits, logs, unconfirmed) = (Limits::default(), Mutex::default(), Vec::new());
        let (is_listed, refusals, is_history_doubtful) = (false, Refusals::default(), false);
        Self {
            clients,
            scope,
            store,
            lists,
            lag,
            resync,
            listing,
            limits,
            logs,
            is_listed,
            unconfirmed,
            refusals,
            is_history_doubtful,
        }
    }

    /// Returns the progress of the watch.
    pub(super) fn progress(&self) -> &Progress {
        self.store.progress()
    }

    /// If `is_paged`, lists by pages instead of by the first events of a watch.
    pub fn paged(mut self, is_paged: bool) -> Self {
        if is_paged && self.listing.form() == ListForm::Streamed {
            self.listing = Listing::new(ListForm::Paged);
        }
        self
    }

    /// Passes all records to the subscribers again, one to two periods apart; never if the period is zero.
    pub fn resyncing(self, period: Duration) -> Self {
        Self { resync: Resync::new(period), ..self }
    }

    /// Allows the store to lag behind the watch by this time, so that changes are applied in batches.
    pub fn lagging(self, lag: Duration) -> Self {
        Self { lag, ..self }
    }

    /// Sets limits for tests.
    #[cfg(test)]
    pub(super) fn limited(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Runs until it is dropped. A panic of a step does not end the loop: the kind is relisted.
    pub async fn run(mut self) {
        let mut backoff = Backoff::default();
        loop {
            let started = Instant::now();
            let step = AssertUnwindSafe(self.step()).catch_unwind().await;
            let outcome = step.unwrap_or_else(|panic| Err(WatchError::Panicked(panic_message(&*panic))));
            let min_delay = outcome.as_ref().err().map(WatchError::retry_after).unwrap_or_default();
            if self.settle(outcome, started.elapsed()) == Retry::Later {
                self.store.progress().count_restart();
                tokio::time::sleep(backoff.next().max(min_delay)).await;
            }
        }
    }

    /// Lists and watches, or continues the watch. Returns when the watch ends.
    pub(super) async fn step(&mut self) -> Result<(), WatchError> {
        if !self.is_listed {
            return self.list_and_watch().await;
        }
        if std::mem::take(&mut self.is_history_doubtful) {
            let permit = ListPermit::acquire(&self.lists).await;
            Box::pin(self.compare_history(permit)).await?;
        }
        self.watch().await
    }

    /// Logs the result of a step and prepares the next one. Returns the time at which the next one begins.
    fn settle(&mut self, outcome: Result<(), WatchError>, lasted: Duration) -> Retry {
        let kind = self.scope.resource.plural;
        let progress = self.store.progress();
        if !matches!(outcome, Err(WatchError::Panicked(_))) {
            progress.forget_panics();
        }
        let error = match outcome {
            Ok(()) if lasted > SHORT_WATCH => {
                debug!(kind, "watch ended regularly");
                self.is_history_doubtful = lasted < REGULAR_WATCH;
                return Retry::Now;
            }
            Ok(()) => {
                warn!(kind, "watch ended as soon as it began");
                self.is_history_doubtful = true;
                return Retry::Later;
            }
            Err(error) => error,
        };
        if !self.is_listed {
            return self.settle_list(&error);
        }
        self.is_history_doubtful = true;
        match &error {
            error if error.is_expired() => info!(kind, %error, "watched version has expired; relisting"),
            WatchError::Refused(status) if self.refusals.requires_list(status, progress.version()) => {
                warn!(kind, %error, "watch refused; relisting");
            }
            WatchError::BackInTime { .. } => {
                error!(kind, %error, "server state is older than before, for example after an etcd restore; relisting");
            }
            WatchError::Unreadable(_) => error!(kind, %error, "watch event cannot be read; relisting"),
            error if error.is_too_large() => {
                error!(kind, %error, "the watch has delivered too much; relisting");
            }
            WatchError::Panicked(_) => {
                error!(kind, %error, "watch panicked; relisting");
                progress.count_panic();
            }
            WatchError::Frame(FrameError::Silent(_)) => {
                info!(kind, %error, "no data from the watch; reopening it");
                return Retry::Later;
            }
            error => {
                warn!(kind, %error, "watch failed");
                return Retry::Later;
            }
        }
        self.is_listed = false;
        Retry::Later
    }

    /// Logs the failure of a list and selects the form of the next one. Returns the time at which that one begins.
    fn settle_list(&mut self, error: &WatchError) -> Retry {
        let (kind, progress) = (self.scope.resource.plural, self.store.progress());
        let (from, retry) = (self.listing.form(), self.listing.failed(error));
        let next = self.listing.form();
        match retry {
            Retry::Now if error.is_streaming_unsupported() => {
                info!(kind, %error, "streaming lists not supported; listing by pages");
            }
            Retry::Now => warn!(kind, %error, "watch refused; listing by pages"),
            Retry::Later => warn!(kind, %error, ?from, ?next, "list failed"),
        }
        if let WatchError::Panicked(_) = error {
            progress.count_panic();
        }
        retry
    }

    async fn list_and_watch(&mut self) -> Result<(), WatchError> {
        // Hundreds of kinds wait for a permit at the same time, and the future of a list is much larger than this wait.
        let permit = ListPermit::acquire(&self.lists).await;
        match self.listing.form() {
            ListForm::Streamed => {
                let frames = Box::pin(self.list(permit, Self::list_streamed)).await?;
                return self.follow(frames).await;
            }
            ListForm::Whole => Box::pin(self.list(permit, Self::list_whole)).await?,
            ListForm::Paged => Box::pin(self.list(permit, Self::list_pages)).await?,
        }
        self.watch().await
    }

    /// Lists the kind by one of the functions for a form.
    async fn list<T>(
        &mut self,
        permit: ListPermit,
        list: impl AsyncFnOnce(&Self, &mut ListProgress, ListPermit) -> Result<T, WatchError>,
    ) -> Result<T, WatchError> {
        let mut progress = ListProgress::new(&*self.store, self.limits, std::mem::take(&mut self.unconfirmed));
        let listed = list(&*self, &mut progress, permit).await;
        self.unconfirmed = progress.end(&*self.store, listed.as_ref().err());
        if listed.is_ok() {
            self.set_listed();
        }
        listed
    }

    fn set_listed(&mut self) {
        self.is_listed = true;
        self.is_history_doubtful = false;
        self.listing.succeeded();
        self.refusals.listed();
    }

    /// Compares the server's newest version with the store's.
    ///
    /// A server whose storage was restored from a backup sends nothing to a watch that continues from a later version,
    /// not even bookmarks. Changes up to that version would never be received. If the version cannot be read, the
    /// watch continues without this check.
    async fn compare_history(&self, permit: ListPermit) -> Result<(), WatchError> {
        let before = self.store.progress().version();
        match self.newest_version(permit).await {
            Ok(now) if now > 0 && now < before => Err(WatchError::BackInTime { now, before }),
            Ok(_) => Ok(()),
            Err(error) => {
                debug!(kind = self.scope.resource.plural, %error, "newest version cannot be read");
                Ok(())
            }
        }
    }

    async fn newest_version(&self, mut permit: ListPermit) -> Result<u64, WatchError> {
        let page_read = request::page(&self.clients, self.scope.newest(), self.scope.list_type());
        let body = permit.wait_for(page_read).await?;
        let body = if self.scope.form == Form::Json { json::page(&body)? } else { body };
        Ok(page(&body)?.version()?)
    }

    /// Lists through the initial events of a watch, and returns that watch.
    async fn list_streamed(
        &self,
        list: &mut ListProgress,
        mut permit: ListPermit,
    ) -> Result<Frames<impl futures::Stream<Item = Result<Bytes, String>> + Unpin + use<>>, WatchError> {
        let mut frames = permit.wait_for(self.frames(self.scope.streaming_list())).await?;
        frames.silence = LIST_SILENCE;
        loop {
            let next = permit.wait_for(frames.next()).await?;
            let Some(frame) = next else { return Err(WatchError::Incomplete) };
            match self.expected_event(&frame)? {
                WatchEvent::Bookmark { version, initial_end: true } => {
                    drop(permit);
                    self.finish_list(list, version)?;
                    return Ok(frames);
                }
                WatchEvent::Added(object) | WatchEvent::Modified(object) => self.apply_listed(list, object)?,
                WatchEvent::Deleted(object) => self.remove(object),
                WatchEvent::Bookmark { .. } => {}
                WatchEvent::Error(status) => return Err(WatchError::Refused(status)),
            }
        }
    }

    /// Lists the kind in one response.
    async fn list_whole(&self, list: &mut ListProgress, mut permit: ListPermit) -> Result<(), WatchError> {
        if self.scope.form == Form::Json {
            let list_read = request::page(&self.clients, self.scope.whole(), self.scope.list_type());
            let body = permit.wait_for(list_read).await?;
            let version = self.apply_json_page(list, &body)?.0;
            drop(permit);
            return self.finish_list(list, version);
        }
        // Each dedicated connection is polled, which is too expensive for any number of aggregated APIs' kinds.
        let lane = if self.store.has_large_list() { Lane::Dedicated } else { Lane::Watch };
        let opened = request::open(&self.clients, lane, self.scope.whole(), self.scope.list_type());
        let mut items = Items::new(permit.wait_for(opened).await?);
        while let Some(object) = permit.wait_for(items.next()).await? {
            self.apply_listed(list, &object)?;
        }
        drop(permit);
        self.finish_list(list, items.version()?)
    }

    /// Lists the kind page by page.
    ///
    /// Some aggregated APIs return the same continue token with every page: such a list would never end.
    async fn list_pages(&self, list: &mut ListProgress, mut permit: ListPermit) -> Result<(), WatchError> {
        let mut next = String::new();
        loop {
            list.begin_page()?;
            let uri = self.scope.page(&next);
            let previous = std::mem::take(&mut next);
            let version = if self.scope.form == Form::Json {
                let page_read = request::page(&self.clients, uri, self.scope.list_type());
                let body = permit.wait_for(page_read).await?;
                let (version, token) = self.apply_json_page(list, &body)?;
                next = token;
                version
            } else {
                let opened = request::open(&self.clients, Lane::Watch, uri, self.scope.list_type());
                let mut items = Items::new(permit.wait_for(opened).await?);
                while let Some(object) = permit.wait_for(items.next()).await? {
                    self.apply_listed(list, &object)?;
                }
                next = items.continue_token().to_owned();
                items.version()?
            };
            if next.is_empty() {
                drop(permit);
                return self.finish_list(list, version);
            }
            if next == previous {
                return Err(FrameError::NoList("its continue token is that of the previous page").into());
            }
        }
    }

    /// Applies the objects of a list in JSON. Returns its version and its continue token.
    fn apply_json_page(&self, list: &mut ListProgress, body: &[u8]) -> Result<(u64, String), WatchError> {
        let body = json::page(body)?;
        let page = page(&body)?;
        page.items.iter().try_for_each(|object| self.apply_listed(list, object))?;
        Ok((page.version()?, page.next.to_owned()))
    }

    /// Applies an object of a list.
    fn apply_listed(&self, list: &mut ListProgress, object: &[u8]) -> Result<(), WatchError> {
        list.add(&*self.store, object, || key_of(object))?;
        self.apply(object)
    }

    /// Completes a list.
    fn finish_list(&self, list: &ListProgress, version: u64) -> Result<(), WatchError> {
        list.finish(&*self.store)?;
        let progress = self.store.progress();
        if version < progress.version() {
            self.store.restart(version);
        } else {
            progress.advance(version);
        }
        progress.set_synced();
        info!(kind = self.scope.resource.plural, objects = self.store.len(), version, "listed");
        Ok(())
    }

    async fn watch(&mut self) -> Result<(), WatchError> {
        let version = self.store.progress().version();
        let frames = Box::pin(self.frames(self.scope.watch(version))).await?;
        self.follow(frames).await
    }

    async fn frames(
        &self,
        uri: String,
    ) -> Result<Frames<impl futures::Stream<Item = Result<Bytes, String>> + Unpin + use<>>, WatchError> {
        let body = request::open(&self.clients, Lane::Watch, uri, self.scope.stream_type()).await?;
        Ok(Frames::new(self.scope.form, body, WATCH_SILENCE))
    }

    /// Applies the events of a watch until it ends.
    async fn follow<S>(&mut self, mut frames: Frames<S>) -> Result<(), WatchError>
    where
        S: futures::Stream<Item = Result<Bytes, String>> + Unpin,
    {
        self.refusals.opened();
        frames.pause = self.lag;
        frames.silence = WATCH_SILENCE;
        loop {
            let frame = tokio::select! {
                biased;
                frame = frames.next() => frame?,
                () = self.resync.due() => {
                    self.resync.step(&*self.store);
                    continue;
                }
            };
            let Some(frame) = frame else { return Ok(()) };
            let started = std::time::Instant::now();
            match self.expected_event(&frame)? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    self.apply(object)?;
                    self.limits.check_watched(&*self.store)?;
                    self.advance_to(object);
                    self.store.progress().applied(started.elapsed());
                }
                WatchEvent::Deleted(object) => {
                    self.remove(object);
                    self.advance_to(object);
                    self.store.progress().applied(started.elapsed());
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
    }

    /// Reads an event. Objects of another kind are an error: of such an object, some other field would be read as a
    /// name.
    fn expected_event<'a>(&self, frame: &'a [u8]) -> Result<WatchEvent<'a>, WatchError> {
        let event = watch_event(frame)?;
        let (WatchEvent::Added(_) | WatchEvent::Modified(_) | WatchEvent::Deleted(_)) = event else { return Ok(event) };
        let expected = match self.scope.form {
            Form::Protobuf => self.scope.resource.kind,
            Form::Metadata => "PartialObjectMetadata",
            // JSON has no envelope with a kind.
            Form::Json => return Ok(event),
        };
        match envelope::event_kind(frame) {
            "" => Ok(event),
            kind if kind == expected => Ok(event),
            kind => {
                let problem = format!("is {:?} instead of {expected}", shortened(kind.to_owned(), MAX_KIND_BYTES));
                Err(DecodeError::field("kind", problem).into())
            }
        }
    }

    /// Applies an object. If it cannot be decoded, its key is recorded; without a readable key, the object is skipped.
    fn apply(&self, object: &[u8]) -> Result<(), WatchError> {
        let Err(error) = self.store.apply(object) else { return Ok(()) };
        let key = key_of(object);
        if lock(&self.logs).permits() {
            let object = key.as_ref().map_or_else(|| "(unreadable name)".to_owned(), ToString::to_string);
            error!(
                kind = self.scope.resource.plural,
                object = shortened(object, MAX_KEY_BYTES), %error,
                "object cannot be decoded; deletions and scale-downs that depend on it wait until it can be"
            );
        }
        if key.is_none_or(|key| self.store.set_undecodable(key)) {
            return Ok(());
        }
        Err(WatchError::TooManyUndecodable)
    }

    fn remove(&self, object: &[u8]) {
        if let Some(key) = key_of(object) {
            self.store.remove(&key.namespace, &key.name);
        }
    }

    fn advance_to(&self, object: &[u8]) {
        if let Ok(version) = version_of(object) {
            self.store.progress().advance(version);
        }
    }
}

/// The limit of logged objects that cannot be decoded: an aggregated API may send any number of them.
#[derive(Debug)]
struct LogLimit {
    /// The start of the current minute.
    since: Instant,
    /// Lines that were logged in the current minute.
    lines: u32,
}

impl Default for LogLimit {
    fn default() -> Self {
        Self { since: Instant::now(), lines: 0 }
    }
}

impl LogLimit {
    fn permits(&mut self) -> bool {
        if self.since.elapsed() >= Duration::from_secs(60) {
            *self = Self::default();
        }
        self.lines += 1;
        self.lines <= MAX_LOGGED_PER_MINUTE
    }
}

/// Returns the message of a panic.
pub(super) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// Returns the key of an object without decoding it, from its metadata, which is field 1 of every kind.
fn key_of(object: &[u8]) -> Option<ObjectKey> {
    let meta = find(object, 1);
    let text = |number| std::str::from_utf8(find(meta, number)).ok();
    let name = text(object_meta::NAME).filter(|name| !name.is_empty())?;
    Some(ObjectKey::new(text(object_meta::NAMESPACE)?, name))
}

fn version_of(object: &[u8]) -> Result<u64, DecodeError> {
    let version = find_str(find(object, 1), object_meta::RESOURCE_VERSION);
    kinds::meta::parse_version(version)
}
