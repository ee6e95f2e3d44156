//! Reachability during a test: each change that can cut targets off is checked, and the targets cut off are recorded.

mod network_state;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use self::network_state::{NetworkState, TargetKey};
use crate::aws::{Aws, Service};
use crate::denials::Denials;
use crate::server::Server;
use crate::xml;

/// Actions that can make a registered target unreachable.
const CUTTING: [&str; 6] = [
    "RevokeSecurityGroupIngress",
    "ModifySecurityGroupRules",
    "ModifyNetworkInterfaceAttribute",
    "SetSecurityGroups",
    "SetSubnets",
    "ModifyTargetGroup",
];

/// Time before the deletion of a Classic Load Balancer in which its rules may be revoked: it serves nothing afterwards, and
/// a security group of a user is found only while a load balancer has it.
const ENDING: Duration = Duration::from_secs(60);

/// A target that a change cut off.
#[derive(Clone)]
struct Gap {
    /// The ARN of its target group, or the name of its Classic Load Balancer.
    group: String,
    at: Instant,
    /// The change and the target.
    text: String,
}

/// The registered targets; true: reached by their load balancer.
pub(crate) type Snapshot = BTreeMap<TargetKey, bool>;

/// The checks of one account.
pub(crate) struct Reachability {
    aws: Aws,
    /// The last read, with the number of changes before it.
    network: tokio::sync::Mutex<Option<(u64, Arc<NetworkState>)>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The reason for which nothing is checked, if there is one.
    ignored: Option<String>,
    gaps: Vec<Gap>,
    /// Beginnings of the names of load balancers whose users open the targets' security groups themselves.
    opened: BTreeSet<String>,
}

impl Reachability {
    pub(crate) fn new(aws: Aws) -> Self {
        Self { aws, network: tokio::sync::Mutex::default(), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops all checks, and drops their results.
    pub(crate) fn ignore(&self, reason: &str) {
        *self.state() = State { ignored: Some(reason.to_owned()), ..State::default() };
    }

    /// Sets the load balancers whose users open the targets' security groups themselves, by the beginnings of their
    /// names: their targets count as reached.
    pub(crate) fn set_opened(&self, names: BTreeSet<String>) {
        self.state().opened = names;
    }

    /// Returns true if a target is reached, because of rules or because a user opened it.
    fn reaches(&self, network: &NetworkState, (group, id, port): (&str, &str, &str)) -> bool {
        let name =
            network.load_balancer_of(group).and_then(|arn| arn.split_once(":loadbalancer/")?.1.split('/').nth(1));
        let opened = |name: &str| self.state().opened.iter().any(|opened| name.starts_with(opened));
        name.is_some_and(opened) || network.reaches(group, id, port)
    }

    /// Returns true if targets are checked.
    pub(crate) fn is_enabled(&self) -> bool {
        self.state().ignored.is_none()
    }

    /// Returns targets that a change cut off while they were registered, with the change.
    pub(crate) fn gaps(&self) -> Vec<String> {
        self.state().gaps.iter().map(|gap| gap.text.clone()).collect()
    }

    /// Forgets the targets of a Classic Load Balancer that were cut off shortly before its deletion.
    pub(crate) fn delete_classic(&self, name: &str) {
        self.state().gaps.retain(|gap| gap.group != name || gap.at.elapsed() > ENDING);
    }

    /// Returns the last read, or reads the account again if it has changed since.
    async fn network(&self) -> Result<Arc<NetworkState>> {
        let mut last = self.network.lock().await;
        let version = self.aws.version();
        if let Some((_, network)) = last.as_ref().filter(|(read, _)| *read == version) {
            return Ok(network.clone());
        }
        let network = Arc::new(NetworkState::read(&self.aws).await?);
        *last = Some((version, network.clone()));
        Ok(network)
    }

    /// Reads the targets and whether they are reached; with a DNS name only those of the load balancer that has it.
    pub(crate) async fn snapshot(&self, dns: Option<&str>) -> Result<Snapshot> {
        let (mut found, network) = (Snapshot::new(), self.network().await?);
        for arn in network.used_groups(dns) {
            let health = [("TargetGroupArn", &*arn)];
            let described =
                self.aws.list(Service::Elb, "DescribeTargetHealth", &health, "TargetHealthDescriptions").await;
            let described = match described {
                // A target group that was deleted since the account was read has no targets.
                Err(error) if format!("{error:#}").contains("TargetGroupNotFound") => continue,
                described => described?,
            };
            for one in described.iter().filter(|one| one.text("TargetHealth/State") != "draining") {
                let (id, port) = (one.text("Target/Id").to_owned(), one.text("Target/Port").to_owned());
                let reached = self.reaches(&network, (&arn, &id, &port));
                found.insert((arn.clone(), id, port), reached);
            }
        }
        found.extend(network.classic_targets(dns));
        Ok(found)
    }

    /// Returns the state before a change, if the change can cut targets off.
    pub(crate) async fn before(&self, action: &str) -> Result<Option<Snapshot>> {
        if CUTTING.contains(&action) && self.is_enabled() { self.snapshot(None).await.map(Some) } else { Ok(None) }
    }

    /// Records the targets that a change cut off.
    pub(crate) async fn after(&self, action: &str, before: &Snapshot) -> Result<()> {
        let cut_off = network_state::gaps(before, &self.snapshot(None).await?);
        let mut state = self.state();
        if state.ignored.is_none() {
            state.gaps.extend(cut_off.into_iter().map(|(group, id, port)| Gap {
                group,
                at: Instant::now(),
                text: format!("{action} cuts off {id}:{port}"),
            }));
        }
        Ok(())
    }

    /// Returns a response about the health of a target group's targets, in which unreached targets are unhealthy.
    pub(crate) async fn health(&self, group: &str, response: String) -> Result<String> {
        if !self.is_enabled() {
            return Ok(response);
        }
        let network = self.network().await?;
        let (ids, ports) = (xml::texts(&response, "Id"), xml::texts(&response, "Port"));
        let unreached = ids.iter().zip(&ports).filter(|(id, port)| !self.reaches(&network, (group, id, port)));
        Ok(unreached.fold(response.clone(), |response, (id, port)| xml::unreached(&response, id, port)))
    }
}

tokio::task_local! {
    /// The accounts of the test that runs in this task.
    static ACCOUNTS: Mutex<Vec<(Arc<Reachability>, Denials, Arc<Server>)>>;
}

/// Adds an account to those that are checked at the end of the test. Outside a test nothing is checked.
pub(crate) fn add_account(reachability: Arc<Reachability>, denials: Denials, server: Arc<Server>) {
    let added = ACCOUNTS.try_with(|accounts| {
        accounts.lock().unwrap_or_else(PoisonError::into_inner).push((reachability.clone(), denials, server));
    });
    if added.is_err() {
        reachability.ignore("there is no test");
    }
}

/// Runs a test and then checks that each registered target is reachable and was never cut off, in each account that
/// does not ignore reachability, and that the policy denied nothing unexpected.
///
/// # Errors
/// Those of the test, targets that are not reachable or were cut off, and denied accesses.
pub async fn checked(test: impl Future<Output = Result<()>>) -> Result<()> {
    let checked = async {
        let result = test.await;
        let accounts =
            ACCOUNTS.with(|accounts| std::mem::take(&mut *accounts.lock().unwrap_or_else(PoisonError::into_inner)));
        for (reachability, denials, _server) in accounts.iter().filter(|_| result.is_ok()) {
            denials.check()?;
            if !reachability.is_enabled() {
                continue;
            }
            let gaps = reachability.gaps();
            ensure!(gaps.is_empty(), "targets were cut off: {gaps:?}");
            let unreached = names_of_unreached(reachability.snapshot(None).await?);
            ensure!(unreached.is_empty(), "targets are not reachable at the end: {unreached:?}");
        }
        result
    };
    ACCOUNTS.scope(Mutex::default(), checked).await
}

/// Returns the targets of a snapshot that are not reached.
pub(crate) fn names_of_unreached(snapshot: Snapshot) -> Vec<String> {
    let unreached = snapshot.into_iter().filter(|(_, reached)| !reached);
    unreached.map(|((_, id, port), _)| format!("{id}:{port}")).collect()
}
