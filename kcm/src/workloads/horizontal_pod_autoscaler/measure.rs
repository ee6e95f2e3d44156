//! Reads an autoscaler's metrics from the metrics APIs, and returns the numbers of pods that they propose.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use kinds::Pod;
use kinds::horizontal_pod_autoscaler::{HorizontalPodAutoscaler, Metric, MetricId, ObjectRef, Source};
use kinds::selector::Selector;
use runtime::lock::lock;
use runtime::scale::Scales;
use runtime::write::{ReadPath, Scale, WriteError, Writer};
use serde_json::Value;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::decide::{Gates, has_goal, is_shared};
use super::metrics_api::{self, CUSTOM, MetricRequest};
use super::replicas::{self, Goal, Measurement, StartupPeriods, Tolerances};

type Response = Result<Arc<Value>, String>;

/// Responses of the metrics APIs. Equal requests at about the same time share one response: those for several metrics
/// of one autoscaler, and those of several autoscalers for the same metric.
pub struct MetricResponses {
    writer: Writer,
    fresh: Duration,
    kept: Mutex<ResponseCache>,
}

#[derive(Default)]
struct ResponseCache {
    cells: HashMap<ReadPath, Arc<OnceCell<Response>>>,
    order: VecDeque<(Instant, ReadPath)>,
}

impl MetricResponses {
    /// Creates a source that shares responses for the time `fresh`.
    pub fn new(writer: Writer, fresh: Duration) -> Self {
        Self { writer, fresh, kept: Mutex::default() }
    }

    async fn get(&self, request: Result<MetricRequest, String>) -> Response {
        let request = request?;
        let cell = self.cell(&request.path);
        let read = || async {
            let response = self.writer.get_json_at(&request.path).await;
            response.map(Arc::new).map_err(|error| error_message(&error, &request.what))
        };
        cell.get_or_init(read).await.clone()
    }

    fn cell(&self, path: &ReadPath) -> Arc<OnceCell<Response>> {
        let mut kept = lock(&self.kept);
        let now = Instant::now();
        while kept.order.front().is_some_and(|(since, _)| now - *since >= self.fresh) {
            let Some((_, path)) = kept.order.pop_front() else { break };
            kept.cells.remove(&path);
        }
        if let Some(cell) = kept.cells.get(path) {
            return cell.clone();
        }
        kept.order.push_back((now, path.clone()));
        kept.cells.entry(path.clone()).or_default().clone()
    }
}

/// Returns the message of an error: the API server's, or client-go's if the response has none. Upstream:
/// apimachinery/pkg/api/errors, NewGenericServerResponse.
fn error_message(error: &WriteError, what: &str) -> String {
    match error.refused().map(|status| (status.reason.is_empty(), status.code)) {
        Some((true, 404)) => format!("the server could not find the requested resource (get {what})"),
        Some((true, 503)) => format!("the server is currently unable to handle the request (get {what})"),
        _ => error.to_string(),
    }
}

/// The autoscaler of one measurement, with its target and pods.
pub struct Subject<'a> {
    pub autoscaler: &'a HorizontalPodAutoscaler,
    pub scale: &'a Scale,
    pub selector: &'a Selector,
    pub pods: &'a [Arc<Pod>],
    pub tolerances: Tolerances,
    pub now: Timestamp,
}

/// Measures metrics.
pub struct Measuring {
    pub responses: MetricResponses,
    pub scales: Scales,
    pub startup_periods: StartupPeriods,
    pub gates: Gates,
}

impl Measuring {
    /// Returns the number of pods that a metric proposes.
    ///
    /// # Errors
    /// The reason why the metric has no usable value, in upstream's wording.
    pub async fn measure(&self, metric: &Metric, subject: &Subject<'_>) -> Measurement {
        if !has_goal(metric) {
            return Err(without_goal(&metric.source));
        }
        match &metric.source {
            Source::Resource { name } => self.resource(metric, (name, ""), subject).await,
            Source::ContainerResource { name, container } => self.resource(metric, (name, container), subject).await,
            Source::Pods(id) => self.pods(metric, id, subject).await,
            Source::Object { described, metric: id } => self.object(metric, (described, id), subject).await,
            Source::External(id) => self.external(metric, id, subject).await,
            Source::Unknown(_) => Err(without_goal(&metric.source)),
        }
    }

    async fn resource(
        &self,
        metric: &Metric,
        (resource, container): (&str, &str),
        subject: &Subject<'_>,
    ) -> Measurement {
        let namespace = &subject.autoscaler.meta.namespace;
        let unable = |why: String| format!("unable to get metrics for resource {resource}: {why}");
        let response = self.responses.get(MetricRequest::resources(namespace, subject.selector)).await;
        let response =
            response.map_err(|why| unable(format!("unable to fetch metrics from resource metrics API: {why}")))?;
        let samples = metrics_api::resource_samples(&response, resource, container).map_err(unable)?;
        let goal = match (metric.target.average_value, metric.target.average_utilization) {
            (None, Some(percent)) => {
                Goal::Utilization { percent, resource, container, pod_level: self.gates.pod_level_resources }
            }
            (each, _) => Goal::Amount(each.unwrap_or_default()),
        };
        self.of_pods(samples, (goal, resource == "cpu"), subject)
    }

    async fn pods(&self, metric: &Metric, id: &MetricId, subject: &Subject<'_>) -> Measurement {
        let of = usable(id)?;
        let unable = |why: String| format!("unable to get metric {}: {why}", id.name);
        let response = async {
            let version = self.custom_version().await?;
            let namespace = &subject.autoscaler.meta.namespace;
            self.responses.get(MetricRequest::pods(&version, namespace, subject.selector, &id.name, of)).await
        };
        let response =
            response.await.map_err(|why| unable(format!("unable to fetch metrics from custom metrics API: {why}")))?;
        let samples = metrics_api::pod_samples(&response).map_err(unable)?;
        let goal = Goal::Amount(metric.target.average_value.unwrap_or_default());
        self.of_pods(samples, (goal, false), subject)
    }

    fn of_pods(&self, samples: replicas::Samples, goal: (Goal<'_>, bool), subject: &Subject<'_>) -> Measurement {
        let startup_periods = (self.startup_periods, subject.now);
        replicas::replicas_for_pod_metric(
            subject.pods,
            samples,
            subject.scale.replicas,
            goal,
            subject.tolerances,
            startup_periods,
        )
    }

    async fn object(
        &self,
        metric: &Metric,
        (described, id): (&ObjectRef, &MetricId),
        subject: &Subject<'_>,
    ) -> Measurement {
        let of = usable(id)?;
        let namespace = &subject.autoscaler.meta.namespace;
        let value = self.object_value(namespace, described, &id.name, of).await.map_err(|why| {
            format!(
                "unable to get metric {} on {} {namespace}/{}: unable to fetch metrics from custom metrics API: {why}",
                id.name, described.kind, described.name
            )
        })?;
        if is_shared(metric) {
            let each = metric.target.average_value.unwrap_or_default();
            return Ok(replicas::replicas_for_target_per_pod(value, each, subject.scale.current, subject.tolerances));
        }
        let target = metric.target.value.unwrap_or_default();
        replicas::replicas_for_target_value(value, target, subject.scale.replicas, subject.tolerances, || {
            subject.pods.to_vec()
        })
    }

    async fn object_value(
        &self,
        namespace: &str,
        described: &ObjectRef,
        metric: &str,
        of: &Selector,
    ) -> Result<i64, String> {
        let version = self.custom_version().await?;
        let group = described.api_version.rsplit_once('/').map_or("", |(group, _)| group);
        // The path has the autoscaler's own namespace, regardless of the name in the reference.
        let request = if group.is_empty() && &*described.kind == "Namespace" {
            MetricRequest::object(&version, namespace, None, metric, of)
        } else {
            let resource = self.resource_of(group, &described.kind).await?;
            MetricRequest::object(&version, namespace, Some((&resource, &described.name)), metric, of)
        };
        metrics_api::object_value(&*self.responses.get(request).await?)
    }

    async fn resource_of(&self, group: &str, kind: &str) -> Result<String, String> {
        let printed = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        let unable = |why: String| format!("unable to map kind {printed} to resource: {why}");
        let served = self.scales.of_group_kind(group, kind).await.map_err(|error| unable(error.to_string()))?;
        let served = served.ok_or_else(|| unable(format!("no matches for kind {kind:?} in group {group:?}")))?;
        Ok(served.resource.qualified())
    }

    async fn custom_version(&self) -> Result<String, String> {
        let registered = |snapshot: &runtime::discovery::Snapshot| {
            let versions = snapshot.versions_of(CUSTOM);
            (!versions.is_empty()).then(|| versions.to_vec())
        };
        let versions = self.scales.find(registered).await.map_err(|error| error.to_string())?;
        metrics_api::custom_version(&versions.unwrap_or_default()).map(str::to_owned)
    }

    async fn external(&self, metric: &Metric, id: &MetricId, subject: &Subject<'_>) -> Measurement {
        let of = usable(id)?;
        let namespace = &subject.autoscaler.meta.namespace;
        let unable = |why: String| {
            format!("unable to get external metric {namespace}/{}/{}: {why}", id.name, id.selector_text())
        };
        let response = self.responses.get(MetricRequest::external(namespace, &id.name, of)).await;
        let response =
            response.map_err(|why| unable(format!("unable to fetch metrics from external metrics API: {why}")))?;
        let value = replicas::total(metrics_api::external_values(&response).map_err(unable)?);
        if let Some(each) = metric.target.average_value {
            return Ok(replicas::replicas_for_target_per_pod(value, each, subject.scale.current, subject.tolerances));
        }
        let target = metric.target.value.unwrap_or_default();
        replicas::replicas_for_target_value(value, target, subject.scale.replicas, subject.tolerances, || {
            subject.pods.to_vec()
        })
    }
}

/// Returns the selector of a metric, unless it is invalid.
fn usable(id: &MetricId) -> Result<&Selector, String> {
    match &id.selector {
        Selector::Invalid(why) => Err(why.clone()),
        selector => Ok(selector),
    }
}

fn without_goal(source: &Source) -> String {
    match source {
        Source::Resource { .. } | Source::ContainerResource { .. } => {
            "invalid resource metric source: neither an average utilization target nor an average value (usage) target \
             was set"
                .to_owned()
        }
        Source::Pods(_) => "invalid pods metric source: no average value target was set".to_owned(),
        Source::Object { .. } => {
            "invalid object metric source: neither a value target nor an average value target was set".to_owned()
        }
        Source::External(_) => {
            "invalid external metric source: neither a value target nor an average value target was set".to_owned()
        }
        Source::Unknown(kind) => format!("unknown metric source type {kind:?}"),
    }
}
