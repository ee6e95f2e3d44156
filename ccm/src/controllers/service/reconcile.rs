//! One reconcile of a Service: look at what it wants, make the one call that brings the cloud there, tell of it.
//!
//! Service changes, node changes, endpoint changes, retries and looks for drift all come as the same key, so that no
//! two calls for one Service are ever under way together.

use std::sync::Arc;
use std::time::Duration;

use kinds::Service;
use kinds::meta::ObjectKey;
use providers::{
    CloudError, Deletion, ErrorKind, LoadBalancerId, LoadBalancerSpec, LoadBalancers, NodeTarget, Progress, Targeting,
    Targets,
};
use runtime::events::EventType::{Normal, Warning};
use runtime::worker::{Outcome, ReconcileError};
use tokio::time::Instant;
use tracing::{info, warn};

use super::audit::Audit;
use super::balancer_state::{Announced, Course, Courses, Pause, Settled};
use super::cluster::{Refusal, Surroundings, about};
use super::decide::{self, Wish};
use super::metrics::Hosts;
use super::readiness_gates;
use crate::cloud::retry;

type Ran = Result<Outcome, ReconcileError>;

/// Names of nodes that a message lists at most (upstream: service controller, maxNodeNamesToLog).
const NAMES_TOLD: usize = 20;

/// Keeps balancers as Services ask for them.
pub struct Balancers<S> {
    pub kubernetes: S,
    pub cloud: Arc<dyn LoadBalancers>,
    /// `--cluster-name`.
    pub cluster: String,
    /// From one look for drift to the next, about.
    pub resync: Duration,
    pub courses: Courses,
    /// What is counted.
    pub hosts: Hosts,
    /// What was found to be left of Services that are gone.
    pub audit: Audit,
}

/// A Service that wants a balancer, with what it asks for.
pub(super) struct Wanted<'a> {
    key: &'a ObjectKey,
    pub(super) service: &'a Service,
    pub(super) spec: Arc<LoadBalancerSpec>,
    targeting: Targeting,
}

impl<S: Surroundings> Balancers<S> {
    /// Does what is to be done for one Service.
    pub async fn sync(&self, key: &ObjectKey) -> Ran {
        let service = self.kubernetes.service(key);
        let mut course = self.courses.get(key);
        let outcome = self.run(key, service.as_deref(), &mut course).await;
        self.courses.put(key, course);
        outcome
    }

    async fn run(&self, key: &ObjectKey, service: Option<&Service>, course: &mut Course) -> Ran {
        let own = service.map(|service| decide::id(&service.meta, &self.cluster));
        if let Some(id) = course.made.clone().filter(|id| Some(id) != own.as_ref()) {
            // The Service is gone, or another one of its name is there, without having waited for the cleanup.
            if let Some(outcome) = self.abandon(&id, None, course).await {
                return Ok(outcome);
            }
        }
        let (Some(service), Some(id)) = (service, own) else {
            *course = Course::default();
            return Ok(Outcome::Done);
        };
        if course.uid != service.meta.uid {
            *course = Course { uid: service.meta.uid.clone(), ..Course::default() };
        }
        match decide::wish(service, &self.cloud.features().classes, course.made.is_some()) {
            // The finalizer was taken away by somebody else.
            Wish::Nothing if course.made.is_some() => {
                Ok(self.abandon(&id, Some(service), course).await.unwrap_or(Outcome::Done))
            }
            Wish::Nothing => {
                *course = Course::default();
                Ok(Outcome::Done)
            }
            Wish::Cleanup => self.clean_up(&id, service, course, true).await,
            Wish::Balancer => {
                let read = decide::spec(service, &self.cluster, &self.cloud.features().annotations);
                let read = read.and_then(|mut spec| {
                    self.find_others(key, &mut spec, course);
                    Ok((self.cloud.targeting(&spec)?, spec))
                });
                match read {
                    Err(error) => {
                        self.refuse(&id, service, course, &error)?;
                        Ok(self.keep(key, service, course).await)
                    }
                    Ok((Targeting::Elsewhere, _)) if decide::is_held(&service.meta) || course.made.is_some() => {
                        // Whoever makes it now may have written the status already.
                        let ours = course.ingress.as_deref() == Some(decide::published(service));
                        self.clean_up(&id, service, course, ours).await
                    }
                    Ok((Targeting::Elsewhere, _)) => Ok(Outcome::Done),
                    Ok((targeting, spec)) => {
                        let wanted = Wanted { key, service, spec: Arc::new(spec), targeting };
                        let outcome = self.balance(&wanted, course).await?;
                        if targeting != Targeting::Endpoints {
                            return Ok(outcome);
                        }
                        Ok(readiness_gates::sooner(outcome, self.tell_pods(&wanted, course).await))
                    }
                }
            }
        }
    }

    /// Looks up the other Services that a balancer is to send traffic to; from before that on their changes wake this
    /// one.
    fn find_others(&self, key: &ObjectKey, spec: &mut LoadBalancerSpec, course: &mut Course) {
        let named = |name: String| ObjectKey { namespace: key.namespace.clone(), name: name.into() };
        let others = self.cloud.others(spec).into_iter().map(named).collect();
        if course.others != others {
            course.others = others;
            self.courses.put(key, course.clone());
        }
        let found = course.others.iter().filter_map(|other| self.kubernetes.service(other));
        spec.others = found.map(|other| (other.meta.name.to_string(), decide::other(&other))).collect();
    }

    /// A balancer whose Service asks for what can't work stays as it was, and sends traffic where its targets are now.
    async fn keep(&self, key: &ObjectKey, service: &Service, course: &mut Course) -> Outcome {
        let (Some(settled), Some(targeting)) = (course.settled.clone(), course.targeting) else {
            return Outcome::Done;
        };
        let wanted = Wanted { key, service, spec: settled.spec.clone(), targeting };
        let outcome = self.keep_targets(&wanted, settled, course).await;
        match targeting {
            Targeting::Endpoints => readiness_gates::sooner(outcome, self.tell_pods(&wanted, course).await),
            _ => outcome,
        }
    }

    async fn keep_targets(&self, wanted: &Wanted<'_>, settled: Settled, course: &mut Course) -> Outcome {
        let now = Instant::now();
        if let Some(left) = course.held_back(Some(&wanted.spec), now) {
            return left.map_or(Outcome::Done, Outcome::RequeueAfter);
        }
        let differ = |targets: &Targets| !same_targets(wanted.targeting, &settled.targets, targets);
        let Some(targets) = self.targets(wanted).filter(differ) else { return Outcome::Done };
        let set = self.cloud.set_targets(&wanted.spec, &targets).await;
        self.hosts.updated(now.elapsed(), set.is_ok());
        match set {
            Ok(()) => {
                (course.failures, course.pause) = (0, None);
                course.settled = Some(Settled { targets, ..settled });
                Outcome::Done
            }
            // There is nothing to keep.
            Err(error) if error.is_not_found() => {
                course.settled = None;
                Outcome::Done
            }
            // What keeps it from working was said.
            Err(error) => {
                course.failures = course.failures.saturating_add(1);
                warn!(service = %wanted.spec.id, %error, "a balancer whose Service asks for what cannot work has old targets");
                let again = retry::retry_after(error.kind, course.failures);
                let (until, firm) = (again.map(|again| now + again), error.retry_after().is_some());
                course.pause = Some(Pause { until, asked: Some(wanted.spec.clone()), firm });
                again.map_or(Outcome::Done, Outcome::RequeueAfter)
            }
        }
    }

    /// What is asked for can never work.
    fn refuse(&self, id: &LoadBalancerId, service: &Service, course: &mut Course, error: &CloudError) -> Ran {
        let message = format!("Error syncing load balancer: {}", retry::words(error));
        if course.told.tells(&message, Instant::now()) {
            self.kubernetes.say(&about(id, Some(service)), Warning, "SyncLoadBalancerFailed", message);
            info!(service = %id, %error, "what the Service asks for cannot work");
        }
        Ok(Outcome::Done)
    }

    async fn balance(&self, wanted: &Wanted<'_>, course: &mut Course) -> Ran {
        let now = Instant::now();
        if let Some(left) = course.held_back(Some(&wanted.spec), now) {
            self.follow_targets(wanted, course).await;
            return Ok(left.map_or(Outcome::Done, Outcome::RequeueAfter));
        }
        if course.targeting != Some(wanted.targeting) {
            course.targeting = Some(wanted.targeting);
            self.courses.put(wanted.key, course.clone());
        }
        let Some(targets) = self.targets(wanted) else {
            let error = CloudError::new(
                ErrorKind::Invalid,
                "ReadEndpoints",
                "what is asked for needs endpoints as targets, which are not watched here: ask for nodes instead",
            );
            return self.refuse(&wanted.spec.id, wanted.service, course, &error);
        };
        let held = decide::is_held(&wanted.service.meta);
        if let Some(settled) = course.settled.clone().filter(|settled| held && settled.spec == wanted.spec) {
            let due = settled.at + decide::resync_after(self.resync, &wanted.spec.id.uid);
            if !same_targets(wanted.targeting, &settled.targets, &targets) {
                course.settled = None;
                course.aimed = Some(targets.clone());
                let begun = Instant::now();
                let set = self.cloud.set_targets(&wanted.spec, &targets).await;
                self.hosts.updated(begun.elapsed(), set.is_ok());
                match set {
                    Ok(()) => {
                        let same_nodes = names(&settled.targets).eq(names(&targets));
                        course.settled = Some(Settled { targets: targets.clone(), ..settled });
                        self.updated(wanted, course, &targets, same_nodes);
                    }
                    // Somebody removed it: it is made anew.
                    Err(error) if error.is_not_found() => return self.ensure(wanted, course, targets).await,
                    Err(error) => return Ok(self.not_updated(wanted, course, &targets.nodes, &error)),
                }
            }
            if due > now {
                self.publish(wanted, course).await?;
                return Ok(Outcome::RequeueAfter(due - now));
            }
        }
        self.ensure(wanted, course, targets).await
    }

    /// Updates the targets of an existing load balancer while the retry of a failed call waits: pods and nodes change
    /// all the same. Each set of targets is tried once.
    async fn follow_targets(&self, wanted: &Wanted<'_>, course: &mut Course) {
        let held = decide::is_held(&wanted.service.meta) && course.made.is_some();
        if !held || course.is_throttled() {
            return;
        }
        let Some(targets) = self.targets(wanted) else { return };
        if course.aimed.as_ref().is_none_or(|aimed| same_targets(wanted.targeting, aimed, &targets)) {
            return;
        }
        course.aimed = Some(targets.clone());
        let begun = Instant::now();
        let set = self.cloud.set_targets(&wanted.spec, &targets).await;
        self.hosts.updated(begun.elapsed(), set.is_ok());
        match set {
            Err(error) if !error.is_not_found() => {
                warn!(service = %wanted.spec.id, %error, "targets were not updated while a retry waits");
            }
            _ => {}
        }
    }

    /// Where traffic may go; `None` if that is not known here.
    pub(super) fn targets(&self, wanted: &Wanted<'_>) -> Option<Targets> {
        let nodes = self.kubernetes.nodes();
        let incomplete = !self.kubernetes.decodes_all();
        if wanted.targeting != Targeting::Endpoints {
            return Some(Targets { nodes, incomplete, ..Targets::default() });
        }
        let endpoints = self.kubernetes.endpoints(wanted.service)?;
        let of_other = |name: &String| {
            let key = ObjectKey { namespace: wanted.key.namespace.clone(), name: name.as_str().into() };
            let endpoints = self.kubernetes.service(&key).and_then(|other| self.kubernetes.endpoints(&other));
            (name.clone(), endpoints.unwrap_or_default())
        };
        let others = wanted.spec.others.keys().map(of_other).collect();
        Some(Targets { nodes, endpoints, others, incomplete })
    }

    fn updated(&self, wanted: &Wanted<'_>, course: &mut Course, targets: &Targets, same_nodes: bool) {
        course.went_well();
        let about = about(&wanted.spec.id, Some(wanted.service));
        match wanted.targeting {
            // Labels and addresses of nodes change often; hosts are new only if other nodes are.
            Targeting::Nodes if same_nodes => {}
            Targeting::Nodes if targets.nodes.is_empty() => self.unavailable(wanted),
            Targeting::Nodes => {
                let message = "Updated load balancer with new hosts".to_owned();
                self.kubernetes.say(&about, Normal, "UpdatedLoadBalancer", message);
            }
            // Pods come and go all the time: an event each would tell nobody anything.
            Targeting::Endpoints | Targeting::Elsewhere => {}
        }
    }

    fn unavailable(&self, wanted: &Wanted<'_>) {
        let message = "There are no available nodes for LoadBalancer".to_owned();
        self.kubernetes.say(&about(&wanted.spec.id, Some(wanted.service)), Warning, "UnAvailableLoadBalancer", message);
    }

    fn not_updated(
        &self,
        wanted: &Wanted<'_>,
        course: &mut Course,
        nodes: &[NodeTarget],
        error: &CloudError,
    ) -> Outcome {
        let message = format!(
            "Error updating load balancer with new hosts {} [node names limited, total number of nodes: {}], error: {}",
            told(nodes),
            nodes.len(),
            retry::words(error)
        );
        let asked = Some(wanted.spec.clone());
        self.failed(&wanted.spec.id, Some(wanted.service), course, error, ("UpdateLoadBalancerFailed", message), asked)
    }

    /// Makes the balancer what is asked for, and tells of it (upstream: service controller,
    /// syncLoadBalancerIfNeeded).
    async fn ensure(&self, wanted: &Wanted<'_>, course: &mut Course, targets: Targets) -> Ran {
        let Wanted { key, service, spec, targeting } = wanted;
        let about = about(&spec.id, Some(service));
        let ensuring = Announced::Ensuring(spec.clone());
        // A Service that has its balancer from before this process gets no events for being looked at.
        let from_before = course.made.is_none()
            && course.announced.is_none()
            && decide::is_held(&service.meta)
            && !decide::published(service).is_empty();
        let drift = course.settled.as_ref().is_some_and(|settled| settled.spec == *spec);
        if !from_before && !drift && course.announced.as_ref() != Some(&ensuring) {
            course.announced = Some(ensuring);
            self.kubernetes.say(&about, Normal, "EnsuringLoadBalancer", "Ensuring load balancer".to_owned());
        }
        if !self.hold(wanted, course).await? {
            return Ok(Outcome::RequeueWithBackoff);
        }
        if *targeting == Targeting::Nodes && targets.nodes.is_empty() && !drift {
            self.unavailable(wanted);
        }
        (course.made, course.settled, course.aimed) = (Some(spec.id.clone()), None, Some(targets.clone()));
        // The call may never return: from here on it counts.
        self.courses.put(key, course.clone());
        let ensured = match self.cloud.ensure(spec, &targets).await {
            Ok(ensured) => ensured,
            Err(error) => {
                let message =
                    format!("Error syncing load balancer: failed to ensure load balancer: {}", retry::words(&error));
                let what = ("SyncLoadBalancerFailed", message);
                return Ok(self.failed(&spec.id, Some(service), course, &error, what, Some(spec.clone())));
            }
        };
        course.went_well();
        if course.warnings != ensured.warnings {
            for warning in &ensured.warnings {
                self.kubernetes.say(&about, Warning, "LoadBalancerWarning", warning.clone());
            }
            course.warnings.clone_from(&ensured.warnings);
        }
        course.ingress = Some(decide::ingress(&ensured.status));
        match ensured.progress {
            Progress::After(again) => {
                self.publish(wanted, course).await?;
                Ok(Outcome::RequeueAfter(retry::again_after(again)))
            }
            Progress::Settled => {
                let at = Instant::now();
                course.settled = Some(Settled { spec: spec.clone(), targets, at });
                self.publish(wanted, course).await?;
                if course.announced.take().is_some() {
                    self.kubernetes.say(&about, Normal, "EnsuredLoadBalancer", "Ensured load balancer".to_owned());
                }
                Ok(Outcome::RequeueAfter(decide::resync_after(self.resync, &spec.id.uid)))
            }
        }
    }

    /// Makes sure that the Service cannot go before its balancer: false if that could not be.
    async fn hold(&self, wanted: &Wanted<'_>, course: &mut Course) -> Result<bool, ReconcileError> {
        let service = wanted.service;
        let shown = decide::is_held(&service.meta);
        if shown && course.confirmed {
            return Ok(true);
        }
        // A predecessor may have released it since our store was filled.
        if shown {
            match self.kubernetes.is_held(service).await {
                Ok(true) => {
                    course.confirmed = true;
                    return Ok(true);
                }
                Ok(false) | Err(Refusal::Gone) => return Ok(false),
                Err(error) => return Err(self.not_written(wanted, course, "read the Service", &error)),
            }
        }
        match self.kubernetes.hold(service).await {
            Ok(()) => {
                course.confirmed = true;
                Ok(true)
            }
            Err(Refusal::Gone) => Ok(false),
            Err(error) => Err(self.not_written(wanted, course, "add load balancer cleanup finalizer", &error)),
        }
    }

    /// Writes what the status should say, if it says something else.
    async fn publish(&self, wanted: &Wanted<'_>, course: &Course) -> Result<(), ReconcileError> {
        let said = decide::published(wanted.service);
        let Some(ingress) = course.ingress.as_deref().filter(|ingress| *ingress != said) else { return Ok(()) };
        match self.kubernetes.publish(wanted.service, ingress).await {
            Ok(()) | Err(Refusal::Gone) => Ok(()),
            Err(error) => Err(ReconcileError::new(format!("failed to update load balancer status: {error}"))),
        }
    }

    fn not_written(&self, wanted: &Wanted<'_>, course: &mut Course, what: &str, error: &Refusal) -> ReconcileError {
        let message = format!("Error syncing load balancer: failed to {what}: {error}");
        if course.told.tells(&message, Instant::now()) {
            let about = about(&wanted.spec.id, Some(wanted.service));
            self.kubernetes.say(&about, Warning, "SyncLoadBalancerFailed", message.clone());
        }
        ReconcileError::new(message)
    }

    /// Deletes a Service's balancer and lets the Service go once everything is gone.
    async fn clean_up(&self, id: &LoadBalancerId, service: &Service, course: &mut Course, clear: bool) -> Ran {
        match self.delete(id, Some(service), course, "SyncLoadBalancerFailed").await {
            Some(outcome) => Ok(outcome),
            None => {
                self.let_pods_go(id, course).await;
                let clear = clear && !service.meta.is_deleting() && !decide::published(service).is_empty();
                match self.kubernetes.release(service, clear).await {
                    Ok(()) => {
                        self.kubernetes.say(
                            &about(id, Some(service)),
                            Normal,
                            "DeletedLoadBalancer",
                            "Deleted load balancer".to_owned(),
                        );
                        *course = Course::default();
                        Ok(Outcome::Done)
                    }
                    Err(Refusal::Gone) => {
                        *course = Course::default();
                        Ok(Outcome::Done)
                    }
                    Err(error) => {
                        let message = format!(
                            "Error syncing load balancer: failed to remove load balancer cleanup finalizer: {error}"
                        );
                        if course.told.tells(&message, Instant::now()) {
                            let about = about(id, Some(service));
                            self.kubernetes.say(&about, Warning, "SyncLoadBalancerFailed", message.clone());
                        }
                        Err(ReconcileError::new(message))
                    }
                }
            }
        }
    }

    /// Deletes the balancer of a Service that does not wait for it. `None` once it is gone.
    async fn abandon(&self, id: &LoadBalancerId, service: Option<&Service>, course: &mut Course) -> Option<Outcome> {
        let outcome = self.delete(id, service, course, "DeleteLoadBalancerFailed").await;
        if outcome.is_none() {
            let message = "Deleted load balancer".to_owned();
            self.kubernetes.say(&about(id, service), Normal, "DeletedLoadBalancer", message);
            *course = Course::default();
        }
        outcome
    }

    /// One step of a deletion. `None` once everything is gone.
    async fn delete(
        &self,
        id: &LoadBalancerId,
        service: Option<&Service>,
        course: &mut Course,
        reason: &'static str,
    ) -> Option<Outcome> {
        if let Some(left) = course.held_back(None, Instant::now()) {
            return Some(left.map_or(Outcome::Done, Outcome::RequeueAfter));
        }
        if course.announced != Some(Announced::Deleting) {
            course.announced = Some(Announced::Deleting);
            let message = "Deleting load balancer".to_owned();
            self.kubernetes.say(&about(id, service), Normal, "DeletingLoadBalancer", message);
        }
        course.settled = None;
        course.made = Some(id.clone());
        match self.cloud.delete(id).await {
            Ok(Deletion::Gone) => None,
            Ok(Deletion::InProgress(again)) => {
                course.went_well();
                Some(Outcome::RequeueAfter(retry::again_after(again)))
            }
            Err(error) => {
                let words = retry::words(&error);
                let message = match reason {
                    "DeleteLoadBalancerFailed" => format!("Error deleting load balancer: {words}"),
                    _ => format!("Error syncing load balancer: failed to delete load balancer: {words}"),
                };
                Some(self.failed(id, service, course, &error, (reason, message), None))
            }
        }
    }

    /// A call failed: says so, and when it is made again.
    fn failed(
        &self,
        id: &LoadBalancerId,
        service: Option<&Service>,
        course: &mut Course,
        error: &CloudError,
        (reason, message): (&'static str, String),
        asked: Option<Arc<LoadBalancerSpec>>,
    ) -> Outcome {
        let now = Instant::now();
        course.failures = course.failures.saturating_add(1);
        warn!(service = %id, %error, failures = course.failures, "the cloud refused a call");
        if course.told.tells(&message, now) {
            self.kubernetes.say(&about(id, service), Warning, reason, message);
        }
        let again = match (retry::retry_after(error.kind, course.failures), &asked) {
            // Nothing about a deletion is a user's to fix: the provider is wrong, and may be right later.
            (None, None) => Some(retry::LONGEST_WAIT),
            (again, _) => again,
        };
        let firm = error.retry_after().is_some();
        course.pause = Some(Pause { until: again.map(|again| now + again), asked, firm });
        again.map_or(Outcome::Done, Outcome::RequeueAfter)
    }
}

/// The nodes of targets, by name and provider ID.
fn names(targets: &Targets) -> impl Iterator<Item = (&str, Option<&str>)> {
    targets.nodes.iter().map(|node| (node.name.as_str(), node.provider_id.as_deref()))
}

/// Whether what a balancer sends traffic to is still what it should be.
fn same_targets(targeting: Targeting, old: &Targets, new: &Targets) -> bool {
    if old.incomplete != new.incomplete {
        return false;
    }
    match targeting {
        Targeting::Endpoints => old.endpoints == new.endpoints && old.others == new.others,
        _ => Arc::ptr_eq(&old.nodes, &new.nodes) || old.nodes == new.nodes,
    }
}

/// Names of nodes for a message, not too many (upstream: service controller, loggableNodeNames).
fn told(nodes: &[NodeTarget]) -> String {
    let mut names: Vec<_> = nodes.iter().take(NAMES_TOLD).map(|node| node.name.clone()).collect();
    if nodes.len() > NAMES_TOLD {
        names.push(format!("<{} more>", nodes.len() - NAMES_TOLD));
    }
    format!("[{}]", names.join(" "))
}
