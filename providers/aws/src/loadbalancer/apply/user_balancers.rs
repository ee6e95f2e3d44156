//! Load balancers that users made: a Service's listeners and target groups are added to one, and nothing else about it
//! is changed. Several Services can use the same load balancer, with different ports.
//!
//! Only a load balancer with the cluster's tag and the value `shared` is used: otherwise each user of the cluster could
//! open ports of any load balancer in the network.

use providers::{CloudError, LoadBalancerId};

use crate::loadbalancer::apply::balancers::{Balancers, Work};
use crate::loadbalancer::apply::calls;
use crate::loadbalancer::apply::removal::DELETION_TAGS;
use crate::loadbalancer::names;
use crate::loadbalancer::observed::inventory::Listing;
use crate::loadbalancer::observed::stack::{ObservedBalancer, ObservedStack};
use crate::loadbalancer::ownership;
use crate::loadbalancer::spec::annotation_reader::PREFIX;
use crate::loadbalancer::types::Tags;
use crate::session::Session;

/// Returns the load balancer that a user made, if Services of this cluster may use it.
///
/// # Errors
/// The fix, if the load balancer cannot be used.
fn find<'a>(
    arn: &str,
    session: &Session,
    id: &LoadBalancerId,
    listing: &'a Listing,
) -> Result<&'a ObservedBalancer, String> {
    let found = listing.balancers.iter().find(|one| one.arn == arn);
    let found = found.ok_or_else(|| format!("use the ARN of a Network Load Balancer in {}", session.vpc))?;
    if ownership::is_of_a_service(&found.tags) {
        return Err("use a load balancer that you made: this one was made for a Service and is deleted with it".into());
    }
    if !ownership::is_shared(&found.tags, &session.cluster) {
        let key = session.cluster.key();
        return Err(format!("put the tag {key}=shared on it, so that Services of this cluster may use it"));
    }
    if ownership::names_service(&found.tags, id) == Some(false) {
        return Err(format!("add {id} to its tag {}, which names the Services that may use it", names::ALLOWED));
    }
    Ok(found)
}

impl Balancers {
    /// Adds the load balancer that the user made to the observed state, if the Service names one.
    pub(super) fn add_user_balancer(
        &self,
        work: &Work<'_>,
        listing: &Listing,
        observed: &mut ObservedStack,
    ) -> Result<(), CloudError> {
        let Some(arn) = &work.settings.existing else { return Ok(()) };
        let found = find(arn, work.session, work.id, listing).map_err(|fix| {
            // The user adds the tag after this error, so the next attempt must not use cached tags.
            self.inventory.forget(arn);
            CloudError::invalid_annotation(&format!("{PREFIX}arn"), arn, &fix)
        })?;
        observed.elsewhere.remove(arn);
        observed.balancers.push(ObservedBalancer { shared: true, ..found.clone() });
        Ok(())
    }

    /// Keeps only the Service's own listeners and rules in the observed state of load balancers that users made or that
    /// Services share. Finds the Service's listeners on load balancers that it no longer uses.
    pub(super) async fn separate_listeners(
        &self,
        session: &Session,
        id: &LoadBalancerId,
        observed: &mut ObservedStack,
    ) -> Result<(), CloudError> {
        for balancer in observed.balancers.iter_mut().filter(|balancer| balancer.shared) {
            let own = |tags: &Tags| ownership::is_own_creation(tags, &session.cluster, id);
            let (own, others): (Vec<_>, Vec<_>) =
                std::mem::take(&mut balancer.listeners).into_iter().partition(|listener| own(&listener.tags));
            balancer.listeners = own;
            balancer.taken = others.into_iter().map(|listener| listener.port).collect();
        }
        for group in &mut observed.security_groups {
            if ownership::group(&group.tags, &session.cluster).is_some() {
                group.rules.retain(|rule| names::is_group_rule(id, &rule.rule.description));
            }
        }
        self.find_abandoned_listeners(session, id, observed).await
    }

    /// Finds the Service's listeners on load balancers that it no longer uses (`abandoned_listeners`). Their tags must
    /// be recent, because these listeners are deleted.
    pub(super) async fn find_abandoned_listeners(
        &self,
        session: &Session,
        id: &LoadBalancerId,
        observed: &mut ObservedStack,
    ) -> Result<(), CloudError> {
        observed.abandoned_listeners.clear();
        for balancer in &observed.elsewhere {
            let listeners = match calls::listeners(session, balancer).await {
                // The load balancer and its listeners were deleted since it was listed.
                Err(error) if error.is_not_found() => continue,
                listeners => listeners?,
            };
            let arns: Vec<String> = listeners.into_iter().map(|listener| listener.arn).collect();
            self.inventory.forget_older(&arns, DELETION_TAGS);
            let tags = self.inventory.tags_of(session, &arns).await?;
            let own = tags.iter().filter(|(_, tags)| ownership::is_own_creation(tags, &session.cluster, id));
            observed.abandoned_listeners.extend(own.map(|(arn, _)| arn.clone()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadbalancer::samples::listed_balancer;
    use crate::tags::ClusterTags;

    #[test]
    fn only_shared_load_balancers_of_users_are_used() {
        let shared = ("kubernetes.io/cluster/c", "shared");
        let cluster = ClusterTags::new("c", false);
        for (name, pairs, expected) in [
            ("shared", &[shared][..], true),
            ("untagged", &[], false),
            ("owned", &[("kubernetes.io/cluster/c", "owned")], false),
            ("another-cluster", &[("kubernetes.io/cluster/d", "shared")], false),
            ("of-a-service", &[shared, ("kubernetes.io/service-name", "default/web")], false),
            ("of-the-controller", &[shared, ("service.k8s.aws/stack", "default/web")], false),
        ] {
            let balancer = listed_balancer(name, pairs);
            let usable = !ownership::is_of_a_service(&balancer.tags) && ownership::is_shared(&balancer.tags, &cluster);
            assert_eq!(usable, expected, "{name}");
        }
        assert!(!ownership::is_shared(&Tags::new(), &ClusterTags::new("", false)));
    }
}
