//! The audit: finds cloud resources that no Service requests, reports them, and deletes those of deleted Services if
//! the command line allows it.
//!
//! A leak is proven by two audits that are a whole period apart, and by a read from the API server: a cache may be
//! behind, and the cloud may list a resource late. Only resources whose tags prove that they
//! are this cluster's are deleted.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kinds::Service;
use providers::{CloudError, Deletion, ErrorKind, LoadBalancerId, LoadBalancers, Owned};
use runtime::events::EventType::{Normal, Warning};
use runtime::lock::lock;
use tokio::time::Instant;
use tracing::{info, warn};

use super::cluster::{Cluster, about};
use super::decide;
use super::load_balancer_state::LoadBalancerStates;
use super::metrics::Leaks;
use crate::cloud::retry;

/// Maximum number of parts that a message names.
const MAX_PARTS: usize = 10;

/// The state between two audits.
pub struct Audit {
    /// `--collect-leaked-load-balancers`: a leak is deleted if its Service does not exist and its tags prove that it is
    /// this cluster's ([`Owned::certain`]). Other leaks are only reported.
    pub collects: bool,
    /// Interval between two audits.
    pub every: Duration,
    /// Metrics.
    pub counted: Leaks,
    /// Resources without a Service, with the time of the first audit that found them.
    pub suspects: Mutex<HashMap<LoadBalancerId, Instant>>,
    /// Leaks being deleted. They may be missing in a listing before the cloud has deleted all of their parts.
    pub deleting: Mutex<Vec<Owned>>,
}

/// The result of an audit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditResult {
    /// Leaks that still exist.
    pub leaks: usize,
    /// The delay before the next audit while deletions are in progress; `None`: the audit period.
    pub retry_after: Option<Duration>,
}

/// A proven leak.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Leak {
    owned: Owned,
    /// The API server has no Service that the resources may belong to. Otherwise a Service exists, but requests no load
    /// balancer.
    absent: bool,
}

impl Audit {
    /// Records resources without a Service. Returns the resources that an audit at least one period ago also found.
    fn suspect(&self, unwanted: Vec<Owned>, now: Instant) -> Vec<Owned> {
        let mut suspects = lock(&self.suspects);
        let before = std::mem::take(&mut *suspects);
        let mut confirmed = Vec::new();
        for owned in unwanted {
            let since = before.get(&owned.id).copied();
            suspects.insert(owned.id.clone(), since.unwrap_or(now));
            if since.is_some_and(|since| now.duration_since(since) >= self.every) {
                confirmed.push(owned);
            }
        }
        confirmed
    }

    /// Returns the listed resources, and those being deleted that are no longer listed.
    fn with_deleting(&self, mut listed: Vec<Owned>) -> Vec<Owned> {
        let deleting = lock(&self.deleting);
        let unlisted = deleting.iter().filter(|deleting| !listed.iter().any(|one| one.id == deleting.id));
        let unlisted: Vec<Owned> = unlisted.cloned().collect();
        listed.extend(unlisted);
        listed
    }

    fn set_deleting(&self, deleting: Vec<Owned>) {
        *lock(&self.deleting) = deleting;
    }
}

/// Returns the resources whose Service does not exist, or neither requests a load balancer nor has the finalizer.
pub fn unwanted(owned: Vec<Owned>, services: &[Arc<Service>], cluster: &str, cloud: &dyn LoadBalancers) -> Vec<Owned> {
    let concerned = services.iter().filter(|service| decide::concerns(service));
    let concerned: Vec<LoadBalancerId> = concerned.map(|service| decide::id(&service.meta, cluster)).collect();
    without(owned, &concerned, cloud)
}

/// Returns the resources that belong to none of these Services.
fn without(mut owned: Vec<Owned>, services: &[LoadBalancerId], cloud: &dyn LoadBalancers) -> Vec<Owned> {
    let mut by_name: BTreeMap<(&str, &str), Vec<&LoadBalancerId>> = BTreeMap::new();
    for id in services {
        by_name.entry((&id.namespace, &id.name)).or_default().push(id);
    }
    owned.retain(|owned| {
        if owned.id.namespace.is_empty() {
            // The resource's tags name no Service: it may belong to any.
            !services.iter().any(|id| cloud.may_be_owned_by(owned, id))
        } else {
            let named = by_name.get(&(&*owned.id.namespace, &*owned.id.name));
            !named.into_iter().flatten().any(|id| cloud.may_be_owned_by(owned, id))
        }
    });
    owned
}

/// The inputs of an audit: the cluster's Services, the cloud's resources for Services, and the resources that this
/// process created.
pub struct Scope<'a, S> {
    pub kubernetes: &'a S,
    pub cloud: &'a dyn LoadBalancers,
    /// `--cluster-name`.
    pub cluster: &'a str,
    pub states: &'a LoadBalancerStates,
}

impl Audit {
    /// Finds cloud resources that no Service requests, records them, and deletes them if that is allowed.
    ///
    /// # Errors
    /// The error of the cloud, or `Transient` if the API server could not be read. Nothing is deleted in either case.
    pub async fn run<S: Cluster>(&self, scope: &Scope<'_, S>) -> Result<AuditResult, CloudError> {
        let now = Instant::now();
        let owned = self.with_deleting(scope.cloud.list_owned().await?);
        let known = |owned: &Owned| scope.states.may_exist(&owned.id);
        let mut unwanted = unwanted(owned, &scope.kubernetes.services(), scope.cluster, scope.cloud);
        unwanted.retain(|owned| !known(owned));
        let mut leaks = scope.proven(self.suspect(unwanted, now)).await?;
        let (mut retry_after, mut deleting) = (None, Vec::new());
        for leak in std::mem::take(&mut leaks) {
            if !(self.collects && leak.absent && leak.owned.certain) {
                scope.report(&leak);
                leaks.push(leak);
                continue;
            }
            match scope.collect(&leak.owned).await {
                Ok(Deletion::Gone) => {
                    self.counted.count_collected();
                    continue;
                }
                Ok(Deletion::InProgress(wait)) => {
                    let wait = retry::requested_delay(wait);
                    retry_after = Some(retry_after.map_or(wait, |delay: Duration| delay.min(wait)));
                }
                Err(_) => {}
            }
            deleting.push(leak.owned.clone());
            leaks.push(leak);
        }
        self.set_deleting(deleting);
        self.counted.set_count(leaks.len());
        Ok(AuditResult { leaks: leaks.len(), retry_after })
    }
}

impl<S: Cluster> Scope<'_, S> {
    /// Deletes a proven leak, and records the result.
    async fn collect(&self, owned: &Owned) -> Result<Deletion, CloudError> {
        let about = about(&owned.id, None);
        let result = self.cloud.collect(owned).await;
        match &result {
            Ok(Deletion::Gone) => {
                info!(service = %owned.id, uid = owned.id.uid, "leaked cloud resources deleted");
                let message = format!("Deleted leaked cloud resources of this Service: {}", parts(owned));
                self.kubernetes.record_event(&about, Normal, "LeakedLoadBalancerDeleted", message);
            }
            Ok(Deletion::InProgress(_)) => {}
            Err(error) => {
                warn!(service = %owned.id, uid = owned.id.uid, %error, "leaked cloud resources were not deleted");
                let message = format!("Error deleting {}: {}", parts(owned), retry::message(error));
                self.kubernetes.record_event(&about, Warning, "LeakedLoadBalancerNotDeleted", message);
            }
        }
        result
    }

    /// Returns the suspects that the API server confirms.
    async fn proven(&self, suspects: Vec<Owned>) -> Result<Vec<Leak>, CloudError> {
        if suspects.is_empty() {
            return Ok(Vec::new());
        }
        let live = self.kubernetes.list_uncached().await.map_err(|error| {
            CloudError::new(
                ErrorKind::Transient,
                "ListServices",
                format!("reading from the API server failed: {error}"),
            )
        })?;
        let live: Vec<LoadBalancerId> = live
            .into_iter()
            .map(|(key, uid)| LoadBalancerId {
                cluster: self.cluster.to_owned(),
                namespace: key.namespace.to_string(),
                name: key.name.to_string(),
                uid: uid.to_string(),
            })
            .collect();
        let absent = without(suspects.clone(), &live, self.cloud);
        // The resources of an existing Service that is not in the cache yet are no leak: the Service may request them.
        let cached: Vec<LoadBalancerId> =
            self.kubernetes.services().iter().map(|one| decide::id(&one.meta, self.cluster)).collect();
        let uncached = without(suspects.clone(), &cached, self.cloud);
        let leaks = suspects.into_iter().map(|owned| Leak { absent: absent.contains(&owned), owned });
        Ok(leaks.filter(|leak| leak.absent || !uncached.contains(&leak.owned)).collect())
    }

    /// Reports a leak that is not deleted, in the log and as an event.
    fn report(&self, leak: &Leak) {
        let Leak { owned, absent } = leak;
        warn!(service = %owned.id, uid = owned.id.uid, resources = parts(owned), "leaked cloud resources found");
        let cause = if *absent { "the Service no longer exists" } else { "the Service is not of type LoadBalancer" };
        let fix = match (absent, owned.certain) {
            (true, true) => "delete them by hand, or set --collect-leaked-load-balancers",
            _ => "delete them by hand if they are not needed",
        };
        let message = format!("{cause}, but the cloud still has its resources: {}; {fix}", parts(owned));
        self.kubernetes.record_event(&about(&owned.id, None), Warning, "LeakedLoadBalancer", message);
    }
}

/// Returns the parts of a leak for a message, limited in number.
fn parts(owned: &Owned) -> String {
    let mut parts: Vec<String> = owned.resources.iter().take(MAX_PARTS).cloned().collect();
    if owned.resources.len() > MAX_PARTS {
        parts.push(format!("<{} more>", owned.resources.len() - MAX_PARTS));
    }
    parts.join(", ")
}
