//! The rules of load balancers without security groups in nodes' security groups, with IP ranges as sources: set with
//! the load balancer, and revoked with it.
//!
//! A rule names its load balancer, so that exactly its rules are revoked. They may also be in groups without the
//! cluster's tag, and in groups whose instances are no longer nodes.

use std::collections::BTreeSet;

use providers::{CloudError, ErrorKind, LoadBalancerId};
use tokio::time::Instant;

use crate::loadbalancer::apply::backend_group::{RangeRules, Shared};
use crate::loadbalancer::apply::balancers::{Balancers, Work};
use crate::loadbalancer::apply::opening::TargetSecurityGroups;
use crate::loadbalancer::model::range_rules;
use crate::loadbalancer::names;
use crate::loadbalancer::observed::balancer_state::BalancerState;
use crate::loadbalancer::observed::inventory::Listing;
use crate::loadbalancer::observed::stack::{ObservedBalancer, ObservedStack};
use crate::loadbalancer::observed::vpc::Network;
use crate::loadbalancer::types::{Desired, Mapping};
use crate::session::Session;

/// Returns the names by which a Service's rules are found, given its load balancers.
///
/// Another load balancer with one of these names belongs to another owner, such as a copy of this cluster. Its rules
/// belong to that owner, too, even in groups with the cluster's tag: the copy's instances may have no other groups.
pub(super) fn own_rule_names(
    session: &Session,
    id: &LoadBalancerId,
    listing: &Listing,
    balancers: &[ObservedBalancer],
) -> Vec<String> {
    let own = |name: &String| balancers.iter().any(|one| one.name == *name) || listing.balancer(name).is_none();
    names::rule_names(&session.cluster, id).into_iter().filter(own).collect()
}

impl Balancers {
    /// Sets the rules of a load balancer without security groups in the targets' security groups. Until the load
    /// balancer is `done`, rules are added (also those for its future subnets) and none are revoked: traffic still uses
    /// the old paths. Returns the refusals.
    pub(super) async fn set_range_rules(
        &self,
        work: &Work<'_>,
        (listing, network): (&Listing, &Network),
        (desired, observed): (&Desired, &ObservedStack),
        nodes: &TargetSecurityGroups,
        done: bool,
        state: &mut BalancerState,
    ) -> Result<Vec<String>, CloudError> {
        let Some(balancer) = observed.balancer(&desired.balancer.name).filter(|one| one.security_groups.is_empty())
        else {
            return Ok(Vec::new());
        };
        let future = desired.balancer.subnets.iter().filter(|_| !done);
        let subnets: Vec<Mapping> = balancer.subnets.iter().chain(future).cloned().collect();
        let owner = (&work.session.cluster, work.id);
        let wanted = range_rules::desired(owner, work.settings, desired, (&balancer.name, &subnets), network);
        let names = own_rule_names(work.session, work.id, listing, &observed.balancers);
        let mut shared = self.shared.lock().await;
        let remove_others = done && !nodes.incomplete;
        let mut all: BTreeSet<String> =
            listing.tagged_groups(work.session).iter().map(|group| group.id.clone()).collect();
        if remove_others && state.range_rule_groups.is_none() {
            // A previous process may have opened groups without the cluster's tag.
            state.range_rule_groups = Some(shared.groups_with_rules(work.session, &names).await?);
        }
        if let Some(opened) = &mut state.range_rule_groups {
            opened.extend(nodes.groups.iter().cloned());
            all.extend(opened.iter().cloned());
        }
        let rules = RangeRules { names: &names, all: &all, nodes: &nodes.groups, wanted: &wanted, remove_others };
        let opened = shared.set_range_rules(work.session, self.listings(listing), work.id, rules).await?;
        drop(shared);
        let refused = self.forget_missing_group(opened).await?.refused;
        if remove_others && refused.is_empty() {
            state.range_rule_groups = Some(nodes.groups.clone());
        }
        Ok(refused)
    }

    /// Revokes the rules of a deleted load balancer.
    ///
    /// # Errors
    /// `Denied` if AWS does not allow it in a group with the cluster's tag. If AWS does not allow it in another group,
    /// the rules are left with a warning: an operator has to delete them.
    pub(super) async fn revoke_range_rules(
        &self,
        shared: &mut Shared,
        session: &Session,
        id: &LoadBalancerId,
        listing: &Listing,
        state: &BalancerState,
    ) -> Result<(), CloudError> {
        let names = own_rule_names(session, id, listing, &[]);
        // Before `all_visible`, reads may lack rules that an earlier process has just added. What was read before the
        // last pause of this deletion is read again.
        if let Some(changed) = state.changed.filter(|_| Instant::now() < self.all_visible()) {
            shared.forget_rules_before(changed);
        }
        let mut groups = shared.groups_with_rules(session, &names).await?;
        // Rules that were just added may not be visible yet.
        groups.extend(state.range_rule_groups.iter().flatten().cloned());
        let tagged: BTreeSet<&str> = listing.tagged_groups(session).into_iter().map(|group| &*group.id).collect();
        let (tagged, others): (BTreeSet<String>, BTreeSet<String>) =
            groups.into_iter().partition(|group| tagged.contains(&**group));
        let listings = self.listings(listing);
        for refusal in shared.revoke_range_rules(session, listings, (id, &names), &others).await? {
            tracing::warn!(service = %id, refusal, "leaked rules of a deleted load balancer were not revoked");
        }
        match shared.revoke_range_rules(session, listings, (id, &names), &tagged).await?.into_iter().next() {
            Some(refusal) => Err(CloudError::new(ErrorKind::Denied, "RevokeSecurityGroupIngress", refusal)),
            None => Ok(()),
        }
    }
}
