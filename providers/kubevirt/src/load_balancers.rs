//! Load balancers: a Service of the infrastructure cluster for each, and EndpointSlices if the targets are nodes that
//! the controller selects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use providers::{
    CloudError, Deletion, Ensured, ErrorKind, Features, Followed, Health, Ingress, IpMode, IpNet, Listener,
    LoadBalancerId, LoadBalancerSpec, LoadBalancerStatus, LoadBalancers, Observed, ObservedLoadBalancer,
    ObservedTarget, Owned, Phase, Progress, Protocol, TargetId, Targeting, async_trait,
};
use serde_json::Value;

use crate::config::{LoadBalancerConfig, Targets};
use crate::desired::{self, Desired};
use crate::error::as_retryable;
use crate::infra::{Created, ENDPOINTS, Infra, SERVICES, SLICES};
use crate::instances::provider_id;
use crate::objects::{InfraIngress, InfraPort, InfraService, Meta, Object, Slice, SliceEndpoint};
use crate::ownership;
use crate::slices::{self, SELECTOR_WRITER, SERVICE_LABEL, SliceChange, WRITER_LABEL};
use crate::virtual_machines::read_instances;

pub(crate) struct KubeVirtLoadBalancers {
    pub infra: Arc<Infra>,
    pub config: LoadBalancerConfig,
    pub infra_labels: BTreeMap<String, String>,
    pub cluster: String,
    pub features: Features,
}

/// The Service that has a load balancer's name.
enum Holder {
    None,
    Own(Box<InfraService>),
    /// Another client's.
    Foreign,
}

impl KubeVirtLoadBalancers {
    async fn holder(&self, id: &LoadBalancerId) -> Result<Holder, CloudError> {
        let found: Option<InfraService> = self.infra.get("GetService", SERVICES, &id.default_name()).await?;
        Ok(match found {
            None => Holder::None,
            Some(service) if ownership::belongs_to(&service.metadata, id) => Holder::Own(Box::new(service)),
            Some(_) => Holder::Foreign,
        })
    }

    /// Returns the Service that is a load balancer, unless it is being deleted.
    async fn existing(&self, id: &LoadBalancerId) -> Result<InfraService, CloudError> {
        match self.holder(id).await.map_err(as_retryable)? {
            Holder::Own(service) if !service.metadata.is_deleting() => Ok(*service),
            _ => {
                let message = format!("the infrastructure cluster has no Service {} for {id}", id.default_name());
                Err(CloudError::new(ErrorKind::NotFound, "GetService", message))
            }
        }
    }

    async fn own_slices(&self, id: &LoadBalancerId) -> Result<Vec<Slice>, CloudError> {
        self.infra.list("ListEndpointSlices", SLICES, &ownership::selector(id)).await
    }

    async fn create(&self, desired: &Desired) -> Result<InfraService, CloudError> {
        match self.infra.create("CreateService", SERVICES, &desired.object()).await? {
            Created::New(service) => Ok(service),
            // Another process was faster, or another client uses the name: the next call reads it.
            Created::NameTaken => {
                let message = format!("Service {} was created by another client", desired.name);
                Err(CloudError::new(ErrorKind::Conflict, "CreateService", message))
            }
        }
    }

    /// Updates the EndpointSlices to the selected nodes. Returns the names of nodes without traffic.
    async fn sync_slices(
        &self,
        spec: &LoadBalancerSpec,
        (service, ports): (&InfraService, &[InfraPort]),
        targets: &providers::Targets,
    ) -> Result<Vec<String>, CloudError> {
        let found = self.own_slices(&spec.id).await?;
        let (mut machines, mut without_traffic) = slices::target_machines(spec, targets);
        if targets.incomplete {
            let kept = found.iter().flat_map(|slice| &slice.endpoints).filter_map(slices::machine_of);
            machines.extend(kept.map(str::to_owned));
        }
        let names: BTreeSet<&str> = machines.iter().map(String::as_str).collect();
        let instances = read_instances(&self.infra, &names).await?;
        let namespace = self.infra.namespace().await?;
        let mut endpoints = Vec::with_capacity(machines.len());
        for name in &machines {
            match instances.get(name).and_then(|instance| slices::endpoint(instance, namespace)) {
                Some(endpoint) => endpoints.push(endpoint),
                None => without_traffic.push(slices::node_of(targets, name).unwrap_or(name).to_owned()),
            }
        }
        let labels = ownership::labels(&spec.id);
        for change in slices::changes((service, ports), &labels, &endpoints, &found) {
            self.apply_slice(change).await?;
        }
        Ok(without_traffic)
    }

    async fn apply_slice(&self, change: SliceChange) -> Result<(), CloudError> {
        match change {
            SliceChange::Create(object) => {
                match self.infra.create::<Object>("CreateEndpointSlice", SLICES, &object).await? {
                    Created::New(_) => Ok(()),
                    Created::NameTaken => {
                        let message = format!("EndpointSlice {} exists already", object["metadata"]["name"]);
                        Err(CloudError::new(ErrorKind::Conflict, "CreateEndpointSlice", message))
                    }
                }
            }
            SliceChange::Patch(name, patch) => {
                self.infra.patch::<Value>("PatchEndpointSlice", SLICES, &name, &patch).await.map(drop)
            }
            SliceChange::Delete(name, uid) => self.infra.delete("DeleteEndpointSlice", SLICES, &name, &uid).await,
        }
    }

    /// Deletes the Endpoints and EndpointSlices of a Service's former selector: the infrastructure cluster's
    /// controllers keep them when a selector is removed.
    async fn delete_selector_slices(&self, service: &InfraService) -> Result<(), CloudError> {
        let name = &service.metadata.name;
        let selector = format!("{SERVICE_LABEL}={name},{WRITER_LABEL}={SELECTOR_WRITER}");
        let outdated: Vec<Slice> = self.infra.list("ListEndpointSlices", SLICES, &selector).await?;
        if outdated.is_empty() {
            return Ok(());
        }
        // First the Endpoints, which would be mirrored into slices again.
        if let Some(endpoints) = self.infra.get::<Object>("GetEndpoints", ENDPOINTS, name).await? {
            self.infra.delete("DeleteEndpoints", ENDPOINTS, name, &endpoints.metadata.uid).await?;
        }
        for slice in &outdated {
            self.apply_slice(slices::deletion(slice)).await?;
        }
        Ok(())
    }

    /// Deletes this provider's slices of a Service that has a selector again, once the selector's slices have
    /// endpoints. Returns false until then.
    async fn delete_own_slices(&self, id: &LoadBalancerId, service: &InfraService) -> Result<bool, CloudError> {
        let listed = self.own_slices(id).await?;
        if listed.is_empty() {
            return Ok(true);
        }
        let selector = format!("{SERVICE_LABEL}={},{WRITER_LABEL}={SELECTOR_WRITER}", service.metadata.name);
        let selected: Vec<Slice> = self.infra.list("ListEndpointSlices", SLICES, &selector).await?;
        if selected.iter().all(|slice| slice.endpoints.is_empty()) {
            return Ok(false);
        }
        for slice in &listed {
            self.apply_slice(slices::deletion(slice)).await?;
        }
        Ok(true)
    }

    fn ensured(&self, spec: &LoadBalancerSpec, service: &InfraService, without_traffic: &[String]) -> Ensured {
        let status = status(&service.status.load_balancer.ingress);
        let mut warnings = Vec::new();
        if !spec.external_ips.is_empty() {
            warnings.push("spec.externalIPs has no effect in the infrastructure cluster".to_owned());
        }
        if !without_traffic.is_empty() {
            warnings.push(format!(
                "nodes without a virtual machine that has an IPv4 address get no traffic: {}",
                without_traffic.join(", ")
            ));
        }
        if !status.ingress.is_empty() {
            return Ensured { warnings, ..Ensured::settled(status) };
        }
        if age(&service.metadata).is_some_and(|age| age > self.config.poll_timeout) {
            let seconds = self.config.poll_timeout.as_secs();
            warnings.push(format!(
                "Service {} of the infrastructure cluster has had no address for more than {seconds} s: check its load \
                 balancer controller",
                service.metadata.name
            ));
        }
        Ensured { progress: Progress::After(self.config.poll_interval), warnings, ..Ensured::settled(status) }
    }
}

fn age(meta: &Meta) -> Option<Duration> {
    let created: Timestamp = meta.creation_timestamp.as_deref()?.parse().ok()?;
    Duration::try_from(Timestamp::now().duration_since(created)).ok()
}

/// Returns the status for the tenant's Service, without entries that have neither a valid address nor a host name.
fn status(found: &[InfraIngress]) -> LoadBalancerStatus {
    let ingress = found.iter().filter_map(|found| {
        let ip = found.ip.as_deref().and_then(|ip| ip.parse().ok());
        let hostname = found.hostname.clone().filter(|name| !name.is_empty());
        let ip_mode = match found.ip_mode.as_deref().filter(|_| ip.is_some()) {
            Some("VIP") => Some(IpMode::Vip),
            Some("Proxy") => Some(IpMode::Proxy),
            _ => None,
        };
        (ip.is_some() || hostname.is_some()).then(|| Ingress { ip, hostname, ip_mode, ..Ingress::default() })
    });
    LoadBalancerStatus { ingress: ingress.collect() }
}

fn phase(service: &InfraService) -> Phase {
    if service.metadata.is_deleting() {
        Phase::Deleting
    } else if service.status.load_balancer.ingress.is_empty() {
        Phase::Provisioning
    } else {
        Phase::Active
    }
}

fn protocol(word: &str) -> Option<Protocol> {
    [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|protocol| protocol.as_str() == word)
}

fn observed(service: Option<&InfraService>, slices: &[Slice]) -> Observed {
    let Some(service) = service else {
        if slices.is_empty() {
            return Observed::Absent;
        }
        return Observed::Present(Box::new(ObservedLoadBalancer {
            phase: Phase::Incomplete,
            ..contents(&InfraService::default(), slices)
        }));
    };
    Observed::Present(Box::new(contents(service, slices)))
}

fn contents(service: &InfraService, slices: &[Slice]) -> ObservedLoadBalancer {
    let listeners: BTreeSet<Listener> = (service.spec.ports.iter())
        .filter_map(|port| Some(Listener { protocol: protocol(&port.protocol)?, port: port.port }))
        .collect();
    let ranges: BTreeSet<IpNet> =
        service.spec.load_balancer_source_ranges.iter().filter_map(|range| range.parse().ok()).collect();
    let endpoints = slices.iter().flat_map(|slice: &Slice| &slice.endpoints);
    let machines: BTreeSet<&str> = endpoints.filter_map(|found: &SliceEndpoint| slices::machine_of(found)).collect();
    let target =
        |machine: &str| ObservedTarget { target: TargetId::Instance(provider_id(machine)), health: Health::Unknown };
    ObservedLoadBalancer {
        phase: phase(service),
        status: status(&service.status.load_balancer.ingress),
        listeners: listeners.into_iter().collect(),
        source_ranges: ranges.into_iter().collect(),
        targets: machines.into_iter().map(target).collect(),
    }
}

/// Groups objects by the Service that they belong to.
fn grouped(services: &[InfraService], slices: &[Slice], cluster: &str) -> Vec<Owned> {
    let mut all: BTreeMap<(LoadBalancerId, String), Owned> = BTreeMap::new();
    let services = services.iter().map(|service| ("Service", &service.metadata, phase(service)));
    let slices = slices.iter().map(|slice| ("EndpointSlice", &slice.metadata, Phase::Incomplete));
    for (kind, meta, phase) in services.chain(slices) {
        let Some(id) = ownership::owner(meta).filter(|id| id.cluster == cluster) else { continue };
        // Without uids, two Services with the same name can be distinguished only by their objects' names.
        let distinction = if id.uid.is_empty() { meta.name.clone() } else { String::new() };
        let certain = !id.uid.is_empty();
        let owned =
            all.entry((id.clone(), distinction)).or_insert_with(|| Owned { id, phase, resources: Vec::new(), certain });
        owned.resources.push(ownership::resource(kind, &meta.name));
    }
    all.into_values().collect()
}

#[async_trait]
impl LoadBalancers for KubeVirtLoadBalancers {
    fn features(&self) -> Features {
        self.features.clone()
    }

    fn targeting(&self, spec: &LoadBalancerSpec) -> Result<Targeting, CloudError> {
        desired::targeting(spec, &self.config, &self.features)
    }

    async fn observe(&self, id: &LoadBalancerId) -> Result<Observed, CloudError> {
        let read = async {
            let service = match self.holder(id).await? {
                Holder::Own(service) => Some(service),
                Holder::None | Holder::Foreign => None,
            };
            Ok(observed(service.as_deref(), &self.own_slices(id).await?))
        };
        read.await.map_err(as_retryable)
    }

    async fn ensure(&self, spec: &LoadBalancerSpec, targets: &providers::Targets) -> Result<Ensured, CloudError> {
        self.targeting(spec)?;
        let desired = Desired::of(spec, &self.config, &self.infra_labels);
        let lists_nodes = self.config.targets == Targets::Nodes;
        let (service, mut without_traffic) = match self.holder(&spec.id).await.map_err(as_retryable)? {
            Holder::Foreign => {
                let message =
                    format!("Service {} of the infrastructure cluster belongs to another client", desired.name);
                return Err(CloudError::new(ErrorKind::Conflict, "GetService", message));
            }
            Holder::Own(service) if service.metadata.is_deleting() => {
                let progress = Progress::After(self.config.poll_interval);
                return Ok(Ensured { progress, ..Ensured::settled(LoadBalancerStatus::default()) });
            }
            Holder::None => (self.create(&desired).await?, None),
            Holder::Own(service) => {
                // New targets before the Service changes, so that a removed selector leaves no gap.
                let mut without_traffic = None;
                if lists_nodes {
                    let synced = self.sync_slices(spec, (&service, &desired.spec.ports), targets).await;
                    without_traffic = Some(synced.map_err(as_retryable)?);
                }
                let service = match desired.patch(&service) {
                    None => *service,
                    Some(patch) => {
                        let patched = self.infra.patch("PatchService", SERVICES, &desired.name, &patch).await;
                        patched.map_err(|error| if error.is_not_found() { as_retryable(error) } else { error })?
                    }
                };
                (service, without_traffic)
            }
        };
        if lists_nodes {
            if without_traffic.is_none() {
                let synced = self.sync_slices(spec, (&service, &desired.spec.ports), targets).await;
                without_traffic = Some(synced.map_err(as_retryable)?);
            }
            self.delete_selector_slices(&service).await.map_err(as_retryable)?;
        } else if !self.delete_own_slices(&spec.id, &service).await.map_err(as_retryable)? {
            let progress = Progress::After(self.config.poll_interval);
            return Ok(Ensured { progress, ..self.ensured(spec, &service, &[]) });
        }
        Ok(self.ensured(spec, &service, &without_traffic.unwrap_or_default()))
    }

    async fn set_targets(&self, spec: &LoadBalancerSpec, targets: &providers::Targets) -> Result<(), CloudError> {
        self.targeting(spec)?;
        let service = self.existing(&spec.id).await?;
        if self.config.targets == Targets::Nodes {
            let desired = Desired::of(spec, &self.config, &self.infra_labels);
            self.sync_slices(spec, (&service, &desired.spec.ports), targets).await.map_err(as_retryable)?;
        }
        Ok(())
    }

    /// Changes nothing for a Service with a selector: the infrastructure cluster keeps its targets up to date.
    async fn follow_targets(
        &self,
        spec: &LoadBalancerSpec,
        targets: &providers::Targets,
    ) -> Result<Followed, CloudError> {
        let service = self.existing(&spec.id).await?;
        if service.spec.selector.is_empty() && slices::can_follow(spec, &self.features) {
            let ports = desired::followed_ports(spec, &service);
            self.sync_slices(spec, (&service, &ports), targets).await.map_err(as_retryable)?;
        }
        Ok(Followed::default())
    }

    async fn delete(&self, id: &LoadBalancerId) -> Result<Deletion, CloudError> {
        let delete = async {
            let Holder::Own(service) = self.holder(id).await? else {
                for slice in self.own_slices(id).await? {
                    self.apply_slice(slices::deletion(&slice)).await?;
                }
                return Ok(Deletion::Gone);
            };
            let meta = &service.metadata;
            if !meta.is_deleting() {
                self.infra.delete("DeleteService", SERVICES, &meta.name, &meta.uid).await?;
            }
            for slice in self.own_slices(id).await? {
                self.apply_slice(slices::deletion(&slice)).await?;
            }
            // The infrastructure's controller may keep the Service by a finalizer until it has released the address.
            Ok(match self.holder(id).await? {
                Holder::Own(_) => Deletion::InProgress(self.config.poll_interval),
                Holder::None | Holder::Foreign => Deletion::Gone,
            })
        };
        delete.await.map_err(as_retryable)
    }

    async fn list_owned(&self) -> Result<Vec<Owned>, CloudError> {
        let selector = ownership::cluster_selector(&self.cluster);
        let list = async {
            let services = self.infra.list("ListServices", SERVICES, &selector).await?;
            let slices = self.infra.list("ListEndpointSlices", SLICES, &selector).await?;
            Ok(grouped(&services, &slices, &self.cluster))
        };
        list.await.map_err(as_retryable)
    }

    fn may_be_owned_by(&self, owned: &Owned, service: &LoadBalancerId) -> bool {
        ownership::may_be_owned_by(owned, service)
    }
}
