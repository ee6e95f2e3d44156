//! A fault layer between a manager and the API server: it records, delays, refuses and loses requests by script.
//!
//! A script is a list of [`Rule`]s. The first rule that matches a request, and is neither used up nor skipping this
//! match, decides. Without rules, the layer only records requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::{Result, ensure};
use bytes::Bytes;
use futures::StreamExt as _;
use http::{Request, Response, Uri, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, BodyStream, Full, StreamBody};
use kube::client::Body;
use runtime::client::{Next, RequestLayer, ResponseBody};
use runtime::lock::lock;
use tokio::sync::watch;

use crate::call::{Call, Verb};
use crate::wait::{QUIET, during, eventually};

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Exchange = Result<Response<ResponseBody>, BoxError>;

/// The effect on a request that a rule matches.
#[derive(Clone, Debug)]
pub enum Effect {
    /// The client gets a response with this HTTP status, and with `Retry-After` in seconds if given. Nothing is sent to
    /// the server.
    Refuse(u16, Option<u32>),
    /// The client cannot connect: nothing is sent.
    NotSent,
    /// The connection fails before the server has read the request: nothing is executed, but the client cannot detect
    /// that.
    LostBefore,
    /// The connection fails after the server executed the request, before the client has the response.
    LostAfter,
    /// The request is sent after [`Faults::release`].
    Hold,
    /// The server executes the request, the client gets the response, and nothing is sent afterwards: the process is
    /// about to be killed.
    CrashAfter,
    /// Like [`Effect::CrashAfter`], without the response.
    CrashBeforeResponse,
}

/// A selection of requests, with their effect.
#[derive(Clone)]
pub struct Rule {
    matches: Arc<dyn Fn(&Call) -> bool + Send + Sync>,
    skip: usize,
    times: usize,
    effect: Effect,
}

impl Rule {
    /// Applies `effect` to the first matching request.
    pub fn new(matches: impl Fn(&Call) -> bool + Send + Sync + 'static, effect: Effect) -> Self {
        Self { matches: Arc::new(matches), skip: 0, times: 1, effect }
    }

    /// Like [`Rule::new`], for a verb on a resource.
    pub fn on(verb: Verb, resource: &'static str, effect: Effect) -> Self {
        Self::new(move |call| call.verb == verb && call.resource == resource, effect)
    }

    /// Applies from the `n`-th match on, counted from one, for the number of matches that [`Rule::times`] sets.
    pub fn nth(mut self, n: usize) -> Self {
        self.skip = n - 1;
        self
    }

    /// Applies to this number of consecutive matches.
    pub fn times(mut self, times: usize) -> Self {
        self.times = times;
        self
    }
}

/// A request and its result.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    /// The request.
    pub call: Call,
    /// The HTTP status of the response, even if the client did not get it; `None` without one.
    pub status: Option<u16>,
}

#[derive(Default)]
struct State {
    rules: Vec<Rule>,
    recorded: Vec<RecordedRequest>,
    open: BTreeMap<String, usize>,
    max_open: BTreeMap<String, usize>,
}

struct Shared {
    state: Mutex<State>,
    /// Resources whose watches deliver nothing.
    frozen: watch::Sender<BTreeSet<String>>,
    /// While this is set, requests for resources, their responses and watch events are held back.
    paused: watch::Sender<bool>,
    /// True once held requests may be sent.
    released: watch::Sender<bool>,
    /// True once a rule has requested that the process is killed.
    crashing: watch::Sender<bool>,
    /// Writes that were sent and have no response.
    writes_under_way: watch::Sender<usize>,
    /// The page size that replaces the `limit` of requests; 0: as requested.
    page_limit: AtomicUsize,
}

/// The faults of a manager and its successors. Clones share their state.
#[derive(Clone)]
pub struct Faults(Arc<Shared>);

impl Default for Faults {
    fn default() -> Self {
        Self(Arc::new(Shared {
            state: Mutex::default(),
            frozen: watch::Sender::default(),
            paused: watch::Sender::default(),
            released: watch::Sender::default(),
            crashing: watch::Sender::default(),
            writes_under_way: watch::Sender::default(),
            page_limit: AtomicUsize::new(0),
        }))
    }
}

impl Faults {
    /// Creates faults with an initial script.
    pub fn script(rules: impl IntoIterator<Item = Rule>) -> Self {
        let faults = Self::default();
        rules.into_iter().for_each(|rule| faults.add(rule));
        faults
    }

    /// Appends a rule.
    pub fn add(&self, rule: Rule) {
        self.state().rules.push(rule);
    }

    /// Removes all rules, and the limit of the page size.
    pub fn clear(&self) {
        self.state().rules.clear();
        self.limit_pages(0);
    }

    /// Replaces the page size of requests that have a `limit`; 0: as requested.
    pub fn limit_pages(&self, size: usize) {
        self.0.page_limit.store(size, Ordering::SeqCst);
    }

    /// Holds back the events of a resource's watches until [`Faults::thaw`].
    pub fn freeze(&self, resource: &str) {
        self.0.frozen.send_modify(|frozen| {
            frozen.insert(resource.to_owned());
        });
    }

    /// Resumes the watches of a resource.
    pub fn thaw(&self, resource: &str) {
        self.0.frozen.send_modify(|frozen| {
            frozen.remove(resource);
        });
    }

    /// Holds back requests for resources, their responses and watch events while `paused` is true.
    pub fn pause(&self, paused: bool) {
        self.0.paused.send_replace(paused);
    }

    /// Ends [`Effect::Hold`] for all requests, including later ones.
    pub fn release(&self) {
        self.0.released.send_replace(true);
    }

    /// Completes when a rule requests that the process is killed.
    pub async fn crashes(&self) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.0.crashing.subscribe().wait_for(|crashing| *crashing).await;
    }

    /// Returns all requests so far, in order.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.state().recorded.clone()
    }

    /// Returns the number of requests that satisfy `matches`.
    pub fn count(&self, matches: impl Fn(&Call) -> bool) -> usize {
        self.state().recorded.iter().filter(|recorded| matches(&recorded.call)).count()
    }

    /// Returns the number of requests that satisfy `matches` and that the server has accepted.
    pub fn accepted(&self, matches: impl Fn(&Call) -> bool) -> usize {
        let is_accepted = |request: &&RecordedRequest| request.status.is_some_and(|status| status < 300);
        self.state().recorded.iter().filter(is_accepted).filter(|request| matches(&request.call)).count()
    }

    /// Returns the number of writes, including events.
    pub fn writes(&self) -> usize {
        self.count(Call::is_write)
    }

    /// Returns the number of rules that were applied less often than requested.
    pub fn unmet(&self) -> usize {
        self.state().rules.iter().filter(|rule| rule.times > 0).count()
    }

    /// Returns the maximum number of concurrent watches, by resource.
    pub fn max_watches(&self) -> BTreeMap<String, usize> {
        self.state().max_open.clone()
    }

    /// Waits until the manager watches all these resources.
    pub async fn until_watching(&self, resources: &[&str]) -> Result<()> {
        eventually(format!("the manager watches {resources:?}"), || async {
            let watched = self.max_watches();
            let missing: Vec<_> = resources.iter().filter(|resource| !watched.contains_key(**resource)).collect();
            ensure!(missing.is_empty(), "there is no watch of {missing:?}");
            Ok(())
        })
        .await
    }

    /// Fails if the manager has sent a request that satisfies `matches`, or sends one during [`QUIET`].
    pub async fn none_while_quiet(&self, matches: impl Fn(&Call) -> bool) -> Result<()> {
        during(QUIET, "an idle manager sends no such request", || async {
            ensure!(self.count(&matches) == 0, "{:?}", self.requests());
            Ok(())
        })
        .await
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0.state)
    }

    /// Returns the layer for one manager. Once `dead` is set, no further request for a resource is sent.
    pub(crate) fn layer(&self, dead: Arc<AtomicBool>) -> RequestLayer {
        self.0.crashing.send_replace(false);
        let faults = self.clone();
        RequestLayer::new(move |_, request, next| {
            let (faults, dead) = (faults.clone(), dead.clone());
            Box::pin(async move { faults.exchange(&dead, request, next).await })
        })
    }

    async fn exchange(&self, dead: &Arc<AtomicBool>, mut request: Request<Body>, next: Next) -> Exchange {
        if let Some(limited) = with_page_limit(request.uri(), self.0.page_limit.load(Ordering::SeqCst)) {
            *request.uri_mut() = limited;
        }
        let uri = request.uri();
        let agent = request.headers().get(header::USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or_default();
        let Some(call) = Call::read(request.method(), uri.path(), uri.query().unwrap_or_default(), agent) else {
            return next.send(request).await;
        };
        self.wait_while_paused().await;
        if dead.load(Ordering::SeqCst) {
            return std::future::pending().await;
        }
        let (at, effect) = self.record_request(&call);
        let crash = || {
            dead.store(true, Ordering::SeqCst);
            self.0.crashing.send_replace(true);
        };
        match effect {
            None => {}
            Some(Effect::Refuse(status, retry_after)) => {
                self.record_status(at, status);
                return Ok(refusal(status, retry_after));
            }
            Some(Effect::NotSent) => return Err("as scripted: no connection".into()),
            Some(Effect::LostBefore) => {
                let _ = next.send(without_effect(request)).await;
                return Err("as scripted: the connection failed before the server read the request".into());
            }
            Some(Effect::LostAfter) => {
                self.send(at, request, next).await?;
                return Err("as scripted: the connection failed before the response arrived".into());
            }
            Some(Effect::Hold) => {
                let _ = self.0.released.subscribe().wait_for(|released| *released).await;
            }
            Some(Effect::CrashBeforeResponse) => {
                let _ = self.send(at, request, next).await;
                crash();
                return std::future::pending().await;
            }
            Some(Effect::CrashAfter) => {
                let response = self.send(at, request, next).await;
                crash();
                return response;
            }
        }
        let response = self.send(at, request, next).await?;
        self.wait_while_paused().await;
        Ok(if call.verb == Verb::Watch { response.map(|body| self.held_back(&call.resource, body)) } else { response })
    }

    /// Sends a request in a separate task. Like a request that has left its process, it reaches the server even if the
    /// manager is killed before the response.
    async fn send(&self, at: usize, request: Request<Body>, next: Next) -> Exchange {
        let faults = self.clone();
        let writes = usize::from(self.state().recorded[at].call.is_write());
        self.0.writes_under_way.send_modify(|count| *count += writes);
        let sent = tokio::spawn(async move {
            let response =
                next.send(request).await.inspect(|response| faults.record_status(at, response.status().as_u16()));
            faults.0.writes_under_way.send_modify(|count| *count -= writes);
            response
        });
        sent.await?
    }

    /// Returns true if the server has responded to all writes that were sent. Reads do not count: controllers that poll
    /// always have some under way.
    pub fn is_settled(&self) -> bool {
        *self.0.writes_under_way.borrow() == 0
    }

    /// Waits until the server has responded to all writes that were sent.
    pub async fn settled(&self) {
        let _ = self.0.writes_under_way.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Records a request and decides its effect.
    fn record_request(&self, call: &Call) -> (usize, Option<Effect>) {
        let mut state = self.state();
        state.recorded.push(RecordedRequest { call: call.clone(), status: None });
        let at = state.recorded.len() - 1;
        let mut effect = None;
        for rule in &mut state.rules {
            if rule.times == 0 || !(rule.matches)(call) {
                continue;
            }
            if rule.skip > 0 {
                rule.skip -= 1;
            } else if effect.is_none() {
                rule.times -= 1;
                effect = Some(rule.effect.clone());
            }
        }
        (at, effect)
    }

    fn record_status(&self, at: usize, status: u16) {
        self.state().recorded[at].status = Some(status);
    }

    async fn wait_while_paused(&self) {
        let _ = self.0.paused.subscribe().wait_for(|paused| !paused).await;
    }

    /// Returns a watch's body that delivers nothing while its resource is frozen or everything is paused.
    fn held_back(&self, resource: &str, body: ResponseBody) -> ResponseBody {
        let open = OpenWatch::new(self.clone(), resource.to_owned());
        let frames = BodyStream::new(body).then(move |frame: Result<Frame<Bytes>, BoxError>| {
            let (faults, resource) = (open.faults.clone(), open.resource.clone());
            async move {
                let _ = faults.0.frozen.subscribe().wait_for(|frozen| !frozen.contains(&resource)).await;
                faults.wait_while_paused().await;
                frame
            }
        });
        StreamBody::new(frames).boxed_unsync()
    }
}

/// Counts a watch as open until it is dropped.
struct OpenWatch {
    faults: Faults,
    resource: String,
}

impl OpenWatch {
    fn new(faults: Faults, resource: String) -> Self {
        let mut state = faults.state();
        let open = state.open.entry(resource.clone()).or_default();
        *open += 1;
        let open = *open;
        let maximum = state.max_open.entry(resource.clone()).or_default();
        *maximum = open.max(*maximum);
        drop(state);
        Self { faults, resource }
    }
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        *self.faults.state().open.entry(self.resource.clone()).or_default() -= 1;
    }
}

/// Returns the URI with its `limit`, if it has one, replaced by this page size. `None` without a query, or if the page
/// size is 0.
fn with_page_limit(uri: &Uri, limit: usize) -> Option<Uri> {
    let query = uri.query().filter(|_| limit > 0)?;
    let limited: Vec<String> = query
        .split('&')
        .map(|pair| if pair.starts_with("limit=") { format!("limit={limit}") } else { pair.to_owned() })
        .collect();
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = format!("{}?{}", uri.path(), limited.join("&")).parse().ok();
    Uri::from_parts(parts).ok()
}

/// Returns a read without effect that replaces a request, so that the same connection is used.
fn without_effect(request: Request<Body>) -> Request<Body> {
    let (mut head, _) = request.into_parts();
    head.method = http::Method::GET;
    head.uri = Uri::from_static("/version");
    head.headers.remove(header::CONTENT_TYPE);
    head.headers.remove(header::CONTENT_LENGTH);
    head.headers.insert(header::ACCEPT, header::HeaderValue::from_static("application/json"));
    Request::from_parts(head, Body::empty())
}

fn refusal(status: u16, retry_after: Option<u32>) -> Response<ResponseBody> {
    let mut response = Response::builder().status(status).header(header::CONTENT_TYPE, "text/plain");
    if let Some(seconds) = retry_after {
        response = response.header(header::RETRY_AFTER, seconds);
    }
    let body = Full::new(Bytes::from(format!("as scripted: {status}"))).map_err(|never| match never {});
    response.body(body.boxed_unsync()).expect("a valid status and header")
}

/// Returns all effects by which a write can fail once, with names.
pub fn write_failures() -> [(&'static str, Effect); 6] {
    [
        ("conflict", Effect::Refuse(409, None)),
        ("too many requests", Effect::Refuse(429, Some(1))),
        ("server error", Effect::Refuse(500, None)),
        ("not sent", Effect::NotSent),
        ("lost before", Effect::LostBefore),
        ("lost after", Effect::LostAfter),
    ]
}
