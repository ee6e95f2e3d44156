//! What AWS has for all Services together: a few paged reads that all who ask at the same time share.
//!
//! ELB can't be asked by tags, so balancers and target groups are listed whole, 400 to a page, and tags are asked for
//! once for each of them: ARNs are never used again, so what was not ours does not become ours by itself.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_sdk_ec2::types::Filter;
use futures::future::try_join3;
use providers::{CloudError, LoadBalancerId};
use tokio::time::Instant;

use crate::client::Class;
use crate::loadbalancer::names::{self, Owner};
use crate::loadbalancer::observed::convert;
use crate::loadbalancer::observed::stack::{Seen, SeenBalancer, SeenSecurityGroup, SeenTargetGroup};
use crate::loadbalancer::types::Tags;
use crate::session::Session;

/// Things on a page of ELB's.
const PAGE: i32 = 400;
/// ARNs that one call asks the tags of.
const TAGGED: usize = 20;
/// Tags of what is ours are read again after this time: somebody may have changed them.
const OWN_TAGS: Duration = Duration::from_secs(20 * 60);
/// And tags of what is not ours.
const FOREIGN_TAGS: Duration = Duration::from_secs(60 * 60);

/// A security group of the network that carries the cluster's tag, or that of the Load Balancer Controller.
#[derive(Debug, Clone)]
pub(crate) struct ListedGroup {
    pub id: String,
    pub name: String,
    pub tags: Tags,
}

impl ListedGroup {
    /// As a Service's own; its rules are not known yet.
    pub(in crate::loadbalancer) fn seen(&self) -> SeenSecurityGroup {
        let Self { id, name, tags } = self.clone();
        SeenSecurityGroup { id, name, tags, rules: Vec::new() }
    }
}

/// One look at everything.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(in crate::loadbalancer) begun: Instant,
    pub balancers: Vec<SeenBalancer>,
    /// With the ARNs of the balancers that use them.
    pub target_groups: Vec<(SeenTargetGroup, Vec<String>)>,
    pub security_groups: Vec<ListedGroup>,
}

/// The last look, and tags by ARN.
#[derive(Debug, Default)]
pub(crate) struct Inventory {
    last: tokio::sync::Mutex<Option<Arc<Listing>>>,
    tags: Mutex<HashMap<String, (Instant, Tags)>>,
}

impl Inventory {
    /// A look that began no earlier than `since`: the last one, or a new one that all who wait for it share.
    pub(crate) async fn look(&self, session: &Session, since: Instant) -> Result<Arc<Listing>, CloudError> {
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

    /// What was listed is not so any more: whoever asks next looks anew.
    pub(crate) async fn expire(&self) {
        *self.last.lock().await = None;
    }

    /// Tags of balancers, target groups and listeners, from memory where they were read not long ago.
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
            memory.retain(|_, (at, _)| now < *at + FOREIGN_TAGS);
            for arn in arns {
                let own = |tags: &Tags| tags.contains_key(names::SERVICE) || tags.contains_key(names::STACK);
                match memory.get(arn) {
                    Some((at, tags)) if !own(tags) || now < *at + OWN_TAGS => {
                        known.insert(arn.clone(), tags.clone());
                    }
                    _ => unknown.push(arn.clone()),
                }
            }
        }
        for arns in unknown.chunks(TAGGED) {
            let request = session.api.elb.describe_tags().set_resource_arns(Some(arns.to_vec()));
            let answer = match session.api.read(Class::ElbRead, "DescribeTags", || request.clone().send()).await {
                // One of them is gone since it was listed.
                Err(error) if error.is_not_found() => self.tags_one_by_one(session, arns).await?,
                answer => pairs(answer?.tag_descriptions()),
            };
            let mut memory = self.lock();
            for (arn, tags) in answer {
                memory.insert(arn.clone(), (now, tags.clone()));
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
                answer => found.extend(pairs(answer?.tag_descriptions())),
            }
        }
        Ok(found)
    }

    /// What is made with tags, or given some, has them from then on.
    pub(crate) fn tagged(&self, arn: &str, tags: &Tags) {
        self.lock().insert(arn.to_owned(), (Instant::now(), tags.clone()));
    }

    /// Tags are asked for again.
    pub(crate) fn forget(&self, arn: &str) {
        self.lock().remove(arn);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, (Instant, Tags)>> {
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

async fn balancers(session: &Session) -> Result<Vec<SeenBalancer>, CloudError> {
    let (mut all, mut marker) = (Vec::new(), None);
    loop {
        let request = session.api.elb.describe_load_balancers().page_size(PAGE).set_marker(marker);
        let answer = session.api.read(Class::ElbRead, "DescribeLoadBalancers", || request.clone().send()).await?;
        let own = answer.load_balancers().iter().filter(|one| one.vpc_id() == Some(&session.vpc));
        all.extend(own.filter_map(convert::balancer));
        marker = answer.next_marker().filter(|marker| !marker.is_empty()).map(str::to_owned);
        if marker.is_none() {
            return Ok(all);
        }
    }
}

async fn target_groups(session: &Session) -> Result<Vec<(SeenTargetGroup, Vec<String>)>, CloudError> {
    let (mut all, mut marker) = (Vec::new(), None);
    loop {
        let request = session.api.elb.describe_target_groups().page_size(PAGE).set_marker(marker);
        let answer = session.api.read(Class::ElbRead, "DescribeTargetGroups", || request.clone().send()).await?;
        let own = answer.target_groups().iter().filter(|one| one.vpc_id() == Some(&session.vpc));
        all.extend(own.filter_map(|one| Some((convert::target_group(one)?, one.load_balancer_arns().to_vec()))));
        marker = answer.next_marker().filter(|marker| !marker.is_empty()).map(str::to_owned);
        if marker.is_none() {
            return Ok(all);
        }
    }
}

async fn security_groups(session: &Session) -> Result<Vec<ListedGroup>, CloudError> {
    let filter = |name: &str, values: Vec<String>| Filter::builder().name(name).set_values(Some(values)).build();
    let mut keys = vec![names::CONTROLLER_CLUSTER.to_owned(), names::UID.to_owned()];
    if !session.cluster.id.is_empty() {
        keys.push(session.cluster.key());
    }
    let filters = vec![filter("vpc-id", vec![session.vpc.clone()]), filter("tag-key", keys)];
    let (mut all, mut token) = (Vec::new(), None);
    loop {
        let request = session.api.ec2.describe_security_groups().set_filters(Some(filters.clone()));
        let request = request.max_results(1000).set_next_token(token);
        let answer = session.api.read(Class::Ec2Read, "DescribeSecurityGroups", || request.clone().send()).await?;
        all.extend(answer.security_groups().iter().map(|group| ListedGroup {
            id: group.group_id().unwrap_or_default().to_owned(),
            name: group.group_name().unwrap_or_default().to_owned(),
            tags: crate::tags::pairs(group.tags()).map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        }));
        token = answer.next_token().filter(|token| !token.is_empty()).map(str::to_owned);
        if token.is_none() {
            return Ok(all);
        }
    }
}

impl Listing {
    /// What is a Service's own, without what only further calls tell.
    pub(crate) fn of(&self, session: &Session, id: &LoadBalancerId) -> Seen {
        let owner = |tags: &Tags| Owner::of(tags, &session.cluster, &id.cluster).filter(|owner| owner.may_be(id));
        let named = |name: &str, tags: &Tags| tags.contains_key(names::STACK) || name == id.default_name();
        let own = |name: &str, tags: &Tags| owner(tags).is_some_and(|one| one.uid.is_some() || named(name, tags));
        let balancers: Vec<_> = self.balancers.iter().filter(|one| own(&one.name, &one.tags)).cloned().collect();
        // A group may name balancers that are gone; without a uid it belongs to whoever uses it.
        let of_others = |users: &[String]| {
            let listed = |user: &String| self.balancers.iter().any(|one| one.arn == *user);
            let mine = |user: &String| balancers.iter().any(|one| one.arn == *user);
            users.iter().any(|user| listed(user) && !mine(user))
        };
        let groups = self
            .target_groups
            .iter()
            .filter(|(group, users)| owner(&group.tags).is_some_and(|owner| owner.uid.is_some() || !of_others(users)));
        let name = names::security_group(id);
        let security = self
            .security_groups
            .iter()
            .filter(|group| group.name == name || owner(&group.tags).is_some_and(|owner| owner.uid.is_some()));
        Seen {
            target_groups: groups.map(|(group, _)| group.clone()).collect(),
            security_groups: security.map(ListedGroup::seen).collect(),
            balancers,
        }
    }

    /// The group that all of the cluster's balancers carry.
    pub(crate) fn backend(&self, session: &Session, cluster_name: &str) -> Option<&ListedGroup> {
        let name = backend_cluster(session, cluster_name);
        let tag = |group: &ListedGroup, key: &str, value: &str| group.tags.get(key).is_some_and(|tag| tag == value);
        self.security_groups.iter().find(|group| {
            tag(group, names::CONTROLLER_RESOURCE, names::BACKEND)
                && (tag(group, names::CONTROLLER_CLUSTER, &name) || tag(group, names::CONTROLLER_CLUSTER, cluster_name))
        })
    }

    /// Whether any balancer but those of one Service carries a group.
    pub(crate) fn is_carried(&self, group: &str) -> bool {
        self.balancers.iter().any(|balancer| balancer.security_groups.iter().any(|one| one == group))
    }

    /// The security groups of machines: those with the cluster's tag that are not balancers'.
    pub(crate) fn tagged_groups(&self, session: &Session) -> Vec<&ListedGroup> {
        let key = session.cluster.key();
        let balancers = |tags: &Tags| {
            [names::SERVICE, names::STACK, names::CONTROLLER_RESOURCE, names::UID]
                .iter()
                .any(|key| tags.contains_key(*key))
        };
        self.security_groups.iter().filter(|group| group.tags.contains_key(&key) && !balancers(&group.tags)).collect()
    }

    /// Whether cloud-provider-aws made a security group for a Classic Load Balancer of this Service.
    pub(crate) fn has_classic(&self, id: &LoadBalancerId) -> bool {
        let name = names::classic_group(id);
        self.security_groups.iter().any(|group| group.name == name)
    }
}

/// The cluster's name in the shared group's name and tags: its id, as many clusters may have the name that
/// `--cluster-name` has when it is not set.
pub(crate) fn backend_cluster(session: &Session, cluster_name: &str) -> String {
    match session.cluster.id.is_empty() {
        true => cluster_name.to_owned(),
        false => session.cluster.id.clone(),
    }
}
