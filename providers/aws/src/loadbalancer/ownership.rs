//! Ownership: the evidence that a resource in AWS belongs to a Service of this cluster, and what each kind of evidence
//! allows.
//!
//! This file contains all rules about names and tags that other controllers write, too. A resource is adopted, changed
//! or deleted only with evidence from this file.

use providers::LoadBalancerId;

use crate::loadbalancer::names::{
    ALLOWED, BACKEND, CONTROLLER_CLUSTER, CONTROLLER_RESOURCE, ENDPOINT_SERVICE, Flavour, GROUP, GROUP_LEAD,
    NODE_LABELS, RESOURCE, SERVICE, STACK, UID,
};
use crate::loadbalancer::types::Tags;
use crate::tags::{ClusterTags, OWNED, SHARED};

const CLUSTER_PREFIX: &str = "kubernetes.io/cluster/";

/// Returns true if tags are certainly this cluster's: they name this cluster and no other.
pub(crate) fn is_certain(tags: &Tags, cluster: &ClusterTags) -> bool {
    let own = tags.get(&cluster.key()).is_some_and(|value| value == OWNED);
    own && !cluster.id.is_empty() && !names_another(tags, cluster)
}

/// Returns true if tags name another cluster, too.
pub(crate) fn names_another(tags: &Tags, cluster: &ClusterTags) -> bool {
    tags.keys().any(|key| key.starts_with(CLUSTER_PREFIX) && *key != cluster.key())
}

/// Returns true if a security group is the one that all load balancers of the cluster with this name share.
///
/// Other controllers let a Service put any tag on its own security group. Therefore, a group with the tags of a Service
/// is never the shared one.
pub(crate) fn is_backend(tags: &Tags, cluster: &ClusterTags, name: &str) -> bool {
    let shared = tags.get(BACKEND).is_some_and(|value| value == name);
    let own = cluster.id.is_empty() || is_certain(tags, cluster);
    shared && own && ![SERVICE, UID, STACK].iter().any(|key| tags.contains_key(*key))
}

/// Returns the key of the group of Services whose shared load balancer, or its security group, has these tags.
///
/// Services cannot set these tags on their own load balancers.
pub(crate) fn group<'a>(tags: &'a Tags, cluster: &ClusterTags) -> Option<&'a str> {
    let of_a_service = [SERVICE, UID, STACK].iter().any(|key| tags.contains_key(*key));
    tags.get(GROUP).map(String::as_str).filter(|_| is_certain(tags, cluster) && !of_a_service)
}

/// The Service that a resource was made for, by its tags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    pub namespace: String,
    pub name: String,
    /// Set on resources that this provider made or adopted.
    pub uid: Option<String>,
    /// Only tags of the AWS Load Balancer Controller name the Service.
    by_controller: bool,
}

impl Owner {
    /// Returns the Service of this cluster that tags name: those of cloud-provider-aws, of the AWS Load Balancer
    /// Controller or of this provider.
    pub(crate) fn of(tags: &Tags, cluster: &ClusterTags, cluster_name: &str) -> Option<Self> {
        if !cluster.id.is_empty() && names_another(tags, cluster) && !tags.contains_key(&cluster.key()) {
            return None;
        }
        let tag = |key: &str| tags.get(key).map(String::as_str);
        let ours = cluster.id.is_empty() || tag(&cluster.key()) == Some(OWNED);
        let own = tag(SERVICE).filter(|_| ours);
        let controllers = || tag(STACK).filter(|_| tag(CONTROLLER_CLUSTER) == Some(cluster_name));
        let (namespace, name) = own.or_else(controllers)?.split_once('/')?;
        Some(Self {
            namespace: namespace.into(),
            name: name.into(),
            uid: tag(UID).map(str::to_owned),
            by_controller: own.is_none(),
        })
    }

    /// Returns true if the tags name this Service, and have no uid of another Service with the same name.
    pub(crate) fn may_be(&self, id: &LoadBalancerId) -> bool {
        self.namespace == id.namespace && self.name == id.name && self.uid.as_ref().is_none_or(|uid| *uid == id.uid)
    }

    /// Returns the kind of this evidence of ownership.
    pub(crate) fn evidence(&self) -> Evidence {
        match (&self.uid, self.by_controller) {
            (Some(_), _) => Evidence::Uid,
            (None, false) => Evidence::CloudProvider,
            (None, true) => Evidence::Controller,
        }
    }
}

/// Evidence that a resource belongs to a Service, the weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Evidence {
    /// Tags of the AWS Load Balancer Controller, which may be running and manage the resource.
    Controller,
    /// Tags of cloud-provider-aws, which ended before this process could get the Lease that both use.
    CloudProvider,
    /// The Service's uid, in a tag that only this provider writes.
    Uid,
}

/// Returns the evidence that a resource with these tags belongs to a Service, if there is any.
pub(crate) fn evidence(tags: &Tags, cluster: &ClusterTags, id: &LoadBalancerId) -> Option<Evidence> {
    let owner = Owner::of(tags, cluster, &id.cluster).filter(|owner| owner.may_be(id))?;
    Some(owner.evidence())
}

/// Returns true if a resource is a part of a stack of the AWS Load Balancer Controller whose adoption by this Service
/// began.
///
/// The uid alone does not prove that: a Service that moves to the controller has a load balancer of ours and a stack of
/// the controller for a while.
pub(crate) fn claims_stack(tags: &Tags, evidence: Option<Evidence>) -> bool {
    evidence == Some(Evidence::Uid) && tags.contains_key(STACK)
}

/// The reason to find a Service's resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The resources are brought to the desired state. The Service requests a load balancer of this flavour.
    Ensure(Flavour),
    /// The resources are deleted or reported. The Service may belong to the AWS Load Balancer Controller.
    Delete,
}

impl Purpose {
    /// Returns true if evidence is enough; `claimed`: a part of the same stack [claims it](claims_stack).
    ///
    /// The adoption of a stack of the AWS Load Balancer Controller tags one part after the other. The process may end
    /// with some parts tagged. From the first tag on, all parts are ours. The Load Balancer Controller removes the tag
    /// when it reconciles.
    pub(crate) fn is_met_by(self, evidence: Evidence, claimed: bool) -> bool {
        match (evidence, self) {
            (Evidence::Uid | Evidence::CloudProvider, _)
            | (Evidence::Controller, Self::Ensure(Flavour::Controller)) => true,
            (Evidence::Controller, _) => claimed,
        }
    }
}

/// Returns true if a security group has the cluster's tag, and no tag of an owner: cloud-provider-aws makes such groups
/// for load balancers.
///
/// Nodes' groups may have the same tags. Only the name of a group, together with the load balancer that has the group,
/// proves its owner.
pub(crate) fn is_without_owner(tags: &Tags, cluster: &ClusterTags) -> bool {
    let purposes = [SERVICE, UID, STACK, BACKEND, GROUP, CONTROLLER_CLUSTER, CONTROLLER_RESOURCE];
    is_certain(tags, cluster) && !purposes.iter().any(|key| tags.contains_key(*key))
}

/// Returns true if a security group is this cluster's to delete. cloud-provider-aws names the Service only in the name
/// of a group, not in its tags.
pub(crate) fn is_own_group(tags: &Tags, cluster: &ClusterTags) -> bool {
    if cluster.id.is_empty() {
        !names_another(tags, cluster)
    } else {
        tags.get(&cluster.key()).is_some_and(|value| value == OWNED)
    }
}

/// Returns true if the tags of a load balancer that AWS returned as created identify this Service.
///
/// CreateLoadBalancer returns an existing load balancer of the same name and settings, regardless of its owner.
pub(crate) fn is_own_creation(tags: &Tags, cluster: &ClusterTags, id: &LoadBalancerId) -> bool {
    let owner = Owner::of(tags, cluster, &id.cluster);
    owner.is_some_and(|owner| owner.uid.as_ref() == Some(&id.uid) && owner.may_be(id))
}

/// Returns true if the tags of a resource of a user allow this cluster's Services to use it.
pub(crate) fn is_shared(tags: &Tags, cluster: &ClusterTags) -> bool {
    !cluster.id.is_empty() && tags.get(&cluster.key()).is_some_and(|value| value == SHARED)
}

/// Returns true if the tags of a resource of a user name this Service, or its whole namespace; `None` if they name no
/// Services at all.
pub(crate) fn names_service(tags: &Tags, id: &LoadBalancerId) -> Option<bool> {
    let service = id.to_string();
    Some(tags.get(ALLOWED)?.split_whitespace().any(|allowed| allowed == id.namespace || allowed == service))
}

/// Returns true if a resource was made for a Service, of any cluster.
pub(crate) fn is_of_a_service(tags: &Tags) -> bool {
    [SERVICE, UID, STACK].iter().any(|key| tags.contains_key(*key))
}

/// Returns true if tags may be a part of the tags that a resource was created with. The remaining tags may become
/// visible later.
pub(crate) fn is_incomplete(tags: &Tags, cluster: &ClusterTags) -> bool {
    let has = |key: &str| tags.contains_key(key);
    let service = has(SERVICE) || has(STACK);
    if tags.is_empty() {
        return true;
    }
    // Tags of the Load Balancer Controller, for Services or Ingresses.
    if has(CONTROLLER_CLUSTER) && !has(&cluster.key()) {
        return false;
    }
    if cluster.id.is_empty() {
        return has(UID) && !service;
    }
    has(&cluster.key()) != (service || has(BACKEND) || has(GROUP)) && !names_another(tags, cluster)
}

/// Returns true if tags with this key identify owners or users of resources, so a Service may not set the tag by
/// annotation.
pub(crate) fn is_reserved(key: &str) -> bool {
    let ours = [SERVICE, UID, BACKEND, ENDPOINT_SERVICE, ALLOWED, GROUP, GROUP_LEAD, NODE_LABELS];
    let controllers = [STACK, RESOURCE, CONTROLLER_CLUSTER, CONTROLLER_RESOURCE];
    key.starts_with(CLUSTER_PREFIX) || ours.contains(&key) || controllers.contains(&key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadbalancer::names;
    use crate::loadbalancer::samples;

    const OWN: (&str, &str) = ("kubernetes.io/cluster/c", "owned");
    const OTHER: (&str, &str) = ("kubernetes.io/cluster/d", "owned");

    fn cluster() -> ClusterTags {
        ClusterTags::new("c", false)
    }

    fn tags(pairs: &[(&str, &str)]) -> Tags {
        pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    #[test]
    fn owner_is_read_from_tags_of_either_upstream() {
        let owner = |pairs: &[(&str, &str)]| Owner::of(&tags(pairs), &cluster(), "cluster-1").map(|o| (o.name, o.uid));
        for (pairs, expected) in [
            (&[OWN, (SERVICE, "n/s")][..], Some(("s".to_owned(), None))),
            (&[OWN, (SERVICE, "n/s"), (UID, "u")], Some(("s".into(), Some("u".into())))),
            (&[("kubernetes.io/cluster/c", "shared"), (SERVICE, "n/s")], None),
            (&[(SERVICE, "n/s")], None),
            (&[(STACK, "n/s"), (CONTROLLER_CLUSTER, "cluster-1")], Some(("s".into(), None))),
            (&[(STACK, "n/s"), (CONTROLLER_CLUSTER, "cluster-2")], None),
            (&[(STACK, "n/s"), (CONTROLLER_CLUSTER, "cluster-1"), OTHER], None),
            (&[OWN, (SERVICE, "nobody")], None),
        ] {
            assert_eq!(owner(pairs), expected, "{pairs:?}");
        }
        for flavour in [Flavour::CloudProvider, Flavour::Controller] {
            let id = samples::id();
            let owner = Owner::of(&names::tags(&cluster(), flavour, &id, "LoadBalancer"), &cluster(), "x").unwrap();
            assert!(owner.may_be(&id));
            assert!(!owner.may_be(&LoadBalancerId { uid: "other".into(), ..id }));
            assert_eq!(owner.evidence(), Evidence::Uid);
        }
    }

    #[test]
    fn unclaimed_stack_of_the_controller_is_adopted_only_for_its_flavour_and_not_deleted() {
        let upstream = Flavour::CloudProvider;
        let controller = Flavour::Controller;
        for (evidence, claimed, ensured, adopted, deleted) in [
            // Evidence, and whether another part has the uid; whether the evidence is enough to ensure a Service of
            // cloud-provider-aws, to ensure a Service of the controller, and to delete.
            (Evidence::Uid, false, true, true, true),
            (Evidence::CloudProvider, false, true, true, true),
            (Evidence::Controller, false, false, true, false),
            (Evidence::Controller, true, true, true, true),
        ] {
            let met = |purpose: Purpose| purpose.is_met_by(evidence, claimed);
            let all = (met(Purpose::Ensure(upstream)), met(Purpose::Ensure(controller)), met(Purpose::Delete));
            assert_eq!(all, (ensured, adopted, deleted), "{evidence:?} {claimed}");
        }
    }

    #[test]
    fn tags_are_incomplete_until_they_name_cluster_and_service() {
        for (pairs, expected) in [
            (&[][..], true),
            (&[OWN], true),
            (&[(SERVICE, "n/s")], true),
            (&[OWN, (SERVICE, "n/s")], false),
            (&[OWN, (BACKEND, "c")], false),
            (&[OWN, (GROUP, "n/g")], false),
            (&[(GROUP, "n/g")], true),
            (&[OTHER, (SERVICE, "n/s")], false),
            (&[(STACK, "n/s"), (CONTROLLER_CLUSTER, "x")], false),
            (&[("ingress.k8s.aws/stack", "n/s"), (CONTROLLER_CLUSTER, "x")], false),
            (&[OTHER], false),
            (&[("team", "web")], false),
        ] {
            assert_eq!(is_incomplete(&tags(pairs), &cluster()), expected, "{pairs:?}");
        }
        let untagged = ClusterTags::new("", false);
        assert!(
            is_incomplete(&tags(&[(UID, "u")]), &untagged) && !is_incomplete(&tags(&[(SERVICE, "n/s")]), &untagged)
        );
    }

    #[test]
    fn shared_group_is_known_by_a_tag_that_no_other_controller_writes() {
        let shared = (BACKEND, "c");
        for (pairs, expected) in [
            (&[OWN, shared][..], true),
            (&[OWN], false),
            (&[OWN, (BACKEND, "d")], false),
            // The security group of the Load Balancer Controller.
            (&[OWN, (CONTROLLER_CLUSTER, "c"), ("elbv2.k8s.aws/resource", "backend-sg")], false),
            // A Service's own security group, with additional tags.
            (&[OWN, shared, (SERVICE, "n/s")], false),
            (&[OWN, shared, (UID, "u")], false),
            (&[OWN, OTHER, shared], false),
            (&[shared], false),
        ] {
            assert_eq!(is_backend(&tags(pairs), &cluster(), "c"), expected, "{pairs:?}");
        }
        assert!(is_backend(&tags(&[(BACKEND, "kubernetes")]), &ClusterTags::new("", false), "kubernetes"));
        assert!(is_backend(&names::backend_tags(&cluster(), "c"), &cluster(), "c"));
    }

    #[test]
    fn resource_of_a_user_names_services_or_namespaces() {
        let id = samples::id();
        for (value, expected) in [
            (None, None),
            (Some(""), Some(false)),
            (Some("default/web"), Some(true)),
            (Some("shop default"), Some(true)),
            (Some("default/api other/web def"), Some(false)),
            (Some("default/"), Some(false)),
            (Some("Default"), Some(false)),
        ] {
            let tags: Tags = value.map(|value| (ALLOWED.to_owned(), value.to_owned())).into_iter().collect();
            assert_eq!(names_service(&tags, &id), expected, "{value:?}");
        }
        assert!(is_reserved(ALLOWED), "a Service cannot allow others to use its own load balancer");
    }

    #[test]
    fn group_is_named_by_tags_of_this_cluster_and_no_service() {
        let group_tag = (GROUP, "default/web");
        for (pairs, expected) in [
            (&[OWN, group_tag][..], Some("default/web")),
            (&[OWN], None),
            (&[group_tag], None),
            (&[OWN, OTHER, group_tag], None),
            (&[("kubernetes.io/cluster/c", "shared"), group_tag], None),
            (&[OWN, group_tag, (SERVICE, "n/s")], None),
            (&[OWN, group_tag, (UID, "u")], None),
        ] {
            assert_eq!(group(&tags(pairs), &cluster()), expected, "{pairs:?}");
        }
        assert_eq!(group(&names::group_tags(&cluster(), "public"), &cluster()), Some("public"));
        assert!(is_reserved(GROUP) && is_reserved(GROUP_LEAD));
    }

    #[test]
    fn creation_is_own_only_with_the_uid_of_the_service() {
        let id = samples::id();
        let own = names::tags(&cluster(), Flavour::CloudProvider, &id, "LoadBalancer");
        assert!(is_own_creation(&own, &cluster(), &id));
        assert!(!is_own_creation(&own, &cluster(), &LoadBalancerId { uid: "u-2".into(), ..id.clone() }));
        let without: Tags = own.clone().into_iter().filter(|(key, _)| key != UID).collect();
        assert!(!is_own_creation(&without, &cluster(), &id));
        assert!(!is_own_creation(&own, &ClusterTags::new("d", false), &id), "another cluster's");
    }
}
