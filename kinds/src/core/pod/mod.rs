//! Pod: placement, phase, readiness and deletion rank.

mod claims;
mod devices;
mod disruption;
mod ending;
pub mod gated;
mod network;
mod requests;
pub mod secrets;
mod selinux;
mod target;
mod usage;
mod volumes;

use crate::decode::{Decode, DecodeError, Sections};
use crate::intern::Str;
use crate::kind::{Kind, Resource};
use crate::meta::{Meta, Parts};
use crate::scheduling::taint::{NO_EXECUTE, Tolerations};
use crate::value::time::Time;
use crate::wire::schema::{container, container_status, pod_condition, pod_spec, pod_status};
use crate::wire::{WireError, fields};

pub use claims::Claims;
pub use devices::{Devices, UsedClaim};
pub use disruption::{DISRUPTION_TARGET, Disruption};
pub use ending::Ending;
pub use network::{NamedPort, Network};
pub use requests::{Part, PartRequests, Readiness, Requests};
pub use selinux::{SeLinux, SeLinuxMount};
pub use usage::{PackedUsage, Usage};
pub use volumes::{ClaimVolume, InTreeVolume, Volumes};

/// Annotation with the deletion cost of a pod: pods with a lower cost are deleted first.
pub const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// `status.phase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Phase {
    /// Accepted, not running yet; also the meaning of an empty phase.
    #[default]
    Pending,
    /// The kubelet stopped reporting (deprecated).
    Unknown,
    /// All containers were created; at least one runs, starts or is restarted.
    Running,
    /// All containers succeeded.
    Succeeded,
    /// All containers have terminated, at least one with a failure; or the pod was evicted or rejected.
    Failed,
}

impl Phase {
    fn parse(text: &str) -> Self {
        match text {
            "Running" => Self::Running,
            "Succeeded" => Self::Succeeded,
            "Failed" => Self::Failed,
            "Unknown" => Self::Unknown,
            _ => Self::Pending,
        }
    }
}

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Metadata.
    pub meta: Meta,
    /// The node it is bound to; empty before that.
    pub node: Str,
    /// `status.phase`.
    pub phase: Phase,
    /// True when its Ready condition is true.
    pub ready: bool,
    /// Time of the last change of the Ready condition.
    pub ready_since: Time,
    /// Maximum number of restarts among its regular containers.
    pub restarts: i32,
    /// Maximum number of restarts among its sidecars.
    pub sidecar_restarts: i32,
    /// Deletion cost.
    pub deletion_cost: i32,
    /// Its termination; only with section [`Pod::ENDING`], and only for a Job's pod or one without a controller.
    pub ending: Option<Box<Ending>>,
    /// Tolerations of `NoExecute` taints; only with section [`Pod::TOLERATIONS`].
    pub tolerations: Option<Tolerations>,
    /// Its recorded disruption, if any; only with section [`Pod::DISRUPTION`].
    pub disruption: Option<Box<Disruption>>,
    /// Its addresses and ports; only with section [`Pod::NETWORK`].
    pub network: Option<Box<Network>>,
    /// The claims behind its volumes, if there are any; only with section [`Pod::CLAIMS`], and only for a StatefulSet's
    /// pod or one without a controller.
    pub claims: Option<Box<Claims>>,
    /// The node that its affinity selects, until it is bound; only with section [`Pod::TARGET`], and only for a
    /// DaemonSet's pod or one without a controller.
    pub target: Option<Box<Str>>,
    /// Its use of quota; only with section [`Pod::USAGE`].
    pub usage: Option<PackedUsage>,
    /// Its resource requests and start time; only with section [`Pod::REQUESTS`].
    pub requests: Option<Box<Requests>>,
    /// The ResourceClaims that it uses and its PodGroup, if there are any; only with section [`Pod::DEVICES`].
    pub devices: Option<Box<Devices>>,
    /// The volumes that storage controllers process, if there are any; only with section [`Pod::VOLUMES`].
    pub volumes: Option<Box<Volumes>>,
}

impl Pod {
    /// Section: its termination.
    pub const ENDING: Sections = Sections(1 << 0);
    /// Section: tolerations of `NoExecute` taints.
    pub const TOLERATIONS: Sections = Sections(1 << 1);
    /// Section: addresses and ports.
    pub const NETWORK: Sections = Sections(1 << 2);
    /// Section: the claims behind its volumes.
    pub const CLAIMS: Sections = Sections(1 << 3);
    /// Section: the node that its affinity selects.
    pub const TARGET: Sections = Sections(1 << 4);
    /// Section: evictions and disruptions.
    pub const DISRUPTION: Sections = Sections(1 << 5);
    /// Section: its use of quota.
    pub const USAGE: Sections = Sections(1 << 6);
    /// Section: resource requests and start time.
    pub const REQUESTS: Sections = Sections(1 << 7);
    /// Section: the ResourceClaims that it uses and its PodGroup.
    pub const DEVICES: Sections = Sections(1 << 8);
    /// Section: the volumes that storage controllers process, and whether the pod still uses them.
    pub const VOLUMES: Sections = Sections(1 << 9);
    // Bits 10 and 11 are free.
    /// Section: the SELinux labels with which its volumes are mounted; together with [`Pod::VOLUMES`].
    pub const SELINUX: Sections = Sections(1 << 12);
    /// Option: [`Pod::USAGE`] ignores `spec.resources`. Set while the gate PodLevelResources is off.
    pub const CONTAINER_RESOURCES_ONLY: Sections = Sections(1 << 30);
    /// Option: [`Usage::best_effort`] is computed from `spec.resources` alone if that field is set, even if it is
    /// empty. Set while the gate PodLevelResourcesFixKubeletQOSClass is off.
    pub const ANY_POD_RESOURCES_DECIDE: Sections = Sections(1 << 31);
}

impl Pod {
    /// Returns true if the pod has not finished and is not being deleted. Upstream: pkg/controller, IsPodActive.
    pub fn is_active(&self) -> bool {
        !self.is_terminal() && !self.meta.is_deleting()
    }

    /// Returns true if the pod is being deleted and has not finished. Upstream: pkg/controller, IsPodTerminating.
    pub fn is_terminating(&self) -> bool {
        !self.is_terminal() && self.meta.is_deleting()
    }

    /// Returns true if the pods differ in a field that the controllers of workloads read. Not compared: the object's
    /// version, and the sections except for [`Pod::ENDING`] and [`Pod::TARGET`].
    pub fn differs_for_workloads(&self, other: &Self) -> bool {
        let fields = |pod: &Self| {
            (
                pod.node.clone(),
                pod.phase,
                pod.ready,
                pod.ready_since,
                pod.restarts,
                pod.sidecar_restarts,
                pod.deletion_cost,
            )
        };
        fields(self) != fields(other)
            || self.ending != other.ending
            || self.target != other.target
            || self.meta.differs(&other.meta)
    }

    /// Returns true if the pod no longer uses its volumes: it has finished, or it is being deleted and none of its
    /// containers runs. Upstream: pkg/volume/util, IsPodTerminated. Meaningful only if [`Pod::volumes`] is set.
    pub fn has_released_volumes(&self) -> bool {
        let runs = self.volumes.as_ref().is_some_and(|volumes| volumes.is_running);
        self.is_terminal() || self.meta.is_deleting() && !runs
    }

    /// Returns true if the pod has succeeded or failed.
    pub fn is_terminal(&self) -> bool {
        matches!(self.phase, Phase::Succeeded | Phase::Failed)
    }
}

impl Kind for Pod {
    const RESOURCE: Resource = Resource { group: "", version: "v1", kind: "Pod", plural: "pods", namespaced: true };
    const MANY: bool = true;

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let Parts { meta, spec, status } = Parts::read(object)?;
        let mut deletion_cost = 0;
        let meta_bytes = meta;
        let meta = Meta::decode(&context.interner, meta, |key, value| {
            if key == DELETION_COST {
                deletion_cost = parse_deletion_cost(value);
            }
        })?;
        let mut pod = Self {
            meta,
            node: context.interner.str(""),
            phase: Phase::default(),
            ready: false,
            ready_since: Time::default(),
            restarts: 0,
            sidecar_restarts: 0,
            deletion_cost,
            ending: None,
            tolerations: None,
            disruption: None,
            network: None,
            claims: None,
            target: None,
            usage: None,
            requests: None,
            devices: None,
            volumes: None,
        };
        if context.sections.contains(Self::TOLERATIONS) {
            pod.tolerations = Some(Tolerations::keep(&context.interner, spec, NO_EXECUTE)?);
        }
        if context.sections.contains(Self::USAGE) {
            pod.usage = Some(PackedUsage::read(context, meta_bytes, spec, status)?);
        }
        if context.sections.contains(Self::DEVICES) {
            pod.devices = devices::read(&context.interner, spec, status)?;
        }
        if context.sections.contains(Self::VOLUMES) {
            pod.volumes = volumes::read(context, &pod.meta.name, (meta_bytes, spec, status))?;
        }
        if context.sections.contains(Self::DISRUPTION) {
            pod.disruption = Disruption::read(status)?;
        }
        let may_be_of_statefulset = pod.meta.controller().is_none_or(|controller| &*controller.kind == "StatefulSet");
        if context.sections.contains(Self::CLAIMS) && may_be_of_statefulset {
            pod.claims = claims::read(&context.interner, spec)?;
        }
        let sidecars = pod.read_spec(context, spec)?;
        pod.read_status(status, &sidecars)?;
        pod.read_target(context, spec);
        pod.read_ending(context, (meta_bytes, status), &sidecars)?;
        if context.sections.contains(Self::NETWORK) {
            pod.network = Some(Box::new(Network::read(&context.interner, spec, status)?));
        }
        if context.sections.contains(Self::REQUESTS) {
            pod.requests = Some(Box::new(Requests::read(&context.interner, spec, status)?));
        }
        Ok(pod)
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

impl Pod {
    /// Reads the relevant fields of the spec; returns the names of its sidecars, sorted for binary searches: a pod may
    /// have tens of thousands.
    fn read_spec<'a>(&mut self, context: &Decode, spec: &'a [u8]) -> Result<Vec<&'a str>, WireError> {
        let mut sidecars = Vec::new();
        for field in fields(spec) {
            let field = field?;
            match field.number {
                pod_spec::NODE_NAME => self.node = context.interner.str(field.value.str()),
                pod_spec::INIT_CONTAINERS => sidecars.extend(sidecar(field.value.bytes())?),
                _ => {}
            }
        }
        sidecars.sort_unstable();
        Ok(sidecars)
    }

    fn read_ending(
        &mut self,
        context: &Decode,
        (meta, status): (&[u8], &[u8]),
        sidecars: &[&str],
    ) -> Result<(), WireError> {
        let may_be_of_job = self.meta.controller().is_none_or(|controller| &*controller.kind == "Job");
        if context.sections.contains(Self::ENDING) && may_be_of_job {
            let mut ending = Ending::default();
            ending.read(&context.interner, meta, status, sidecars)?;
            self.ending = Some(Box::new(ending));
        }
        Ok(())
    }

    fn read_status(&mut self, status: &[u8], sidecars: &[&str]) -> Result<(), WireError> {
        for field in fields(status) {
            let field = field?;
            match field.number {
                pod_status::PHASE => self.phase = Phase::parse(field.value.str()),
                pod_status::CONDITIONS => self.read_condition(field.value.bytes())?,
                pod_status::CONTAINER_STATUSES => {
                    self.restarts = self.restarts.max(restarts(field.value.bytes())?.1);
                }
                pod_status::INIT_CONTAINER_STATUSES => {
                    let (name, count) = restarts(field.value.bytes())?;
                    if sidecars.binary_search(&name).is_ok() {
                        self.sidecar_restarts = self.sidecar_restarts.max(count);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn read_condition(&mut self, message: &[u8]) -> Result<(), WireError> {
        let mut kind = "";
        let mut status = "";
        let mut since = Time::default();
        for field in fields(message) {
            let field = field?;
            match field.number {
                pod_condition::TYPE => kind = field.value.str(),
                pod_condition::STATUS => status = field.value.str(),
                pod_condition::LAST_TRANSITION_TIME => since = Time::decode(field.value.bytes())?,
                _ => {}
            }
        }
        if kind == "Ready" {
            self.ready = status == "True";
            self.ready_since = since;
        }
        Ok(())
    }
}

/// Returns the container's name if it is an init container that always restarts.
fn sidecar(message: &[u8]) -> Result<Option<&str>, WireError> {
    let mut name = "";
    let mut always = false;
    for field in fields(message) {
        let field = field?;
        match field.number {
            container::NAME => name = field.value.str(),
            container::RESTART_POLICY => always = field.value.str() == "Always",
            _ => {}
        }
    }
    Ok(always.then_some(name))
}

/// Returns name and restart count of a container status.
fn restarts(message: &[u8]) -> Result<(&str, i32), WireError> {
    let (mut name, mut count) = ("", 0);
    for field in fields(message) {
        let field = field?;
        match field.number {
            container_status::NAME => name = field.value.str(),
            container_status::RESTART_COUNT => count = field.value.i32(),
            _ => {}
        }
    }
    Ok((name, count))
}

/// Parses a deletion cost. As in upstream, a value counts as zero if it is not a 32-bit number, or if it has a plus
/// sign or leading zeros; zeros may follow a minus sign. Upstream: pkg/apis/core/helper,
/// GetDeletionCostFromPodAnnotations.
fn parse_deletion_cost(text: &str) -> i32 {
    let canonical = text.parse::<i32>().ok().filter(|cost| cost.to_string() == text || text.starts_with('-'));
    canonical.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_section_has_its_own_bit() {
        let all = [
            Pod::ENDING,
            Pod::TOLERATIONS,
            Pod::NETWORK,
            Pod::CLAIMS,
            Pod::TARGET,
            Pod::DISRUPTION,
            Pod::USAGE,
            Pod::REQUESTS,
            Pod::DEVICES,
            Pod::VOLUMES,
            Pod::SELINUX,
            Pod::CONTAINER_RESOURCES_ONLY,
            Pod::ANY_POD_RESOURCES_DECIDE,
        ];
        for (index, section) in all.iter().enumerate() {
            assert!(all[..index].iter().all(|other| other.0 & section.0 == 0), "section {index}");
        }
    }

    /// A search of all sidecars for each status would take minutes.
    #[test]
    fn pod_with_very_many_sidecars_is_read_in_near_linear_time() {
        use crate::wire::Put;
        use crate::wire::schema::{object_meta, pod as object_fields};

        const SIDECARS: i32 = 50_000;
        let name = |number: i32| format!("sidecar-{number:08}");
        let mut object = Vec::new();
        object.put_message(object_fields::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "many");
            meta.put_str(object_meta::UID, "many-uid");
            meta.put_str(object_meta::RESOURCE_VERSION, "1");
        });
        object.put_message(object_fields::SPEC, |spec| {
            (0..SIDECARS).for_each(|number| {
                spec.put_message(pod_spec::INIT_CONTAINERS, |message| {
                    message.put_str(container::NAME, &name(number));
                    message.put_str(container::RESTART_POLICY, "Always");
                });
            });
        });
        object.put_message(object_fields::STATUS, |status| {
            (0..=SIDECARS).for_each(|number| {
                status.put_message(pod_status::INIT_CONTAINER_STATUSES, |message| {
                    message.put_str(container_status::NAME, &name(number));
                    message.put_int(container_status::RESTART_COUNT, number.into());
                });
            });
        });
        let context = Decode { interner: std::sync::Arc::default(), sections: Pod::ENDING };
        let started = std::time::Instant::now();
        let read = Pod::decode(&context, &object).expect("well-formed");
        assert_eq!(read.sidecar_restarts, SIDECARS - 1, "the last status belongs to no sidecar");
        assert!(started.elapsed() < std::time::Duration::from_secs(10), "{:?}", started.elapsed());
    }

    #[test]
    fn deletion_costs_are_plain_numbers() {
        for (text, expected) in [
            ("10", 10),
            ("-10", -10),
            ("0", 0),
            ("+10", 0),
            ("010", 0),
            ("-010", -10),
            ("1e3", 0),
            ("", 0),
            ("2147483648", 0),
            ("-2147483648", i32::MIN),
        ] {
            assert_eq!(parse_deletion_cost(text), expected, "{text:?}");
        }
    }
}
