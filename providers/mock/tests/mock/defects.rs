//! The suite detects defects: a provider with one defect fails the case for it.

use std::sync::Arc;

use provider_conformance::{Outcome, block_on, case_names};
use providers::{
    CloudError, CloudProvider, Deletion, Ensured, ErrorKind, Features, Followed, InstanceFeatures, InstanceRef,
    InstanceState, Instances, LoadBalancerId, LoadBalancerSpec, LoadBalancers, Observed, Owned, Progress, Route,
    RouteChange, Routes, SecretData, SecretName, Targeting, Targets, async_trait,
};

use crate::fixture::start_mock;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Defect {
    ReturnsReverseOrder,
    ForgetsUnknownInstances,
    ReportsErrorsAsGone,
    ReportsStoppedAsGone,
    SettlesTooEarly,
    IgnoresNewPorts,
    IgnoresNewRanges,
    NeverRemovesTargets,
    ReportsDeletionTooEarly,
    DeletesByName,
    HidesPartialLoadBalancers,
    AcceptsAnyAnnotation,
    CreatesOnSetTargets,
    WritesEachTime,
    StopsAtFirstBadRoute,
    RemovesStaleRoutes,
    ReportsForeignAsDone,
    TakesFailedReadsForAbsence,
    AdoptsByName,
    IgnoresNodeAnnotations,
    KeepsLabelsAndTaints,
    IgnoresChangedSecrets,
    WritesOtherAnnotations,
    FollowsWithTheOtherKindOfTargets,
}

struct DefectiveProvider {
    inner: Arc<dyn CloudProvider>,
    defect: Defect,
}

#[async_trait]
impl CloudProvider for DefectiveProvider {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn has_cluster_id(&self) -> bool {
        true
    }

    async fn initialize(&self) -> Result<(), CloudError> {
        self.inner.initialize().await
    }

    fn secrets(&self) -> Vec<SecretName> {
        self.inner.secrets()
    }

    fn receive_secret(&self, name: &SecretName, data: Option<SecretData>) -> Result<(), CloudError> {
        match self.defect {
            Defect::IgnoresChangedSecrets if data.as_ref().is_some_and(|data| data.keys().count() > 0) => Ok(()),
            _ => self.inner.receive_secret(name, data),
        }
    }

    fn instances(&self) -> Option<Arc<dyn Instances>> {
        Some(Arc::new(DefectiveInstances(self.inner.instances()?, self.defect)))
    }

    fn load_balancers(&self) -> Option<Arc<dyn LoadBalancers>> {
        Some(Arc::new(DefectiveBalancers(self.inner.load_balancers()?, self.defect)))
    }

    fn routes(&self) -> Option<Arc<dyn Routes>> {
        Some(Arc::new(DefectiveRoutes(self.inner.routes()?, self.defect)))
    }
}

struct DefectiveInstances(Arc<dyn Instances>, Defect);

#[async_trait]
impl Instances for DefectiveInstances {
    fn instance_features(&self) -> InstanceFeatures {
        self.0.instance_features()
    }

    async fn describe(&self, instances: &[InstanceRef]) -> Vec<InstanceState> {
        let mut instances = instances.to_vec();
        if self.1 == Defect::IgnoresNodeAnnotations {
            instances.iter_mut().for_each(|instance| instance.annotations.clear());
        }
        let mut states = self.0.describe(&instances).await;
        if self.1 == Defect::KeepsLabelsAndTaints {
            for state in &mut states {
                if let InstanceState::Running(instance) = state {
                    instance.taints.clear();
                }
            }
        }
        match self.1 {
            Defect::ReturnsReverseOrder => states.reverse(),
            Defect::ForgetsUnknownInstances => states.retain(|state| *state != InstanceState::Gone),
            _ => {}
        }
        for state in &mut states {
            let is_reported_gone = match state {
                InstanceState::Unknown(_) => self.1 == Defect::ReportsErrorsAsGone,
                InstanceState::Stopped => self.1 == Defect::ReportsStoppedAsGone,
                _ => false,
            };
            if is_reported_gone {
                *state = InstanceState::Gone;
            }
        }
        states
    }
}

struct DefectiveBalancers(Arc<dyn LoadBalancers>, Defect);

impl DefectiveBalancers {
    async fn exists(&self, id: &LoadBalancerId) -> bool {
        !matches!(self.0.observe(id).await, Ok(Observed::Absent))
    }
}

#[async_trait]
impl LoadBalancers for DefectiveBalancers {
    fn features(&self) -> Features {
        self.0.features()
    }

    fn targeting(&self, spec: &LoadBalancerSpec) -> Result<Targeting, CloudError> {
        let read = self.0.targeting(spec);
        if self.1 == Defect::AcceptsAnyAnnotation { read.or(Ok(Targeting::Nodes)) } else { read }
    }

    async fn observe(&self, id: &LoadBalancerId) -> Result<Observed, CloudError> {
        self.0.observe(id).await
    }

    async fn ensure(&self, spec: &LoadBalancerSpec, targets: &Targets) -> Result<Ensured, CloudError> {
        if self.1 == Defect::IgnoresNewPorts || self.1 == Defect::IgnoresNewRanges {
            let mut old = spec.clone();
            if self.1 == Defect::IgnoresNewPorts {
                old.ports.truncate(1);
            }
            if self.1 == Defect::IgnoresNewRanges {
                old.source_ranges.clear();
            }
            return self.0.ensure(&old, targets).await;
        }
        if self.1 == Defect::WritesEachTime && self.exists(&spec.id).await {
            self.0.set_targets(spec, &Targets::default()).await?;
        }
        let ensured = self.0.ensure(spec, targets).await?;
        Ok(match self.1 {
            Defect::SettlesTooEarly => Ensured { progress: Progress::Settled, ..ensured },
            Defect::WritesOtherAnnotations => {
                Ensured { annotations: [("other.example.com/name".into(), "a".into())].into(), ..ensured }
            }
            _ => ensured,
        })
    }

    async fn set_targets(&self, spec: &LoadBalancerSpec, targets: &Targets) -> Result<(), CloudError> {
        if self.1 == Defect::CreatesOnSetTargets && !self.exists(&spec.id).await {
            return self.0.ensure(spec, targets).await.map(|_| ());
        }
        if self.1 == Defect::NeverRemovesTargets && targets.nodes.len() < 3 {
            return Ok(());
        }
        self.0.set_targets(spec, targets).await
    }

    async fn follow_targets(&self, spec: &LoadBalancerSpec, targets: &Targets) -> Result<Followed, CloudError> {
        let mut given = targets.clone();
        if self.1 == Defect::FollowsWithTheOtherKindOfTargets {
            given.endpoints = Vec::new().into();
        }
        self.0.follow_targets(spec, &given).await
    }

    async fn delete(&self, id: &LoadBalancerId) -> Result<Deletion, CloudError> {
        if self.1 == Defect::TakesFailedReadsForAbsence && !matches!(self.0.observe(id).await, Ok(Observed::Present(_)))
        {
            return Ok(Deletion::Gone);
        }
        if self.1 == Defect::AdoptsByName {
            let foreign = LoadBalancerId { cluster: "neighbours".into(), ..id.clone() };
            self.0.delete(&foreign).await?;
        }
        if self.1 == Defect::DeletesByName {
            for owned in self.0.list_owned().await?.iter().filter(|owned| owned.id.name == id.name) {
                self.0.delete(&owned.id).await?;
            }
        }
        let deletion = self.0.delete(id).await;
        if self.1 == Defect::ReportsDeletionTooEarly { deletion.map(|_| Deletion::Gone) } else { deletion }
    }

    async fn list_owned(&self) -> Result<Vec<Owned>, CloudError> {
        let mut owned = self.0.list_owned().await?;
        if self.1 == Defect::HidesPartialLoadBalancers {
            owned.retain(|owned| owned.resources.len() > 1);
        }
        Ok(owned)
    }
}

struct DefectiveRoutes(Arc<dyn Routes>, Defect);

#[async_trait]
impl Routes for DefectiveRoutes {
    async fn list(&self) -> Result<Vec<Route>, CloudError> {
        self.0.list().await
    }

    async fn apply(&self, changes: &[RouteChange]) -> Vec<Result<(), CloudError>> {
        let mut results = Vec::new();
        for change in changes {
            let mut change = change.clone();
            if let RouteChange::Remove(route) = &mut change
                && self.1 == Defect::RemovesStaleRoutes
                && let Ok(listed) = self.0.list().await
                && let Some(now) = listed.into_iter().find(|now| now.destination == route.destination)
            {
                *route = now;
            }
            let is_skipped = self.1 == Defect::StopsAtFirstBadRoute && results.iter().any(Result::is_err);
            results.push(if is_skipped {
                Err(CloudError::new(ErrorKind::Transient, "SetRoute", "an earlier one failed"))
            } else {
                self.0.apply(&[change]).await.remove(0)
            });
        }
        if self.1 == Defect::ReportsForeignAsDone {
            for result in &mut results {
                if result.as_ref().is_err_and(|error| error.kind == ErrorKind::Conflict) {
                    *result = Ok(());
                }
            }
        }
        results
    }
}

#[test]
fn each_defect_fails_its_case() {
    let table = [
        (Defect::ReturnsReverseOrder, "describe_returns_states_in_the_requested_order"),
        (Defect::ForgetsUnknownInstances, "describe_reports_unknown_instances_as_gone"),
        (Defect::ForgetsUnknownInstances, "describe_isolates_an_invalid_id_in_a_batch_of_500"),
        (Defect::ReportsErrorsAsGone, "describe_does_not_report_another_clouds_instance_as_gone"),
        (Defect::ReportsStoppedAsGone, "describe_distinguishes_stopped_from_deleted_instances"),
        (Defect::SettlesTooEarly, "ensure_creates_the_load_balancer_that_observe_returns"),
        (Defect::IgnoresNewPorts, "ports_are_changed"),
        (Defect::IgnoresNewRanges, "source_ranges_are_changed"),
        (Defect::NeverRemovesTargets, "targets_shrink_and_grow"),
        (Defect::ReportsDeletionTooEarly, "delete_is_idempotent"),
        (Defect::ReportsDeletionTooEarly, "delete_that_takes_time_is_in_progress"),
        (Defect::DeletesByName, "service_with_another_uid_has_another_load_balancer"),
        (Defect::HidesPartialLoadBalancers, "partial_load_balancer_is_listed_and_deleted"),
        (Defect::AcceptsAnyAnnotation, "invalid_annotation_is_reported_and_nothing_created"),
        (Defect::CreatesOnSetTargets, "targets_of_an_absent_load_balancer_are_not_found"),
        (Defect::WritesEachTime, "ensure_is_idempotent"),
        (Defect::StopsAtFirstBadRoute, "invalid_route_change_does_not_stop_the_others"),
        (Defect::RemovesStaleRoutes, "changed_route_is_not_removed"),
        (Defect::ReportsErrorsAsGone, "failed_read_does_not_report_an_instance_as_gone"),
        (Defect::TakesFailedReadsForAbsence, "failed_read_does_not_complete_a_deletion"),
        (Defect::AdoptsByName, "foreign_load_balancer_of_the_same_name_is_kept"),
        (Defect::IgnoresNodeAnnotations, "describe_finds_an_instance_by_annotations"),
        (Defect::KeepsLabelsAndTaints, "labels_and_taints_follow_the_instance"),
        (Defect::IgnoresChangedSecrets, "changed_secret_replaces_the_credentials"),
        (Defect::WritesOtherAnnotations, "written_annotations_have_the_prefix"),
        (Defect::FollowsWithTheOtherKindOfTargets, "targets_follow_an_invalid_service"),
        (Defect::ReportsForeignAsDone, "foreign_route_is_not_changed"),
    ];
    for (defect, name) in table {
        let outcome = block_on(async {
            let (inner, fixture) = start_mock().await;
            let provider: Arc<dyn CloudProvider> = Arc::new(DefectiveProvider { inner, defect });
            provider_conformance::run_case(name, &provider, &fixture).await
        });
        let outcome =
            outcome.unwrap_or_else(|| panic!("there is no case {name} in {:?}", case_names().collect::<Vec<_>>()));
        assert!(matches!(outcome.outcome, Outcome::Failed(_)), "{defect:?} is not detected: {outcome}");
    }
}
