//! The security group that all load balancers share, and this provider's rules in the nodes' groups. One task at a time
//! reads and changes them, and recent reads are reused.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_ec2::types::Filter;
use providers::{CloudError, ErrorKind, IpNet, LoadBalancerId};
use tokio::time::Instant;

use crate::client::Class;
use crate::loadbalancer::apply::calls::{authorize, revoke};
use crate::loadbalancer::model::node_rules::{self, Change};
use crate::loadbalancer::model::range_rules::{self, Changes, Sharer};
use crate::loadbalancer::names;
use crate::loadbalancer::observed::balancer_state::BalancerState;
use crate::loadbalancer::observed::convert;
use crate::loadbalancer::observed::inventory::{Inventory, Listing, backend_cluster};
use crate::loadbalancer::observed::misses::Misses;
use crate::loadbalancer::observed::network;
use crate::loadbalancer::types::{ObservedRule, Ports, Rule, Source, Tags};
use crate::session::Session;

/// The name of the quota of rules in a security group.
pub(super) const RULES_QUOTA: &str = "\"Inbound or outbound rules per security group\"";

/// Maximum age of rules that were read.
const MAX_RULE_AGE: Duration = Duration::from_secs(30);
/// Time for which a created group may be missing from lists.
const LISTING_DELAY: Duration = Duration::from_secs(60);

/// The known state of the shared group.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// The group, and the time at which it was created or last listed.
    backend: Option<(String, Instant)>,
    /// Number of attempts to delete the group in which AWS did not find it.
    missing: Misses,
    /// Deleted groups, which a recent listing may still contain.
    deleted: BTreeSet<String>,
    /// Services whose load balancers have the group, or will have it soon.
    users: BTreeSet<LoadBalancerId>,
    /// Rules for load balancers without security groups: the sources of these rules are IP ranges.
    range_rules: BTreeMap<LoadBalancerId, BTreeSet<Rule>>,
    /// Rules of nodes' groups, with the time of the read.
    rules: HashMap<String, (Instant, Vec<ObservedRule>)>,
    /// The groups with rules for load balancers without security groups, the names of these load balancers, and the
    /// time of the read.
    named: Option<(Instant, BTreeMap<String, BTreeSet<String>>)>,
    /// The names of deleted Classic Load Balancers, which AWS may still list.
    pub deleted_classics: BTreeSet<String>,
    /// The time at which a Service last released shared resources: older listings may contain its load balancer.
    last_release: Option<Instant>,
}

/// The listing that a caller has read, and the source of a newer one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Listings<'a> {
    pub read: &'a Listing,
    pub inventory: &'a Inventory,
}

/// The result of the release of the group that all load balancers share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Release {
    /// There is no group, or other resources use it: nothing was changed.
    Unaffected,
    /// Interfaces of deleted load balancers still use the group, or a load balancer that is not visible yet may use it,
    /// or AWS did not delete the group: another client uses it, or it is not visible yet.
    InUse,
    /// The group is deleted, or it is kept because a user references it in rules that this process may not revoke.
    Done,
}

impl Shared {
    /// Returns the group for a Service's load balancer; creates it if it does not exist.
    pub(crate) async fn backend(
        &mut self,
        session: &Session,
        inventory: &Inventory,
        listing: &Listing,
        id: &LoadBalancerId,
    ) -> Result<String, CloudError> {
        self.users.insert(id.clone());
        let now = Instant::now();
        let listed = listing.backend(session, &id.cluster).filter(|group| !self.deleted.contains(&group.id));
        if let Some(listed) = listed {
            self.backend = Some((listed.id.clone(), now));
            return Ok(listed.id.clone());
        }
        if let Some((group, _)) = self.backend.as_ref().filter(|(_, at)| now < *at + LISTING_DELAY) {
            return Ok(group.clone());
        }
        let name = backend_cluster(session, &id.cluster);
        let tags = names::backend_tags(&session.cluster, &name);
        let made = create_group(session, &names::backend_group(&name), &tags).await;
        // The group may exist even after an error: the next deletion has to list again.
        inventory.expire().await;
        let group = made?;
        self.backend = Some((group.clone(), now));
        Ok(group)
    }

    /// Returns the rules of groups, which may be as old as [`MAX_RULE_AGE`].
    async fn rules(
        &mut self,
        session: &Session,
        groups: &BTreeSet<String>,
    ) -> Result<BTreeMap<String, Vec<ObservedRule>>, CloudError> {
        let now = Instant::now();
        self.rules.retain(|_, (at, _)| now < *at + MAX_RULE_AGE);
        let unknown: Vec<String> = groups.iter().filter(|group| !self.rules.contains_key(*group)).cloned().collect();
        if !unknown.is_empty() {
            let mut read = network::rules(session, &unknown).await?;
            for group in unknown {
                let rules = read.remove(&group).unwrap_or_default();
                self.rules.insert(group, (now, rules));
            }
        }
        let known = |group: &String| (group.clone(), self.rules.get(group).map(|(_, rules)| rules.clone()));
        Ok(groups.iter().map(known).map(|(group, rules)| (group, rules.unwrap_or_default())).collect())
    }

    /// Drops cached rules that were read before this time.
    pub(crate) fn forget_rules_before(&mut self, time: Instant) {
        self.rules.retain(|_, (at, _)| *at >= time);
        self.named = self.named.take().filter(|(at, _)| *at >= time);
    }

    /// Opens the security groups of targets to the security group `source` of load balancers.
    pub(crate) async fn open(
        &mut self,
        session: &Session,
        groups: &BTreeSet<String>,
        source: &str,
        ports: &Ports,
    ) -> Result<Opened, CloudError> {
        let mut opened = Opened::default();
        for (group, rules) in self.rules(session, groups).await? {
            let changes = node_rules::open(&rules, source, ports);
            if changes.is_empty() {
                continue;
            }
            self.rules.remove(&group);
            let applied = apply(session, &group, &changes).await;
            opened.add(session, group, applied)?;
        }
        Ok(opened)
    }

    /// Sets the rules for a load balancer without security groups in each of the nodes' groups.
    pub(crate) async fn set_range_rules(
        &mut self,
        session: &Session,
        listings: Listings<'_>,
        id: &LoadBalancerId,
        rules: RangeRules<'_>,
    ) -> Result<Opened, CloudError> {
        let RangeRules { names, all, nodes, wanted, remove_others } = rules;
        self.range_rules.insert(id.clone(), wanted.clone());
        let others = self.sharers(session, listings, id).await?;
        let none = BTreeSet::new();
        self.change_range_rules(session, &all.union(nodes).cloned().collect(), |group, rules| {
            let wanted = if nodes.contains(group) { wanted } else { &none };
            let changes = range_rules::changes(rules, names, wanted, &others);
            if remove_others { changes } else { changes.without_removals() }
        })
        .await
    }

    /// Adds missing rules for load balancers without security groups, which `names` identify, to the groups of targets.
    pub(crate) async fn add_range_rules(
        &mut self,
        session: &Session,
        groups: &BTreeSet<String>,
        (names, wanted): (&[String], &BTreeSet<Rule>),
    ) -> Result<Opened, CloudError> {
        let changes =
            |_: &str, rules: &[ObservedRule]| range_rules::changes(rules, names, wanted, &[]).without_removals();
        self.change_range_rules(session, groups, changes).await
    }

    /// Returns the IP ranges of the clients of load balancers without security groups, according to the rules in
    /// groups. See [`range_rules::known_clients`].
    pub(crate) async fn known_clients(
        &mut self,
        session: &Session,
        groups: &BTreeSet<String>,
        (names, requested, ports): (&[String], &[IpNet], &Ports),
    ) -> Result<BTreeSet<IpNet>, CloudError> {
        let rules: Vec<ObservedRule> = self.rules(session, groups).await?.into_values().flatten().collect();
        Ok(range_rules::known_clients(&rules, names, requested, ports))
    }

    /// Returns the groups with rules that name one of these load balancers. They include groups without the cluster's
    /// tag, which are opened if an instance has no other group. Recent reads are reused.
    pub(crate) async fn groups_with_rules(
        &mut self,
        session: &Session,
        names: &[String],
    ) -> Result<BTreeSet<String>, CloudError> {
        let now = Instant::now();
        let named = match self.named.take().filter(|(at, _)| now < *at + MAX_RULE_AGE) {
            Some(recent) => recent,
            None => (now, network::groups_that_name_balancers(session, range_rules::named_balancer).await?),
        };
        let (_, groups) = self.named.insert(named);
        let found = groups.iter().filter(|(_, balancers)| names.iter().any(|name| balancers.contains(name)));
        Ok(found.map(|(group, _)| group.clone()).collect())
    }

    /// Revokes the rules of a Service's load balancer, which `names` identify, except those that others need. Returns
    /// the refusals.
    pub(crate) async fn revoke_range_rules(
        &mut self,
        session: &Session,
        listings: Listings<'_>,
        (id, names): (&LoadBalancerId, &[String]),
        groups: &BTreeSet<String>,
    ) -> Result<Vec<String>, CloudError> {
        self.range_rules.remove(id);
        let others = self.sharers(session, listings, id).await?;
        let none = BTreeSet::new();
        let changes = |_: &str, rules: &[ObservedRule]| range_rules::changes(rules, names, &none, &others);
        let revoked = self.change_range_rules(session, groups, changes).await?;
        revoked.missing.map_or(Ok(revoked.refused), |(_, error)| Err(error))
    }

    /// Drops the known rules of a Service whose load balancer has security groups now.
    pub(crate) fn forget_range_rules(&mut self, id: &LoadBalancerId) {
        self.range_rules.remove(id);
    }

    /// Returns a newer listing if other Services have released shared resources since the given listing began, so that
    /// the given one may contain their load balancers.
    ///
    /// Without a newer listing, each of two simultaneous deletions would find the load balancer of the other Service
    /// and keep the shared resources.
    async fn newer(&self, session: &Session, listings: Listings<'_>) -> Result<Option<Arc<Listing>>, CloudError> {
        match self.last_release.filter(|released| listings.read.begun < *released) {
            Some(released) => listings.inventory.listing_since(session, released).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns true if load balancers use the shared group, according to this process and a current listing.
    async fn is_used(&self, session: &Session, listings: Listings<'_>, group: &str) -> Result<bool, CloudError> {
        if !self.users.is_empty() {
            return Ok(true);
        }
        if !listings.read.is_security_group_used(group) {
            return Ok(false);
        }
        Ok(self.newer(session, listings).await?.is_none_or(|newer| newer.is_security_group_used(group)))
    }

    /// Returns the cluster's other load balancers without security groups.
    async fn sharers(
        &self,
        session: &Session,
        listings: Listings<'_>,
        id: &LoadBalancerId,
    ) -> Result<Vec<Sharer>, CloudError> {
        let others = self.range_rules.iter().filter(|(other, _)| *other != id);
        let known = others.map(|(other, wanted)| {
            let named = wanted.iter().find_map(range_rules::balancer_of).map(str::to_owned);
            Sharer { name: named.unwrap_or_else(|| other.default_name()), wanted: Some(wanted.clone()) }
        });
        let mut listed = self.listed_sharers(session, listings.read, id);
        if !listed.is_empty()
            && let Some(newer) = self.newer(session, listings).await?
        {
            listed = self.listed_sharers(session, &newer, id);
        }
        Ok(known.chain(listed).collect())
    }

    /// Returns the listed load balancers without security groups that belong to other Services and that this process
    /// has not reconciled.
    fn listed_sharers(&self, session: &Session, listing: &Listing, id: &LoadBalancerId) -> Vec<Sharer> {
        // A load balancer of an upstream controller that was not taken over yet has no tag with its Service's uid.
        let same = |one: &LoadBalancerId, owner: &LoadBalancerId| {
            let uid = owner.uid.is_empty() || one.uid == owner.uid;
            uid && one.namespace == owner.namespace && one.name == owner.name
        };
        let is_known = |owner: &LoadBalancerId| same(id, owner) || self.range_rules.keys().any(|one| same(one, owner));
        let listed =
            listing.without_security_groups(session, &id.cluster).into_iter().filter(|(owner, _)| !is_known(owner));
        listed.map(|(_, name)| Sharer { name, wanted: None }).collect()
    }

    /// Applies changes to the rules of groups.
    async fn change_range_rules(
        &mut self,
        session: &Session,
        groups: &BTreeSet<String>,
        changes: impl Fn(&str, &[ObservedRule]) -> Changes,
    ) -> Result<Opened, CloudError> {
        let mut opened = Opened::default();
        for (group, rules) in self.rules(session, groups).await? {
            let changes = changes(&group, &rules);
            if changes.is_empty() {
                continue;
            }
            self.rules.remove(&group);
            self.named = None;
            let result = async {
                if !changes.add.is_empty() {
                    authorize(session, &group, &changes.add).await?;
                }
                if !changes.hand_over.is_empty() {
                    modify(session, &group, &changes.hand_over).await?;
                }
                if !changes.revoke.is_empty() {
                    revoke(session, &group, &changes.revoke).await?;
                }
                Ok(())
            };
            let applied = result.await;
            opened.add(session, group, applied)?;
        }
        Ok(opened)
    }

    /// Revokes all rules that name a group which is about to be deleted.
    pub(crate) async fn revoke_rules_of(&mut self, session: &Session, group: &str) -> Result<(), CloudError> {
        let source = Source::Group(group.to_owned());
        let named = |rules: &[ObservedRule]| {
            rules.iter().filter(|rule| rule.rule.source == source).map(|rule| rule.id.clone()).collect()
        };
        for other in network::groups_that_name(session, group).await? {
            self.revoke_selected(session, &other, named).await?;
        }
        Ok(())
    }

    /// Revokes the rules of a group whose ids `select` returns.
    pub(crate) async fn revoke_selected(
        &mut self,
        session: &Session,
        group: &str,
        select: impl Fn(&[ObservedRule]) -> Vec<String>,
    ) -> Result<(), CloudError> {
        let rules = network::rules(session, &[group.to_owned()]).await?.remove(group).unwrap_or_default();
        let ids = select(&rules);
        self.rules.remove(group);
        if ids.is_empty() { Ok(()) } else { revoke(session, group, &ids).await }
    }

    /// Releases the group after a Service's load balancer was deleted and its rules were revoked. With the last load
    /// balancer, the group and the rules that reference it are deleted. `guard`: the state of that Service, and the
    /// time from which reads contain everything that earlier processes have created.
    pub(crate) async fn release(
        &mut self,
        session: &Session,
        listings: Listings<'_>,
        id: &LoadBalancerId,
        guard: (&mut BalancerState, Instant),
    ) -> Result<Release, CloudError> {
        let released = self.release_group(session, listings, id, guard).await;
        self.last_release = Some(Instant::now());
        released
    }

    async fn release_group(
        &mut self,
        session: &Session,
        listings: Listings<'_>,
        id: &LoadBalancerId,
        (state, all_visible): (&mut BalancerState, Instant),
    ) -> Result<Release, CloudError> {
        self.users.remove(id);
        let now = Instant::now();
        let group = match listings.read.backend(session, &id.cluster) {
            Some(listed) => Some(listed.id.clone()),
            // A group that was created recently may not be listed yet.
            None => self.backend.as_ref().filter(|(_, at)| now < *at + LISTING_DELAY).map(|(group, _)| group.clone()),
        };
        let Some(group) = group else { return Ok(Release::Unaffected) };
        if self.is_used(session, listings, &group).await? {
            return Ok(Release::Unaffected);
        }
        // Without the group's rules, a load balancer of another Service would lose its targets.
        if state.may_have_invisible_sharer(now, all_visible) {
            return Ok(Release::InUse);
        }
        match use_of(session, &group).await? {
            Use::Unused => {}
            Use::DeletedBalancers => return Ok(Release::InUse),
            Use::Others => return Ok(Release::Unaffected),
        }
        match self.revoke_rules_of(session, &group).await {
            // A user references the shared group in rules of another group, so the shared group is kept for the next
            // load balancer.
            Err(error) if error.kind == ErrorKind::Denied => {
                tracing::warn!(%group, %error, "kept the load balancers' security group: it is in use");
                return Ok(Release::Done);
            }
            revoked => revoked?,
        }
        let is_recent = now < all_visible || self.backend.as_ref().is_some_and(|(_, at)| now < *at + LISTING_DELAY);
        let request = session.api.ec2.delete_security_group().group_id(&group);
        match session.api.change(Class::Ec2Change, "DeleteSecurityGroup", request.send()).await {
            Err(error) if error.is_not_found() && !(is_recent && self.missing.may_appear()) => {
                self.backend = None;
                self.missing = Misses::default();
                Ok(Release::Done)
            }
            // The group is in use, or not visible yet.
            Err(error) if error.is_not_found() || error.kind == ErrorKind::Conflict => Ok(Release::InUse),
            // After any other error a retry has to find the group, although it may not be listed yet.
            result => {
                result?;
                self.backend = None;
                self.missing = Misses::default();
                self.deleted.insert(group.clone());
                Ok(Release::Done)
            }
        }
    }
}

/// The rules of a load balancer without security groups.
pub(crate) struct RangeRules<'a> {
    /// The names by which the Service's rules are found.
    pub names: &'a [String],
    /// The nodes' groups of the cluster, which may have rules for the load balancer.
    pub all: &'a BTreeSet<String>,
    /// The groups of the load balancer's targets.
    pub nodes: &'a BTreeSet<String>,
    /// The rules for the groups in `nodes`; the other groups have none.
    pub wanted: &'a BTreeSet<Rule>,
    /// Removes rules that are not wanted; otherwise rules are only added.
    pub remove_others: bool,
}

/// Security groups that were opened, and those that could not be opened.
#[derive(Debug, Default)]
pub(crate) struct Opened {
    /// Groups that got rules.
    pub changed: Vec<String>,
    /// A message for each group that this process may not change, or that is full.
    pub refused: Vec<String>,
    /// The first group that does not exist, with the error.
    pub missing: Option<(String, CloudError)>,
}

impl Opened {
    /// Adds the result of the changes of one group's rules. Other groups are changed even if this one does not exist.
    ///
    /// # Errors
    /// All other errors, which a retry may fix.
    fn add(&mut self, session: &Session, group: String, applied: Result<(), CloudError>) -> Result<(), CloudError> {
        match applied {
            Ok(()) => self.changed.push(group),
            Err(error) if error.is_not_found() => {
                self.missing.get_or_insert((group, error));
            }
            Err(error) => self.refused.push(refusal(session, &group, error)?),
        }
        Ok(())
    }
}

/// Makes the calls for changes of one group's rules.
async fn apply(session: &Session, group: &str, changes: &[Change]) -> Result<(), CloudError> {
    let mut add = Vec::new();
    let mut widened = Vec::new();
    for change in changes {
        match change {
            Change::Add(rule) => add.push(rule.clone()),
            Change::Widen(id, rule) => widened.push(ObservedRule { id: id.clone(), rule: rule.clone() }),
        }
    }
    if !add.is_empty() {
        authorize(session, group, &add).await?;
    }
    if !widened.is_empty() {
        modify(session, group, &widened).await?;
    }
    Ok(())
}

/// Replaces rules with the same ids.
async fn modify(session: &Session, group: &str, rules: &[ObservedRule]) -> Result<(), CloudError> {
    let changed = rules.iter().map(|observed| convert::changed_rule(&observed.id, &observed.rule)).collect();
    let request = session.api.ec2.modify_security_group_rules().group_id(group).set_security_group_rules(Some(changed));
    session.api.change(Class::Ec2Change, "ModifySecurityGroupRules", request.send()).await.map(drop)
}

/// Returns the warning for a group that this process may not change, or that is full. Such a group must not fail the
/// whole load balancer of a Service.
///
/// # Errors
/// All other errors, which a retry may fix.
fn refusal(session: &Session, group: &str, error: CloudError) -> Result<String, CloudError> {
    match error.kind {
        ErrorKind::Denied => Ok(format!(
            "security group {group} is not opened to the load balancer, so targets behind it get no traffic: put the tag {} \
             on it if the IAM policy allows changes of the cluster's own groups only ({})",
            session.cluster.key(),
            error.message
        )),
        ErrorKind::Quota => Ok(format!(
            "security group {group} is not opened to the load balancer, so targets behind it get no traffic: the quota \
             {RULES_QUOTA} is reached ({})",
            error.message
        )),
        _ => Err(error),
    }
}

pub(super) async fn create_group(session: &Session, name: &str, tags: &Tags) -> Result<String, CloudError> {
    let request = session.api.ec2.create_security_group().vpc_id(&session.vpc).group_name(name);
    let request = request.description("Network Load Balancers of the Kubernetes cluster (ccm)");
    let request = request.tag_specifications(convert::ec2_tags(tags));
    let response = session.api.change(Class::Ec2Change, "CreateSecurityGroup", request.send()).await?;
    Ok(response.group_id().unwrap_or_default().to_owned())
}

/// The resources that use a security group, according to its network interfaces.
enum Use {
    Unused,
    /// Interfaces of Network Load Balancers that are no longer listed.
    DeletedBalancers,
    Others,
}

async fn use_of(session: &Session, group: &str) -> Result<Use, CloudError> {
    let filter = Filter::builder().name("group-id").values(group).build();
    let request = session.api.ec2.describe_network_interfaces().filters(filter);
    let response = session.api.read(Class::Ec2Read, "DescribeNetworkInterfaces", || request.clone().send()).await?;
    let interfaces = response.network_interfaces();
    let balancers = |one: &aws_sdk_ec2::types::NetworkInterface| {
        one.description().is_some_and(|description| description.starts_with("ELB net/"))
    };
    Ok(match interfaces {
        [] => Use::Unused,
        all if all.iter().all(balancers) => Use::DeletedBalancers,
        _ => Use::Others,
    })
}
