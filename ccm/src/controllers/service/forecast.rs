//! Lists what this controller would do with the load balancer of each Service, before it takes over from another cloud
//! controller manager. Changes nothing.

use std::collections::BTreeMap;

use kinds::Service;
use kinds::meta::ObjectKey;
use providers::{LoadBalancerSpec, LoadBalancers, Targeting};

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
    let without_request = match decide::desired_state(service, &features.classes, false) {
        DesiredState::Nothing if is_deleted => Some(("left", "the Service is being deleted and lacks the finalizer")),
        DesiredState::Nothing => Some(("left", "another controller handles its class, or Services without a class")),
        DesiredState::Cleanup if is_deleted => Some(("deleted", "the Service is being deleted")),
        DesiredState::Cleanup => Some(("deleted", "the Service no longer requests a load balancer")),
        DesiredState::LoadBalancer => None,
    };
    if let Some((change, reason)) = without_request {
        return (change, reason.to_owned());
    }
    let read = decide::spec(service, cluster, &features.annotations).and_then(|mut spec| {
        add_others(service, by_key, &mut spec, cloud);
        Ok((cloud.targeting(&spec)?, spec))
    });
    let spec = match read {
        Err(error) => return ("refused", retry::message(&error)),
        Ok((Targeting::Elsewhere, _)) if has_finalizer => {
            let reason = "its annotations name another controller: the load balancer of this one is deleted, \
                          and the finalizer is removed";
            return ("deleted", reason.to_owned());
        }
        Ok((Targeting::Elsewhere, _)) => return ("left", "its annotations name another controller".to_owned()),
        Ok((_, spec)) => spec,
    };
    match cloud.forecast(&spec).await {
        Ok(forecast) => (forecast.change.as_str(), forecast.reasons.join("; ")),
        Err(error) => ("unknown", retry::message(&error)),
    }
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
