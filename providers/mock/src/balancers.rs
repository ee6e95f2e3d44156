//! Load balancers over the mock's calls: one read, then the necessary changes, in an order that allows a crash at any
//! point.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use providers::{
    CloudError, Deletion, Ensured, ErrorKind, Features, Followed, Ingress, IpFamily, Listener, LoadBalancerId,
    LoadBalancerSpec, LoadBalancerStatus, LoadBalancers, Observed, ObservedLoadBalancer, Owned, Phase, Progress,
    TargetId, Targeting, Targets, async_trait,
};

use crate::cloud::MockCloud;
use crate::fault::Operation;
use crate::settings::{self, Settings};
use crate::snapshot::LoadBalancerView;

pub(crate) struct MockLoadBalancers {
    pub cloud: MockCloud,
    pub cluster: String,
}

impl MockLoadBalancers {
    async fn describe(&self, id: &LoadBalancerId) -> Result<Option<LoadBalancerView>, CloudError> {
        let subject = id.to_string();
        let read = self
            .cloud
            .call(Operation::DescribeBalancer, &subject, |state, _, now| Ok(state.balancer_view(id, now, false)));
        read.await
    }

    /// Returns the load balancer, unless it is being deleted.
    async fn existing(&self, id: &LoadBalancerId) -> Result<LoadBalancerView, CloudError> {
        let found = self.describe(id).await?;
        found.filter(|found| found.exists && found.phase != Phase::Deleting).ok_or_else(|| {
            let message = format!("there is no load balancer {id}");
            CloudError::new(ErrorKind::NotFound, Operation::DescribeBalancer.as_str(), message)
        })
    }

    fn settings(&self, spec: &LoadBalancerSpec) -> Result<Settings, CloudError> {
        settings::read(spec, &self.cloud.config())
    }

    /// Allocates missing addresses, releases those of families that are no longer requested, creates a missing load
    /// balancer, and returns it. A part that exists although the read did not return it is not created twice.
    async fn create_missing_parts(
        &self,
        id: &LoadBalancerId,
        wanted: &Settings,
        found: &LoadBalancerView,
    ) -> Result<LoadBalancerView, CloudError> {
        let subject = id.to_string();
        let existing: Vec<IpFamily> = found.addresses.iter().copied().map(IpFamily::of).collect();
        for family in wanted.families.iter().filter(|family| !existing.contains(family)) {
            let address = wanted.requested_address.filter(|address| IpFamily::of(*address) == *family);
            let allocate = self.cloud.call(Operation::AllocateAddress, &subject, |state, effect, now| {
                state.allocate_address(id, *family, address, now + effect.invisible)
            });
            allocate.await?;
        }
        if existing.iter().any(|family| !wanted.families.contains(family)) {
            let release = self.cloud.call(Operation::ReleaseAddresses, &subject, |state, _, _| {
                state.release_addresses(id, &wanted.families)
            });
            release.await?;
        }
        let create = self.cloud.call(Operation::CreateBalancer, &subject, |state, effect, now| {
            state.create_balancer(id, wanted.internal, now + effect.invisible, now)
        });
        create.await
    }

    /// Changes the observed state to the desired state; the firewall before the ports, so that new ports admit only the
    /// allowed clients.
    async fn configure(
        &self,
        id: &LoadBalancerId,
        wanted: &Settings,
        targets: &BTreeSet<TargetId>,
        found: &LoadBalancerView,
    ) -> Result<(), CloudError> {
        let subject = id.to_string();
        if found.source_ranges != wanted.source_ranges {
            let call = self
                .cloud
                .call(Operation::SetFirewall, &subject, |state, _, _| state.set_firewall(id, &wanted.source_ranges));
            call.await?;
        }
        if found.attributes != wanted.attributes {
            let call = self
                .cloud
                .call(Operation::SetAttributes, &subject, |state, _, _| state.set_attributes(id, wanted.attributes));
            call.await?;
        }
        if found.listeners != wanted.listeners {
            let call = self
                .cloud
                .call(Operation::SetListeners, &subject, |state, _, _| state.set_listeners(id, &wanted.listeners));
            call.await?;
        }
        self.update_targets(id, targets, found).await
    }

    async fn update_targets(
        &self,
        id: &LoadBalancerId,
        targets: &BTreeSet<TargetId>,
        found: &LoadBalancerView,
    ) -> Result<(), CloudError> {
        if found.targets.iter().map(|observed| &observed.target).eq(targets) {
            return Ok(());
        }
        let subject = id.to_string();
        let call =
            self.cloud.call(Operation::SetTargets, &subject, |state, _, now| state.set_targets(id, targets, now));
        call.await
    }

    async fn start_deletion(&self, id: &LoadBalancerId) -> Result<Option<Duration>, CloudError> {
        let duration = Duration::from_millis(self.cloud.config().deletion_millis);
        let subject = id.to_string();
        let call = self.cloud.call(Operation::DeleteBalancer, &subject, |state, effect, now| {
            Ok(state.delete_balancer(id, effect.pending.unwrap_or(duration), now))
        });
        call.await
    }
}

fn in_progress(remaining: Duration) -> Ensured {
    Ensured { progress: Progress::After(remaining), ..Ensured::settled(LoadBalancerStatus::default()) }
}

fn is_complete(view: &LoadBalancerView, wanted: &Settings) -> bool {
    let existing: BTreeSet<IpFamily> = view.addresses.iter().copied().map(IpFamily::of).collect();
    view.exists && existing == wanted.families.iter().copied().collect()
}

fn absent_view(id: &LoadBalancerId) -> LoadBalancerView {
    LoadBalancerView {
        id: id.clone(),
        phase: Phase::Incomplete,
        exists: false,
        internal: false,
        addresses: Vec::new(),
        source_ranges: Vec::new(),
        attributes: Default::default(),
        listeners: Vec::new(),
        targets: Vec::new(),
        remaining: Duration::ZERO,
    }
}

fn status(view: &LoadBalancerView, wanted: &Settings) -> LoadBalancerStatus {
    if wanted.hostname {
        let hostname = format!("{}.{}.mock.cloud", view.id.name, view.id.namespace);
        return LoadBalancerStatus { ingress: vec![Ingress { hostname: Some(hostname), ..Ingress::default() }] };
    }
    let address = |family: &IpFamily| view.addresses.iter().find(|ip| IpFamily::of(**ip) == *family);
    let ingress = wanted.families.iter().filter_map(address).map(|ip| Ingress {
        ip: Some(*ip),
        ip_mode: wanted.ip_mode,
        ..Ingress::default()
    });
    LoadBalancerStatus { ingress: ingress.collect() }
}

fn observed_status(view: &LoadBalancerView) -> LoadBalancerStatus {
    let ingress = view.addresses.iter().map(|ip| Ingress { ip: Some(*ip), ..Ingress::default() });
    LoadBalancerStatus { ingress: ingress.collect() }
}

fn warnings(view: &LoadBalancerView, wanted: &Settings, without_id: &[String]) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(address) = wanted.requested_address.filter(|address| !view.addresses.contains(address)) {
        warnings.push(format!(
            "spec.loadBalancerIP {address} has no effect on a load balancer that already has an address"
        ));
    }
    if !without_id.is_empty() {
        warnings.push(format!("nodes without spec.providerID get no traffic: {}", without_id.join(", ")));
    }
    warnings
}

/// Adds existing targets if the given lists may be incomplete.
fn with_existing(mut chosen: BTreeSet<TargetId>, given: &Targets, found: &LoadBalancerView) -> BTreeSet<TargetId> {
    if given.incomplete {
        chosen.extend(found.targets.iter().map(|observed| observed.target.clone()));
    }
    chosen
}

#[async_trait]
impl LoadBalancers for MockLoadBalancers {
    fn features(&self) -> Features {
        settings::features()
    }

    fn targeting(&self, spec: &LoadBalancerSpec) -> Result<Targeting, CloudError> {
        Ok(self.settings(spec)?.targeting)
    }

    async fn observe(&self, id: &LoadBalancerId) -> Result<Observed, CloudError> {
        Ok(match self.describe(id).await? {
            None => Observed::Absent,
            Some(view) => Observed::Present(Box::new(ObservedLoadBalancer {
                phase: view.phase,
                status: observed_status(&view),
                listeners: view.listeners.iter().map(|l| Listener { protocol: l.protocol, port: l.port }).collect(),
                source_ranges: view.source_ranges,
                targets: view.targets,
            })),
        })
    }

    async fn ensure(&self, spec: &LoadBalancerSpec, targets: &Targets) -> Result<Ensured, CloudError> {
        let id = &spec.id;
        let wanted = self.settings(spec)?;
        if wanted.targeting == Targeting::Elsewhere {
            let key = format!("{}targets", settings::PREFIX);
            return Err(CloudError::invalid_annotation(
                &key,
                "elsewhere",
                "another controller creates this load balancer",
            ));
        }
        let (chosen, without_id) = settings::targets(wanted.targeting, targets);
        let mut found = self.describe(id).await?.unwrap_or_else(|| absent_view(id));
        if found.phase != Phase::Deleting && !is_complete(&found, &wanted) {
            found = self.create_missing_parts(id, &wanted, &found).await?;
        }
        if found.phase == Phase::Deleting {
            return Ok(in_progress(found.remaining));
        }
        if found.internal != wanted.internal {
            // The scheme cannot be changed: the load balancer is replaced and keeps its addresses.
            return Ok(in_progress(self.start_deletion(id).await?.unwrap_or_default()));
        }
        let chosen = with_existing(chosen, targets, &found);
        self.configure(id, &wanted, &chosen, &found).await?;
        let warnings = warnings(&found, &wanted, &without_id);
        let report = || (format!("{}balancer", settings::WRITTEN_PREFIX), id.default_name());
        let annotations: BTreeMap<String, String> = wanted.report.then(report).into_iter().collect();
        // A part that was deleted since the first read is recreated by the next reconcile.
        Ok(match found.remaining {
            Duration::ZERO => Ensured { warnings, annotations, ..Ensured::settled(status(&found, &wanted)) },
            remaining => Ensured { warnings, annotations, ..in_progress(remaining) },
        })
    }

    async fn set_targets(&self, spec: &LoadBalancerSpec, targets: &Targets) -> Result<(), CloudError> {
        let (chosen, _) = settings::targets(self.settings(spec)?.targeting, targets);
        let found = self.existing(&spec.id).await?;
        self.update_targets(&spec.id, &with_existing(chosen, targets, &found), &found).await
    }

    async fn follow_targets(&self, spec: &LoadBalancerSpec, targets: &Targets) -> Result<Followed, CloudError> {
        let found = self.existing(&spec.id).await?;
        let (chosen, _) = settings::targets(found.targeting(), targets);
        self.update_targets(&spec.id, &with_existing(chosen, targets, &found), &found).await?;
        Ok(Followed::default())
    }

    async fn delete(&self, id: &LoadBalancerId) -> Result<Deletion, CloudError> {
        if let Some(remaining) = self.start_deletion(id).await? {
            return Ok(Deletion::InProgress(remaining));
        }
        let subject = id.to_string();
        let release =
            self.cloud.call(Operation::ReleaseAddresses, &subject, |state, _, _| state.release_addresses(id, &[]));
        release.await?;
        Ok(Deletion::Gone)
    }

    async fn list_owned(&self) -> Result<Vec<Owned>, CloudError> {
        let list = self.cloud.call(Operation::ListBalancers, "", |state, _, now| {
            Ok(state.balancer_views(Some(&self.cluster), now, false))
        });
        let resources = |view: &LoadBalancerView| {
            let balancer = view.exists.then(|| format!("balancer {}", view.id.default_name()));
            balancer.into_iter().chain(view.addresses.iter().map(|ip| format!("address {ip}"))).collect()
        };
        let owned = list.await?;
        Ok(owned
            .into_iter()
            .map(|view| Owned { resources: resources(&view), phase: view.phase, id: view.id, certain: true })
            .collect())
    }
}
