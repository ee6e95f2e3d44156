//! certificatesigningrequest-signing-controller: signs approved requests for the four signers of Kubernetes itself.
//!
//! Upstream: pkg/controller/certificates/signer.

mod certificate;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use kinds::meta::{ObjectKey, Time};
use kinds::wire::WireError;
use kinds::{CertificateSigningRequest, Sections};
use runtime::manager::Manager;
use runtime::store::Cached;
use runtime::watch::Builder;
use runtime::worker::{Outcome, Reconcile, ReconcileError, WorkOptions};

use crate::certificates::request::{
    CLIENT, Contents, KUBELET_CLIENT, KUBELET_SERVING, LEGACY_UNKNOWN, check_client, check_kubelet_client,
    check_kubelet_serving,
};
use crate::certificates::requests::Requests;
use crate::context::{Clock, Context, Descriptor, QueueKeys, Start, Verb, Write};
use crate::credentials::authority::Signers;

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "certificatesigningrequest-signing-controller",
    service_account: "certificate-controller",
    prepare,
    watches,
    writes: &[Write {
        verb: Verb::Update,
        group: "certificates.k8s.io",
        resource: "certificatesigningrequests/status",
    }],
    queues: &[QueueKeys::of("certificate", "CertificateSigningRequest")],
    start,
    ..Descriptor::NONE
};

/// Number of workers: as many as upstream's four signers together.
const WORKERS: usize = 20;

fn prepare(context: &mut Context) -> anyhow::Result<Start> {
    Ok(if context.credentials.read_signers(&context.options)? {
        Start::Run
    } else {
        Start::Skip("there is no CA to sign with (--cluster-signing-cert-file and --cluster-signing-key-file)")
    })
}

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<CertificateSigningRequest>(Sections::default(), &[]);
}

fn start(manager: &mut Manager, context: &Context) {
    let requests = Requests::subscribe(manager, DESCRIPTOR.service_account);
    let queue = requests.queue();
    let reconciler = Arc::new(Signing {
        requests,
        signers: context.credentials.signers.clone(),
        max_lifetime: context.options.values.get_duration("cluster-signing-duration"),
        clock: context.clock.clone(),
    });
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers: WORKERS }, queue, reconciler);
}

/// Returns true if a request is approved, not denied, and neither signed nor failed yet.
fn is_due(request: &CertificateSigningRequest) -> bool {
    let failed = request.conditions.iter().any(|condition| &*condition.kind == "Failed" && condition.is_true);
    request.certificate.is_empty() && request.has_condition("Approved") && !request.has_condition("Denied") && !failed
}

/// Checks that a request satisfies the rules of its signer. The error becomes the condition `Failed` of the request.
fn check(request: &CertificateSigningRequest, contents: &Contents) -> Result<(), String> {
    match &*request.signer {
        KUBELET_SERVING => check_kubelet_serving(request, contents),
        KUBELET_CLIENT => check_kubelet_client(request, contents),
        CLIENT => check_client(request),
        LEGACY_UNKNOWN => Ok(()),
        other => Err(format!("unrecognized signerName: {other:?}")),
    }
}

/// Returns the lifetime of a certificate: as requested, but at least ten minutes. It is `max_lifetime` if none or a
/// longer one is requested.
fn lifetime(requested_seconds: Option<i32>, max_lifetime: Duration) -> Duration {
    const MIN_LIFETIME: Duration = Duration::from_secs(10 * 60);
    match requested_seconds.map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0))) {
        None => max_lifetime,
        Some(requested) if requested > max_lifetime => max_lifetime,
        Some(requested) => requested.max(MIN_LIFETIME),
    }
}

struct Signing {
    requests: Requests,
    signers: Arc<Signers>,
    /// The value of `--cluster-signing-duration`.
    max_lifetime: Duration,
    clock: Clock,
}

impl Reconcile for Signing {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl Signing {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let request = match self.requests.read(key) {
            Cached::Current(request) => request,
            Cached::Absent => return Ok(Outcome::Done),
            Cached::Lagging => return Ok(Outcome::WaitingForCache),
        };
        if !is_due(&request) || self.signers.of(&request.signer).is_none() {
            return Ok(Outcome::Done);
        }
        let object = self.processed(&request, (self.clock)()).map_err(ReconcileError::new)?;
        self.requests.replace(key, "status", &object).await
    }

    /// Returns the object with a certificate, or with the condition Failed.
    fn processed(&self, request: &CertificateSigningRequest, now: Timestamp) -> Result<Vec<u8>, String> {
        let name = &request.meta.name;
        let contents =
            Contents::read(request.request()).map_err(|problem| format!("unable to parse csr {name:?}: {problem}"))?;
        let malformed = |error: WireError| error.to_string();
        if let Err(problem) = check(request, &contents) {
            let now = Time(now.as_second());
            return request.with_condition("Failed", "SignerValidationFailure", &problem, now).map_err(malformed);
        }
        contents.check_signature().map_err(|error| format!("error auto signing csr: {error}"))?;
        let files = self.signers.of(&request.signer).ok_or("no CA is configured for its signer")?;
        let authority = files.current().map_err(|error| format!("error auto signing csr: {error}"))?;
        let lifetime = lifetime(request.expiration_seconds, self.max_lifetime);
        let usages = request.usages.iter().map(|usage| &**usage);
        let pem = certificate::sign(&authority, &contents, usages, lifetime, now)
            .map_err(|error| format!("error auto signing csr: {error}"))?;
        request.with_certificate(&pem).map_err(malformed)
    }
}
