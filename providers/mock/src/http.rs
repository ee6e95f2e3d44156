//! The mock over HTTP, for scripts: all state as JSON, instances and faults can be changed.
//!
//! | request | effect |
//! | --- | --- |
//! | `GET /state` | returns everything ([`Snapshot`](crate::Snapshot)) |
//! | `GET /calls` | returns calls by operation |
//! | `GET /config` | returns the [`MockConfig`](crate::MockConfig) |
//! | `POST /provider/{cluster}` | executes a call that a provider in another process makes |
//! | `GET /faults` | returns the armed faults |
//! | `POST /faults` | arms a [`Fault`]; returns `{"id": n}` |
//! | `DELETE /faults`, `DELETE /faults/{id}` | disarms all, or one |
//! | `PUT /instances/{name}` | creates an instance from an [`InstanceConfig`], or with defaults |
//! | `POST /instances/{name}/stop`, `.../start` | stops or starts it |
//! | `DELETE /instances/{name}` | removes it permanently |
//! | `PUT /health` | `{"target": {"instance": "mock://..."}, "health": "unhealthy"}`; `null` removes the override |
//! | `PUT /quotas` | [`Quotas`] |
//! | `PUT`, `DELETE /balancers/{cluster}/{namespace}/{name}/{uid}` | calls `ensure` or `delete` of a provider, as for a Service: `{"ports": [{"port": 80, "node_port": 30080}], "instances": ["mock://..."]}` |
//! | `PUT`, `DELETE /routes` | sets or removes a route, as for a Node: `{"destination": "10.244.1.0/24", "instance": "mock://..."}`; to delete one, without its instance |
//! | `PUT /foreign-routes` | `{"destination": "10.9.0.0/24"}` |

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use providers::{
    CloudError, Deletion, Health, InstanceRef, LoadBalancerId, LoadBalancerSpec, LoadBalancers, NodeTarget, Port,
    Protocol, RouteChange, RouteSpec, Routes, TargetId, TargetPort, Targets,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::balancers::MockLoadBalancers;
use crate::cloud::MockCloud;
use crate::config::{InstanceConfig, Quotas};
use crate::fault::Fault;
use crate::routes::MockRoutes;
use crate::wire;

/// Maximum size of a request, in bytes.
const MAX_REQUEST_BYTES: usize = 32 << 20;
/// Maximum number of concurrent connections.
const MAX_CONNECTIONS: usize = 256;

/// Delay after a connection could not be accepted: too many files may be open.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HealthChange {
    target: TargetId,
    health: Option<Health>,
}

/// A route to an instance, for programs in other languages.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteRequest {
    destination: IpNet,
    /// Its provider ID.
    instance: String,
}

impl RouteRequest {
    fn set(self) -> RouteChange {
        let instance = InstanceRef { provider_id: Some(self.instance), ..InstanceRef::default() };
        let (addresses, name_hint) = (Vec::new(), String::new());
        RouteChange::Set(RouteSpec { destination: self.destination, instance, addresses, name_hint })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Destination {
    destination: IpNet,
}

/// The desired state of a load balancer, for programs in other languages.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LoadBalancerRequest {
    ports: Vec<PortRequest>,
    /// Provider IDs.
    #[serde(default)]
    instances: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PortRequest {
    #[serde(default)]
    name: String,
    #[serde(default)]
    protocol: Protocol,
    port: u16,
    node_port: u16,
}

impl LoadBalancerRequest {
    fn spec(&self, id: LoadBalancerId) -> LoadBalancerSpec {
        let port = |requested: &PortRequest| Port {
            name: requested.name.clone(),
            protocol: requested.protocol,
            app_protocol: None,
            port: requested.port,
            node_port: Some(requested.node_port),
            target_port: TargetPort::Number(requested.port),
        };
        LoadBalancerSpec::new(id, self.ports.iter().map(port).collect())
    }

    fn targets(&self) -> Targets {
        let node = |id: &String| NodeTarget {
            name: id.clone(),
            provider_id: Some(id.clone()),
            addresses: Vec::new(),
            labels: BTreeMap::new(),
        };
        Targets::nodes(self.instances.iter().map(node).collect::<Vec<_>>())
    }
}

type Reply = Result<Value, (StatusCode, String)>;

fn to_reply(value: impl Serialize) -> Reply {
    serde_json::to_value(value).map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, (StatusCode, String)> {
    serde_json::from_slice(body).map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()))
}

fn empty_reply(found: bool, what: &str) -> Reply {
    if found { Ok(json!({})) } else { Err((StatusCode::NOT_FOUND, format!("there is no {what}"))) }
}

impl MockCloud {
    /// Serves the cloud over HTTP until the future is dropped.
    pub async fn serve(self, listener: TcpListener) {
        let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut serving = tokio::task::JoinSet::new();
        while let Ok(permit) = Arc::clone(&connections).acquire_owned().await {
            while serving.try_join_next().is_some() {}
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::debug!(%error, "connection to the mock cloud not accepted");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                    continue;
                }
            };
            let cloud = self.clone();
            serving.spawn(async move {
                let service = service_fn(|request| cloud.respond(request));
                let connection =
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "connection to the mock cloud failed");
                }
                drop(permit);
            });
        }
    }

    async fn respond(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let (head, body) = request.into_parts();
        let reply = match Limited::new(body, MAX_REQUEST_BYTES).collect().await {
            Ok(body) => self.handle(&head.method, head.uri.path(), &body.to_bytes()).await,
            Err(error) => Err((StatusCode::PAYLOAD_TOO_LARGE, error.to_string())),
        };
        let (code, value) = match reply {
            Ok(value) => (StatusCode::OK, value),
            Err((code, message)) => (code, json!({ "error": message })),
        };
        let mut response = Response::new(Full::new(Bytes::from(format!("{value:#}\n"))));
        *response.status_mut() = code;
        response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static("application/json"));
        Ok(response)
    }

    /// Calls a provider's `ensure` once, or its `delete` if there is no request.
    async fn apply_balancer(&self, id: LoadBalancerId, request: Option<LoadBalancerRequest>) -> Reply {
        let provider = MockLoadBalancers { cloud: self.clone(), cluster: id.cluster.clone() };
        let refused = |error: CloudError| (StatusCode::CONFLICT, error.to_string());
        match request {
            Some(request) => {
                provider.ensure(&request.spec(id.clone()), &request.targets()).await.map_err(refused)?;
                let balancer = self.snapshot().balancers.into_iter().find(|balancer| balancer.id == id);
                to_reply(balancer)
            }
            None => match provider.delete(&id).await.map_err(refused)? {
                Deletion::Gone => Ok(json!({})),
                Deletion::InProgress(_) => Err((StatusCode::CONFLICT, format!("the deletion of {id} is in progress"))),
            },
        }
    }

    /// Applies a change of a route once.
    async fn route(&self, change: &RouteChange) -> Reply {
        let done = MockRoutes(self.clone()).change(change).await;
        done.map(|()| json!({})).map_err(|error| (StatusCode::CONFLICT, error.to_string()))
    }

    async fn remove_route(&self, destination: IpNet) -> Reply {
        let routes =
            MockRoutes(self.clone()).list().await.map_err(|error| (StatusCode::CONFLICT, error.to_string()))?;
        match routes.into_iter().find(|route| route.destination == destination) {
            Some(route) => self.route(&RouteChange::Remove(route)).await,
            None => Ok(json!({})),
        }
    }

    async fn handle(&self, method: &Method, path: &str, body: &[u8]) -> Reply {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        match (method.as_str(), parts.as_slice()) {
            ("PUT" | "DELETE", ["balancers", cluster, namespace, name, uid]) => {
                let [cluster, namespace, name, uid] = [cluster, namespace, name, uid].map(ToString::to_string);
                let request = if method == Method::PUT { Some(read::<LoadBalancerRequest>(body)?) } else { None };
                self.apply_balancer(LoadBalancerId { cluster, namespace, name, uid }, request).await
            }
            ("GET", ["state"]) => to_reply(self.snapshot()),
            ("GET", ["config"]) => to_reply(self.config()),
            ("POST", ["provider", cluster]) => {
                let executed = wire::execute(self, cluster, read(body)?).await;
                executed.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
            }
            ("GET", ["calls"]) => to_reply(self.snapshot().calls),
            ("GET", ["faults"]) => to_reply(self.snapshot().faults),
            ("POST", ["faults"]) => match self.add_fault(read::<Fault>(body)?) {
                Ok(id) => Ok(json!({ "id": id })),
                Err(error) => Err((StatusCode::BAD_REQUEST, error.to_string())),
            },
            ("DELETE", ["faults"]) => {
                self.clear_faults();
                Ok(json!({}))
            }
            ("DELETE", ["faults", id]) => {
                empty_reply(id.parse().is_ok_and(|id| self.remove_fault(id)), &format!("fault {id}"))
            }
            ("PUT", ["instances", name]) => {
                let given = if body.is_empty() { InstanceConfig::default() } else { read(body)? };
                let id = self.add_instance(&InstanceConfig { name: (*name).into(), ..given });
                Ok(json!({ "provider_id": id }))
            }
            ("POST", ["instances", name, "stop"]) => empty_reply(self.stop_instance(name), &format!("instance {name}")),
            ("POST", ["instances", name, "start"]) => {
                empty_reply(self.start_instance(name), &format!("instance {name}"))
            }
            ("DELETE", ["instances", name]) => empty_reply(self.remove_instance(name), &format!("instance {name}")),
            ("PUT", ["health"]) => {
                let change: HealthChange = read(body)?;
                self.set_health(change.target, change.health);
                Ok(json!({}))
            }
            ("PUT", ["quotas"]) => {
                self.set_quotas(read::<Quotas>(body)?);
                Ok(json!({}))
            }
            ("PUT", ["routes"]) => self.route(&read::<RouteRequest>(body)?.set()).await,
            ("DELETE", ["routes"]) => self.remove_route(read::<Destination>(body)?.destination).await,
            ("PUT", ["foreign-routes"]) => {
                self.add_foreign_route(read::<Destination>(body)?.destination);
                Ok(json!({}))
            }
            _ => Err((StatusCode::NOT_FOUND, format!("{method} {path} is not served"))),
        }
    }
}
