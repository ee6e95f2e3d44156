//! One reconcile of a claim: its condition `Unused`, then its finalizer.

use std::collections::HashMap;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::persistent_volume_claim::with_condition;
use kinds::whole::WholeObject;
use kinds::{DecodeError, Kind, PersistentVolumeClaim, Pod, Str, Time};
use runtime::store::{Cached, Store};
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::{WriteError, Writer};
use tracing::debug;

use super::decide::{self, UnusedStep};
use super::idle::IdleClaims;
use super::used_claims::UsedClaims;
use crate::context::Clock;
use crate::protection::{self, Protection, decode_once};
use crate::shared_read::SharedReads;
use crate::storage::indexes::{pods_by_claim, using_claim};
use crate::storage::unused::{condition, is_tracked, refers};

/// The pods of a namespace by the claims that they use.
pub type Users = HashMap<Str, Vec<Arc<Pod>>>;

/// Reads the users of claims from the API server, so that no pod is missed that the cache does not contain yet.
pub fn uncached_users(writer: Writer) -> SharedReads<Users> {
    SharedReads::new(move |namespace| {
        let writer = writer.clone();
        async move { list_users(&writer, &namespace).await.map_err(|error| error.to_string()) }.boxed()
    })
}

async fn list_users(writer: &Writer, namespace: &str) -> Result<Users, WriteError> {
    let decode = decode_once(Pod::VOLUMES);
    let mut users = Users::new();
    let mut unreadable = None;
    let visit = |object: &[u8]| match Pod::decode(&decode, object) {
        Ok(pod) => {
            let pod = Arc::new(pod);
            for volume in pod.volumes.iter().flat_map(|volumes| &volumes.claims) {
                users.entry(volume.claim.clone()).or_default().push(pod.clone());
            }
        }
        Err(error) => unreadable = Some(error),
    };
    writer.list_each(&Pod::RESOURCE, namespace, visit).await?;
    // A pod that cannot be decoded may use any claim.
    unreadable.map_or(Ok(users), |error| Err(error.into()))
}

/// The pods that use claims.
pub struct ClaimUsers {
    /// All pods.
    pub pods: Arc<Store<Pod>>,
    /// The users of claims by namespace, read from the API server.
    pub lists: SharedReads<Users>,
}

type IsUser = fn(&Pod, &PersistentVolumeClaim) -> bool;

impl ClaimUsers {
    fn has_cached(&self, claim: &PersistentVolumeClaim, is_user: IsUser) -> bool {
        let key = using_claim(&claim.meta.namespace, &claim.meta.name);
        self.pods.by_index(&pods_by_claim(), key).iter().any(|pod| is_user(pod, claim))
    }

    async fn has_on_server(&self, claim: &PersistentVolumeClaim, is_user: IsUser) -> Result<bool, ReconcileError> {
        let users = self.lists.get(&claim.meta.namespace).await;
        let users =
            users.map_err(|error| ReconcileError::new(format!("failed to list pods from the API server: {error}")))?;
        Ok(users.get(&claim.meta.name).is_some_and(|pods| pods.iter().any(|pod| is_user(pod, claim))))
    }
}

impl protection::Users<PersistentVolumeClaim> for ClaimUsers {
    fn are_cached(&self, claim: &PersistentVolumeClaim) -> bool {
        self.has_cached(claim, decide::blocks_deletion)
    }

    fn are_on_server<'a>(&'a self, claim: &'a PersistentVolumeClaim) -> BoxFuture<'a, Result<bool, ReconcileError>> {
        self.has_on_server(claim, decide::blocks_deletion).boxed()
    }
}

/// Reconciles claims.
pub struct Claims {
    /// The finalizer, the caches and the queue.
    pub protection: Protection<PersistentVolumeClaim, ClaimUsers>,
    /// Wall clock, for the times in conditions.
    pub clock: Clock,
    /// Claims that the cache has contained no user of for a short time.
    pub idle: IdleClaims,
    /// Whole claims that pods use.
    pub used: UsedClaims,
    /// The condition `Unused` is maintained.
    pub tracks_unused: bool,
}

impl Reconcile for Claims {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl Claims {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let Protection { objects, consistency, queue, .. } = &self.protection;
        let claim = match consistency.read(key, objects, queue.waker(key)) {
            Cached::Current(claim) => claim,
            Cached::Absent => {
                self.idle.forget(key);
                self.used.forget(key);
                return Ok(Outcome::Done);
            }
            Cached::Lagging => return Ok(Outcome::WaitingForCache),
        };
        if !self.tracks_unused || !is_tracked(&claim) {
            return self.protection.protect(&claim).await;
        }
        let next = self.maintain_condition(&claim).await?;
        // A tracked claim is not being deleted: its finalizer can only be added, which needs no later reconcile.
        self.protection.protect(&claim).await?;
        Ok(next)
    }

    async fn maintain_condition(&self, claim: &PersistentVolumeClaim) -> Result<Outcome, ReconcileError> {
        let key = claim.meta.key();
        let step = decide::unused_step(claim, self.protection.users.has_cached(claim, refers));
        if step == UnusedStep::AwaitUser {
            let remaining = self.idle.record_idle(&key);
            if !remaining.is_zero() {
                return Ok(Outcome::RequeueAfter(remaining));
            }
        }
        self.idle.forget(&key);
        let is_unused = match step {
            UnusedStep::Keep => return Ok(Outcome::Done),
            UnusedStep::Write(is_unused) => is_unused,
            UnusedStep::AwaitUser if self.protection.users.pods.undecodable_in(&key.namespace) == 0 => true,
            // The list fails if a pod cannot be decoded, which may use the claim.
            UnusedStep::AwaitUser | UnusedStep::ListPods => !self.protection.users.has_on_server(claim, refers).await?,
        };
        self.write_condition(claim, is_unused).await?;
        Ok(Outcome::Done)
    }

    /// Writes the condition into the whole claim that was kept at the cached version, or else into the claim as read
    /// from the API server.
    async fn write_condition(&self, cached: &PersistentVolumeClaim, unused: bool) -> Result<(), WriteError> {
        if let Some(whole) = self.used.take(cached) {
            match self.put_condition(cached, whole.bytes(), unused).await {
                // The cached claim is outdated.
                Err(error) if error.is_conflict() => {}
                result => return result,
            }
        }
        let response = match self.protection.writer.get(&PersistentVolumeClaim::RESOURCE, &cached.meta.key()).await {
            Err(error) if error.is_not_found() => return Ok(()),
            response => response?,
        };
        let fresh: PersistentVolumeClaim = response.decode(self.protection.objects.decoding())?;
        if fresh.meta.uid != cached.meta.uid || !is_tracked(&fresh) || fresh.unused == Some(unused) {
            return Ok(());
        }
        self.put_condition(&fresh, response.object()?, unused).await
    }

    /// Writes the condition into a whole claim. The write fails with a conflict if the claim has another version on the
    /// API server.
    async fn put_condition(
        &self,
        claim: &PersistentVolumeClaim,
        object: &[u8],
        unused: bool,
    ) -> Result<(), WriteError> {
        let key = claim.meta.key();
        let now = Time((self.clock)().as_second());
        let object = with_condition(object, condition(unused), now).map_err(DecodeError::from)?;
        debug!(claim = %key, unused, "writing the condition Unused");
        match self.protection.writer.replace(&PersistentVolumeClaim::RESOURCE, &key, Some("status"), &object).await {
            Ok(response) => {
                let version = response.meta()?.version;
                let whole =
                    if unused { None } else { WholeObject::read(response.object()?).map_err(DecodeError::from)? };
                if let Some(whole) = whole {
                    self.used.keep(&key, version, whole);
                }
                self.protection.consistency.wrote(&key, &self.protection.objects, version);
                Ok(())
            }
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }
}
