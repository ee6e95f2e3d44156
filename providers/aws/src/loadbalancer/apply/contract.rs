//! The provider interface for load balancers, implemented by Network Load Balancers.

use std::collections::BTreeSet;
use std::sync::Arc;

use providers::{
    CloudError, Deletion, Ensured, ErrorKind, Features, Followed, Forecast, LoadBalancerId, LoadBalancerSpec,
    LoadBalancers, Observed, Owned, Progress, Protocol as Transport, ReadinessGate, Targeting, Targets, async_trait,
};
use tokio::time::Instant;

use crate::loadbalancer::apply::balancers::{Balancers, Work};
use crate::loadbalancer::apply::targets::{Access, retry_pending};
use crate::loadbalancer::apply::{calls, leaks, readiness_gates};
use crate::loadbalancer::observed::balancer_state::BalancerState;
use crate::loadbalancer::observed::report::{instances, report};
use crate::loadbalancer::ownership::Purpose;
use crate::loadbalancer::spec::annotation_reader::forwarded_services;
use crate::loadbalancer::spec::{annotations, user_groups};

#[async_trait]
impl LoadBalancers for Balancers {
    fn features(&self) -> Features {
        Features {
            classes: self.classes.clone(),
            endpoint_targets: true,
            selects_targets: false,
            source_ranges: true,
            protocols: vec![Transport::Tcp, Transport::Udp],
            mixed_protocols: true,
            ipv6: true,
            dual_stack: true,
            gates: Some(readiness_gates::PREFIX),
            annotations: vec!["service.beta.kubernetes.io/".to_owned()],
            written_annotations: None,
        }
    }

    fn targeting(&self, spec: &LoadBalancerSpec) -> Result<Targeting, CloudError> {
        annotations::read(spec, &self.policy).map(|(targeting, _)| targeting)
    }

    fn others(&self, spec: &LoadBalancerSpec) -> BTreeSet<String> {
        forwarded_services(spec)
    }

    async fn observe(&self, id: &LoadBalancerId) -> Result<Observed, CloudError> {
        let session = self.sessions.get()?;
        let state = self.states.lock(id).await;
        let listing = self.inventory.listing_since(&session, Instant::now()).await?;
        let mut observed = listing.of(&session.cluster, id, Purpose::Delete);
        if observed.is_empty() {
            return Ok(match self.observe_classic(&session, id).await? {
                Some(balancer) => Observed::Present(Box::new(balancer)),
                None => Observed::Absent,
            });
        }
        calls::details(&session, &mut observed, false).await.map_err(to_retryable)?;
        let instances_by_id = self.networks.by_id(&session, instances(&observed)).await?;
        let zones = instances_by_id.into_iter().map(|(id, instance)| (id, instance.zone)).collect();
        let is_deleting = observed.balancers.iter().any(|one| state.deleting.contains(&one.arn));
        Ok(Observed::Present(Box::new(report(&observed, is_deleting, &zones))))
    }

    async fn ensure(&self, spec: &LoadBalancerSpec, targets: &Targets) -> Result<Ensured, CloudError> {
        let settings = self.settings(spec)?;
        let session = self.sessions.get()?;
        let mut state = self.states.lock(&spec.id).await;
        drop(self.stop_following(&spec.id));
        state.begin(false);
        state.classic_groups = settings.classic_groups.clone();
        let work = Work { session: &session, id: &spec.id, settings: &settings, targets };
        state.refusals.begin();
        let result = self.check_or_ensure(spec, &work, &mut state).await;
        if let Err(error) = &result {
            state.record_failure(Instant::now());
            self.update_after_failure(spec, &work, error, &mut state).await;
        }
        result.map_err(|error| to_retryable(with_refusals(error, &state)))
    }

    async fn set_targets(&self, spec: &LoadBalancerSpec, targets: &Targets) -> Result<(), CloudError> {
        let settings = self.settings(spec)?;
        let session = self.sessions.get()?;
        let mut state = self.states.lock(&spec.id).await;
        state.forget_created();
        let work = Work { session: &session, id: &spec.id, settings: &settings, targets };
        // `NotFound` is returned unchanged: the caller then calls `ensure`. What AWS refused is retried, because the
        // Service may be valid.
        self.set_all_targets(spec, &work, &mut state).await.map_err(refusal_to_retryable)
    }

    async fn follow_targets(&self, spec: &LoadBalancerSpec, targets: &Targets) -> Result<Followed, CloudError> {
        let Some(settings) = annotations::read_leniently(spec, &self.policy) else { return Ok(Followed::default()) };
        let session = self.sessions.get()?;
        let mut state = self.states.lock(&spec.id).await;
        state.forget_created();
        let work = Work { session: &session, id: &spec.id, settings: &settings, targets };
        self.follow(spec, &work, &mut state).await.map_err(refusal_to_retryable)
    }

    async fn gates(&self, spec: &LoadBalancerSpec) -> Result<Vec<ReadinessGate>, CloudError> {
        // Pods of an invalid Service wait for their targets, too.
        let Some(settings) = annotations::read_leniently(spec, &self.policy) else { return Ok(Vec::new()) };
        let session = self.sessions.get()?;
        let mut state = self.states.lock(&spec.id).await;
        let targets = Targets::default();
        let work = Work { session: &session, id: &spec.id, settings: &settings, targets: &targets };
        if state.known.is_none() {
            drop(self.find_groups(&work, &mut state).await?);
        }
        let Some(known) = &state.known else {
            return Err(CloudError::new(ErrorKind::NotFound, "DescribeLoadBalancers", "there is no load balancer"));
        };
        let mut known = known.clone();
        // A pod that one of several target groups refuses is not ready.
        for group in &mut known {
            group.targets.extend(state.refused_targets.of(&group.arn).cloned());
        }
        drop(state);
        readiness_gates::read_gates(&session, &spec.id, &known).await
    }

    async fn forecast(&self, spec: &LoadBalancerSpec) -> Result<Forecast, CloudError> {
        let settings = self.settings(spec)?;
        let session = self.sessions.get()?;
        let targets = Targets::default();
        let work = Work { session: &session, id: &spec.id, settings: &settings, targets: &targets };
        self.make_forecast(&work).await
    }

    fn existed(&self, spec: &LoadBalancerSpec) {
        for arn in user_groups::named(spec) {
            self.claims().expect(&spec.id, arn);
        }
    }

    fn starts_empty(&self, id: &LoadBalancerId) {
        // The information only saves calls: if another call holds the lock, the information is dropped.
        if let Some(mut state) = self.states.try_lock(id) {
            state.starts_empty = true;
        }
    }

    fn published(&self, id: &LoadBalancerId) {
        self.address_published(id);
    }

    async fn delete(&self, id: &LoadBalancerId) -> Result<Deletion, CloudError> {
        self.delete_last(id, None).await
    }

    async fn delete_last(
        &self,
        id: &LoadBalancerId,
        last: Option<Arc<LoadBalancerSpec>>,
    ) -> Result<Deletion, CloudError> {
        let session = self.sessions.get()?;
        let mut state = self.states.lock(id).await;
        // After a crash, the only remaining resources of the Service may be in load balancers that it shared. The
        // Service's last settings name those load balancers.
        let settings = last.and_then(|spec| self.settings(&spec).ok());
        state.groups.extend(settings.iter().flat_map(|settings| self.former_groups(&session, settings)));
        if let Some(settings) = &settings {
            state.classic_groups = settings.classic_groups.clone();
        }
        let user_groups = settings.map(|settings| settings.user_groups).unwrap_or_default();
        drop(self.stop_following(id));
        state.begin(true);
        let result = self.remove(&session, id, &user_groups, &mut state).await;
        match result {
            Ok(Deletion::Gone) => self.states.remove(id, state),
            Ok(Deletion::InProgress(_)) if state.is_stuck() => return Err(stuck(&state)),
            _ => {}
        }
        result.map_err(to_retryable)
    }

    async fn list_owned(&self) -> Result<Vec<Owned>, CloudError> {
        leaks::list(self).await
    }

    fn may_be_owned_by(&self, owned: &Owned, service: &LoadBalancerId) -> bool {
        // Without a session nothing was listed, and nothing may be deleted.
        self.sessions.get().ok().is_none_or(|session| leaks::may_be_owned_by(owned, service, &session.cluster))
    }

    async fn collect(&self, owned: &Owned) -> Result<Deletion, CloudError> {
        leaks::collect(self, owned).await.map_err(to_retryable)
    }
}

impl Balancers {
    pub(super) async fn set_all_targets(
        &self,
        spec: &LoadBalancerSpec,
        work: &Work<'_>,
        state: &mut BalancerState,
    ) -> Result<(), CloudError> {
        // The only target is an Application Load Balancer, which does not depend on nodes or pods.
        if work.settings.alb.is_some() {
            return Ok(());
        }
        state.refusals.begin();
        state.refused_targets.begin(false);
        let (is_alone, updated) = self.update_classic(work, state).await;
        let groups = if is_alone { Ok(()) } else { self.set_group_targets(spec, work, state).await };
        updated.and(groups)?;
        if state.refusals.is_new(Instant::now()) || state.refused_targets.has_postponed() {
            // The caller continues with `ensure`, which reports the refusal and is repeated.
            let message = "AWS refused to register a target or to open its security group";
            return Err(CloudError::new(ErrorKind::NotFound, "FollowPlan", message));
        }
        Ok(())
    }

    /// Updates the targets of the existing load balancer after another change of it failed: traffic must not depend on
    /// that change.
    async fn update_after_failure(
        &self,
        spec: &LoadBalancerSpec,
        work: &Work<'_>,
        failure: &CloudError,
        state: &mut BalancerState,
    ) {
        if !matches!(failure.kind, ErrorKind::Throttled { .. })
            && let Err(error) = self.update_existing_targets(spec, work, state).await
            && !error.is_not_found()
        {
            tracing::warn!(service = %work.id, %error, "targets of the existing load balancer were not updated");
        }
    }

    /// Updates the targets of target groups.
    async fn set_group_targets(
        &self,
        spec: &LoadBalancerSpec,
        work: &Work<'_>,
        state: &mut BalancerState,
    ) -> Result<(), CloudError> {
        let mut has_others = false;
        if state.known.is_none() {
            has_others = self.find_groups_and_follow(spec, work, state).await?;
            if state.known.is_none() {
                return Err(CloudError::new(ErrorKind::NotFound, "DescribeLoadBalancers", "there is no load balancer"));
            }
        }
        let opened = self.open_nodes(work, state).await;
        if let Ok(Access { needs_stack: true, pending, .. }) = &opened {
            let ensured = match self.ensure_stack(spec, work, state).await {
                Err(error) => {
                    state.record_failure(Instant::now());
                    self.update_after_failure(spec, work, &error, state).await;
                    return Err(error);
                }
                Ok(ensured) => ensured,
            };
            if ensured.progress != Progress::Settled {
                // The caller continues with `ensure`.
                return Err(CloudError::new(ErrorKind::NotFound, "FollowPlan", "the load balancer is being changed"));
            }
            return retry_pending(pending);
        }
        if opened.as_ref().is_err_and(|error| matches!(error.kind, ErrorKind::Throttled { .. })) {
            return opened.map(drop);
        }
        // Other targets do not depend on the security groups of new ones.
        let updated = self.update_targets(work, state).await?;
        if has_others {
            // The next call updates the others again.
            state.known = None;
        }
        let Access { pending, .. } = opened?;
        match updated {
            Some(()) => retry_pending(&pending),
            None => Err(CloudError::new(ErrorKind::NotFound, "DescribeTargetGroups", "target groups were replaced")),
        }
    }
}

/// Converts an error kind that callers would not retry to one that they retry.
fn to_retryable(error: CloudError) -> CloudError {
    match error.kind {
        ErrorKind::NotFound => CloudError { kind: ErrorKind::Conflict, ..error },
        _ => refusal_to_retryable(error),
    }
}

/// Converts a refusal by AWS to an error that callers retry. The Service can be valid although AWS refuses it: a
/// missing certificate or tag may appear without a change of the Service.
fn refusal_to_retryable(error: CloudError) -> CloudError {
    match error.kind {
        ErrorKind::Invalid => CloudError { kind: ErrorKind::Transient, ..error },
        _ => error,
    }
}

/// Adds to the error of an `ensure` what AWS refused for the targets of the existing load balancer.
fn with_refusals(error: CloudError, state: &BalancerState) -> CloudError {
    let Some(refusals) = state.refusals.text() else { return error };
    let CloudError { kind, operation, request_id, message } = error;
    CloudError { request_id, ..CloudError::new(kind, operation, format!("{message}; {refusals}")) }
}

/// Returns the error about a deletion that AWS does not finish.
fn stuck(state: &BalancerState) -> CloudError {
    let fix = "detach the load balancer's security group from other network interfaces; remove the rules in other \
               security groups that refer to that group; remove the listeners of other load balancers that use this \
               one's target groups";
    let message = match state.refusal_in_use() {
        Some(refusal) => format!("another client uses a resource of the load balancer: {refusal}; {fix}"),
        None => format!("AWS has not finished the deletion of the load balancer; {fix}"),
    };
    CloudError::new(ErrorKind::Conflict, "DeleteLoadBalancer", message)
}
