//! Load balancers: made, looked at, pointed at targets, and deleted until nothing is left.

use std::time::Duration;

use async_trait::async_trait;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{CloudError, LoadBalancerId, LoadBalancerSpec, LoadBalancerStatus, ObservedTarget, Protocol, Targets};

/// Which Services a provider takes, by `spec.loadBalancerClass`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassFilter {
    /// Those without a class.
    pub unset: bool,
    /// Those of these classes.
    pub named: Vec<String>,
}

impl Default for ClassFilter {
    /// Only Services without a class (upstream: cloud-provider, service controller's `wantsLoadBalancer`).
    fn default() -> Self {
        Self { unset: true, named: Vec::new() }
    }
}

impl ClassFilter {
    /// Whether a Service of this class is the provider's. `Some("")` is a class, and nobody's by default.
    pub fn takes(&self, class: Option<&str>) -> bool {
        match class {
            None => self.unset,
            Some(class) => self.named.iter().any(|named| named == class),
        }
    }
}

/// What a provider's load balancers can do, never changing while the process runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Features {
    /// Which Services it takes.
    pub classes: ClassFilter,
    /// It answers [`Targeting::Endpoints`] for some Services, so EndpointSlices must be watched.
    pub endpoint_targets: bool,
    /// It enforces source ranges. Without, a Service that has some is `Invalid`, never silently open.
    pub source_ranges: bool,
    /// Protocols it can balance.
    pub protocols: Vec<Protocol>,
    /// One balancer may have ports of different protocols.
    pub mixed_protocols: bool,
    /// It can serve IPv6.
    pub ipv6: bool,
    /// It can serve both families at once.
    pub dual_stack: bool,
}

/// What a provider wants to be told about for one Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Targeting {
    /// Its nodes.
    Nodes,
    /// Its endpoints (and its nodes, which are shared anyway).
    Endpoints,
    /// Nothing: the annotations say that somebody else makes this balancer (upstream: cloud-provider,
    /// `ImplementedElsewhere`). Only `delete` may be called, for what was made before they said so.
    Elsewhere,
}

/// Whether there is more to do without anything having changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// All is as asked.
    Settled,
    /// The cloud is at it: call again after this time, without counting it as a failure (upstream: cloud-provider/api,
    /// `RetryError`).
    After(Duration),
}

/// What came of an ensure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ensured {
    /// What the Service's status shall say now, also while there is more to do.
    pub status: LoadBalancerStatus,
    /// Whether to call again.
    pub progress: Progress,
    /// What the Service's owner should know though nothing failed: an annotation without effect, a target passed over.
    /// Each becomes an Event; the same words each time, so that they are counted and not repeated.
    pub warnings: Vec<String>,
}

impl Ensured {
    /// All is as asked, with this status.
    pub fn settled(status: LoadBalancerStatus) -> Self {
        Self { status, progress: Progress::Settled, warnings: Vec::new() }
    }
}

/// How far a balancer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Parts of it are missing: something failed while it was made, or while it was deleted.
    Incomplete,
    /// All is there and not yet working.
    Provisioning,
    /// It works.
    Active,
    /// It is going away.
    Deleting,
}

/// A port that a balancer listens on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Listener {
    /// Its protocol.
    pub protocol: Protocol,
    /// Its number.
    pub port: u16,
}

/// A balancer as the cloud has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Balancer {
    /// How far it is.
    pub phase: Phase,
    /// What the Service's status should say.
    pub status: LoadBalancerStatus,
    /// Where it listens, ordered.
    pub listeners: Vec<Listener>,
    /// Who may connect, ordered; empty: anyone.
    pub source_ranges: Vec<IpNet>,
    /// Where it sends traffic, ordered by target.
    pub targets: Vec<ObservedTarget>,
}

/// What a look at the cloud showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observed {
    /// Nothing that belongs to it is seen now. It proves nothing: what was made a moment ago may not be seen yet, so
    /// no finalizer goes because of it. Only [`Deletion::Gone`] proves something.
    Absent,
    /// At least a part of it is there.
    Present(Box<Balancer>),
}

/// What came of a delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deletion {
    /// Everything that was ever made for it is observed gone: the finalizer may go.
    Gone,
    /// The cloud is at it: call again after this time.
    InProgress(Duration),
}

/// Something in the cloud that was made for a Service of this cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owned {
    /// Whose it is.
    pub id: LoadBalancerId,
    /// How far it is.
    pub phase: Phase,
    /// Its parts by the cloud's own names, as an operator would look them up.
    pub resources: Vec<String>,
}

/// The load balancers of a cloud.
///
/// A provider reads annotations in one pure function before any call, so that nothing is half made because of a typing
/// error: [`targeting`](LoadBalancers::targeting) is that function's face.
#[cfg_attr(feature = "doubles", mockall::automock)]
#[async_trait]
pub trait LoadBalancers: Send + Sync {
    /// What it can do.
    fn features(&self) -> Features;

    /// Reads what is asked for, without calling anybody, and says whose targets it needs.
    ///
    /// # Errors
    /// `Invalid` for what can never work; the message names the annotation or field, its value, and the fix. `ensure`
    /// with the same spec fails alike, before it changes anything.
    fn targeting(&self, spec: &LoadBalancerSpec) -> Result<Targeting, CloudError>;

    /// Looks, and changes nothing. For reports and tests; no decision to delete or to create rests on it.
    ///
    /// # Errors
    /// Any kind but `NotFound` and `Invalid`.
    async fn observe(&self, id: &LoadBalancerId) -> Result<Observed, CloudError>;

    /// Makes the balancer what `spec` and `targets` ask for, from whatever is there: nothing, half of it, an older
    /// state of it, something that a person changed. If all is as asked, it only reads.
    ///
    /// Called for a Service's change, and from time to time to repair drift. What is made carries `spec.id` from the
    /// moment it is made, so that [`list_owned`](LoadBalancers::list_owned) and [`delete`](LoadBalancers::delete) find
    /// it even if this call never returns. An `ensure` while an old balancer of the same id is going away waits for
    /// that by [`Progress::After`].
    ///
    /// # Errors
    /// Any kind but `NotFound`. What was made before the error stays for the next call.
    async fn ensure(&self, spec: &LoadBalancerSpec, targets: &Targets) -> Result<Ensured, CloudError>;

    /// Makes the balancer's targets these and touches nothing else, with as few calls as the difference needs. Called
    /// for every Service whose targets changed; no targets at all is a valid answer.
    ///
    /// # Errors
    /// `NotFound` if there is no balancer: nothing is made, and the caller ensures it. Else as `ensure`.
    async fn set_targets(&self, spec: &LoadBalancerSpec, targets: &Targets) -> Result<(), CloudError>;

    /// Deletes all that was ever made for `id`, whatever its spec was at the time, and whether or not the balancer
    /// itself is there still. Never waits for the cloud: it starts what can be started and says when to come again.
    ///
    /// # Errors
    /// Any kind but `NotFound` and `Invalid`: what is gone is `Gone`.
    async fn delete(&self, id: &LoadBalancerId) -> Result<Deletion, CloudError>;

    /// Everything in the cloud that was made for this cluster's Services, half-made and half-deleted too: what has no
    /// Service any more is a leak. Asked rarely, and answered completely or not at all.
    ///
    /// # Errors
    /// Any kind but `NotFound` and `Invalid`.
    async fn list_owned(&self) -> Result<Vec<Owned>, CloudError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes() {
        let default = ClassFilter::default();
        let both = ClassFilter { unset: true, named: vec!["example.com/net".into()] };
        let only = ClassFilter { unset: false, ..both.clone() };
        for (filter, class, takes) in [
            (&default, None, true),
            (&default, Some(""), false),
            (&default, Some("example.com/net"), false),
            (&both, None, true),
            (&both, Some("example.com/net"), true),
            (&both, Some("example.com/other"), false),
            (&only, None, false),
            (&only, Some("example.com/net"), true),
        ] {
            assert_eq!(filter.takes(class), takes, "{filter:?} {class:?}");
        }
    }
}
