//! A lease server and candidates under one paused clock, with scripted faults, for the election's tests.

use std::collections::VecDeque;
use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use futures::future::{BoxFuture, FutureExt};
use futures::task::AtomicWaker;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;

/// A fault of one call: delays in milliseconds before and after the server acts, and the outcome.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Fault {
    pub(super) before: u64,
    pub(super) after: u64,
    pub(super) kind: FaultKind,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum FaultKind {
    #[default]
    None,
    /// The server returns an error and changes nothing.
    Refused,
    /// The request never arrives.
    RequestLost,
    /// The request is executed, but its response never arrives.
    ResponseLost,
    /// The request is executed, but the server returns an error.
    ErrorAfterChange,
}

/// A request for the lease.
#[derive(Clone)]
enum Call {
    Get,
    Create(Lease),
    Update(Lease),
}

/// The API server of the tests: one Lease with a resource version, scripted faults, and all fences, so that each
/// takeover is checked.
#[derive(Default)]
pub(crate) struct LeaseServer {
    lease: Mutex<Option<Lease>>,
    version: Mutex<u64>,
    pub(super) faults: Mutex<VecDeque<Fault>>,
    pub(super) calls: Mutex<Vec<&'static str>>,
    fences: Mutex<Vec<(String, Fence)>>,
    /// Takeovers while another fence was open.
    violations: Mutex<Vec<String>>,
}

impl LeaseServer {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Returns the connection of one more candidate.
    pub(super) fn store(self: &Arc<Self>) -> Arc<dyn LeaseStore> {
        Arc::new(CandidateConnection(self.clone()))
    }

    pub(crate) fn lease(&self) -> Lease {
        self.lease.lock().unwrap().clone().expect("there is a lease")
    }

    pub(crate) fn holder(&self) -> String {
        self.lease.lock().unwrap().as_ref().map_or("", holder).to_owned()
    }

    /// Changes the lease without a candidate; `None` deletes it.
    pub(crate) fn put(&self, lease: Option<Lease>) {
        let lease = lease.map(|lease| self.versioned(lease));
        *self.lease.lock().unwrap() = lease;
    }

    pub(super) fn fail_next(&self, kind: FaultKind, times: usize) {
        let fault = Fault { kind, ..Fault::default() };
        self.faults.lock().unwrap().extend(vec![fault; times]);
    }

    pub(super) fn writes(&self) -> usize {
        self.calls.lock().unwrap().iter().filter(|verb| **verb != "get").count()
    }

    /// Returns the number of leaders. Panics if there were two at any takeover, or are now.
    pub(super) fn assert_at_most_one_leader(&self) -> usize {
        let violations = self.violations.lock().unwrap();
        assert!(violations.is_empty(), "{violations:?}");
        let fences = self.fences.lock().unwrap();
        let holding: Vec<&String> = fences.iter().filter(|(_, fence)| fence.holds()).map(|(id, _)| id).collect();
        assert!(holding.len() <= 1, "two leaders: {holding:?}");
        holding.len()
    }

    fn versioned(&self, mut lease: Lease) -> Lease {
        let mut version = self.version.lock().unwrap();
        *version += 1;
        lease.metadata.resource_version = Some(version.to_string());
        lease
    }

    fn apply(&self, call: Call) -> Result<Lease, LeaseError> {
        let mut stored = self.lease.lock().unwrap();
        let next = match (call, stored.as_ref()) {
            (Call::Get, Some(lease)) => return Ok(lease.clone()),
            (Call::Get | Call::Update(_), None) => return Err(LeaseError::NotFound),
            (Call::Create(_), Some(_)) => return Err(LeaseError::Conflict("exists".to_owned())),
            (Call::Update(new), Some(old)) if new.metadata.resource_version != old.metadata.resource_version => {
                return Err(LeaseError::Conflict("modified".to_owned()));
            }
            (Call::Create(new) | Call::Update(new), _) => self.versioned(new),
        };
        for (identity, fence) in self.fences.lock().unwrap().iter() {
            if !holder(&next).is_empty() && identity != holder(&next) && fence.holds() {
                let text = format!("{} took the lease while the fence of {identity} was open", holder(&next));
                self.violations.lock().unwrap().push(text);
            }
        }
        *stored = Some(next.clone());
        Ok(next)
    }
}

/// The access of a candidate to the lease.
struct CandidateConnection(Arc<LeaseServer>);

impl CandidateConnection {
    /// Executes a call in a separate task, so that dropping the caller does not cancel its request.
    fn call(&self, verb: &'static str, call: Call) -> BoxFuture<'static, Result<Lease, LeaseError>> {
        let server = self.0.clone();
        async move {
            server.calls.lock().unwrap().push(verb);
            let fault = server.faults.lock().unwrap().pop_front().unwrap_or_default();
            let (respond, response) = oneshot::channel();
            tokio::spawn(async move {
                sleep(Duration::from_millis(fault.before)).await;
                let failed = || Err(LeaseError::Failed("scripted".to_owned()));
                let outcome = match fault.kind {
                    FaultKind::None => server.apply(call),
                    FaultKind::Refused => failed(),
                    FaultKind::ErrorAfterChange => server.apply(call).and_then(|_| failed()),
                    FaultKind::ResponseLost => return drop(server.apply(call)),
                    FaultKind::RequestLost => return,
                };
                sleep(Duration::from_millis(fault.after)).await;
                // The receiver may have been dropped: that is one of the faults.
                respond.send(outcome).ok();
            });
            match response.await {
                Ok(outcome) => outcome,
                Err(_) => pending().await,
            }
        }
        .boxed()
    }
}

impl LeaseStore for CandidateConnection {
    fn get(&self) -> BoxFuture<'_, Result<Lease, LeaseError>> {
        self.call("get", Call::Get)
    }

    fn create<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<Lease, LeaseError>> {
        self.call("create", Call::Create(lease.clone()))
    }

    fn update<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<Lease, LeaseError>> {
        self.call("update", Call::Update(lease.clone()))
    }
}

/// Stops polling like SIGSTOP: the clock continues.
#[derive(Default)]
pub(super) struct Gate {
    stopped: AtomicBool,
    waker: AtomicWaker,
}

impl Gate {
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    pub(super) fn resume(&self) {
        self.stopped.store(false, Ordering::SeqCst);
        self.waker.wake();
    }

    async fn run<T>(&self, process: impl Future<Output = T>) -> T {
        let mut process = pin!(process);
        poll_fn(|context| {
            self.waker.register(context.waker());
            if self.stopped.load(Ordering::SeqCst) { Poll::Pending } else { process.as_mut().poll(context) }
        })
        .await
    }
}

/// A process that acquires the lease, loses it and retries until its exit is requested, then releases it.
pub(super) struct Process {
    pub(super) fence: Fence,
    pub(super) gate: Arc<Gate>,
    pub(super) losses: Arc<Mutex<Vec<Lost>>>,
    pub(super) task: JoinHandle<bool>,
    exit: Option<oneshot::Sender<()>>,
}

impl Process {
    pub(super) fn start(server: &Arc<LeaseServer>, identity: &str, skew_seconds: i64, seed: u64) -> Self {
        let (mut election, fence) = candidate(server, identity);
        // The wall clock of a process is skewed but advances with the shared time.
        let wall_start = Timestamp::from_second(1_795_240_236 + skew_seconds).unwrap();
        let start = Instant::now();
        election = election.with_clock(Arc::new(move || wall_start + start.elapsed()), seed);
        let gate = Arc::new(Gate::default());
        let losses = Arc::new(Mutex::new(Vec::new()));
        let (exit, mut exiting) = oneshot::channel();
        let task = tokio::spawn({
            let (gate, losses) = (gate.clone(), losses.clone());
            async move {
                let process = async {
                    loop {
                        let term = async {
                            election.acquire().await;
                            election.hold().await
                        };
                        tokio::select! {
                            biased;
                            Ok(()) = &mut exiting => break,
                            lost = term => losses.lock().unwrap().push(lost),
                        }
                    }
                    election.release().await
                };
                gate.run(process).await
            }
        });
        Self { fence, gate, losses, task, exit: Some(exit) }
    }

    /// Begins a clean exit.
    pub(super) fn exit(&mut self) {
        if let Some(exit) = self.exit.take() {
            exit.send(()).ok();
        }
    }

    /// Kills the process immediately; requests that it sent may still arrive.
    pub(super) fn crash(&self) {
        self.task.abort();
    }
}

/// Creates a candidate whose fence is checked by the server.
pub(crate) fn candidate(server: &Arc<LeaseServer>, identity: &str) -> (Election, Fence) {
    let config = ElectionConfig::new("kube-system", "kube-controller-manager", identity);
    let (election, fence) = Election::with_store(Arc::new(CandidateConnection(server.clone())), config).unwrap();
    server.fences.lock().unwrap().push((identity.to_owned(), fence.clone()));
    (election, fence)
}

/// Waits at most `seconds` until `reached`, and checks the invariant every 10 ms. Returns the time it took.
pub(super) async fn until(server: &LeaseServer, seconds: u64, reached: impl Fn() -> bool) -> Duration {
    let start = Instant::now();
    while !reached() {
        assert!(start.elapsed() < Duration::from_secs(seconds), "not reached within {seconds} s");
        server.assert_at_most_one_leader();
        sleep(Duration::from_millis(10)).await;
    }
    server.assert_at_most_one_leader();
    start.elapsed()
}

/// Lets `seconds` pass, and checks the invariant every 50 ms.
pub(super) async fn run_for(server: &LeaseServer, seconds: u64) {
    for _ in 0..seconds * 20 {
        sleep(Duration::from_millis(50)).await;
        server.assert_at_most_one_leader();
    }
}
