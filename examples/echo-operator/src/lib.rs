//! A complete operator: an `EchoConfig` becomes a Deployment of web servers that all respond with one message, and a
//! Service.
//!
//! Its parts, in reading order: the kind; the children of an object, as pure functions; the reconcile, which applies
//! them and writes the status. `docs/operators.md` explains each.

use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use runtime::sdk::{Condition, Context, Controller, Error, EventType, Outcome, Prepared, set_condition};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The operator's name, used for its Lease, its field manager and its Events.
pub const NAME: &str = "echo-operator";

/// The CustomResourceDefinition, for `kubectl apply`.
pub const DEFINITION: &str = include_str!("../deploy/crd.yaml");

/// An image that responds to every request with a text.
const IMAGE: &str = "hashicorp/http-echo:1.0";

/// Desired state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EchoSpec {
    /// The response to every request.
    pub message: String,
    /// The number of servers.
    pub replicas: i32,
    /// The Service's port.
    pub port: i32,
}

/// Observed state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EchoStatus {
    /// The generation of the spec that this status refers to.
    pub observed_generation: i64,
    /// Ready servers that respond with this spec's message.
    pub ready_replicas: i32,
    /// `Ready`: the desired number of servers responds with the message.
    pub conditions: Vec<Condition>,
}

runtime::custom_resource! {
    /// A message and its servers.
    pub EchoConfig { spec: EchoSpec, status: EchoStatus }
    namespaced "echoconfigs" in "examples.dev/v1"
}

/// Returns the controller.
pub fn controller() -> Prepared {
    Controller::for_::<EchoConfig>(NAME).owns::<Deployment>().owns::<Service>().reconcile(reconcile)
}

async fn reconcile(ctx: Context<EchoConfig>) -> Result<Outcome, Error> {
    let (name, spec) = (ctx.name(), &ctx.object.spec);
    let deployment = ctx.apply(&deployment(name, spec)?).await?;
    ctx.apply(&service(name, spec)?).await?;

    let old = ctx.object.status.clone().unwrap_or_default();
    let current =
        deployment.status.clone().filter(|status| status.observed_generation == deployment.metadata.generation);
    let new = status(&old, ctx.meta().generation, spec, current.as_ref(), Timestamp::now());
    if is_ready(&new) && !is_ready(&old) {
        ctx.event(EventType::Normal, "Ready", format!("{} servers return the message", new.ready_replicas));
    }
    ctx.set_status(&new).await?;
    Ok(Outcome::Done)
}

/// Returns the servers of an object.
///
/// # Errors
/// Never for an object that the API server has accepted.
pub fn deployment(name: &str, spec: &EchoSpec) -> Result<Deployment, Error> {
    let container = json!({
        "name": "echo", "image": IMAGE,
        "args": ["-listen=:8080", format!("-text={}", spec.message)],
        "ports": [{"containerPort": 8080}],
    });
    decode(json!({
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "replicas": spec.replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}},
        },
    }))
}

/// Returns the Service of an object.
///
/// # Errors
/// Same as [`deployment`].
pub fn service(name: &str, spec: &EchoSpec) -> Result<Service, Error> {
    decode(json!({
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"selector": {"app": name}, "ports": [{"port": spec.port, "targetPort": 8080, "protocol": "TCP"}]},
    }))
}

fn decode<K: serde::de::DeserializeOwned>(object: serde_json::Value) -> Result<K, Error> {
    serde_json::from_value(object).map_err(Error::other)
}

/// Returns the status of an object. `servers` is the status of its Deployment; `None` until the Deployment controller
/// has observed the last change.
pub fn status(
    old: &EchoStatus,
    generation: i64,
    spec: &EchoSpec,
    servers: Option<&DeploymentStatus>,
    now: Timestamp,
) -> EchoStatus {
    let count = |of: fn(&DeploymentStatus) -> Option<i32>| servers.and_then(of).unwrap_or(0);
    let (all, updated, ready) = (
        count(|status| status.replicas),
        count(|status| status.updated_replicas),
        count(|status| status.ready_replicas),
    );
    // While old servers exist, any number of them may be among the ready ones.
    let responding = (ready - (all - updated)).clamp(0, updated);
    let (status, reason) = if servers.is_some() && responding >= spec.replicas && all == updated {
        ("True", "AllRespond")
    } else {
        ("False", "RollingOut")
    };
    let mut conditions = old.conditions.clone();
    let condition = Condition {
        type_: "Ready".to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: format!("{responding} of {} servers return the message", spec.replicas),
        last_transition_time: Time(now.round(k8s_openapi::jiff::Unit::Second).unwrap_or(now)),
        observed_generation: Some(generation),
    };
    set_condition(&mut conditions, condition);
    EchoStatus { observed_generation: generation, ready_replicas: responding, conditions }
}

/// Returns true if a status reports the desired state.
pub fn is_ready(status: &EchoStatus) -> bool {
    status.conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_ready_when_all_servers_have_the_new_message() {
        let spec = EchoSpec { message: "hi".to_owned(), replicas: 3, port: 80 };
        for (replicas, updated, ready, responding, expected) in
            [(0, 0, 0, 0, false), (3, 3, 2, 2, false), (3, 3, 3, 3, true), (4, 1, 3, 0, false), (4, 3, 3, 2, false)]
        {
            let servers = DeploymentStatus {
                replicas: Some(replicas),
                updated_replicas: Some(updated),
                ready_replicas: Some(ready),
                ..DeploymentStatus::default()
            };
            let status = status(&EchoStatus::default(), 1, &spec, Some(&servers), Timestamp::UNIX_EPOCH);
            assert_eq!(
                (status.ready_replicas, is_ready(&status)),
                (responding, expected),
                "{replicas} {updated} {ready}"
            );
        }
    }

    #[test]
    fn status_is_not_ready_before_the_deployment_is_observed() {
        let spec = EchoSpec { message: "hi".to_owned(), replicas: 0, port: 80 };
        let old = EchoStatus::default();
        assert!(!is_ready(&status(&old, 1, &spec, None, Timestamp::UNIX_EPOCH)));
        assert!(is_ready(&status(&old, 1, &spec, Some(&DeploymentStatus::default()), Timestamp::UNIX_EPOCH)));
    }
}
