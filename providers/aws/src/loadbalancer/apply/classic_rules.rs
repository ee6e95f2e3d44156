//! Rules in nodes' security groups for Classic Load Balancers. Their source is one security group of the load balancer.
//!
//! If cloud-provider-aws made that group, the rules are revoked when the group is deleted. A user's group stays, and may
//! be in the user's own rules and on other load balancers.

use std::collections::BTreeSet;

use providers::{CloudError, ErrorKind, LoadBalancerId};
use tokio::time::Instant;

use crate::client::Class;
use crate::loadbalancer::apply::backend_group::Shared;
use crate::loadbalancer::apply::balancers::{Balancers, Work};
use crate::loadbalancer::model::classic_groups;
use crate::loadbalancer::names;
use crate::loadbalancer::observed::balancer_state::BalancerState;
use crate::loadbalancer::observed::classic::{self, Classic};
use crate::loadbalancer::observed::inventory::Listing;
use crate::loadbalancer::observed::network;
use crate::loadbalancer::observed::stack::ObservedBalancer;
use crate::loadbalancer::ownership;
use crate::loadbalancer::spec::settings::Settings;
use crate::loadbalancer::types::{ClassicGroups, ObservedRule};
use crate::session::Session;

/// Returns the security group of a load balancer to which nodes are opened.
fn source<'a>(session: &Session, classic: &'a Classic, listing: &Listing, named: &ClassicGroups) -> Option<&'a String> {
    let key = session.cluster.key();
    let is_tagged = |id: &str| {
        let mut listed = listing.security_groups.iter().filter(|group| group.tags.contains_key(&key));
        listed.any(|group| group.id == id)
    };
    classic_groups::source(&classic.security_groups, named, is_tagged)
}

/// Returns the security groups of a load balancer that cloud-provider-aws did not make for it.
fn users_groups<'a>(session: &Session, classic: &'a Classic, listing: &Listing) -> Vec<&'a String> {
    let name = names::classic_group_of(&classic.name);
    let is_made = |id: &String| {
        let mut listed = listing.security_groups.iter().filter(|group| group.id == *id && group.name == name);
        listed.any(|group| ownership::is_own_group(&group.tags, &session.cluster))
    };
    classic.security_groups.iter().filter(|id| !is_made(id)).collect()
}

/// Returns true if a security group has network interfaces other than those of Classic Load Balancers whose names are
/// `ending`.
async fn has_other_interfaces(
    session: &Session,
    group: &str,
    ending: impl Fn(&str) -> bool,
) -> Result<bool, CloudError> {
    let filters = network::filter("group-id", vec![group.to_owned()]);
    let request = session.api.ec2.describe_network_interfaces().filters(filters);
    let response = session.api.read(Class::Ec2Read, "DescribeNetworkInterfaces", || request.clone().send()).await?;
    let is_own = |text: &str| text.strip_prefix("ELB ").is_some_and(&ending);
    let has_more = response.next_token().is_some_and(|token| !token.is_empty());
    Ok(has_more || response.network_interfaces().iter().any(|one| !one.description().is_some_and(is_own)))
}

impl Balancers {
    /// Opens the nodes' security groups to the load balancer. cloud-provider-aws has opened only the groups of nodes
    /// that existed before the takeover. Returns the refusals.
    pub(super) async fn open_to_classic(
        &self,
        work: &Work<'_>,
        classic: &Classic,
        listing: &Listing,
    ) -> Result<Vec<String>, CloudError> {
        let Work { session, settings, .. } = *work;
        let source = source(session, classic, listing, &settings.classic_groups);
        let Some(source) = source.filter(|_| settings.classic_node_rules) else { return Ok(Vec::new()) };
        let settings = Settings { node_rules: true, ..settings.clone() };
        let mut groups = self.target_security_groups(&Work { settings: &settings, ..*work }, listing).await?.groups;
        groups.remove(source);
        Ok(self.open_targets(session, &groups, source, &classic.ports()).await?.refused)
    }

    /// Deletes a Classic Load Balancer, after the rules for those of its security groups that users made: without the
    /// load balancer, these groups are unknown.
    pub(super) async fn delete_classic(
        &self,
        session: &Session,
        id: &LoadBalancerId,
        classic: &Classic,
        listing: &Listing,
        state: &mut BalancerState,
    ) -> Result<(), CloudError> {
        // The lock is held until the load balancer is deleted: otherwise each of two simultaneous deletions would keep
        // the rules for the other one.
        let mut shared = self.shared.lock().await;
        if !self.policy.no_node_rules {
            self.revoke_classic_rules(&mut shared, session, (id, classic), listing, state).await?;
        }
        state.changed = Some(Instant::now());
        let request = session.api.classic.delete_load_balancer().load_balancer_name(&classic.name);
        session.api.change(Class::ElbChange, "DeleteLoadBalancer", request.send()).await?;
        shared.deleted_classics.insert(classic.name.clone());
        tracing::info!(classic = classic.name, "deleted Classic Load Balancer");
        Ok(())
    }

    /// Revokes the rules for a load balancer's security groups that users made, and that no other load balancer of the
    /// cluster needs.
    ///
    /// # Errors
    /// `Denied` if AWS does not allow it in a group with the cluster's tag. If AWS does not allow it in another group,
    /// the rules are left with a warning.
    async fn revoke_classic_rules(
        &self,
        shared: &mut Shared,
        session: &Session,
        (id, classic): (&LoadBalancerId, &Classic),
        listing: &Listing,
        state: &BalancerState,
    ) -> Result<(), CloudError> {
        let groups = users_groups(session, classic, listing);
        if groups.is_empty() {
            return Ok(());
        }
        let source = source(session, classic, listing, &state.classic_groups);
        let all = classic::list(session).await?;
        let others: Vec<&Classic> = all
            .iter()
            .filter(|one| one.name != classic.name && !shared.deleted_classics.contains(&one.name))
            .filter(|one| session.cluster.marks(one.tags.iter().map(|(key, value)| (&**key, &**value))))
            .collect();
        let tagged: BTreeSet<&str> = listing.tagged_groups(session).into_iter().map(|group| &*group.id).collect();
        let instances = self.networks.by_id(session, classic.instances.clone()).await?;
        let shared_group = listing.backend(session, &id.cluster);
        for group in groups {
            // A Network Load Balancer without the shared group reaches nodes through rules of the user.
            let needs_rules = |one: &ObservedBalancer| {
                let has_shared = shared_group.is_some_and(|shared| one.security_groups.contains(&shared.id));
                one.security_groups.contains(group) && !has_shared && !state.deleting.contains(&one.arn)
            };
            let is_used = others.iter().any(|one| one.security_groups.contains(group))
                || listing.balancers.iter().any(needs_rules);
            if is_used {
                continue;
            }
            // Rules without a description may be those of a user, for resources that the cluster does not know.
            let is_known = classic.security_groups.len() == 1 || state.classic_groups != ClassicGroups::default();
            // Interfaces outlive their load balancer. Names of other types than Classic contain a slash.
            let is_ending =
                |name: &str| !name.contains('/') && (name == classic.name || all.iter().all(|one| one.name != name));
            let is_chosen =
                source == Some(group) && is_known && !has_other_interfaces(session, group, is_ending).await?;
            for opened in network::groups_that_name(session, group).await? {
                let is_tagged = tagged.contains(&*opened);
                let is_of_instance = || instances.values().any(|instance| instance.groups.contains(&opened));
                if !is_tagged && !is_of_instance() {
                    continue;
                }
                // In other groups, cloud-provider-aws revokes nothing, and another cluster may have its rules.
                let is_chosen = is_tagged && is_chosen;
                let added = |rules: &[ObservedRule]| classic_groups::added(rules, group, is_chosen);
                match shared.revoke_selected(session, &opened, added).await {
                    Err(error) if error.kind == ErrorKind::Denied && !is_tagged => {
                        tracing::warn!(classic = classic.name, %error, "rules of a deleted load balancer were not revoked");
                    }
                    result => result?,
                }
            }
        }
        Ok(())
    }
}
