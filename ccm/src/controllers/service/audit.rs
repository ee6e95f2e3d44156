//! The audit: what the cloud holds for Services that are gone is told, and deleted where the command line allows it.
//!
//! A leak is proven by two audits a whole period apart and a look at the API server itself, since a store may be old and
//! a cloud slow. Who deletes on such a proof is the provider, and only what its marks say is this cluster's alone.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kinds::Service;
use providers::{CloudError, Deletion, ErrorKind, LoadBalancerId, LoadBalancers, Owned};
use runtime::events::EventType::{Normal, Warning};
use tokio::time::Instant;
use tracing::{info, warn};

use super::cluster::{Surroundings, about};
use super::decide;
use super::metrics::Leaks;
use super::reconcile::Balancers;
use crate::cloud::retry;

/// Parts that a message names at most.
const PARTS_TOLD: usize = 10;

/// What is remembered from one audit to the next.
pub struct Audit {
    /// What is proven to be a leak is deleted.
    pub collects: bool,
    /// From one audit to the next.
    pub every: Duration,
    /// What was counted.
    pub counted: Leaks,
    /// What no Service stood for, since when without a break.
    pub suspects: Mutex<HashMap<LoadBalancerId, Instant>>,
    /// What is being deleted: a look may not show it any more before the cloud says that all of it is gone.
    pub going: Mutex<Vec<Owned>>,
}

/// What came of an audit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Audited {
    /// Leaks that are there still.
    pub leaks: usize,
    /// When the cloud may be done with what is being deleted.
    pub again: Option<Duration>,
}

/// A proven leak.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Leak {
    owned: Owned,
    /// The API server has no Service that it may belong to. Else there is one that wants no balancer.
    absent: bool,
}

impl Audit {
    /// Remembers what no Service stands for now; answers what already was so at an audit of a period ago.
    fn suspect(&self, unwanted: Vec<Owned>, now: Instant) -> Vec<Owned> {
        let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *suspects);
        let mut again = Vec::new();
        for owned in unwanted {
            let since = before.get(&owned.id).copied();
            suspects.insert(owned.id.clone(), since.unwrap_or(now));
            if since.is_some_and(|since| now.duration_since(since) >= self.every) {
                again.push(owned);
            }
        }
        again
    }

    /// What was listed, and what is being deleted and is not listed any more.
    fn with_going(&self, mut listed: Vec<Owned>) -> Vec<Owned> {
        let going = self.going.lock().unwrap_or_else(PoisonError::into_inner);
        let unlisted = going.iter().filter(|going| !listed.iter().any(|one| one.id == going.id));
        let unlisted: Vec<Owned> = unlisted.cloned().collect();
        listed.extend(unlisted);
        listed
    }

    fn is_going(&self, going: Vec<Owned>) {
        *self.going.lock().unwrap_or_else(PoisonError::into_inner) = going;
    }
}

/// What of it no Service stands for: neither one that wants a balancer nor one that is held.
pub fn unwanted(owned: Vec<Owned>, services: &[Arc<Service>], cluster: &str, cloud: &dyn LoadBalancers) -> Vec<Owned> {
    let standing = services.iter().filter(|service| decide::concerns(service));
    let standing: Vec<LoadBalancerId> = standing.map(|service| decide::id(&service.meta, cluster)).collect();
    without(owned, &standing, cloud)
}

/// What of it belongs to none of these Services.
fn without(mut owned: Vec<Owned>, services: &[LoadBalancerId], cloud: &dyn LoadBalancers) -> Vec<Owned> {
    let mut by_name: BTreeMap<(&str, &str), Vec<&LoadBalancerId>> = BTreeMap::new();
    for id in services {
        by_name.entry((&id.namespace, &id.name)).or_default().push(id);
    }
    owned.retain(|owned| match owned.id.namespace.is_empty() {
        // It does not say whose it is, and may be anybody's.
        true => !services.iter().any(|id| cloud.may_belong(owned, id)),
        false => {
            let named = by_name.get(&(&*owned.id.namespace, &*owned.id.name));
            !named.into_iter().flatten().any(|id| cloud.may_belong(owned, id))
        }
    });
    owned
}

impl<S: Surroundings> Balancers<S> {
    /// Looks for what the cloud holds for Services that do not want it, tells of it, and deletes it if that is allowed.
    ///
    /// # Errors
    /// The cloud's, or `Transient` if the API server could not be asked. Nothing was deleted then.
    pub async fn audit(&self) -> Result<Audited, CloudError> {
        let now = Instant::now();
        let owned = self.audit.with_going(self.cloud.list_owned().await?);
        let known = |owned: &Owned| self.courses.knows(&owned.id);
        let mut unwanted = unwanted(owned, &self.kubernetes.services(), &self.cluster, &*self.cloud);
        unwanted.retain(|owned| !known(owned));
        let mut leaks = self.proven(self.audit.suspect(unwanted, now)).await?;
        let (mut again, mut going) = (None, Vec::new());
        for leak in std::mem::take(&mut leaks) {
            if !(self.audit.collects && leak.absent && leak.owned.certain) {
                self.tell(&leak);
                leaks.push(leak);
                continue;
            }
            match self.cloud.collect(&leak.owned).await {
                Ok(Deletion::Gone) => {
                    info!(service = %leak.owned.id, uid = leak.owned.id.uid, "what a Service had left is deleted");
                    self.audit.counted.collected();
                    let message = format!("Deleted what the cloud still held for this Service: {}", parts(&leak.owned));
                    self.kubernetes.say(&about(&leak.owned.id, None), Normal, "LeakedLoadBalancerDeleted", message);
                }
                Ok(Deletion::InProgress(wait)) => {
                    let wait = retry::again_after(wait);
                    again = Some(again.map_or(wait, |again: Duration| again.min(wait)));
                    going.push(leak.owned.clone());
                    leaks.push(leak);
                }
                Err(error) => {
                    warn!(service = %leak.owned.id, uid = leak.owned.id.uid, %error, "what a Service had left stays");
                    let message = format!("Error deleting {}: {}", parts(&leak.owned), retry::words(&error));
                    let reason = "LeakedLoadBalancerNotDeleted";
                    self.kubernetes.say(&about(&leak.owned.id, None), Warning, reason, message);
                    going.push(leak.owned.clone());
                    leaks.push(leak);
                }
            }
        }
        self.audit.is_going(going);
        self.audit.counted.there_are(leaks.len());
        Ok(Audited { leaks: leaks.len(), again })
    }

    /// Those of which the server says the same as the stores.
    async fn proven(&self, suspects: Vec<Owned>) -> Result<Vec<Leak>, CloudError> {
        if suspects.is_empty() {
            return Ok(Vec::new());
        }
        let live = self.kubernetes.live().await.map_err(|error| {
            CloudError::new(ErrorKind::Transient, "ListServices", format!("the API server did not say: {error}"))
        })?;
        let live: Vec<LoadBalancerId> = live
            .into_iter()
            .map(|(key, uid)| LoadBalancerId {
                cluster: self.cluster.clone(),
                namespace: key.namespace.to_string(),
                name: key.name.to_string(),
                uid: uid.to_string(),
            })
            .collect();
        let absent = without(suspects.clone(), &live, &*self.cloud);
        // Who is there only for the server by now will be in the stores the next time.
        let shown: Vec<LoadBalancerId> =
            self.kubernetes.services().iter().map(|one| decide::id(&one.meta, &self.cluster)).collect();
        let unshown = without(suspects.clone(), &shown, &*self.cloud);
        let leaks = suspects.into_iter().map(|owned| Leak { absent: absent.contains(&owned), owned });
        Ok(leaks.filter(|leak| leak.absent || !unshown.contains(&leak.owned)).collect())
    }

    fn tell(&self, leak: &Leak) {
        let Leak { owned, absent } = leak;
        warn!(service = %owned.id, uid = owned.id.uid, resources = parts(owned), "no Service wants this any more");
        let who = if *absent { "the Service is gone" } else { "the Service wants no load balancer here" };
        let fix = match (absent, owned.certain) {
            (true, true) => "delete it by hand, or let --collect-leaked-load-balancers do it",
            _ => "delete it by hand if nobody needs it",
        };
        let message = format!("{who}, and the cloud holds for it: {}; {fix}", parts(owned));
        self.kubernetes.say(&about(&owned.id, None), Warning, "LeakedLoadBalancer", message);
    }
}

/// The parts of a leak for a message, not too many.
fn parts(owned: &Owned) -> String {
    let mut parts: Vec<String> = owned.resources.iter().take(PARTS_TOLD).cloned().collect();
    if owned.resources.len() > PARTS_TOLD {
        parts.push(format!("<{} more>", owned.resources.len() - PARTS_TOLD));
    }
    parts.join(", ")
}
