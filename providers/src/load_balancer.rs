//! Load balancers: made, looked at, pointed at targets, and deleted until nothing is left.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use async_trait::async_trait;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::error::CloudError;
use crate::model::{IpFamily, IpFamilyPolicy, LoadBalancerId, LoadBalancerSpec, LoadBalancerStatus, Protocol};
use crate::target::{Health, ObservedTarget, Targets};

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
    /// What the types of those conditions begin with by which it tells pods that it sends traffic to them; `None`: it
    /// tells no pods.
    pub gates: Option<&'static str>,
    /// What the names of annotations that it reads begin with; none: it may read any. The others are not in what a
    /// Service asks for, so that their changes cost nothing.
    pub annotations: Vec<String>,
}

impl Features {
    /// Refuses what the Service asks for and these features lack; the first line of most providers' `targeting`.
    ///
    /// # Errors
    /// `Invalid`, with the Service's field and what to write instead.
    pub fn check(&self, spec: &LoadBalancerSpec) -> Result<(), CloudError> {
        if let Some(port) = spec.ports.iter().find(|port| !self.protocols.contains(&port.protocol)) {
            let known: Vec<_> = self.protocols.iter().map(ToString::to_string).collect();
            let fix = format!("this cloud balances {}", known.join(", "));
            return Err(CloudError::invalid_field("spec.ports[].protocol", port.protocol, &fix));
        }
        let other = spec.ports.windows(2).find(|pair| pair[0].protocol != pair[1].protocol).map(|pair| &pair[1]);
        if let Some(port) = other.filter(|_| !self.mixed_protocols) {
            let fix = "one balancer of this cloud has one protocol; make a Service for each";
            return Err(CloudError::invalid_field("spec.ports[].protocol", port.protocol, fix));
        }
        if let Some(range) = spec.source_ranges.first().filter(|_| !self.source_ranges) {
            let fix = "this cloud has no firewall; leave it empty";
            return Err(CloudError::invalid_field("spec.loadBalancerSourceRanges", range, fix));
        }
        if spec.ip_family_policy == IpFamilyPolicy::RequireDualStack && !self.dual_stack {
            return Err(CloudError::invalid_field("spec.ipFamilyPolicy", "RequireDualStack", "use PreferDualStack"));
        }
        if !self.ipv6 && !spec.ip_families.contains(&IpFamily::IPv4) {
            return Err(CloudError::invalid_field("spec.ipFamilies", "IPv6", "this cloud serves IPv4"));
        }
        Ok(())
    }
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
    /// Its marks can only be this cluster's, so that it may be deleted on their word.
    pub certain: bool,
}

/// The change that the next `ensure` makes to a Service's load balancer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// There is none, and one is created.
    Created,
    /// The existing one is kept and brought to the request.
    Kept,
    /// Another one is created next to it and replaces it.
    Replaced,
    /// Nothing, because the cloud cannot do what the Service requests.
    Refused,
}

impl Fate {
    /// Returns the word for tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Kept => "kept",
            Self::Replaced => "replaced",
            Self::Refused => "refused",
        }
    }
}

/// What the next `ensure` does, with the reasons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forecast {
    /// The change.
    pub fate: Fate,
    /// Why, in sentences for an operator.
    pub reasons: Vec<String>,
}

/// What a cloud thinks of one endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointHealth {
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Whether it gets traffic.
    pub health: Health,
    /// Why, in the cloud's own word; empty if all is well.
    pub reason: String,
    /// The same for people.
    pub message: String,
}

/// A condition that pods may wait for before they count as ready, and who waits rightly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadinessGate {
    /// The condition's type.
    pub condition: String,
    /// What it is about: an endpoint may be there several times, and must be healthy each time.
    pub endpoints: Vec<EndpointHealth>,
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

    /// The other Services of the same namespace that the balancer sends traffic to as well, by name; most providers know
    /// none. A pure function of the annotations, asked before `targeting`: those that are there are then in
    /// `spec.others`, and their endpoints in `Targets::others`. What is missing is `targeting`'s to refuse: the Service is
    /// looked at again when one of these comes, goes or changes, and until then its balancer stays as it was.
    fn others(&self, spec: &LoadBalancerSpec) -> BTreeSet<String> {
        let _ = spec;
        BTreeSet::new()
    }

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

    /// Reports that the Service's status has what the last `ensure` returned. A provider that replaces one load balancer
    /// by another deletes the old one only after that.
    fn published(&self, id: &LoadBalancerId) {
        let _ = id;
    }

    /// Returns what the next `ensure` with this spec does, without a change. For an operator who considers a takeover.
    ///
    /// # Errors
    /// Any kind but `NotFound`.
    async fn forecast(&self, spec: &LoadBalancerSpec) -> Result<Forecast, CloudError> {
        let (fate, reason) = match self.observe(&spec.id).await? {
            Observed::Absent => (Fate::Created, "the cloud has no load balancer of this Service"),
            Observed::Present(_) => (Fate::Kept, "the cloud has a load balancer of this Service"),
        };
        Ok(Forecast { fate, reasons: vec![reason.to_owned()] })
    }

    /// What pods behind a balancer may wait for, as it is now. Asked every few seconds while pods wait, and not at all
    /// else.
    ///
    /// # Errors
    /// Any kind but `Invalid`; `NotFound` if there is no balancer yet.
    async fn gates(&self, spec: &LoadBalancerSpec) -> Result<Vec<ReadinessGate>, CloudError> {
        let _ = spec;
        Ok(Vec::new())
    }

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

    /// Whether something that was listed may belong to this Service. Some things say less than a whole id: what another
    /// controller manager made may have no uid, and a firewall's rule only a balancer's name.
    fn may_belong(&self, owned: &Owned, service: &LoadBalancerId) -> bool {
        owned.id == *service
    }

    /// Deletes what was listed and has no Service any more, and nothing else: not what a new Service of its name has by
    /// now. Called only where an operator allowed it.
    ///
    /// # Errors
    /// Any kind but `NotFound` and `Invalid`: what is gone is `Gone`.
    async fn collect(&self, owned: &Owned) -> Result<Deletion, CloudError> {
        self.delete(&owned.id).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Port, TargetPort};

    fn asking_for(protocols: &[Protocol]) -> LoadBalancerSpec {
        let port = |protocol: &Protocol| Port {
            name: protocol.to_string(),
            protocol: *protocol,
            app_protocol: None,
            port: 80,
            node_port: Some(30080),
            target_port: TargetPort::Number(80),
        };
        let text = |text: &str| text.to_owned();
        let id = LoadBalancerId { cluster: text("c"), namespace: text("n"), name: text("web"), uid: text("u") };
        LoadBalancerSpec::new(id, protocols.iter().map(port).collect())
    }

    #[test]
    fn what_is_lacking_is_named_with_its_fix() {
        use Protocol::{Sctp, Tcp, Udp};
        let tcp = asking_for(&[Tcp]);
        let ranges = LoadBalancerSpec { source_ranges: vec!["192.0.2.0/24".parse().expect("a range")], ..tcp.clone() };
        let both = LoadBalancerSpec { ip_family_policy: IpFamilyPolicy::RequireDualStack, ..tcp.clone() };
        let six = LoadBalancerSpec { ip_families: vec![IpFamily::IPv6], ..tcp.clone() };
        let little = Features { protocols: vec![Tcp, Udp], ..Features::default() };
        let much =
            Features { source_ranges: true, mixed_protocols: true, ipv6: true, dual_stack: true, ..little.clone() };
        for (spec, with_little, with_much) in [
            (tcp, "", ""),
            (asking_for(&[Tcp, Tcp]), "", ""),
            (asking_for(&[Tcp, Udp]), "spec.ports[].protocol is \"UDP\"", ""),
            (asking_for(&[Tcp, Sctp]), "this cloud balances TCP, UDP", "spec.ports[].protocol is \"SCTP\""),
            (ranges, "spec.loadBalancerSourceRanges is \"192.0.2.0/24\"", ""),
            (both, "spec.ipFamilyPolicy is \"RequireDualStack\"", ""),
            (six, "spec.ipFamilies is \"IPv6\"", ""),
        ] {
            for (features, expected) in [(&little, with_little), (&much, with_much)] {
                let answer = features.check(&spec).map_err(|error| error.to_string());
                let as_expected = answer
                    .as_ref()
                    .map_or_else(|error| !expected.is_empty() && error.contains(expected), |()| expected.is_empty());
                assert!(as_expected, "{expected:?} was expected of {features:?}: {answer:?}");
            }
        }
    }

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
