//! Lists what this controller would do with the load balancer of each Service, before it takes over from another cloud
//! controller manager. Changes nothing.

use std::collections::BTreeMap;

use kinds::Service;
use kinds::meta::ObjectKey;
use providers::{LoadBalancerSpec, LoadBalancers, Observed, Targeting};

use super::decide::{self, DesiredState};
use crate::cloud::retry;

/// Width of the column with the change.
const CHANGE_WIDTH: usize = 9;

/// Returns a line for each Service that requests or may have a load balancer: its name, the change, and the reason.
pub async fn lines(services: &[Service], cluster: &str, cloud: &dyn LoadBalancers) -> Vec<String> {
    let by_key: BTreeMap<ObjectKey, &Service> = services.iter().map(|one| (one.meta.key(), one)).collect();
    let mut rows = Vec::new();
    for (key, service) in by_key.iter().filter(|(_, service)| decide::concerns(service)) {
        let (change, reason) = forecast_service(service, &by_key, cluster, cloud).await;
        rows.push((key.to_string(), change, reason));
    }
    let width = rows.iter().map(|(key, ..)| key.len()).max().unwrap_or_default();
    rows.iter().map(|(key, change, reason)| format!("{key:width$} {change:CHANGE_WIDTH$} {reason}")).collect()
}

/// Returns the change of a Service's load balancer, and the reason.
async fn forecast_service(
    service: &Service,
    by_key: &BTreeMap<ObjectKey, &Service>,
    cluster: &str,
    cloud: &dyn LoadBalancers,
) -> (&'static str, String) {
    let features = cloud.features();
    let has_finalizer = decide::has_finalizer(&service.meta);
    let is_deleted = service.meta.is_deleting();
    match decide::desired_state(service, &features.classes, false) {
        DesiredState::Nothing if is_deleted => return left("the Service is being deleted and lacks the finalizer"),
        DesiredState::Nothing => return left("another controller handles its class, or Services without a class"),
        DesiredState::Cleanup => {
            let reason = if is_deleted {
                "the Service is being deleted"
            } else {
                "the Service no longer requests a load balancer"
            };
            return forecast_cleanup(service, cluster, cloud, reason).await;
        }
        DesiredState::LoadBalancer => {}
    }
    let read = decide::spec(service, cluster, &features.annotations).and_then(|mut spec| {
        add_others(service, by_key, &mut spec, cloud);
        Ok((cloud.targeting(&spec)?, spec))
    });
    let spec = match read {
        Err(error) => return ("refused", retry::message(&error)),
        Ok((Targeting::Elsewhere, _)) if has_finalizer => {
            return forecast_cleanup(service, cluster, cloud, "its annotations name another controller").await;
        }
        Ok((Targeting::Elsewhere, _)) => return left("its annotations name another controller"),
        Ok((_, spec)) => spec,
    };
    match cloud.forecast(&spec).await {
        Ok(forecast) => (forecast.change.as_str(), forecast.reasons.join("; ")),
        Err(error) => ("unknown", retry::message(&error)),
    }
}

/// Returns the change for a Service with the finalizer that needs no load balancer of this controller, for this reason. Only
/// load balancers of this controller are deleted, and of the one that it takes over from: the finalizer alone does not prove
/// that there is one, because upstream's service controller adds it to Services of other controllers, too.
async fn forecast_cleanup(
    service: &Service,
    cluster: &str,
    cloud: &dyn LoadBalancers,
    reason: &str,
) -> (&'static str, String) {
    match cloud.observe(&decide::id(&service.meta, cluster)).await {
        Ok(Observed::Present(_)) => {
            ("deleted", format!("{reason}: the load balancer that has the marks of this controller is deleted"))
        }
        Ok(Observed::Absent) => (
            "left",
            format!("{reason}: no load balancer has the marks of this controller, and only its finalizer is removed"),
        ),
        Err(error) => ("unknown", retry::message(&error)),
    }
}

fn left(reason: &str) -> (&'static str, String) {
    ("left", reason.to_owned())
}

/// Adds the existing Services to which the load balancer also sends traffic.
fn add_others(
    service: &Service,
    by_key: &BTreeMap<ObjectKey, &Service>,
    spec: &mut LoadBalancerSpec,
    cloud: &dyn LoadBalancers,
) {
    let named = |name: String| ObjectKey { namespace: service.meta.namespace.clone(), name: name.into() };
    let others = cloud.others(spec).into_iter().filter_map(|name| by_key.get(&named(name)).copied());
    spec.others = others.map(|other| (other.meta.name.to_string(), decide::other(other))).collect();
}
