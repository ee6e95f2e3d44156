//! Pointing balancers that are there at other targets: without a look at them, if this process knows them.

use std::time::Duration;

use providers::{CloudError, ErrorKind};
use tokio::time::Instant;

use crate::loadbalancer::apply::backend_group::node_groups;
use crate::loadbalancer::apply::balancers::{Balancers, Work};
use crate::loadbalancer::apply::{calls, target_records};
use crate::loadbalancer::model::{build, node_rules, target_change};
use crate::loadbalancer::names;
use crate::loadbalancer::observed::balancer_state::{Course, KnownGroup, known_group, once};
use crate::loadbalancer::observed::stack::Seen;
use crate::loadbalancer::spec::settings::{GroupSettings, Other};

/// A look this old still tells which groups are machines'.
const LONG: Duration = Duration::from_secs(30 * 60);

/// What is asked of a group: of a listener's own by its port, of one for another Service by whose it is.
fn asked<'a>(work: &Work<'a>, group: &KnownGroup) -> Option<&'a GroupSettings> {
    let settings = work.settings;
    let Some(part) = &group.backend else {
        return settings.listeners.iter().find(|asked| asked.port == group.port).map(|asked| &asked.group);
    };
    settings.backends().filter(|asked| asked.protocol == group.protocol).find(|asked| {
        let named = asked.backend.as_ref().map(|one| names::part(&work.id.namespace, &one.service, one.port));
        named.as_ref() == Some(part)
    })
}

impl Balancers {
    /// Reads what this cluster is on record to have put into target groups that others share.
    pub(super) async fn read_records(&self, work: &Work<'_>, seen: &mut Seen) -> Result<(), CloudError> {
        let Some(records) = self.records().filter(|_| work.settings.shared_groups) else { return Ok(()) };
        for group in &mut seen.target_groups {
            group.recorded = target_records::read(records, work.id, &group.name).await?;
        }
        Ok(())
    }

    /// Points known target groups at what they should have; `None` if they are not known.
    pub(super) async fn point(&self, work: &Work<'_>, course: &mut Course) -> Result<Option<()>, CloudError> {
        let Some(mut groups) = course.known.take() else { return Ok(None) };
        let network = self.networks.network(work.session).await?;
        let mut caller = self.caller(work.session, &network, work.id);
        let mut changes = Vec::new();
        for group in &groups {
            let Some(asked) = asked(work, group).filter(|_| group.target_type == work.settings.target_type) else {
                return Ok(None);
            };
            let wanted = build::targets(work.settings, asked, group.ipv6, work.targets);
            let shared = work.settings.shared_groups.then_some(group.recorded.as_ref());
            changes.push(target_change::bring(&wanted, &group.targets, shared, work.settings.max_targets));
        }
        // Everything is added before anything is taken away.
        course.changed = Some(Instant::now());
        for (group, change) in groups.iter().zip(&changes) {
            if let Some(before) = &change.before {
                caller.record(&group.name, before).await?;
            }
            if !change.add.is_empty() {
                caller.register(&group.arn, group.target_type, &change.add).await?;
            }
        }
        for (group, change) in groups.iter().zip(&changes) {
            if !change.gone.is_empty() {
                caller.deregister(&group.arn, &change.gone).await?;
            }
            if let Some(after) = &change.after {
                caller.record(&group.name, after).await?;
            }
        }
        for warning in caller.warnings {
            tracing::warn!(service = %work.id, "{warning}");
        }
        for (group, change) in groups.iter_mut().zip(changes) {
            group.targets.extend(change.add);
            group.targets.retain(|target| !change.gone.contains(target));
            group.recorded = change.after.or(change.before).or(group.recorded.take());
        }
        course.changed = Some(Instant::now());
        course.known = Some(groups);
        Ok(Some(()))
    }

    /// Finds a Service's target groups, for who has not looked at them yet.
    pub(super) async fn find_groups(&self, work: &Work<'_>, course: &mut Course) -> Result<(), CloudError> {
        let listing = self.look(work.session, course).await?;
        let mut seen = listing.of(work.session, work.id);
        seen.take_out(&course.doomed);
        let absent = || CloudError::new(ErrorKind::NotFound, "DescribeLoadBalancers", "there is no balancer");
        if seen.balancers.is_empty() {
            return Err(absent());
        }
        calls::details(work.session, &mut seen, false).await?;
        self.read_records(work, &mut seen).await?;
        let existing = build::existing(work.settings, work.id, &seen).ok_or_else(absent)?;
        let mut groups = Vec::new();
        for asked in &work.settings.listeners {
            let listener = existing.listeners.iter().find(|one| one.port == asked.port).ok_or_else(absent)?;
            // While one is exchanged for another both need their targets.
            let others = asked.spread.as_ref().map(|spread| spread.others.as_slice()).unwrap_or_default();
            let foreign = |arn: &String| others.iter().any(|(other, _)| *other == Other::Arn(arn.clone()));
            for (arn, _) in listener.forwards.iter().filter(|(arn, _)| !foreign(arn)) {
                let group = seen.target_group_by_arn(arn).ok_or_else(absent)?;
                groups.push(known_group(work.id, asked.port, group));
            }
        }
        course.known = Some(once(groups));
        Ok(())
    }

    /// Opens the groups of nodes that came to be targets. False if a balancer without groups needs rules in other
    /// groups than before.
    pub(super) async fn open_nodes(&self, work: &Work<'_>, course: &Course) -> Result<bool, CloudError> {
        if !work.settings.node_rules {
            return Ok(true);
        }
        let now = Instant::now();
        let machines = self.networks.machines(work.session, work.targets).await?;
        // The tags of machines' groups hardly ever change, so any look will do.
        let long_ago = now.checked_sub(LONG).unwrap_or(now);
        let listing = self.inventory.look(work.session, long_ago).await?;
        let (groups, _) = node_groups(work.session, &listing, work.targets, &machines);
        if groups.is_subset(&course.opened) {
            return Ok(true);
        }
        if course.bare {
            return Ok(false);
        }
        let Some(backend) = listing.backend(work.session, &work.id.cluster).map(|group| group.id.clone()) else {
            return Ok(true);
        };
        let mut ports = node_rules::Ports::new();
        for group in course.known.iter().flatten() {
            ports.extend(group.targets.iter().map(|target| ("tcp", target.port)));
        }
        self.shared.lock().await.open(work.session, &groups, &backend, &ports).await?;
        Ok(true)
    }
}
