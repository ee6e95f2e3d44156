//! Load balancers: created, observed, updated, and deleted completely.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::error::CloudError;
use crate::model::{IpFamily, IpFamilyPolicy, LoadBalancerId, LoadBalancerSpec, LoadBalancerStatus, Protocol};
use crate::target::{Health, ObservedTarget, Targets};

/// The Services that a provider accepts, by `spec.loadBalancerClass`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassFilter {
    /// Services without a class are included.
    pub unset: bool,
    /// The included classes.
    pub named: Vec<String>,
}

impl Default for ClassFilter {
    /// Only Services without a class. Upstream: cloud-provider, service controller's wantsLoadBalancer.
    fn default() -> Self {
        Self { unset: true, named: Vec::new() }
    }
}

impl ClassFilter {
    /// Returns true if a Service of this class belongs to the provider. `Some("")` is a class, and not included by
    /// default.
    pub fn accepts(&self, class: Option<&str>) -> bool {
        match class {
            None => self.unset,
            Some(class) => self.named.iter().any(|named| named == class),
        }
    }
}

/// The features of a provider's load balancers, constant while the process runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Features {
    /// The Services that the provider accepts.
    pub classes: ClassFilter,
    /// The provider returns [`Targeting::Endpoints`] for some Services; therefore EndpointSlices must be watched.
    pub endpoint_targets: bool,
    /// The cloud selects the targets by itself, for example by labels of its instances: [`LoadBalancers::set_targets`]
    /// changes nothing, and the observed state contains no targets.
    pub selects_targets: bool,
    /// The provider enforces source ranges. Otherwise, a Service with source ranges is `Invalid`, and never silently
    /// open.
    pub source_ranges: bool,
    /// Supported protocols.
    pub protocols: Vec<Protocol>,
    /// A load balancer may have ports of different protocols.
    pub mixed_protocols: bool,
    /// The provider supports IPv6.
    pub ipv6: bool,
    /// The provider supports both families together.
    pub dual_stack: bool,
    /// Prefix of the types of pod conditions (readiness gates) whose state [`LoadBalancers::gates`] returns. Such
    /// a condition is true once the pod receives traffic from the load balancer. `None`: the provider has no such
    /// conditions.
    pub gates: Option<&'static str>,
    /// Prefixes of the annotations that the provider reads; empty: it may read any. Other annotations are not in the
    /// spec, and a change of them causes no reconcile.
    pub annotations: Vec<String>,
    /// Prefix of the annotations that the provider writes to Services ([`Ensured::annotations`]), which nothing else
    /// may use. The provider must not read them, but its state from the cloud: they are not in the spec of `ensure`,
    /// `set_targets` and `follow_targets`, and may be in that of other calls. `None`: it writes none.
    pub written_annotations: Option<&'static str>,
}

impl Features {
    /// Refuses requests that these features do not support; most providers call it first in `targeting`.
    ///
    /// # Errors
    /// `Invalid`, with the Service's field and the fix.
    pub fn check(&self, spec: &LoadBalancerSpec) -> Result<(), CloudError> {
        if let Some(port) = spec.ports.iter().find(|port| !self.protocols.contains(&port.protocol)) {
            let known: Vec<_> = self.protocols.iter().map(ToString::to_string).collect();
            let fix = format!("this cloud supports {}", known.join(", "));
            return Err(CloudError::invalid_field("spec.ports[].protocol", port.protocol, &fix));
        }
        let other = spec.ports.windows(2).find(|pair| pair[0].protocol != pair[1].protocol).map(|pair| &pair[1]);
        if let Some(port) = other.filter(|_| !self.mixed_protocols) {
            let fix = "a load balancer of this cloud has one protocol; create a Service for each";
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

/// The targets that a provider needs for a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Targeting {
    /// The Service's nodes.
    Nodes,
    /// The Service's endpoints. [`Targets::nodes`] is set, too.
    Endpoints,
    /// No targets: by the Service's annotations, another controller creates this load balancer. For resources that were
    /// created before, only `delete_last` and, if pods wait, `gates` are called. Upstream: cloud-provider,
    /// ImplementedElsewhere.
    Elsewhere,
}

/// The progress of an `ensure`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Progress {
    /// The observed state is the desired state.
    Settled,
    /// The cloud has not finished: call again after this time, without counting a failure. Upstream:
    /// cloud-provider/api, RetryError.
    After(Duration),
}

/// The result of an `ensure`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ensured {
    /// The current `status.loadBalancer`; written even if the progress is [`Progress::After`].
    pub status: LoadBalancerStatus,
    /// The progress: settled, or the delay before the next call.
    pub progress: Progress,
    /// Warnings for the Service's owner although nothing failed: an annotation without effect, a skipped target. Each
    /// becomes an Event if the previous call did not return it; therefore, its text must be the same in each call.
    pub warnings: Vec<String>,
    /// Annotations for the Service, for its users and other programs, all with the prefix
    /// [`Features::written_annotations`]. They are written together with the status; other annotations with the prefix
    /// are removed.
    pub annotations: BTreeMap<String, String>,
    /// The delay before one more call for a settled load balancer, if the next check for drift is later: an earlier
    /// process may have created resources that the cloud did not list in this call, or the cloud refused something, as
    /// a warning states, and may allow it later. `None`: the next check for drift is soon enough.
    #[serde(default)]
    pub check_after: Option<Duration>,
}

impl Ensured {
    /// Creates the result of a settled load balancer with this status.
    pub fn settled(status: LoadBalancerStatus) -> Self {
        let (warnings, annotations) = (Vec::new(), BTreeMap::new());
        Self { status, progress: Progress::Settled, warnings, annotations, check_after: None }
    }
}

/// The result of a `follow_targets` that set the targets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Followed {
    /// The names of other Services in the same namespace to which the load balancer also sends traffic.
    pub others: BTreeSet<String>,
    /// The refusal of a change that targets need to get traffic, such as a rule of a firewall. It becomes an Event, and
    /// the call is repeated after a pause. New targets are set in the meantime.
    pub refused: Option<CloudError>,
}

/// The lifecycle phase of a load balancer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Parts of the load balancer are missing: its creation or deletion failed.
    Incomplete,
    /// The load balancer exists and does not work yet.
    Provisioning,
    /// The load balancer works.
    Active,
    /// The load balancer is being deleted.
    Deleting,
}

/// A port that a load balancer listens on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Listener {
    /// The protocol.
    pub protocol: Protocol,
    /// The port number.
    pub port: u16,
}

/// A load balancer as observed in the cloud.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedLoadBalancer {
    /// The phase of the load balancer.
    pub phase: Phase,
    /// The `status.loadBalancer` that its addresses result in.
    pub status: LoadBalancerStatus,
    /// The listeners, ordered.
    pub listeners: Vec<Listener>,
    /// Allowed source ranges, ordered; empty: any source.
    pub source_ranges: Vec<IpNet>,
    /// The targets, ordered.
    pub targets: Vec<ObservedTarget>,
}

/// The result of reading from the cloud.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Observed {
    /// Nothing that belongs to the load balancer is visible. This proves nothing: recently created resources may not be
    /// visible yet, so that no finalizer is removed because of it. Only [`Deletion::Gone`] is proof.
    Absent,
    /// At least a part of the load balancer exists.
    Present(Box<ObservedLoadBalancer>),
}

/// The result of a `delete`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Deletion {
    /// Everything that was ever created for the load balancer is observed as deleted: the finalizer may be removed.
    Gone,
    /// The cloud has not finished: call again after this time.
    InProgress(Duration),
}

/// Resources in the cloud that were created for a Service of this cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owned {
    /// The owner of the resources.
    pub id: LoadBalancerId,
    /// The phase of the load balancer that the resources belong to.
    pub phase: Phase,
    /// The cloud's names of the resources, for an operator's search.
    pub resources: Vec<String>,
    /// The tags or labels of the resources prove that they are this cluster's. Other resources may belong to another
    /// cluster, so they are only reported and never deleted.
    pub certain: bool,
}

/// The change that the next `ensure` makes to a Service's load balancer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlannedChange {
    /// There is no load balancer, and one is created.
    Created,
    /// The existing load balancer is kept, and changed to the desired state.
    Kept,
    /// Another load balancer is created next to the existing one and replaces it.
    Replaced,
    /// No change, because the cloud cannot do what the Service requests.
    Refused,
}

impl PlannedChange {
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

/// The change that the next `ensure` makes, with the reasons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forecast {
    /// The change.
    pub change: PlannedChange,
    /// The reasons, in sentences for an operator.
    pub reasons: Vec<String>,
}

/// The result of the cloud's health check of one endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointHealth {
    /// The endpoint's address.
    pub address: IpAddr,
    /// The endpoint's port.
    pub port: u16,
    /// The endpoint's health.
    pub health: Health,
    /// The cloud's reason; empty if it is healthy.
    pub reason: String,
    /// The message for users.
    pub message: String,
}

/// A condition that pods may wait for before they count as ready, with its endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadinessGate {
    /// The condition's type.
    pub condition: String,
    /// The endpoints that it covers: an endpoint may occur several times, and must be healthy each time.
    pub endpoints: Vec<EndpointHealth>,
}

/// The load balancers of a cloud.
///
/// A provider reads annotations in one pure function before any call, so that a misspelled annotation does not lead to
/// a partial load balancer: [`targeting`](LoadBalancers::targeting) exposes that function.
#[cfg_attr(feature = "doubles", mockall::automock)]
#[async_trait]
pub trait LoadBalancers: Send + Sync {
    /// Returns the features of the provider's load balancers.
    fn features(&self) -> Features;

    /// Returns the kind of targets that the desired state needs, without any calls.
    ///
    /// # Errors
    /// `Invalid` if it can never work; the message names the annotation or field, its value, and the fix. `ensure` with
    /// the same spec fails in the same way, before it changes anything.
    fn targeting(&self, spec: &LoadBalancerSpec) -> Result<Targeting, CloudError>;

    /// Returns the names of other Services in the same namespace to which the load balancer also sends traffic; most
    /// providers support none. This is a pure function of the annotations, called before `targeting`. For later
    /// calls, the caller puts the named Services that exist into `spec.others`, and their endpoints into
    /// `Targets::others`. If a named Service is missing, `targeting` returns an error: the load balancer is not changed
    /// until the next reconcile, which follows when one of the named Services is created, deleted or changed.
    fn others(&self, spec: &LoadBalancerSpec) -> BTreeSet<String> {
        let _ = spec;
        BTreeSet::new()
    }

    /// Reads the observed state, without a change. For reports and tests; no decision to delete or create is based on
    /// it.
    ///
    /// # Errors
    /// Any kind but `NotFound` and `Invalid`.
    async fn observe(&self, id: &LoadBalancerId) -> Result<Observed, CloudError>;

    /// Changes the load balancer to the desired state in `spec` and `targets`, from any observed state: nothing, parts,
    /// an older state, or a manual change. If there is nothing to change, it only reads.
    ///
    /// Called for a Service's change, and periodically to repair drift. Created resources have `spec.id` from the
    /// start, so that [`list_owned`](LoadBalancers::list_owned) and [`delete`](LoadBalancers::delete) find them even if
    /// this call never returns. An `ensure` during the deletion of an old load balancer of the same id waits for the
    /// end of the deletion with [`Progress::After`].
    ///
    /// # Errors
    /// Any kind except `NotFound`. Resources that were created before the error are kept for the next call.
    async fn ensure(&self, spec: &LoadBalancerSpec, targets: &Targets) -> Result<Ensured, CloudError>;

    /// Sets the load balancer's targets and changes nothing else, with as few calls as the difference needs. Called for
    /// every Service whose targets changed; an empty list is valid.
    ///
    /// # Errors
    /// `NotFound` if there is no load balancer: nothing is created, and the caller ensures it. Otherwise as `ensure`.
    async fn set_targets(&self, spec: &LoadBalancerSpec, targets: &Targets) -> Result<(), CloudError>;

    /// Sets the targets of an existing load balancer whose Service is invalid, and changes nothing else. Called after a
    /// restart, when the last valid spec is unknown: everything that a mistake may concern, such as the kind of
    /// targets, is read from the observed state. `targets` contains nodes, and endpoints if `features()` declares them.
    ///
    /// Returns the other Services to which the load balancer also sends traffic. If some of them exist and are not in
    /// the spec, the caller repeats the call with them in `spec.others` and `Targets::others`.
    ///
    /// The default changes nothing: targets stay as they are until the Service is valid.
    ///
    /// # Errors
    /// `NotFound` if there is no load balancer; never `Invalid`.
    async fn follow_targets(&self, spec: &LoadBalancerSpec, targets: &Targets) -> Result<Followed, CloudError> {
        let _ = (spec, targets);
        Ok(Followed::default())
    }

    /// Records a Service that has a load balancer, or will get one. Called for each of them that exists when this process
    /// begins its work, before any other call about a Service, also for invalid ones. A provider in which several
    /// Services can share a resource then knows whose parts it has to read before it removes parts.
    fn existed(&self, spec: &LoadBalancerSpec) {
        let _ = spec;
    }

    /// Records that no process has created anything for a Service: it had no finalizer before. Called before its first
    /// `ensure`. The provider need not search for resources that the cloud does not list yet. The call is a hint: not
    /// every new Service is reported.
    fn starts_empty(&self, id: &LoadBalancerId) {
        let _ = id;
    }

    /// Called when the Service's status contains what the last `ensure` returned. A provider that replaces one load
    /// balancer by another deletes the old one only after that.
    fn published(&self, id: &LoadBalancerId) {
        let _ = id;
    }

    /// Returns the change that the next `ensure` with this spec makes, and changes nothing. It is used before ccm takes
    /// over from another cloud controller manager.
    ///
    /// # Errors
    /// Any kind but `NotFound`.
    async fn forecast(&self, spec: &LoadBalancerSpec) -> Result<Forecast, CloudError> {
        let (change, reason) = match self.observe(&spec.id).await? {
            Observed::Absent => (PlannedChange::Created, "the cloud has no load balancer of this Service"),
            Observed::Present(_) => (PlannedChange::Kept, "the cloud has a load balancer of this Service"),
        };
        Ok(Forecast { change, reasons: vec![reason.to_owned()] })
    }

    /// Returns the current state of the conditions that pods may wait for. Called every few seconds, only while pods
    /// wait.
    ///
    /// # Errors
    /// Any kind except `Invalid`; `NotFound` if there is no load balancer yet.
    async fn gates(&self, spec: &LoadBalancerSpec) -> Result<Vec<ReadinessGate>, CloudError> {
        let _ = spec;
        Ok(Vec::new())
    }

    /// Deletes everything that was ever created for `id`, independent of its former spec, and of whether the load
    /// balancer itself still exists. Never waits for the cloud: it starts all possible deletions and returns when to
    /// call again.
    ///
    /// # Errors
    /// Any kind except `NotFound` and `Invalid`: if nothing exists, the result is `Gone`. It is `InProgress` while
    /// something may exist that the cloud does not list yet.
    async fn delete(&self, id: &LoadBalancerId) -> Result<Deletion, CloudError>;

    /// Deletes with the last known spec, otherwise as [`delete`](LoadBalancers::delete). For clouds in which the load
    /// balancer's project or network would otherwise have to be searched for. `last` is the Service's request if it is
    /// still valid, otherwise the last one that this process has reconciled; `None` if there is neither.
    ///
    /// The spec is a hint. The load balancer may have been created from an earlier one, so the deletion must be
    /// complete without it.
    ///
    /// # Errors
    /// Same as [`delete`](LoadBalancers::delete).
    async fn delete_last(
        &self,
        id: &LoadBalancerId,
        last: Option<Arc<LoadBalancerSpec>>,
    ) -> Result<Deletion, CloudError> {
        drop(last);
        self.delete(id).await
    }

    /// Returns all resources in the cloud that were created for this cluster's Services, including partial and
    /// terminating ones: those without a Service are leaked. Called rarely; the result is complete or an error.
    ///
    /// # Errors
    /// Any kind except `NotFound` and `Invalid`.
    async fn list_owned(&self) -> Result<Vec<Owned>, CloudError>;

    /// Returns true if a listed resource may belong to this Service. Some resources identify their owner only in part:
    /// resources of another controller manager may lack the uid, and a firewall rule has only a load balancer's name.
    fn may_be_owned_by(&self, owned: &Owned, service: &LoadBalancerId) -> bool {
        owned.id == *service
    }

    /// Deletes a listed resource without a Service, and nothing else, in particular nothing that a new Service with the
    /// same name uses. Called only if an operator has allowed it.
    ///
    /// # Errors
    /// Any kind except `NotFound` and `Invalid`: if nothing exists, the result is `Gone`. It is `InProgress` while
    /// something may exist that the cloud does not list yet.
    async fn collect(&self, owned: &Owned) -> Result<Deletion, CloudError> {
        self.delete(&owned.id).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Port, TargetPort};

    fn spec_with(protocols: &[Protocol]) -> LoadBalancerSpec {
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
    fn missing_features_are_reported_with_the_fix() {
        use Protocol::{Sctp, Tcp, Udp};
        let tcp = spec_with(&[Tcp]);
        let ranges = LoadBalancerSpec { source_ranges: vec!["192.0.2.0/24".parse().expect("a range")], ..tcp.clone() };
        let both = LoadBalancerSpec { ip_family_policy: IpFamilyPolicy::RequireDualStack, ..tcp.clone() };
        let ipv6 = LoadBalancerSpec { ip_families: vec![IpFamily::IPv6], ..tcp.clone() };
        let few_features = Features { protocols: vec![Tcp, Udp], ..Features::default() };
        let all_features = Features {
            source_ranges: true,
            mixed_protocols: true,
            ipv6: true,
            dual_stack: true,
            ..few_features.clone()
        };
        for (spec, with_few, with_all) in [
            (tcp, "", ""),
            (spec_with(&[Tcp, Tcp]), "", ""),
            (spec_with(&[Tcp, Udp]), "spec.ports[].protocol is \"UDP\"", ""),
            (spec_with(&[Tcp, Sctp]), "this cloud supports TCP, UDP", "spec.ports[].protocol is \"SCTP\""),
            (ranges, "spec.loadBalancerSourceRanges is \"192.0.2.0/24\"", ""),
            (both, "spec.ipFamilyPolicy is \"RequireDualStack\"", ""),
            (ipv6, "spec.ipFamilies is \"IPv6\"", ""),
        ] {
            for (features, expected) in [(&few_features, with_few), (&all_features, with_all)] {
                let result = features.check(&spec).map_err(|error| error.to_string());
                let as_expected = result
                    .as_ref()
                    .map_or_else(|error| !expected.is_empty() && error.contains(expected), |()| expected.is_empty());
                assert!(as_expected, "{expected:?} was expected of {features:?}: {result:?}");
            }
        }
    }

    #[test]
    fn filter_accepts_unset_and_named_classes() {
        let default = ClassFilter::default();
        let both = ClassFilter { unset: true, named: vec!["example.com/net".into()] };
        let only = ClassFilter { unset: false, ..both.clone() };
        for (filter, class, accepts) in [
            (&default, None, true),
            (&default, Some(""), false),
            (&default, Some("example.com/net"), false),
            (&both, None, true),
            (&both, Some("example.com/net"), true),
            (&both, Some("example.com/other"), false),
            (&only, None, false),
            (&only, Some("example.com/net"), true),
        ] {
            assert_eq!(filter.accepts(class), accepts, "{filter:?} {class:?}");
        }
    }
}
