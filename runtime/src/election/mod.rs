//! Leader election: one Lease, renewed by its holder, acquired by a candidate when it has no holder or was observed
//! unchanged for the lease duration.
//!
//! The protocol is that of upstream's `tools/leaderelection`, so that this process and upstream's can take the lease
//! over from each other. This implementation is stricter than upstream in three cases, all for safety: a leader that
//! reads another holder stops immediately; a release never overwrites another holder; a candidate that has observed a
//! leader does not acquire a deleted lease before that leader's lease expires. The protocol does not protect against
//! manual deletion or editing of a held lease: a candidate that has never observed the lease leads immediately.

mod candidacy;
#[cfg(test)]
pub(crate) mod simulation;
mod store;
mod term;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use crate::events::{EventType, ObjectReference, Recorder, WallClock, random_uuid};
use crate::fence::Fence;
pub use candidacy::{Candidacy, Versions};
pub use store::{LeaseError, LeaseStore};
use term::{LeaseObservation, claim, holder, vacate};

/// Maximum random extension of a retry period, as a multiple of it.
const JITTER: f64 = 1.2;

/// Configuration: the lease, the identity, and the times of the protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElectionConfig {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// The candidate's identity; must be unique to the process (`unique_identity`).
    pub identity: String,
    /// Time for which other candidates wait after the last renewal; 15 s by default. Fractions of a second are ignored.
    pub lease_duration: Duration,
    /// Time for which a leader tries to renew before it stops leading; 10 s by default.
    pub renew_deadline: Duration,
    /// The pause between two attempts; 2 s by default.
    pub retry_period: Duration,
    /// The versions of this candidate, if the API server selects the leader (gate CoordinatedLeaderElection).
    pub coordinated: Option<Versions>,
}

impl ElectionConfig {
    /// Returns the lease `namespace`/`name` for `identity` with upstream's times: 15 s, 10 s and 2 s.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, identity: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: identity.into(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            coordinated: None,
        }
    }

    /// Validates the configuration. Upstream: `tools/leaderelection`, `NewLeaderElector`.
    fn check(&self) -> Result<(), ElectionError> {
        if self.identity.is_empty() {
            return Err(ElectionError::NoIdentity);
        }
        if self.retry_period.is_zero() {
            return Err(ElectionError::NoRetryPeriod);
        }
        if self.lease_seconds().is_none() {
            return Err(ElectionError::LeaseDuration(self.lease_duration));
        }
        if self.lease_duration <= self.renew_deadline {
            return Err(ElectionError::RenewDeadlineTooLong {
                lease_duration: self.lease_duration,
                renew_deadline: self.renew_deadline,
            });
        }
        if self.renew_deadline <= self.retry_period.mul_f64(JITTER) {
            return Err(ElectionError::RenewDeadlineTooShort {
                renew_deadline: self.renew_deadline,
                retry_period: self.retry_period,
            });
        }
        Ok(())
    }

    fn lease_seconds(&self) -> Option<i32> {
        i32::try_from(self.lease_duration.as_secs()).ok().filter(|seconds| *seconds > 0)
    }
}

/// Returns `<hostname>_<random UUID>`: a unique identity, formatted as in kube-controller-manager.
pub fn unique_identity(hostname: &str) -> String {
    format!("{hostname}_{}", random_uuid())
}

/// The reason why an election configuration is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ElectionError {
    /// The identity is empty.
    #[error("leader election: identity is empty: set one that no other process has")]
    NoIdentity,
    /// The retry period is zero.
    #[error("leader election: retry period is 0s: set it above zero")]
    NoRetryPeriod,
    /// The lease duration is less than a second, or too long for the field of the Lease.
    #[error("leader election: lease duration {0:?} is out of range: set 1s to 2147483647s")]
    LeaseDuration(Duration),
    /// The leader would stop only after other candidates may acquire the lease.
    #[error("leader election: renew deadline {renew_deadline:?} must be below lease duration {lease_duration:?}")]
    RenewDeadlineTooLong {
        /// The configured lease duration.
        lease_duration: Duration,
        /// The configured renew deadline.
        renew_deadline: Duration,
    },
    /// The renew deadline may leave no time for a second attempt.
    #[error("leader election: renew deadline {renew_deadline:?} must be above 1.2 times retry period {retry_period:?}")]
    RenewDeadlineTooShort {
        /// The configured renew deadline.
        renew_deadline: Duration,
        /// The configured retry period.
        retry_period: Duration,
    },
}

/// The reason why this process lost the lease.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// Another process holds the lease.
    #[error("the lease is held by {holder}")]
    TakenOver {
        /// The identity of the holder.
        holder: String,
    },
    /// The API server prefers another candidate.
    #[error("the lease is marked as end of term: {preferred} is preferred")]
    EndOfTerm {
        /// The preferred candidate.
        preferred: String,
    },
    /// The lease could not be renewed in time.
    #[error("the lease could not be renewed in time: {last_error}")]
    RenewDeadline {
        /// The error of the last attempt.
        last_error: String,
    },
}

/// The reason why one attempt did not acquire or renew the lease.
#[derive(Debug, thiserror::Error)]
enum TryError {
    #[error("the lease is held by {holder} and has not expired")]
    Held { holder: String },
    #[error("the API server has assigned the lease to no candidate")]
    Unassigned,
    #[error("the lease has expired")]
    Expired,
    #[error("the lease is marked as end of term: {preferred} is preferred")]
    EndOfTerm { preferred: String },
    #[error("get: {0}")]
    Get(LeaseError),
    #[error("create: {0}")]
    Create(LeaseError),
    #[error("update: {0}")]
    Update(LeaseError),
}

/// The last write, whose response may have been lost.
#[derive(Debug)]
struct Sent {
    spec: LeaseSpec,
    /// The time at which the write was sent.
    started: Instant,
}

/// One candidate for one lease: `acquire`, then `hold` until lost, or `release` on a clean exit.
///
/// Dropping the future of any of these is safe: the next attempt detects a write that was executed although its
/// response was not received.
pub struct Election {
    store: Arc<dyn LeaseStore>,
    config: ElectionConfig,
    /// The lease duration in seconds.
    seconds: i32,
    fence: Fence,
    recorder: Option<Recorder>,
    wall_clock: WallClock,
    random: StdRng,
    /// The lease as last read or written by this process.
    observed: Option<LeaseObservation>,
    /// The last write without a response.
    sent: Option<Sent>,
    /// This process has sent a request to write the lease.
    has_written: bool,
    /// The holder that was logged last.
    logged_holder: String,
}

impl Election {
    /// Creates a candidate for the lease on the API server of `client`, and the fence for its writes, which is closed
    /// until `acquire` returns.
    ///
    /// # Errors
    /// When the configuration is invalid.
    pub fn new(client: kube::Client, config: ElectionConfig) -> Result<(Self, Fence), ElectionError> {
        let store = store::ApiLease::new(client, &config.namespace, &config.name);
        Self::with_store(Arc::new(store), config)
    }

    /// Like `new`, with any store of leases.
    ///
    /// # Errors
    /// Same as [`Election::new`].
    pub fn with_store(store: Arc<dyn LeaseStore>, config: ElectionConfig) -> Result<(Self, Fence), ElectionError> {
        config.check()?;
        let seconds = config.lease_seconds().ok_or(ElectionError::LeaseDuration(config.lease_duration))?;
        // Candidates wait for the whole seconds in the lease, so the fence must not last a fraction longer.
        let fence = Fence::closed(Duration::from_secs(config.lease_duration.as_secs()));
        let election = Self {
            store,
            config,
            seconds,
            fence: fence.clone(),
            recorder: None,
            wall_clock: Arc::new(Timestamp::now),
            random: StdRng::from_os_rng(),
            observed: None,
            sent: None,
            has_written: false,
            logged_holder: String::new(),
        };
        Ok((election, fence))
    }

    /// Records `LeaderElection` events (`<identity> became leader`, `<identity> stopped leading`) on the Lease.
    /// Upstream: tools/leaderelection/resourcelock, LeaseLock.RecordEvent.
    pub fn recording(mut self, recorder: Recorder) -> Self {
        self.recorder = Some(recorder);
        self
    }

    /// Replaces the wall clock, whose time is only written into the lease, and the seed of the jitter.
    pub fn with_clock(mut self, wall_clock: WallClock, seed: u64) -> Self {
        self.wall_clock = wall_clock;
        self.random = StdRng::seed_from_u64(seed);
        self
    }

    /// Waits until this process leads. Attempts are one retry period apart, extended at random by up to 1.2 times that
    /// period (`LeaderElector.acquire`). Errors are logged and retried.
    pub async fn acquire(&mut self) {
        self.fence.revoke();
        tracing::info!(lease = self.describe(), "attempting to acquire the leader lease");
        while let Err(error) = self.attempt().await {
            match &error {
                TryError::Held { .. } | TryError::Unassigned | TryError::Expired => {
                    tracing::debug!(lease = self.describe(), %error, "not leading")
                }
                error => tracing::warn!(lease = self.describe(), %error, "not leading"),
            }
            let factor = 1.0 + JITTER * self.random.random::<f64>();
            sleep(self.config.retry_period.mul_f64(factor)).await;
        }
        tracing::info!(lease = self.describe(), "acquired the leader lease");
        self.record("became leader");
    }

    /// Renews once per retry period until the lease is lost, and returns the reason (`LeaderElector.renew`). The fence
    /// is closed when it returns. Call it immediately after `acquire`.
    pub async fn hold(&mut self) -> Lost {
        let lost = loop {
            if let Err(lost) = self.renew_in_time().await {
                break lost;
            }
            sleep(self.config.retry_period).await;
        };
        self.fence.revoke();
        tracing::warn!(lease = self.describe(), %lost, "stopped leading");
        self.record("stopped leading");
        lost
    }

    /// Records the event that this process stops leading, while it may still write.
    pub fn resign(&self) {
        if self.fence.is_leader() {
            self.record("stopped leading");
        }
    }

    /// Releases the lease so that a successor need not wait: no holder, a duration of one second. Stop all work first:
    /// the fence closes immediately, but requests that were sent before may still arrive. Retries until the renew
    /// deadline. Returns true if the lease is known to have another holder or none (`LeaderElector.release`).
    ///
    /// A candidate that never wrote the lease has nothing to release, and sends no request, except in a coordinated
    /// election: there the API server may have written the candidate's identity.
    pub async fn release(mut self) -> bool {
        let led = self.fence.is_leader();
        self.fence.revoke();
        if !led && !self.has_written && self.config.coordinated.is_none() {
            return true;
        }
        let deadline = Instant::now() + self.config.renew_deadline;
        let released = timeout_at(deadline, self.vacate()).await.unwrap_or(false);
        if led {
            tracing::info!(lease = self.describe(), released, "stopped leading");
        }
        released
    }

    /// Writes a lease without a holder; retries until it succeeds or the lease has another holder.
    async fn vacate(&mut self) -> bool {
        loop {
            let started = Instant::now();
            let outcome = match self.call(self.store.get()).await {
                Ok(lease) if holder(&lease) != self.config.identity => return true,
                Ok(mut lease) => {
                    let strategy = self.strategy(Some(&lease));
                    lease.spec = Some(LeaseSpec { strategy, ..vacate(&lease, (self.wall_clock)()) });
                    self.call(self.store.update(&lease)).await
                }
                Err(error) => Err(error),
            };
            match outcome {
                Ok(_) | Err(LeaseError::NotFound) => return true,
                Err(LeaseError::Conflict(_)) => {}
                Err(error) => {
                    tracing::warn!(lease = self.describe(), %error, "the leader lease was not released");
                    sleep_until(started + self.config.retry_period).await;
                }
            }
        }
    }

    /// Renews once: retries until it succeeds, another process leads or is preferred, or the renew deadline has passed.
    async fn renew_in_time(&mut self) -> Result<(), Lost> {
        let deadline = self.renewal_deadline();
        let mut last_error = "no response".to_owned();
        loop {
            let next = Instant::now() + self.config.retry_period;
            match timeout_at(deadline, self.attempt()).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(TryError::Held { holder })) => return Err(Lost::TakenOver { holder }),
                Ok(Err(TryError::EndOfTerm { preferred })) => return Err(Lost::EndOfTerm { preferred }),
                Ok(Err(error)) => {
                    tracing::warn!(lease = self.describe(), %error, "the leader lease was not renewed");
                    last_error = error.to_string();
                }
                Err(_) => return Err(Lost::RenewDeadline { last_error }),
            }
            if timeout_at(deadline, sleep_until(next)).await.is_err() {
                return Err(Lost::RenewDeadline { last_error });
            }
        }
    }

    /// Returns the renew deadline, but no later than the time at which the fence closes: a leader that cannot write
    /// must not keep the lease.
    fn renewal_deadline(&self) -> Instant {
        let now = Instant::now();
        let renewed = self.fence.last_renewed().unwrap_or(now);
        let lease_duration = Duration::from_secs(self.config.lease_duration.as_secs());
        (now + self.config.renew_deadline).min(renewed + lease_duration)
    }

    /// Acquires or renews the lease, or returns the reason why not (`LeaderElector.tryAcquireOrRenew`).
    async fn attempt(&mut self) -> Result<(), TryError> {
        if self.config.coordinated.is_some() {
            return self.attempt_coordinated().await;
        }
        if let Some(lease) = self.renewable(Instant::now()) {
            match self.write(Some(lease)).await {
                Ok(()) => return Ok(()),
                Err(error) => {
                    tracing::debug!(lease = self.describe(), %error, "optimistic renewal failed; reading the lease")
                }
            }
        }
        let read = self.call(self.store.get()).await;
        let lease = match read {
            Ok(lease) => lease,
            Err(LeaseError::NotFound) => {
                self.check_not_held_by_other(false)?;
                return self.write(None).await.map_err(TryError::Create);
            }
            Err(error) => return Err(TryError::Get(error)),
        };
        let now = Instant::now();
        self.observed = Some(LeaseObservation::next(self.observed.take(), lease.clone(), now));
        self.report_holder();
        self.check_not_held_by_other(self.fence.is_leader())?;
        if let Some(started) = self.start_of_stored_write(&lease, now) {
            self.record_leadership(lease, started);
            return Ok(());
        }
        if self.fence.is_leader() && holder(&lease) == self.config.identity {
            self.fence.count_slow_renewal();
        }
        self.write(Some(lease)).await.map_err(TryError::Update)
    }

    /// Renews a lease that the API server has assigned to this candidate. The lease is always read first, because its
    /// end of term is announced in it (`LeaderElector.tryCoordinatedRenew`).
    async fn attempt_coordinated(&mut self) -> Result<(), TryError> {
        let lease = match self.call(self.store.get()).await {
            Ok(lease) => lease,
            Err(LeaseError::NotFound) => return Err(TryError::Unassigned),
            Err(error) => return Err(TryError::Get(error)),
        };
        let now = Instant::now();
        let observed = LeaseObservation::next(self.observed.take(), lease.clone(), now);
        let (holder, is_valid) = (observed.holder().to_owned(), observed.is_valid(now));
        self.observed = Some(observed);
        self.report_holder();
        if holder != self.config.identity {
            return Err(if holder.is_empty() { TryError::Unassigned } else { TryError::Held { holder } });
        }
        let preferred = lease.spec.as_ref().and_then(|spec| spec.preferred_holder.clone()).unwrap_or_default();
        if !preferred.is_empty() {
            return Err(TryError::EndOfTerm { preferred });
        }
        if let Some(started) = self.start_of_stored_write(&lease, now) {
            self.record_leadership(lease, started);
            return Ok(());
        }
        if !is_valid {
            return Err(TryError::Expired);
        }
        self.write(Some(lease)).await.map_err(TryError::Update)
    }

    /// Returns the lease if it can be renewed without another read: as last observed, this process holds it and it has
    /// not expired.
    fn renewable(&self, now: Instant) -> Option<Lease> {
        let observed = self.observed.as_ref()?;
        let is_own = observed.holder() == self.config.identity && observed.is_valid(now);
        is_own.then(|| observed.lease.clone())
    }

    /// Fails if another process holds the lease. For a candidate, an expired lease counts as free; for a leader it does
    /// not.
    fn check_not_held_by_other(&self, is_leader: bool) -> Result<(), TryError> {
        let Some(observed) = &self.observed else { return Ok(()) };
        let other = !observed.holder().is_empty() && observed.holder() != self.config.identity;
        if other && (is_leader || observed.is_valid(Instant::now())) {
            let holder = observed.holder().to_owned();
            return Err(TryError::Held { holder });
        }
        Ok(())
    }

    /// If the response to the last write was lost but `lease` shows that the server executed it, returns the time at
    /// which it was sent. `None` if the renew deadline has passed since.
    fn start_of_stored_write(&self, lease: &Lease, now: Instant) -> Option<Instant> {
        let sent = self.sent.as_ref()?;
        let running = sent.started + self.config.renew_deadline > now;
        (running && lease.spec.as_ref() == Some(&sent.spec)).then_some(sent.started)
    }

    async fn write(&mut self, before: Option<Lease>) -> Result<(), LeaseError> {
        let mut spec = claim(before.as_ref(), &self.config.identity, self.seconds, (self.wall_clock)());
        spec.strategy = self.strategy(before.as_ref());
        let started = Instant::now();
        self.sent = Some(Sent { spec: spec.clone(), started });
        self.has_written = true;
        let stored = match before {
            Some(mut lease) => {
                lease.spec = Some(spec);
                self.call(self.store.update(&lease)).await?
            }
            None => {
                let metadata = ObjectMeta {
                    name: Some(self.config.name.clone()),
                    namespace: Some(self.config.namespace.clone()),
                    ..ObjectMeta::default()
                };
                let lease = Lease { metadata, spec: Some(spec) };
                self.call(self.store.create(&lease)).await?
            }
        };
        // A proxy that answers every request with an empty object must not make every candidate a leader.
        if holder(&stored) != self.config.identity {
            let found = holder(&stored);
            return Err(LeaseError::Failed(format!("the response to the write has the holder {found:?}")));
        }
        self.record_leadership(stored, started);
        Ok(())
    }

    /// Returns the strategy of a coordinated lease, which each write has to keep: without it, the API server would no
    /// longer select the leader.
    fn strategy(&self, before: Option<&Lease>) -> Option<String> {
        self.config.coordinated.as_ref()?;
        before?.spec.as_ref()?.strategy.clone()
    }

    /// Records a successful write that began at `started`: this process leads.
    fn record_leadership(&mut self, lease: Lease, started: Instant) {
        self.sent = None;
        self.observed = Some(LeaseObservation { lease, changed: Instant::now() });
        self.fence.renew(started);
        self.report_holder();
    }

    /// Runs a call with a timeout of half the renew deadline, at least a second (`tools/leaderelection/resourcelock`,
    /// `NewFromKubeconfig`).
    async fn call<T>(&self, call: impl Future<Output = Result<T, LeaseError>>) -> Result<T, LeaseError> {
        let limit = (self.config.renew_deadline / 2).max(Duration::from_secs(1));
        let timed_out = |_| Err(LeaseError::Failed(format!("no response within {limit:?}")));
        timeout(limit, call).await.unwrap_or_else(timed_out)
    }

    fn report_holder(&mut self) {
        let holder = self.observed.as_ref().map_or("", LeaseObservation::holder);
        if holder != self.logged_holder {
            self.logged_holder = holder.to_owned();
            if holder.is_empty() {
                tracing::info!(lease = self.describe(), "the leader lease has no holder");
            } else {
                tracing::info!(lease = self.describe(), holder, "new leader");
            }
        }
    }

    fn record(&self, what: &str) {
        let (Some(recorder), Some(observed)) = (&self.recorder, &self.observed) else {
            return;
        };
        let text = |field: &Option<String>| field.as_deref().unwrap_or("").into();
        let lease = ObjectReference {
            api_version: "coordination.k8s.io/v1".into(),
            kind: "Lease".into(),
            namespace: self.config.namespace.as_str().into(),
            name: self.config.name.as_str().into(),
            uid: text(&observed.lease.metadata.uid),
            resource_version: text(&observed.lease.metadata.resource_version),
        };
        let message = format!("{} {what}", self.config.identity);
        recorder.event(&lease, EventType::Normal, "LeaderElection", message);
    }

    fn describe(&self) -> String {
        format!("{}/{}", self.config.namespace, self.config.name)
    }
}
