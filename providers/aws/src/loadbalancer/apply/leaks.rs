//! The resources of the cluster's Services in AWS, grouped by Service, so that leaked resources are found; and the
//! deletion of leaked resources.
//!
//! Tags identify the owner of a resource, and the description of a rule in a node's group names a load balancer. Tags
//! of cloud-provider-aws on resources that were not taken over have no uid: such a resource may belong to any Service
//! with the name in its tags.

use std::collections::{BTreeMap, BTreeSet};

use providers::{CloudError, Deletion, ErrorKind, LoadBalancerId, Owned, Phase};
use tokio::time::Instant;

use crate::loadbalancer::apply::balancers::Balancers;
use crate::loadbalancer::apply::calls::Caller;
use crate::loadbalancer::apply::range_rules::own_rule_names;
use crate::loadbalancer::apply::{classic_leaks, endpoint_service};
use crate::loadbalancer::model::{diff, range_rules};
use crate::loadbalancer::names;
use crate::loadbalancer::observed::inventory::{ListedGroup, Listing};
use crate::loadbalancer::observed::stack::{ObservedBalancer, ObservedStack, State};
use crate::loadbalancer::observed::{classic, network};
use crate::loadbalancer::ownership::{self, Evidence, Owner};
use crate::loadbalancer::types::{ObservedRule, Tags};
use crate::session::Session;
use crate::tags::ClusterTags;

/// The resources of one Service.
#[derive(Default)]
struct Found<'a> {
    balancer: Option<&'a ObservedBalancer>,
    parts: Vec<String>,
    /// Number of resources whose tags do not prove that they are this cluster's.
    doubtful: usize,
}

impl Found<'_> {
    fn add(&mut self, part: &str, certain: bool) {
        self.parts.push(part.to_owned());
        self.doubtful += usize::from(!certain);
    }

    fn owned(self, id: LoadBalancerId) -> Owned {
        let phase = match self.balancer.map(|balancer| balancer.state) {
            None | Some(State::Failed) => Phase::Incomplete,
            Some(State::Provisioning) => Phase::Provisioning,
            Some(State::Active) => Phase::Active,
        };
        Owned { id, phase, certain: self.doubtful == 0, resources: self.parts }
    }
}

/// Returns the resources of this cluster's Services, except stacks of the AWS Load Balancer Controller.
pub(super) async fn list(balancers: &Balancers) -> Result<Vec<Owned>, CloudError> {
    let session = balancers.sessions.get()?;
    let listing = balancers.inventory.listing_since(&session, Instant::now()).await?;
    let groups: Vec<String> = own_groups(&listing, &session).into_iter().collect();
    let rules = if groups.is_empty() { BTreeMap::new() } else { network::rules(&session, &groups).await? };
    let known = balancers.states.ids();
    let name = &balancers.cluster;
    let classic = classic::list(&session).await?;
    let classic = classic_leaks::owned(&classic, &listing.security_groups, &session.cluster, name, &known);
    Ok(owned(&listing, &session.cluster, name, &known, &rules).into_iter().chain(classic).collect())
}

/// Returns the nodes' security groups that belong to this cluster alone: a rule in a group that clusters share may be
/// for another cluster's load balancer.
fn own_groups(listing: &Listing, session: &Session) -> BTreeSet<String> {
    let alone = |group: &&ListedGroup| {
        !session.cluster.id.is_empty() && !ownership::names_another(&group.tags, &session.cluster)
    };
    listing.tagged_groups(session).into_iter().filter(alone).map(|group| group.id.clone()).collect()
}

/// Returns the resources of a listing by Service; `known` are Services that this process has worked on, `rules` the
/// rules of nodes' groups.
fn owned(
    listing: &Listing,
    cluster: &ClusterTags,
    cluster_name: &str,
    known: &[LoadBalancerId],
    rules: &BTreeMap<String, Vec<ObservedRule>>,
) -> Vec<Owned> {
    let mut found: BTreeMap<LoadBalancerId, Found<'_>> = BTreeMap::new();
    let mut users: BTreeMap<&str, LoadBalancerId> = BTreeMap::new();
    let certain = |tags: &Tags| ownership::is_certain(tags, cluster);
    let id = |tags: &Tags, name: &str| {
        // Only the AWS Load Balancer Controller can decide whether a Service still needs its stack, because it also
        // serves Services without a class.
        let owner = Owner::of(tags, cluster, cluster_name).filter(|one| one.evidence() != Evidence::Controller)?;
        let same = |id: &&LoadBalancerId| id.namespace == owner.namespace && id.name == owner.name;
        // Before a takeover only the name identifies the owner.
        let by_name = || known.iter().filter(same).find(|id| is_named(id, name)).map(|id| id.uid.clone());
        let uid = owner.uid.clone().or_else(by_name).unwrap_or_default();
        Some(LoadBalancerId { cluster: cluster_name.into(), namespace: owner.namespace, name: owner.name, uid })
    };
    for balancer in &listing.balancers {
        if let Some(id) = id(&balancer.tags, &balancer.name) {
            users.insert(&balancer.arn, id.clone());
            let entry = found.entry(id.clone()).or_default();
            entry.balancer = Some(balancer);
            entry.add(&balancer.arn, certain(&balancer.tags));
            for group in listing.groups_of_cloud_provider(cluster, &id, std::slice::from_ref(balancer)) {
                entry.add(&group.id, true);
            }
        }
    }
    for (group, balancers) in &listing.target_groups {
        let user = balancers.iter().find_map(|arn| users.get(arn.as_str()).cloned());
        if let Some(id) = user.or_else(|| id(&group.tags, &group.name)) {
            found.entry(id).or_default().add(&group.arn, certain(&group.tags));
        }
    }
    for group in &listing.security_groups {
        if let Some(id) = id(&group.tags, &group.name) {
            found.entry(id).or_default().add(&group.id, certain(&group.tags));
        }
    }
    for (group, rule) in rules.iter().flat_map(|(group, rules)| rules.iter().map(move |rule| (group, rule))) {
        let Some(name) = range_rules::balancer_of(&rule.rule) else { continue };
        let id = match listing.balancers.iter().find(|one| one.name == name) {
            Some(balancer) => users.get(balancer.arn.as_str()).cloned(),
            None => Some(owner_of_rule(name, found.keys().chain(known), (cluster, cluster_name))),
        };
        if let Some(id) = id {
            found.entry(id).or_default().add(&format!("{group}/{}", rule.id), true);
        }
    }
    found.into_iter().map(|(id, found)| found.owned(id)).collect()
}

/// Returns the Service to which a deleted load balancer with this name belonged. If no known Service has the name, the
/// id contains only the name of the load balancer.
fn owner_of_rule<'a>(
    balancer: &str,
    mut known: impl Iterator<Item = &'a LoadBalancerId>,
    (cluster, cluster_name): (&ClusterTags, &str),
) -> LoadBalancerId {
    let named = |id: &&LoadBalancerId| names::rule_names(cluster, id).iter().any(|own| own == balancer);
    known.find(named).cloned().unwrap_or_else(|| nameless(cluster_name, balancer))
}

/// Returns the id of a Service for which only the name of the load balancer is known.
fn nameless(cluster: &str, balancer: &str) -> LoadBalancerId {
    LoadBalancerId { cluster: cluster.into(), namespace: String::new(), name: balancer.into(), uid: String::new() }
}

/// Returns true if a Service's load balancer or security group would have this name.
fn is_named(id: &LoadBalancerId, name: &str) -> bool {
    names::is_generated(id, name) || names::security_group(id) == name
}

/// Returns true if leaked resources may be this Service's.
pub(super) fn may_be_owned_by(owned: &Owned, service: &LoadBalancerId, cluster: &ClusterTags) -> bool {
    if let Some(belongs) = classic_leaks::may_be_owned_by(owned, service) {
        return belongs;
    }
    let id = &owned.id;
    if id.namespace.is_empty() {
        names::rule_names(cluster, service).contains(&id.name)
    } else {
        let named = id.namespace == service.namespace && id.name == service.name;
        named && (id.uid.is_empty() || id.uid == service.uid)
    }
}

/// Deletes the leaked resources that still belong to this Service and this cluster alone, according to tags and
/// descriptions.
pub(super) async fn collect(balancers: &Balancers, owned: &Owned) -> Result<Deletion, CloudError> {
    let session = balancers.sessions.get()?;
    let id = &owned.id;
    let mut state = balancers.states.lock(id).await;
    // Tags are cached for a long time: the resource may have another owner now.
    owned.resources.iter().for_each(|part| balancers.inventory.forget(part));
    let listing = balancers.inventory.listing_since(&session, Instant::now()).await?;
    let mut observed = remaining(&listing, &session.cluster, owned);
    balancers.find_abandoned_listeners(&session, id, &mut observed).await?;
    if endpoint_service::is_marked(&observed.balancers) {
        endpoint_service::delete_all(&session, id).await?;
    }
    let steps = diff::delete(&observed, id).steps;
    if !steps.is_empty() {
        let network = balancers.networks.network(&session).await?;
        let mut caller = Caller { records: None, ..balancers.caller(&session, &network, id) };
        for step in &steps {
            match balancers.step(&mut caller, step, &mut observed, &mut state).await {
                Err(error) if error.kind == ErrorKind::Conflict && step.waits_for_others() => {}
                result => result?,
            }
        }
        return Ok(Deletion::InProgress(state.pause()));
    }
    if !classic_leaks::collect(balancers, &session, &listing, owned, &mut state).await? {
        return Ok(Deletion::InProgress(state.pause()));
    }
    // The last Service of a group deletes the group's load balancer.
    if !id.uid.is_empty() && !balancers.leave_groups(&session, id, None, &mut state).await? {
        return Ok(Deletion::InProgress(state.pause()));
    }
    let names = if id.namespace.is_empty() {
        Some(id.name.clone()).into_iter().filter(|name| listing.balancer(name).is_none()).collect()
    } else if id.uid.is_empty() {
        Vec::new()
    } else {
        own_rule_names(&session, id, &listing, &[])
    };
    let groups = own_groups(&listing, &session);
    let mut shared = balancers.shared.lock().await;
    let refused = shared.revoke_range_rules(&session, balancers.listings(&listing), (id, &names), &groups).await?;
    if let Some(refusal) = refused.into_iter().next() {
        return Err(CloudError::new(ErrorKind::Denied, "RevokeSecurityGroupIngress", refusal));
    }
    if !balancers.release_shared(shared, &session, id, &listing, &mut state).await? {
        return Ok(Deletion::InProgress(state.pause()));
    }
    balancers.states.remove(id, state);
    Ok(Deletion::Gone)
}

/// Returns the resources of `owned` that still exist and whose tags identify only its Service.
fn remaining(listing: &Listing, cluster: &ClusterTags, owned: &Owned) -> ObservedStack {
    let id = &owned.id;
    let its = |part: &str, tags: &Tags| {
        let owner = Owner::of(tags, cluster, &id.cluster);
        let same = owner.is_some_and(|owner| {
            let named = owner.namespace == id.namespace && owner.name == id.name;
            named && owner.evidence() != Evidence::Controller && owner.uid.unwrap_or_default() == id.uid
        });
        same && ownership::is_certain(tags, cluster) && owned.resources.iter().any(|listed| listed == part)
    };
    let balancers: Vec<_> = listing.balancers.iter().filter(|one| its(&one.arn, &one.tags)).cloned().collect();
    let groups = listing.target_groups.iter().filter(|(group, _)| its(&group.arn, &group.tags));
    let target_groups: Vec<_> = groups.map(|(group, _)| group.clone()).collect();
    let untagged = listing.groups_of_cloud_provider(cluster, id, &balancers);
    let untagged = untagged.filter(|group| owned.resources.contains(&group.id));
    let security = listing.security_groups.iter().filter(|group| its(&group.id, &group.tags)).chain(untagged);
    ObservedStack {
        elsewhere: listing.elsewhere(&target_groups, &balancers),
        security_groups: security.map(ListedGroup::observed).collect(),
        abandoned_listeners: Vec::new(),
        target_groups,
        balancers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadbalancer::samples;
    use crate::loadbalancer::samples::{listed_balancer as balancer, tags};
    use crate::loadbalancer::types::{Rule, Source};

    const OWN: (&str, &str) = ("kubernetes.io/cluster/c", "owned");
    const OTHER: (&str, &str) = ("kubernetes.io/cluster/d", "owned");
    const SERVICE: (&str, &str) = ("kubernetes.io/service-name", "default/web");
    const UID: (&str, &str) = ("kubernetes.io/service-uid", "u-1");
    /// Tags of the Load Balancer Controller, which are equal for clusters of the same name.
    const STACK: [(&str, &str); 2] =
        [("service.k8s.aws/stack", "default/web"), ("elbv2.k8s.aws/cluster", "kubernetes")];

    fn cluster() -> ClusterTags {
        ClusterTags::new("c", false)
    }

    fn listing(balancers: Vec<ObservedBalancer>, groups: &[(&str, &[(&str, &str)])]) -> Listing {
        let group = |(id, pairs): &(&str, &[(&str, &str)])| ListedGroup {
            id: (*id).into(),
            name: (*id).into(),
            tags: tags(pairs),
        };
        Listing {
            begun: Instant::now(),
            balancers,
            target_groups: Vec::new(),
            security_groups: groups.iter().map(group).collect(),
        }
    }

    fn service(name: &str, uid: &str) -> LoadBalancerId {
        LoadBalancerId { name: name.into(), uid: uid.into(), ..samples::id() }
    }

    fn rule(id: &str, description: &str) -> ObservedRule {
        let source = Source::Range(samples::network().ranges[0]);
        let rule = Rule { protocol: "tcp".into(), from: 1, to: 1, source, description: description.into() };
        ObservedRule { id: id.into(), rule }
    }

    #[test]
    fn only_resources_with_tags_of_cloud_provider_aws_or_of_this_provider_are_listed() {
        for (pairs, expected) in [
            (&[OWN, SERVICE, UID][..], Some(("u-1", true))),
            (&[OWN, SERVICE], Some(("", true))),
            (&[OWN, OTHER, SERVICE, UID], Some(("u-1", false))),
            (&STACK, None),
            (&[STACK[0], STACK[1], OWN], None),
            (&[STACK[0], STACK[1], UID], Some(("u-1", false))),
            (&[OTHER, SERVICE, UID], None),
            (&[("kubernetes.io/cluster/c", "shared"), SERVICE, UID], None),
            (&[SERVICE, UID], None),
        ] {
            let recent_listing = listing(vec![balancer("b", pairs)], &[]);
            let found = owned(&recent_listing, &cluster(), "kubernetes", &[], &BTreeMap::new());
            let reported: Vec<_> = found.iter().map(|owned| (&*owned.id.uid, owned.certain)).collect();
            assert_eq!(reported, expected.into_iter().collect::<Vec<_>>(), "{pairs:?}");
        }
        let untagged = ClusterTags::new("", false);
        let recent_listing = listing(vec![balancer("b", &[SERVICE, UID])], &[]);
        let found = owned(&recent_listing, &untagged, "kubernetes", &[], &BTreeMap::new());
        assert!(!found[0].certain, "a resource is certain although the cluster has no id");
    }

    #[test]
    fn rules_of_deleted_load_balancers_are_found() {
        let id = samples::id();
        let default = id.default_name();
        let rules: BTreeMap<String, Vec<ObservedRule>> = [(
            "sg-nodes".to_owned(),
            vec![
                rule("sgr-1", &format!("kubernetes.io/rule/nlb/client={default}")),
                rule("sgr-2", "kubernetes.io/rule/nlb/health=ax"),
                rule("sgr-3", "kubernetes.io/rule/nlb/client=theirs"),
                rule("sgr-4", "by hand"),
                rule("sgr-5", "kubernetes.io/rule/nlb/backend"),
            ],
        )]
        .into();
        let recent_listing = listing(vec![balancer("theirs", &[])], &[]);
        let found = |known: &[LoadBalancerId]| {
            let owned = owned(&recent_listing, &cluster(), "kubernetes", known, &rules);
            owned.into_iter().map(|one| (one.id.namespace, one.id.name, one.resources)).collect::<Vec<_>>()
        };
        let nameless = |name: &str, part: &str| (String::new(), name.to_owned(), vec![format!("sg-nodes/{part}")]);
        assert_eq!(found(&[]), [nameless(&default, "sgr-1"), nameless("ax", "sgr-2")]);
        let known = ("default".to_owned(), "web".to_owned(), vec!["sg-nodes/sgr-1".to_owned()]);
        assert_eq!(found(std::slice::from_ref(&id)), [nameless("ax", "sgr-2"), known]);
    }

    #[test]
    fn resource_with_incomplete_tags_may_belong_to_each_matching_service() {
        let of = |namespace: &str, name: &str, uid: &str| Owned {
            id: LoadBalancerId { namespace: namespace.into(), ..service(name, uid) },
            phase: Phase::Incomplete,
            resources: Vec::new(),
            certain: true,
        };
        let web = samples::id();
        for (owned, expected) in [
            (of("default", "web", &web.uid), true),
            (of("default", "web", "another"), false),
            (of("default", "web", ""), true),
            (of("default", "api", ""), false),
            (of("", &web.default_name(), ""), true),
            (of("", "a0", ""), false),
        ] {
            assert_eq!(may_be_owned_by(&owned, &web, &cluster()), expected, "{owned:?}");
        }
    }

    #[test]
    fn only_listed_resources_of_the_same_service_are_collected() {
        let its = &[OWN, SERVICE, UID][..];
        let balancers = vec![
            balancer("its", its),
            balancer("unlisted", its),
            balancer("anothers", &[OWN, SERVICE, ("kubernetes.io/service-uid", "u-2")]),
            balancer("the-controllers", &[STACK[0], STACK[1]]),
            balancer("two-clusters", &[OWN, OTHER, SERVICE, UID]),
        ];
        let recent_listing = listing(balancers, &[("sg-1", its), ("sg-2", &[OWN])]);
        let arns = recent_listing.balancers.iter().map(|one| one.arn.clone()).filter(|arn| !arn.ends_with("unlisted"));
        let resources = arns.chain(["sg-1".to_owned(), "sg-2".to_owned()]).collect();
        let left = Owned { id: service("web", "u-1"), phase: Phase::Active, resources, certain: true };
        let observed = remaining(&recent_listing, &cluster(), &left);
        assert_eq!(observed.ids().collect::<Vec<_>>(), ["arn:loadbalancer/net/its", "sg-1"]);
        let without = Owned { id: service("web", ""), ..left };
        let other = remaining(&recent_listing, &cluster(), &without);
        assert!(other.is_empty(), "resources with a uid, or of another owner, were found: {other:?}");
    }

    #[test]
    fn security_group_of_cloud_provider_is_collected_with_its_load_balancer() {
        let id = service("web", "01234567-89ab-cdef-0123-456789abcdef");
        let mut of_upstream = balancer(&id.default_name(), &[OWN, SERVICE]);
        of_upstream.security_groups = vec!["sg-1".into(), "sg-2".into()];
        let mut listed = listing(vec![of_upstream], &[("sg-1", &[OWN]), ("sg-2", &[OWN]), ("sg-3", &[OWN])]);
        for (group, name) in [(0, names::security_group(&id)), (2, names::security_group(&id))] {
            listed.security_groups[group].name = name;
        }
        let of = |listing: &Listing, known: &[LoadBalancerId]| {
            owned(listing, &cluster(), "kubernetes", known, &BTreeMap::new()).pop().expect("a load balancer is listed")
        };
        let found = of(&listed, &[]);
        assert_eq!(found.resources, [listed.balancers[0].arn.clone(), "sg-1".into()]);
        assert_eq!(remaining(&listed, &cluster(), &found).security_groups.len(), 1);
        let unlisted = Owned { resources: vec![listed.balancers[0].arn.clone()], ..found.clone() };
        assert!(remaining(&listed, &cluster(), &unlisted).security_groups.is_empty());
        // A deletion tags the group before it deletes the load balancer.
        listed.security_groups[0].tags = tags(&[OWN, SERVICE]);
        listed.balancers.clear();
        let observed = remaining(&listed, &cluster(), &found);
        assert_eq!(observed.ids().collect::<Vec<_>>(), ["sg-1"]);
    }
}
