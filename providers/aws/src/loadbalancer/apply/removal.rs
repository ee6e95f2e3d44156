//! The deletion of a Service's own load balancer: a resource is deleted after the resources that use it.

use providers::{CloudError, Deletion, ErrorKind, LoadBalancerId};
use tokio::sync::MutexGuard;
use tokio::time::{Duration, Instant};

use crate::loadbalancer::apply::backend_group::{Release, Shared};
use crate::loadbalancer::apply::balancers::Balancers;
use crate::loadbalancer::apply::endpoint_service;
use crate::loadbalancer::model::diff;
use crate::loadbalancer::observed::balancer_state::{BalancerState, VISIBLE};
use crate::loadbalancer::observed::inventory::Listing;
use crate::loadbalancer::observed::stack::ObservedStack;
use crate::loadbalancer::ownership::{self, Purpose};
use crate::loadbalancer::plan::Step;
use crate::session::Session;

/// The maximum age of tags that a deletion relies on.
pub(super) const DELETION_TAGS: Duration = Duration::from_secs(60);

impl Balancers {
    /// Reads tags again before a deletion, unless they were just read, and drops resources that are no longer the
    /// Service's: another controller may have taken them over since.
    async fn confirm(
        &self,
        session: &Session,
        id: &LoadBalancerId,
        observed: &mut ObservedStack,
    ) -> Result<(), CloudError> {
        let arns: Vec<String> = observed.ids().filter(|id| !id.starts_with("sg-")).collect();
        if !self.inventory.forget_older(&arns, DELETION_TAGS) {
            return Ok(());
        }
        let tags = self.inventory.tags_of(session, &arns).await?;
        observed.confirm(&tags, |tags| ownership::evidence(tags, &session.cluster, id));
        Ok(())
    }

    /// Reads the tags of load balancers that were created and not confirmed to be the Service's, and adds the confirmed
    /// ones to the created resources. Returns false while tags may not be visible yet.
    async fn confirm_creations(
        &self,
        session: &Session,
        id: &LoadBalancerId,
        state: &mut BalancerState,
    ) -> Result<bool, CloudError> {
        let now = Instant::now();
        state.unconfirmed.retain(|_, created| now < *created + VISIBLE);
        let arns: Vec<String> = state.unconfirmed.keys().cloned().collect();
        let tags = self.inventory.tags_of(session, &arns).await?;
        for (arn, tags) in &tags {
            if ownership::is_own_creation(tags, &session.cluster, id) {
                state.made.insert(arn.clone(), now);
            }
            if !ownership::is_incomplete(tags, &session.cluster) {
                state.unconfirmed.remove(arn);
            }
        }
        Ok(state.unconfirmed.is_empty())
    }

    /// Returns true if a deletion waits for tags: a resource has a name that is generated for this Service, and its
    /// tags may not be visible yet.
    fn waits_for_tags(
        &self,
        session: &Session,
        id: &LoadBalancerId,
        listing: &Listing,
        state: &mut BalancerState,
    ) -> bool {
        let incomplete = listing.incomplete(session, id, &state.groups);
        let now = Instant::now();
        if incomplete.is_empty() || now >= *state.incomplete_since.get_or_insert(now) + VISIBLE {
            return false;
        }
        incomplete.iter().for_each(|arn| self.inventory.forget(arn));
        state.changed = Some(now);
        true
    }

    /// Deletes a Service's own load balancer with all its parts.
    pub(super) async fn remove_stack(
        &self,
        session: &Session,
        id: &LoadBalancerId,
        state: &mut BalancerState,
    ) -> Result<Deletion, CloudError> {
        state.forget();
        let listing = self.recent_listing(session, state).await?;
        let mut observed = listing.of(&session.cluster, id, Purpose::Delete);
        self.confirm(session, id, &mut observed).await?;
        if endpoint_service::is_marked(&observed.balancers) {
            endpoint_service::delete_all(session, id).await?;
        }
        let confirmed = self.confirm_creations(session, id, state).await?;
        self.find_abandoned_listeners(session, id, &mut observed).await?;
        let mut steps = diff::delete(&observed, id).steps;
        // Resources that this process created and that are not listed yet. If a listed resource is not the Service's,
        // another controller has taken it over.
        let unlisted = state.made.keys().filter(|id| !listing.has(id));
        steps.extend(unlisted.filter_map(|id| Step::deletion_of(id)));
        if !steps.is_empty() {
            let network = self.networks.network(session).await?;
            let mut caller = self.caller(session, &network, id);
            let mut in_use = None;
            for step in &steps {
                match self.step(&mut caller, step, &mut observed, state).await {
                    Err(error) if error.kind == ErrorKind::Conflict && step.waits_for_others() => {
                        in_use = Some(error.message);
                    }
                    result => result?,
                }
            }
            state.record_deletion(steps.len(), in_use);
            return Ok(Deletion::InProgress(state.pause()));
        }
        state.record_deletion(0, None);
        if !confirmed || self.waits_for_tags(session, id, &listing, state) {
            return Ok(Deletion::InProgress(state.pause()));
        }
        if !self.leave_groups(session, id, None, state).await? {
            return Ok(Deletion::InProgress(state.pause()));
        }
        if !self.remove_classic(session, id, &listing, state).await? {
            return Ok(Deletion::InProgress(state.pause()));
        }
        // This check comes after all searches above, so that a retry repeats each of them.
        let now = Instant::now();
        if state.may_have_invisible(now, self.all_visible()) {
            state.changed = Some(now);
            return Ok(Deletion::InProgress(state.pause()));
        }
        let mut shared = self.shared.lock().await;
        self.revoke_range_rules(&mut shared, session, id, &listing, state).await?;
        if !self.release_shared(shared, session, id, &listing, state).await? {
            state.changed = Some(Instant::now());
            return Ok(Deletion::InProgress(state.pause()));
        }
        Ok(Deletion::Gone)
    }

    /// Releases the security group that all load balancers share, under the same lock as the revocation of rules: no
    /// other deletion may run between the two. Returns false if the release has to be repeated ([`Release::InUse`]).
    pub(super) async fn release_shared(
        &self,
        mut shared: MutexGuard<'_, Shared>,
        session: &Session,
        id: &LoadBalancerId,
        listing: &Listing,
        state: &mut BalancerState,
    ) -> Result<bool, CloudError> {
        let released = shared.release(session, self.listings(listing), id, (state, self.all_visible())).await;
        drop(shared);
        if released != Ok(Release::Unaffected) {
            // The shared group may no longer exist, whatever the response was; the next caller must read a new listing.
            self.inventory.expire().await;
        }
        Ok(released? != Release::InUse)
    }
}
