//! A listing of the resources of all Services: a few paged reads, which concurrent readers share.
//!
//! ELB has no filter by tags, so all load balancers and target groups are listed, 400 on a page. The tags of each are
//! cached for up to an hour: ARNs are never reused, so a foreign resource rarely becomes this cluster's.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_sdk_ec2::types::Filter;
use futures::future::try_join3;
use providers::{CloudError, LoadBalancerId};
use tokio::time::Instant;

use crate::client::Class;
use crate::loadbalancer::names;
use crate::loadbalancer::observed::convert;
use crate::loadbalancer::observed::stack::{
    ObservedBalancer, ObservedSecurityGroup, ObservedStack, ObservedTargetGroup,
};
use crate::loadbalancer::ownership::{self, Evidence, Owner, Purpose};
use crate::loadbalancer::types::Tags;
use crate::session::Session;
use crate::tags::ClusterTags;

/// Number of resources on a page of ELB.
const PAGE: i32 = 400;
/// Maximum number of ARNs in one call of DescribeTags.
const TAGGED: usize = 20;
/// Maximum age of the tags of this cluster's resources: another client may have changed them.
const OWN_TAGS: Duration = Duration::from_secs(20 * 60);
/// Maximum age of the tags of other resources.
const FOREIGN_TAGS: Duration = Duration::from_secs(60 * 60);

/// A security group of the network that has the cluster's tag, or a tag of this provider or of the Load Balancer
/// Controller.
#[derive(Debug, Clone)]
pub(crate) struct ListedGroup {
    pub id: String,
    pub name: String,
    pub tags: Tags,
}

impl ListedGroup {
    /// Converts the group to a Service's own group, whose rules are not known yet.
    pub(in crate::loadbalancer) fn observed(&self) -> ObservedSecurityGroup {
        let Self { id, name, tags } = self.clone();
        ObservedSecurityGroup { id, name, tags, rules: Vec::new() }
    }
}

/// Time until incomplete tags are read again: further tags may be visible by then.
const INCOMPLETE_TAGS: Duration = Duration::from_secs(5);
/// Time from the first listing of a resource until its tags are complete.
const TAG_DELAY: Duration = Duration::from_secs(60);

/// Cached tags of a resource.
#[derive(Debug, Clone)]
struct CachedTags {
    /// The time of the first read.
    first: Instant,
    /// The time of the last read.
    read: Instant,
    tags: Tags,
}

impl CachedTags {
    /// Returns true if the tags need not be read again.
    fn is_current(&self, cluster: &ClusterTags, now: Instant) -> bool {
        let own = self.tags.contains_key(names::SERVICE) || self.tags.contains_key(names::STACK);
        let age = if ownership::is_incomplete(&self.tags, cluster) && now < self.first + TAG_DELAY {
            INCOMPLETE_TAGS
        } else if own {
            OWN_TAGS
        } else {
            FOREIGN_TAGS
        };
        now < self.read + age
    }
}

/// The Network Load Balancers, the target groups and the tagged security groups of the network, read at one time.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(in crate::loadbalancer) begun: Instant,
    pub balancers: Vec<ObservedBalancer>,
    /// The target groups, each with the ARNs of the load balancers that use it.
    pub target_groups: Vec<(ObservedTargetGroup, Vec<String>)>,
    pub security_groups: Vec<ListedGroup>,
}

/// The last listing, and tags by ARN.
#[derive(Debug, Default)]
pub(crate) struct Inventory {
    last: tokio::sync::Mutex<Option<Arc<Listing>>>,
    tags: Mutex<HashMap<String, CachedTags>>,
}

impl Inventory {
    /// Returns a listing that began no earlier than `since`: the last one, or a new one that concurrent readers share.
    pub(crate) async fn listing_since(&self, session: &Session, since: Instant) -> Result<Arc<Listing>, CloudError> {
        let mut last = self.last.lock().await;
        if let Some(listing) = last.as_ref().filter(|listing| listing.begun >= since) {
            return Ok(listing.clone());
        }
        let begun = Instant::now();
        let (mut balancers, mut target_groups, security_groups) =
            try_join3(balancers(session), target_groups(session), security_groups(session)).await?;
        let arns = balancers.iter().map(|one| one.arn.clone());
        let arns: Vec<String> = arns.chain(target_groups.iter().map(|(group, _)| group.arn.clone())).collect();
        let mut tags = self.tags_of(session, &arns).await?;
        for balancer in &mut balancers {
            balancer.tags = tags.remove(&balancer.arn).unwrap_or_default();
        }
        for (group, _) in &mut target_groups {
            group.tags = tags.remove(&group.arn).unwrap_or_default();
        }
        let listing = Arc::new(Listing { begun, balancers, target_groups, security_groups });
        *last = Some(listing.clone());
        Ok(listing)
    }

    /// Marks the last listing as out of date: the next reader lists again.
    pub(crate) async fn expire(&self) {
        *self.last.lock().await = None;
    }

    /// Returns the tags of load balancers, target groups and listeners, from the cache if it is recent.
    pub(crate) async fn tags_of(
        &self,
        session: &Session,
        arns: &[String],
    ) -> Result<BTreeMap<String, Tags>, CloudError> {
        let now = Instant::now();
        let mut known: BTreeMap<String, Tags> = BTreeMap::new();
        let mut unknown = Vec::new();
        {
            let mut memory = self.lock();
            memory.retain(|_, one| now < one.read + FOREIGN_TAGS);
            for arn in arns {
                match memory.get(arn).filter(|one| one.is_current(&session.cluster, now)) {
                    Some(one) => drop(known.insert(arn.clone(), one.tags.clone())),
                    None => unknown.push(arn.clone()),
                }
            }
        }
        for arns in unknown.chunks(TAGGED) {
            let request = session.api.elb.describe_tags().set_resource_arns(Some(arns.to_vec()));
            let response = match session.api.read(Class::ElbRead, "DescribeTags", || request.clone().send()).await {
                // One of the resources was deleted since it was listed.
                Err(error) if error.is_not_found() => self.tags_one_by_one(session, arns).await?,
                response => pairs(response?.tag_descriptions()),
            };
            let mut memory = self.lock();
            for (arn, tags) in response {
                let first = memory.get(&arn).map_or(now, |one| one.first);
                memory.insert(arn.clone(), CachedTags { first, read: now, tags: tags.clone() });
                known.insert(arn, tags);
            }
        }
        Ok(known)
    }

    async fn tags_one_by_one(&self, session: &Session, arns: &[String]) -> Result<BTreeMap<String, Tags>, CloudError> {
        let mut found = BTreeMap::new();
        for arn in arns {
            let request = session.api.elb.describe_tags().resource_arns(arn);
            match session.api.read(Class::ElbRead, "DescribeTags", || request.clone().send()).await {
                Err(error) if error.is_not_found() => {}
                response => found.extend(pairs(response?.tag_descriptions())),
            }
        }
        Ok(found)
    }

    /// Caches the tags that a call has just set.
    pub(crate) fn tagged(&self, arn: &str, tags: &Tags) {
        let now = Instant::now();
        self.lock().insert(arn.to_owned(), CachedTags { first: now, read: now, tags: tags.clone() });
    }

    /// Drops the cached tags of all these resources if tags of any are older than `age` or not cached. Returns true if
    /// tags were dropped.
    pub(crate) fn forget_older(&self, arns: &[String], age: Duration) -> bool {
        let now = Instant::now();
        let mut memory = self.lock();
        let old = arns.iter().any(|arn| memory.get(arn).is_none_or(|one| now >= one.read + age));
        if old {
            arns.iter().for_each(|arn| drop(memory.remove(arn)));
        }
        old
    }

    /// Drops the cached tags of a resource: they are read again.
    pub(crate) fn forget(&self, arn: &str) {
        self.lock().remove(arn);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, CachedTags>> {
        self.tags.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn pairs(from: &[aws_sdk_elasticloadbalancingv2::types::TagDescription]) -> BTreeMap<String, Tags> {
    let tags = |one: &aws_sdk_elasticloadbalancingv2::types::TagDescription| {
        let pair = |tag: &aws_sdk_elasticloadbalancingv2::types::Tag| {
            (tag.key().unwrap_or_default().to_owned(), tag.value().unwrap_or_default().to_owned())
        };
        one.tags().iter().map(pair).collect()
    };
    from.iter().map(|one| (one.resource_arn().unwrap_or_default().to_owned(), tags(one))).collect()
}

async fn balancers(session: &Session) -> Result<Vec<ObservedBalancer>, CloudError> {
    let mut all = Vec::new();
    let mut marker = None;
    loop {
        let request = session.api.elb.describe_load_balancers().page_size(PAGE).set_marker(marker);
        let response = session.api.read(Class::ElbRead, "DescribeLoadBalancers", || request.clone().send()).await?;
        let own = response.load_balancers().iter().filter(|one| one.vpc_id() == Some(&session.vpc));
        all.extend(own.filter_map(convert::balancer));
        marker = response.next_marker().filter(|marker| !marker.is_empty()).map(str::to_owned);
        if marker.is_none() {
            return Ok(all);
        }
    }
}

async fn target_groups(session: &Session) -> Result<Vec<(ObservedTargetGroup, Vec<String>)>, CloudError> {
    let mut all = Vec::new();
    let mut marker = None;
    loop {
        let request = session.api.elb.describe_target_groups().page_size(PAGE).set_marker(marker);
        let response = session.api.read(Class::ElbRead, "DescribeTargetGroups", || request.clone().send()).await?;
        let own = response.target_groups().iter().filter(|one| one.vpc_id() == Some(&session.vpc));
        all.extend(own.filter_map(|one| Some((convert::target_group(one)?, one.load_balancer_arns().to_vec()))));
        marker = response.next_marker().filter(|marker| !marker.is_empty()).map(str::to_owned);
        if marker.is_none() {
            return Ok(all);
        }
    }
}

async fn security_groups(session: &Session) -> Result<Vec<ListedGroup>, CloudError> {
    let filter = |name: &str, values: Vec<String>| Filter::builder().name(name).set_values(Some(values)).build();
    let mut keys = vec![names::CONTROLLER_CLUSTER.to_owned(), names::UID.to_owned(), names::BACKEND.to_owned()];
    if !session.cluster.id.is_empty() {
        keys.push(session.cluster.key());
    }
    let filters = vec![filter("vpc-id", vec![session.vpc.clone()]), filter("tag-key", keys)];
    let mut all = Vec::new();
    let mut token = None;
    loop {
        let request = session.api.ec2.describe_security_groups().set_filters(Some(filters.clone()));
        let request = request.max_results(1000).set_next_token(token);
        let response = session.api.read(Class::Ec2Read, "DescribeSecurityGroups", || request.clone().send()).await?;
        all.extend(response.security_groups().iter().map(|group| ListedGroup {
            id: group.group_id().unwrap_or_default().to_owned(),
            name: group.group_name().unwrap_or_default().to_owned(),
            tags: crate::tags::by_key(group.tags()),
        }));
        token = response.next_token().filter(|token| !token.is_empty()).map(str::to_owned);
        if token.is_none() {
            return Ok(all);
        }
    }
}

impl Listing {
    /// Returns the resources of a Service that may be used for this purpose, without the details that need further
    /// calls.
    pub(crate) fn of(&self, cluster: &ClusterTags, id: &LoadBalancerId, purpose: Purpose) -> ObservedStack {
        let evidence = |tags: &Tags| ownership::evidence(tags, cluster, id);
        let tags = self.balancers.iter().map(|one| &one.tags);
        let tags = tags.chain(self.target_groups.iter().map(|(group, _)| &group.tags));
        let mut tags = tags.chain(self.security_groups.iter().map(|group| &group.tags));
        let claimed = tags.any(|tags| ownership::claims_stack(tags, evidence(tags)));
        let own = |tags: &Tags| evidence(tags).filter(|evidence| purpose.is_met_by(*evidence, claimed));
        let balancers: Vec<_> = self
            .balancers
            .iter()
            // Tags of cloud-provider-aws do not distinguish a Service from an earlier one with the same name; the load
            // balancer's name does.
            .filter(|one| match own(&one.tags) {
                Some(Evidence::CloudProvider) => one.name == id.default_name(),
                evidence => evidence.is_some(),
            })
            .cloned()
            .collect();
        // A target group may reference deleted load balancers; without a uid it belongs to the Service whose load
        // balancer uses it.
        let of_others = |users: &[String]| {
            let listed = |user: &String| self.balancers.iter().any(|one| one.arn == *user);
            let mine = |user: &String| balancers.iter().any(|one| one.arn == *user);
            users.iter().any(|user| listed(user) && !mine(user))
        };
        let groups = self.target_groups.iter().filter(|(group, users)| match own(&group.tags) {
            Some(Evidence::Uid) => true,
            Some(_) => !of_others(users),
            None => false,
        });
        // cloud-provider-aws puts no tag of a Service on security groups. Without the uid, such a tag is another
        // client's.
        let security = self
            .security_groups
            .iter()
            .filter(|group| own(&group.tags).is_some_and(|evidence| evidence != Evidence::CloudProvider));
        let security = security.chain(self.groups_of_cloud_provider(cluster, id, &balancers));
        let target_groups: Vec<_> = groups.map(|(group, _)| group.clone()).collect();
        ObservedStack {
            elsewhere: self.elsewhere(&target_groups, &balancers),
            security_groups: security.map(ListedGroup::observed).collect(),
            abandoned_listeners: Vec::new(),
            target_groups,
            balancers,
        }
    }

    /// Returns the security groups that cloud-provider-aws, with the setting `NLBSecurityGroupMode = Managed`, made for
    /// a Service with these load balancers.
    ///
    /// They have the cluster's tag and no tag of a Service. A group is the Service's if it has the name that is made from
    /// the Service's uid, and one of the load balancers has the group: the name alone is no proof.
    pub(crate) fn groups_of_cloud_provider<'a>(
        &'a self,
        cluster: &'a ClusterTags,
        id: &'a LoadBalancerId,
        balancers: &'a [ObservedBalancer],
    ) -> impl Iterator<Item = &'a ListedGroup> {
        self.security_groups.iter().filter(move |group| {
            ownership::is_without_owner(&group.tags, cluster)
                && names::may_be_security_group(id, &group.name)
                && balancers.iter().any(|one| one.security_groups.contains(&group.id))
        })
    }

    /// Returns true if cloud-provider-aws made a security group for a Classic Load Balancer, or for a Network Load
    /// Balancer of any Service.
    fn is_made_by_cloud_provider(&self, group: &ListedGroup, cluster: &ClusterTags) -> bool {
        let is_named_after = |owner: Owner| names::is_hashed(&owner.namespace, &owner.name, &group.name);
        let is_for = |balancer: &ObservedBalancer| {
            balancer.security_groups.contains(&group.id)
                && Owner::of(&balancer.tags, cluster, "").is_some_and(is_named_after)
        };
        ownership::is_without_owner(&group.tags, cluster)
            && (names::is_classic_group(&group.name) || self.balancers.iter().any(is_for))
    }

    /// Returns the ARNs of listed load balancers that use some of these target groups and are not among `balancers`.
    pub(crate) fn elsewhere(&self, groups: &[ObservedTargetGroup], balancers: &[ObservedBalancer]) -> BTreeSet<String> {
        let own = |arn: &String| balancers.iter().any(|one| one.arn == *arn);
        let listed = |arn: &String| self.balancers.iter().any(|one| one.arn == *arn);
        let used = self.target_groups.iter().filter(|(group, _)| groups.iter().any(|one| one.arn == group.arn));
        let users = used.flat_map(|(_, users)| users);
        users.filter(|arn| listed(arn) && !own(arn)).cloned().collect()
    }

    /// Returns the resources whose tags may not be visible yet, and whose names fit a Service, the load balancers of
    /// its `groups`, or the security group that all load balancers share.
    pub(crate) fn incomplete(&self, session: &Session, id: &LoadBalancerId, groups: &BTreeSet<String>) -> Vec<String> {
        let shared = names::backend_group(&backend_cluster(session, &id.cluster));
        let fits = |name: &str| names::may_be_generated(id, name) || name == shared || groups.contains(name);
        let may = |name: &str, tags: &Tags| fits(name) && ownership::is_incomplete(tags, &session.cluster);
        let balancers = self.balancers.iter().filter(|one| may(&one.name, &one.tags)).map(|one| &one.arn);
        let groups = self.target_groups.iter().map(|(group, _)| group).filter(|one| may(&one.name, &one.tags));
        let security = self.security_groups.iter().filter(|one| may(&one.name, &one.tags)).map(|one| &one.id);
        balancers.chain(groups.map(|one| &one.arn)).chain(security).cloned().collect()
    }

    /// Returns the load balancer with this name, of any owner.
    pub(crate) fn balancer(&self, name: &str) -> Option<&ObservedBalancer> {
        self.balancers.iter().find(|balancer| balancer.name == name)
    }

    /// Returns true if this ARN or id is listed, for any owner.
    pub(crate) fn has(&self, id: &str) -> bool {
        self.balancers.iter().any(|one| one.arn == id)
            || self.target_groups.iter().any(|(group, _)| group.arn == id)
            || self.security_groups.iter().any(|group| group.id == id)
    }

    /// Returns the security group that all of the cluster's load balancers share.
    pub(crate) fn backend(&self, session: &Session, cluster_name: &str) -> Option<&ListedGroup> {
        let name = backend_cluster(session, cluster_name);
        self.security_groups.iter().find(|group| ownership::is_backend(&group.tags, &session.cluster, &name))
    }

    /// Returns the cluster's load balancers without security groups, each as its Service and the name by which the
    /// descriptions of rules identify it.
    pub(crate) fn without_security_groups(
        &self,
        session: &Session,
        cluster_name: &str,
    ) -> Vec<(LoadBalancerId, String)> {
        let found = self.balancers.iter().filter(|one| one.security_groups.is_empty());
        let owned = found.filter_map(|one| {
            let owner = Owner::of(&one.tags, &session.cluster, cluster_name)?;
            let Owner { namespace, name, uid, .. } = owner;
            let uid_is_known = uid.is_some();
            let id = LoadBalancerId { cluster: cluster_name.into(), namespace, name, uid: uid.unwrap_or_default() };
            let name = if uid_is_known { names::rule_name(&session.cluster, &id, &one.name) } else { one.name.clone() };
            Some((id, name))
        });
        owned.collect()
    }

    /// Returns true if any load balancer uses a security group.
    pub(crate) fn is_security_group_used(&self, group: &str) -> bool {
        self.balancers.iter().any(|balancer| balancer.security_groups.iter().any(|one| one == group))
    }

    /// Returns true if Services of the cluster share load balancers.
    pub(crate) fn has_groups(&self, cluster: &ClusterTags) -> bool {
        let tags = self.balancers.iter().map(|one| &one.tags).chain(self.security_groups.iter().map(|one| &one.tags));
        tags.into_iter().any(|tags| ownership::group(tags, cluster).is_some())
    }

    /// Returns the security groups of instances: they have the cluster's tag, and are not made for a load balancer.
    pub(crate) fn tagged_groups(&self, session: &Session) -> Vec<&ListedGroup> {
        let key = session.cluster.key();
        let balancers = |tags: &Tags| {
            [names::SERVICE, names::STACK, names::CONTROLLER_RESOURCE, names::UID, names::BACKEND, names::GROUP]
                .iter()
                .any(|key| tags.contains_key(*key))
        };
        let of_instances = |group: &&ListedGroup| {
            group.tags.contains_key(&key)
                && !balancers(&group.tags)
                && !self.is_made_by_cloud_provider(group, &session.cluster)
        };
        self.security_groups.iter().filter(of_instances).collect()
    }

    /// Returns the security group that cloud-provider-aws created for a Classic Load Balancer of this Service.
    pub(crate) fn classic_group(&self, session: &Session, id: &LoadBalancerId) -> Option<&ListedGroup> {
        let name = names::classic_group(id);
        let own = |group: &&ListedGroup| group.name == name && ownership::is_own_group(&group.tags, &session.cluster);
        self.security_groups.iter().find(own)
    }
}

/// Returns the cluster's name in the shared group's name and tags: its id if there is one, because many clusters may
/// use the default of `--cluster-name`.
pub(crate) fn backend_cluster(session: &Session, cluster_name: &str) -> String {
    if session.cluster.id.is_empty() { cluster_name.to_owned() } else { session.cluster.id.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadbalancer::names::Flavour;
    use crate::loadbalancer::samples::{self, listed_balancer, tags};

    const OWN: (&str, &str) = ("kubernetes.io/cluster/c", "owned");
    const SERVICE: (&str, &str) = ("kubernetes.io/service-name", "default/web");
    const UID: (&str, &str) = ("kubernetes.io/service-uid", "01234567-89ab-cdef-0123-456789abcdef");
    const STACK: [(&str, &str); 2] =
        [("service.k8s.aws/stack", "default/web"), ("elbv2.k8s.aws/cluster", "kubernetes")];

    /// Returns a listing of a load balancer and a security group with these tags. The security group has the name that
    /// cloud-provider-aws and the AWS Load Balancer Controller give it.
    fn listing(balancer: &[(&str, &str)], group: &[(&str, &str)], name: &str) -> Listing {
        let group = ListedGroup { id: "sg-1".into(), name: names::security_group(&samples::id()), tags: tags(group) };
        Listing {
            begun: Instant::now(),
            balancers: vec![listed_balancer(name, balancer)],
            target_groups: Vec::new(),
            security_groups: vec![group],
        }
    }

    #[test]
    fn resources_of_the_controller_are_not_listed_for_deletion() {
        let id = samples::id();
        let default = id.default_name();
        let ensure = Purpose::Ensure(Flavour::CloudProvider);
        let class = Purpose::Ensure(Flavour::Controller);
        let both: &[Purpose] = &[Purpose::Delete, ensure, class];
        for (what, balancer, group, name, allowed) in [
            ("stack of the controller", &STACK[..], &STACK[..], "k8s-1", &[class][..]),
            ("stack of the controller with the cluster's tag", &[STACK[0], STACK[1], OWN], &STACK, "k8s-1", &[class]),
            ("stack whose adoption began", &STACK, &[STACK[0], STACK[1], UID], "k8s-1", both),
            ("adopted stack", &[STACK[0], STACK[1], UID], &[STACK[0], STACK[1], UID], "k8s-1", both),
            ("our stack", &[OWN, SERVICE, UID], &[OWN, SERVICE, UID], "any", both),
        ] {
            let listing = listing(balancer, group, name);
            for purpose in [Purpose::Delete, ensure, class] {
                let observed = listing.of(&ClusterTags::new("c", false), &id, purpose);
                let found = (!observed.balancers.is_empty(), !observed.security_groups.is_empty());
                let expected = allowed.contains(&purpose);
                assert_eq!(found, (expected, expected), "{what} for {purpose:?}");
            }
        }
        // The Service was just moved to the controller.
        let mut moved = listing(&[OWN, SERVICE, UID], &STACK, "ours");
        moved.balancers.push(listed_balancer("of-the-controller", &STACK));
        let observed = moved.of(&ClusterTags::new("c", false), &id, Purpose::Delete);
        assert_eq!(observed.ids().collect::<Vec<_>>(), ["arn:loadbalancer/net/ours"]);
        for (name, expected) in [(default.as_str(), true), ("of-an-earlier-service", false)] {
            let listing = listing(&[OWN, SERVICE], &[], name);
            let observed = listing.of(&ClusterTags::new("c", false), &id, Purpose::Delete);
            assert_eq!(!observed.balancers.is_empty(), expected, "{name} of cloud-provider-aws");
            assert!(observed.security_groups.is_empty(), "a security group was found by its name alone");
        }
    }

    const MADE_BY_UPSTREAM: &[(&str, &str)] = &[OWN];

    /// Returns a listing like [`listing`], in which the load balancer has the security group.
    fn attached(balancer: &[(&str, &str)], group: &[(&str, &str)], name: &str) -> Listing {
        let mut listing = listing(balancer, group, name);
        listing.balancers[0].security_groups = vec!["sg-1".into()];
        listing
    }

    #[test]
    fn security_group_of_cloud_provider_is_found_by_its_name_and_its_load_balancer() {
        let id = samples::id();
        let default = id.default_name();
        let taken_over: &[(&str, &str)] = &[OWN, SERVICE];
        let other_cluster = ("kubernetes.io/cluster/d", "owned");
        let renamed = |mut listing: Listing| {
            listing.security_groups[0].name = "k8s-default-web-0123456789".into();
            listing
        };
        for (what, listing, expected) in [
            ("its own", attached(taken_over, MADE_BY_UPSTREAM, &default), true),
            ("of an adopted load balancer", attached(&[OWN, SERVICE, UID], MADE_BY_UPSTREAM, "any"), true),
            ("on no load balancer", listing(taken_over, MADE_BY_UPSTREAM, &default), false),
            ("of another name", renamed(attached(taken_over, MADE_BY_UPSTREAM, &default)), false),
            ("on a load balancer of an earlier Service", attached(taken_over, MADE_BY_UPSTREAM, "earlier"), false),
            ("on a load balancer of the user", attached(&[OWN], MADE_BY_UPSTREAM, &default), false),
            ("without a tag", attached(taken_over, &[], &default), false),
            ("with the shared tag", attached(taken_over, &[("kubernetes.io/cluster/c", "shared")], &default), false),
            ("of two clusters", attached(taken_over, &[OWN, other_cluster], &default), false),
            ("of a Service of the same name", attached(taken_over, &[OWN, SERVICE], &default), false),
            ("of the controller", attached(taken_over, &[OWN, STACK[1]], &default), false),
        ] {
            for purpose in [Purpose::Delete, Purpose::Ensure(Flavour::CloudProvider)] {
                let observed = listing.of(&ClusterTags::new("c", false), &id, purpose);
                assert_eq!(!observed.security_groups.is_empty(), expected, "{what} for {purpose:?}");
            }
        }
    }

    #[test]
    fn security_group_of_cloud_provider_stays_with_its_load_balancer_when_tags_are_read_again() {
        let (id, cluster) = (samples::id(), ClusterTags::new("c", false));
        let listing = attached(&[OWN, SERVICE], MADE_BY_UPSTREAM, &id.default_name());
        for (now, expected) in [(&[OWN, SERVICE][..], 2), (&[OWN, SERVICE, UID], 2), (&[OWN], 0)] {
            let mut observed = listing.of(&cluster, &id, Purpose::Delete);
            let read = [(observed.balancers[0].arn.clone(), tags(now))].into();
            observed.confirm(&read, |tags| ownership::evidence(tags, &cluster, &id));
            assert_eq!(observed.ids().count(), expected, "{now:?}");
        }
    }

    #[test]
    fn security_groups_of_load_balancers_are_not_those_of_nodes() {
        let cluster = ClusterTags::new("c", false);
        let named = |mut listing: Listing, name: &str| {
            listing.security_groups[0].name = name.to_owned();
            listing
        };
        let balancer: &[(&str, &str)] = &[OWN, SERVICE];
        for (what, listing, expected) in [
            ("of a Service", attached(balancer, MADE_BY_UPSTREAM, "any"), true),
            ("of nodes, on a load balancer", named(attached(balancer, MADE_BY_UPSTREAM, "any"), "nodes"), false),
            ("on a load balancer of the user", attached(&[OWN], MADE_BY_UPSTREAM, "any"), false),
            ("on no load balancer", listing(balancer, MADE_BY_UPSTREAM, "any"), false),
            (
                "of a Classic Load Balancer",
                named(listing(&[], MADE_BY_UPSTREAM, "any"), &names::classic_group(&samples::id())),
                true,
            ),
        ] {
            let made = listing.is_made_by_cloud_provider(&listing.security_groups[0], &cluster);
            assert_eq!(made, expected, "{what}");
        }
    }
}
