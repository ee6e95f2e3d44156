//! Services whose request is invalid after a restart: the last valid request is unknown, and the targets of their load
//! balancers follow nodes and endpoints nevertheless.

use std::sync::Arc;
use std::time::Duration;

use providers::{CloudError, Followed, LoadBalancerSpec, Targeting};
use runtime::worker::Outcome;
use tokio::time::Instant;

use super::cluster::Cluster;
use super::decide_action::Follow;
use super::load_balancer_state::LoadBalancerState;
use super::reconcile::{LoadBalancerReconciler, Subject, after};
use crate::cloud::retry;

impl<S: Cluster> LoadBalancerReconciler<S> {
    /// Returns an invalid request with all targets that its load balancer may have.
    pub(super) fn wanted_to_follow(
        &self,
        subject: &Subject<'_>,
        mut spec: LoadBalancerSpec,
        state: &mut LoadBalancerState,
    ) -> Follow {
        let others = state.observed_others.clone();
        self.complete(subject.key, &mut spec, &others, state);
        if !state.follows {
            state.follows = true;
            self.states.put(subject.key, state.clone());
        }
        let targets = self.targets(subject, &spec, Targeting::Endpoints);
        // Endpoints are not watched if the provider never has them as targets.
        let targets = targets.or_else(|| self.targets(subject, &spec, Targeting::Nodes)).unwrap_or_default();
        Follow { spec: Arc::new(spec), targets }
    }

    /// Updates the targets of a load balancer whose last valid request is unknown.
    pub(super) async fn follow(
        &self,
        subject: &Subject<'_>,
        wanted: &Follow,
        state: &mut LoadBalancerState,
    ) -> Outcome {
        let Follow { spec, targets } = wanted;
        let pause = state.remaining_pause(Some(spec), Instant::now());
        // The load balancer was published, so it may still exist.
        state.load_balancer = Some(spec.id.clone());
        state.last_targets = Some(targets.clone());
        let begun = Instant::now();
        let result = self.cloud.follow_targets(spec, targets).await;
        self.hosts.record_update(begun.elapsed(), result.as_ref().err());
        match result {
            Ok(Followed { others, refused }) => {
                let has_changed = state.observed_others != others;
                state.observed_others = others;
                let outcome = match (refused, pause) {
                    (None, _) => {
                        state.clear_failures();
                        Outcome::Done
                    }
                    // The first retry after the pause counts as a failure, not each change of targets.
                    (Some(_), Some(wait)) => after(wait),
                    (Some(error), None) => self.record_failed_follow(subject, spec, &error, state),
                };
                // The next reconcile also gathers the targets of the new `others`.
                let soon = Outcome::RequeueAfter(retry::requested_delay(Duration::ZERO));
                if has_changed { soon } else { outcome }
            }
            // Another client deleted the load balancer. It is created again once the request is valid.
            Err(error) if error.is_not_found() => {
                state.clear_failures();
                Outcome::Done
            }
            Err(error) => {
                state.last_targets = None;
                self.record_failed_follow(subject, spec, &error, state)
            }
        }
    }

    fn record_failed_follow(
        &self,
        subject: &Subject<'_>,
        spec: &Arc<LoadBalancerSpec>,
        error: &CloudError,
        state: &mut LoadBalancerState,
    ) -> Outcome {
        let message = format!("Error updating targets while the Service is invalid: {}", retry::message(error));
        let event = ("UpdateLoadBalancerFailed", message);
        self.record_failed_call((&subject.id, Some(subject.service)), state, error, event, Some(spec.clone()))
    }
}

impl LoadBalancerState {
    /// Clears the state that an invalid request needed.
    pub(super) fn stop_following(&mut self) {
        self.follows = false;
        self.observed_others.clear();
    }
}
