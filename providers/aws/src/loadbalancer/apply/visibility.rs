//! Resources that AWS lists late: a load balancer that is settled according to an early listing is checked again.
//!
//! A process that ends right after a creation leaves a resource that lists of the next process may lack for a minute.
//! If the Service has changed in the meantime and no longer needs the resource, nothing else would delete the resource
//! before the next check for drift. One listing, which all Services share, is sufficient as long as it contains nothing
//! new.

use std::collections::BTreeSet;

use providers::{CloudError, Ensured, LoadBalancerSpec, Progress};
use tokio::time::Instant;

use crate::loadbalancer::apply::balancers::{Balancers, Work};
use crate::loadbalancer::apply::classic::later;
use crate::loadbalancer::observed::balancer_state::{BalancerState, Unverified};
use crate::loadbalancer::observed::inventory::Listing;
use crate::loadbalancer::observed::stack::ObservedStack;
use crate::loadbalancer::ownership::{self, Purpose};
use crate::loadbalancer::plan::PACE;
use crate::session::Session;
use crate::tags::ClusterTags;

/// Returns the ARNs and ids of the resources that are the Service's own, not a user's or a group's.
fn own_ids(observed: &ObservedStack, cluster: &ClusterTags) -> BTreeSet<String> {
    let balancers = observed.balancers.iter().filter(|one| !one.shared).map(|one| one.arn.clone());
    let groups = observed.target_groups.iter().map(|one| one.arn.clone());
    let security = observed.security_groups.iter().filter(|one| ownership::group(&one.tags, cluster).is_none());
    balancers.chain(groups).chain(security.map(|one| one.id.clone())).collect()
}

impl Balancers {
    /// Records that everything is in the desired state. Records the listed resources, if the listing may lack some.
    pub(super) fn settle(
        &self,
        spec: &LoadBalancerSpec,
        session: &Session,
        (listing, observed): (&Listing, &ObservedStack),
        state: &mut BalancerState,
    ) -> Progress {
        let visible = state.visible_later(listing.begun, observed, self.all_visible());
        let ids = || own_ids(observed, &session.cluster);
        state.unverified = visible.map(|visible| Unverified { visible, ids: ids(), ensured: None });
        state.settle(spec)
    }

    /// Brings a Service to the desired state. If the Service is settled, only compares it with a newer listing, once
    /// listings contain all of its resources.
    pub(super) async fn check_or_ensure(
        &self,
        spec: &LoadBalancerSpec,
        work: &Work<'_>,
        state: &mut BalancerState,
    ) -> Result<Ensured, CloudError> {
        if let Some(ensured) = self.check_settled(spec, work, state).await? {
            return Ok(ensured);
        }
        state.followed = None;
        let is_retry = state.refusals.take_retry();
        state.refused_targets.begin(is_retry);
        let mut ensured = self.ensure_service(spec, work, state).await?;
        if state.refused_targets.has_postponed() {
            ensured = later(ensured, PACE);
        }
        if ensured.progress == Progress::Settled {
            state.unhealthy_since = None;
            ensured.check_after = state.refusals.report(Instant::now());
        }
        match &mut state.unverified {
            Some(unverified) if ensured.progress == Progress::Settled => {
                unverified.ensured = Some(ensured.clone());
                let visible = unverified.visible.saturating_duration_since(Instant::now());
                ensured.check_after = ensured.check_after.into_iter().chain([visible]).min();
            }
            _ => state.unverified = None,
        }
        Ok(ensured)
    }

    /// Returns the result of the `ensure` that settled the Service, if no resource has appeared since then; `None`: the
    /// `ensure` has to be repeated.
    async fn check_settled(
        &self,
        spec: &LoadBalancerSpec,
        work: &Work<'_>,
        state: &mut BalancerState,
    ) -> Result<Option<Ensured>, CloudError> {
        let Some(Unverified { visible, ids, ensured: Some(ensured) }) = state.unverified.take() else {
            return Ok(None);
        };
        if Instant::now() < visible || state.settled.as_ref() != Some(spec) || state.known.is_none() {
            return Ok(None);
        }
        let listing = self.inventory.listing_since(work.session, visible).await?;
        let mut listed = listing.of(&work.session.cluster, work.id, Purpose::Ensure(work.settings.flavour));
        listed.remove_deleting(&state.deleting);
        if own_ids(&listed, &work.session.cluster) != ids {
            // A resource that has appeared is not a change by another client.
            state.settled = None;
            return Ok(None);
        }
        match self.set_all_targets(spec, work, state).await {
            Err(error) if error.is_not_found() => Ok(None),
            result => result.map(|()| Some(ensured)),
        }
    }
}
