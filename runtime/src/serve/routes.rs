//! Request handling: authentication, authorization, routing.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use rustls::pki_types::CertificateDer;
use serde_json::json;
use tokio::runtime::Handle;
use tracing::{debug, warn};

use super::access_metrics::RequestMetrics;
use super::authenticate::Authenticator;
use super::authorize::{Authorizer, Denied};
use super::health::{self, Health, Probe};
use super::response::{self, FullResponse};
use super::user::User;
use super::zpages::Zpages;
use crate::diagnostics::{self, Explainer, Form, ObjectQuery};
use crate::metrics::{Format, Metrics};
use crate::page::Page;
use crate::text::{percent_decode, query};

/// Maximum size of a request's body in bytes. The only body is the verbosity, a number.
const MAX_BODY_BYTES: usize = 1024;

/// Sets the log verbosity to the number in a request's body. The error is the reason why the text is refused.
pub type SetVerbosity = Arc<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// The content of all pages of the server.
#[derive(Clone)]
pub struct ServedContent {
    /// `/healthz`, `/livez`, `/readyz`, `/metrics/slis`.
    pub health: Arc<Health>,
    /// `/metrics`.
    pub metrics: Arc<Metrics>,
    /// `/configz`: the effective configuration by API group. It must not contain secrets.
    pub configz: serde_json::Value,
    /// `/flagz` and `/statusz`.
    pub zpages: Zpages,
    /// `/debug/reconcile`: diagnostics of reconciles.
    pub explainer: Option<Arc<Explainer>>,
    /// Pages that controllers added.
    pub pages: Vec<Page>,
    /// The runtime on which metrics, diagnostics and pages of controllers are rendered: they wait for locks that
    /// controllers hold, and probes must not. `None`: the server's runtime.
    pub page_runtime: Option<Handle>,
    /// `/debug/flags/v`; `None` with --profiling=false, as in upstream.
    pub set_verbosity: Option<SetVerbosity>,
}

/// A response, and the handling of its connection.
pub(super) struct Reply {
    pub(super) response: FullResponse,
    /// The connection may be closed after the response: the client is not authenticated, or not yet.
    pub(super) closes: bool,
}

/// A request whose user is authorized, or whose path is open to all.
pub(super) struct AllowedRequest {
    /// The decoded path.
    path: String,
    /// The user is not authenticated.
    pub(super) is_anonymous: bool,
}

/// Responds to requests.
pub(super) struct Routes {
    pub(super) served_content: ServedContent,
    pub(super) authenticator: Authenticator,
    pub(super) authorizer: Authorizer,
    pub(super) metrics: RequestMetrics,
}

impl Routes {
    /// Authenticates and authorizes one request of a connection with this client certificate, in the order of
    /// upstream's filters. Returns the reply to a request that is refused. Upstream: controller-manager,
    /// app.BuildHandlerChain.
    pub(super) async fn review(
        &self,
        head: &http::request::Parts,
        peer: &[CertificateDer<'static>],
    ) -> Result<AllowedRequest, Reply> {
        let Some(path) = percent_decode(head.uri.path()) else {
            let response = response::plain(StatusCode::BAD_REQUEST, "400 Bad Request");
            return Err(Reply { response, closes: true });
        };
        let verb = head.method.as_str().to_ascii_lowercase();
        let user = self.user(peer, &head.headers).await.map_err(|response| Reply { response, closes: true })?;
        let is_anonymous = user.is_anonymous();
        let started = Instant::now();
        let decision = self.authorizer.check(&user, &verb, &path).await;
        self.metrics.authorized(&decision, started);
        let response = match decision {
            Ok(()) => return Ok(AllowedRequest { path, is_anonymous }),
            Err(Denied::Forbidden(reason)) => {
                debug!(user = user.name, verb, path, reason, "request forbidden");
                response::forbidden(&user, &verb, &path, &reason)
            }
            Err(Denied::Failed(problem)) => {
                warn!(user = user.name, verb, path, problem, "authorization check failed");
                response::internal(&head.uri.to_string(), &problem)
            }
        };
        Err(Reply { response, closes: is_anonymous })
    }

    /// Responds to a request that is allowed.
    pub(super) async fn respond<B>(&self, request: AllowedRequest, head: &http::request::Parts, body: B) -> Reply
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let response = self.page(head, &request.path, body).await;
        Reply { response, closes: request.is_anonymous }
    }

    async fn user(&self, peer: &[CertificateDer<'static>], headers: &HeaderMap) -> Result<User, FullResponse> {
        let started = Instant::now();
        let user = self.authenticator.user(peer, headers).await;
        self.metrics.authenticated(&user, started);
        user.map_err(|problem| {
            warn!(problem, "cannot authenticate a request");
            response::unauthorized()
        })
    }

    async fn page<B>(&self, head: &http::request::Parts, path: &str, body: B) -> FullResponse
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let ServedContent { health, metrics, configz, zpages, explainer, pages, set_verbosity, .. } =
            &self.served_content;
        let (method, query_text) = (&head.method, head.uri.query().unwrap_or_default());
        if let Some(response) = zpages.respond(path, query_text, &head.headers) {
            return response;
        }
        if let Some(explainer) = explainer.as_ref().filter(|_| path == diagnostics::PATH) {
            let (explainer, pairs, headers) = (explainer.clone(), query(query_text), head.headers.clone());
            return self.render(move || explain(&explainer, &pairs, &headers)).await;
        }
        if let Some(page) = pages.iter().find(|page| page.path == path) {
            let (make, pairs, media_type) = (page.make.clone(), query(query_text), page.media_type);
            return self.render(move || response::text(media_type, make(&pairs))).await;
        }
        let format = || Format::negotiate(accept(&head.headers));
        match path {
            "/metrics" => {
                let (metrics, format) = (metrics.clone(), format());
                self.render(move || response::metrics(metrics.exposition(format))).await
            }
            "/metrics/slis" if method == Method::DELETE => {
                health.reset_slis();
                response::plain(StatusCode::OK, "metrics reset\n")
            }
            "/metrics/slis" => response::metrics(health.slis(format())),
            "/configz" => response::json(configz),
            _ => match set_verbosity {
                Some(set) if path == "/debug/flags/v" => change_verbosity(set, method, body).await,
                Some(_) if path == "/debug/flags" || path.starts_with("/debug/flags/") => response::html(FLAGS),
                _ => self.probe(path, query_text),
            },
        }
    }

    /// Renders a page on [`ServedContent::page_runtime`].
    async fn render(&self, render: impl FnOnce() -> FullResponse + Send + 'static) -> FullResponse {
        let Some(runtime) = &self.served_content.page_runtime else { return render() };
        match runtime.spawn(async move { render() }).await {
            Ok(page) => page,
            Err(problem) => {
                warn!(%problem, "page not rendered");
                response::plain(StatusCode::INTERNAL_SERVER_ERROR, "the page could not be rendered; see the log\n")
            }
        }
    }

    fn probe(&self, path: &str, query: &str) -> FullResponse {
        let health = &self.served_content.health;
        for probe in Probe::ALL {
            let Some(rest) = path.strip_prefix('/').and_then(|path| path.strip_prefix(probe.name())) else { continue };
            if rest.is_empty() {
                return page(health.page(probe, query));
            }
            if let Some(found) = rest.strip_prefix('/').and_then(|name| health.single(probe, name)) {
                return page(found);
            }
        }
        response::not_found()
    }
}

/// Returns the first `Accept` header; an empty text if there is none.
fn accept(headers: &HeaderMap) -> &str {
    headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default()
}

/// Returns the diagnostics page: as HTML if the query or the `Accept` header requests it, otherwise as JSON. It does no
/// IO, but takes locks that controllers hold for a short time.
fn explain(explainer: &Explainer, pairs: &[(String, String)], headers: &HeaderMap) -> FullResponse {
    let value = |wanted: &str| pairs.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str());
    let form = match value("format") {
        Some("json") => Form::Json,
        Some("html") => Form::Html,
        _ if accept(headers).contains("text/html") => Form::Html,
        _ => Form::Json,
    };
    let text = explainer.render(ObjectQuery::read(pairs).as_ref(), form);
    match form {
        Form::Json => response::raw_json(text),
        Form::Html => response::page(text),
    }
}

const FLAGS: &str = "<html><head><title>/debug/flags/</title></head><body>/debug/flags/<br><br>flags:<br><table><tr>v<br></table><br>PUT a number to /debug/flags/v<br></body></html>\n";

fn page(page: health::Page) -> FullResponse {
    let status = if page.healthy { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
    response::plain(status, page.text)
}

/// Responds to `/debug/flags/v`: sets the log verbosity.
async fn change_verbosity<B>(set: &SetVerbosity, method: &Method, body: B) -> FullResponse
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if method != Method::PUT {
        return response::plain(StatusCode::NOT_ACCEPTABLE, "unsupported http method\n");
    }
    let wrong = |problem: String| response::plain(StatusCode::BAD_REQUEST, format!("{problem}\n"));
    let body = match Limited::new(body, MAX_BODY_BYTES).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return wrong(format!("error reading request body: {error}")),
    };
    let text = String::from_utf8_lossy(&body);
    match set(&text) {
        Ok(()) => response::plain(StatusCode::OK, format!("successfully set klog.logging.verbosity to {text}\n")),
        Err(problem) => wrong(problem),
    }
}

/// Returns a configuration in the format of `/configz`: under the name of its group.
#[must_use]
pub fn configz(group: &str, configuration: serde_json::Value) -> serde_json::Value {
    json!({ group: configuration })
}
