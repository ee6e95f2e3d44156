//! Leaked Classic Load Balancers: cloud-provider-aws created them, and their Service no longer exists.
//!
//! Tags of such a load balancer name the Service. The load balancer's name is made from the Service's uid, so it
//! differs between a deleted Service and a new Service with the same name.

use providers::{CloudError, ErrorKind, LoadBalancerId, Owned, Phase};
use tokio::time::Instant;

use crate::client::Class;
use crate::loadbalancer::apply::balancers::Balancers;
use crate::loadbalancer::names;
use crate::loadbalancer::observed::balancer_state::BalancerState;
use crate::loadbalancer::observed::classic::{self, Classic};
use crate::loadbalancer::observed::inventory::{ListedGroup, Listing};
use crate::loadbalancer::ownership::{self, Evidence, Owner};
use crate::session::Session;
use crate::tags::ClusterTags;

/// Prefix of a Classic Load Balancer's name in a list of resources, where other load balancers have their ARN.
const PREFIX: &str = "classic/";

/// Returns the names of the Classic Load Balancers among resources.
fn names_in(owned: &Owned) -> impl Iterator<Item = &str> {
    owned.resources.iter().filter_map(|resource| resource.strip_prefix(PREFIX))
}

/// Returns the security group that cloud-provider-aws made for a Classic Load Balancer.
fn group_of<'a>(name: &str, groups: &'a [ListedGroup], cluster: &ClusterTags) -> Option<&'a ListedGroup> {
    let named = names::classic_group_of(name);
    groups.iter().find(|group| group.name == named && ownership::is_own_group(&group.tags, cluster))
}

/// Returns the Service that a Classic Load Balancer was made for, by tags of cloud-provider-aws.
fn owner(classic: &Classic, cluster: &ClusterTags, cluster_name: &str) -> Option<Owner> {
    Owner::of(&classic.tags, cluster, cluster_name).filter(|owner| owner.evidence() != Evidence::Controller)
}

/// Returns the Classic Load Balancers of this cluster's Services, with their security groups.
pub(super) fn owned(
    all: &[Classic],
    groups: &[ListedGroup],
    cluster: &ClusterTags,
    cluster_name: &str,
    known: &[LoadBalancerId],
) -> Vec<Owned> {
    let of = |classic: &Classic| {
        let owner = owner(classic, cluster, cluster_name)?;
        let id = LoadBalancerId {
            cluster: cluster_name.into(),
            namespace: owner.namespace,
            name: owner.name,
            uid: known.iter().find(|id| id.default_name() == classic.name).map(|id| id.uid.clone()).unwrap_or_default(),
        };
        let group = group_of(&classic.name, groups, cluster);
        let certain = ownership::is_certain(&classic.tags, cluster)
            && group.is_none_or(|group| ownership::is_certain(&group.tags, cluster));
        let resources = std::iter::once(format!("{PREFIX}{}", classic.name));
        let resources = resources.chain(group.map(|group| group.id.clone())).collect();
        Some(Owned { id, phase: Phase::Active, resources, certain })
    };
    all.iter().filter_map(of).collect()
}

/// Returns true if a leaked Classic Load Balancer may be this Service's; `None` if there is none among the resources.
pub(super) fn may_be_owned_by(owned: &Owned, service: &LoadBalancerId) -> Option<bool> {
    let name = service.default_name();
    names_in(owned).map(|one| one == name).reduce(|one, other| one || other)
}

/// Deletes the Classic Load Balancers among resources, with their security groups. A load balancer is kept if its tags
/// no longer name the Service of `owned`, or name another cluster, too. Returns true once all others are deleted.
pub(super) async fn collect(
    balancers: &Balancers,
    session: &Session,
    listing: &Listing,
    owned: &Owned,
    state: &mut BalancerState,
) -> Result<bool, CloudError> {
    let mut deleted = true;
    for name in names_in(owned) {
        if let Some(classic) = classic::find_by_name(session, name).await? {
            let same = |owner: Owner| owner.namespace == owned.id.namespace && owner.name == owned.id.name;
            let its = owner(&classic, &session.cluster, &owned.id.cluster).is_some_and(same);
            if its && ownership::is_certain(&classic.tags, &session.cluster) {
                balancers.delete_classic(session, &owned.id, &classic, listing, state).await?;
                deleted = false;
            }
            // The load balancer still uses its security group, which is deleted later.
            continue;
        }
        let group = group_of(name, &listing.security_groups, &session.cluster);
        let listed = |group: &&ListedGroup| owned.resources.contains(&group.id);
        let certain = |group: &&ListedGroup| ownership::is_certain(&group.tags, &session.cluster);
        if let Some(group) = group.filter(listed).filter(certain) {
            deleted &= balancers.delete_classic_group(session, &group.id, state).await?;
        }
    }
    Ok(deleted)
}

impl Balancers {
    /// Deletes the security group of a deleted Classic Load Balancer, with the rules that name it. Returns false while
    /// network interfaces use it.
    pub(super) async fn delete_classic_group(
        &self,
        session: &Session,
        group: &str,
        state: &mut BalancerState,
    ) -> Result<bool, CloudError> {
        self.shared.lock().await.revoke_rules_of(session, group).await?;
        state.changed = Some(Instant::now());
        let request = session.api.ec2.delete_security_group().group_id(group);
        match session.api.change(Class::Ec2Change, "DeleteSecurityGroup", request.send()).await {
            Err(error) if error.is_not_found() => Ok(true),
            // Network interfaces outlive the load balancer for a while.
            Err(error) if error.kind == ErrorKind::Conflict => Ok(false),
            response => response.map(|_| true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadbalancer::samples::{self, tags};

    const OWN: (&str, &str) = ("kubernetes.io/cluster/c", "owned");
    const OTHER: (&str, &str) = ("kubernetes.io/cluster/d", "owned");
    const SERVICE: (&str, &str) = ("kubernetes.io/service-name", "default/web");

    fn classic(name: &str, pairs: &[(&str, &str)]) -> Classic {
        Classic { name: name.into(), tags: tags(pairs), ..Classic::default() }
    }

    #[test]
    fn classic_load_balancer_is_listed_by_the_tags_of_its_cluster() {
        let cluster = ClusterTags::new("c", false);
        for (pairs, expected) in [
            (&[OWN, SERVICE][..], Some(true)),
            (&[OWN, OTHER, SERVICE], Some(false)),
            (&[OTHER, SERVICE], None),
            (&[("kubernetes.io/cluster/c", "shared"), SERVICE], None),
            (&[SERVICE], None),
            (&[OWN], None),
        ] {
            let found = owned(&[classic("a1", pairs)], &[], &cluster, "kubernetes", &[]);
            assert_eq!(found.first().map(|one| one.certain), expected, "{pairs:?}");
        }
    }

    #[test]
    fn security_group_is_listed_by_the_name_of_its_load_balancer() {
        let cluster = ClusterTags::new("c", false);
        let group = |id: &str, name: &str, own: (&str, &str)| ListedGroup {
            id: id.into(),
            name: name.into(),
            tags: tags(&[own]),
        };
        let groups =
            [group("sg-1", "k8s-elb-a1", OTHER), group("sg-2", "k8s-elb-a2", OWN), group("sg-3", "k8s-elb-a1", OWN)];
        let found = owned(&[classic("a1", &[OWN, SERVICE])], &groups, &cluster, "kubernetes", &[]);
        assert_eq!(found[0].resources, ["classic/a1", "sg-3"]);
    }

    #[test]
    fn classic_load_balancer_belongs_only_to_the_service_whose_uid_is_in_its_name() {
        let cluster = ClusterTags::new("c", false);
        let id = samples::id();
        let later = LoadBalancerId { uid: "98765432-89ab-cdef-0123-456789abcdef".into(), ..id.clone() };
        let all = [classic(&id.default_name(), &[OWN, SERVICE])];
        let found = owned(&all, &[], &cluster, "kubernetes", std::slice::from_ref(&id));
        assert_eq!((&found[0].id, may_be_owned_by(&found[0], &id)), (&id, Some(true)));
        assert_eq!(may_be_owned_by(&found[0], &later), Some(false), "a new Service with the same name");
        let network = Owned { resources: vec!["arn:loadbalancer/net/a".into()], ..found[0].clone() };
        assert_eq!(may_be_owned_by(&network, &id), None);
    }
}
