//! certificatesigningrequest-cleaner-controller: deletes old certificate requests.
//!
//! It runs once an hour. Upstream: pkg/controller/certificates/cleaner.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use kinds::meta::{ObjectKey, Time};
use kinds::{CertificateSigningRequest, Kind, Sections};
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Index, Store, index_key};
use runtime::watch::Builder;
use runtime::worker::{Outcome, Reconcile, ReconcileError, WorkOptions};
use runtime::write::Writer;
use tracing::{error, info};
use x509_parser::parse_x509_certificate;
use x509_parser::pem::parse_x509_pem;

use crate::context::{Clock, Context, Descriptor, QueueKeys, Verb, Write};

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "certificatesigningrequest-cleaner-controller",
    service_account: "certificate-controller",
    watches,
    writes: &[Write { verb: Verb::Delete, group: "certificates.k8s.io", resource: "certificatesigningrequests" }],
    queues: &[QueueKeys::of("certificatesigningrequest_cleaner", "CertificateSigningRequest")],
    start,
    ..Descriptor::NONE
};

/// Seconds for which decided requests are kept.
const DECIDED: i64 = 60 * 60;
/// Seconds for which undecided requests are kept.
const PENDING: i64 = 24 * 60 * 60;
/// Interval between two passes.
const PASS: Duration = Duration::from_secs(60 * 60);

/// Index of all requests.
const ALL: Index<CertificateSigningRequest> = Index { name: "all", keys: |_, emit| emit(index_key(())) };

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<CertificateSigningRequest>(Sections::default(), &[ALL]);
}

fn start(manager: &mut Manager, context: &Context) {
    let queue = Queue::new(QueueOptions::named("certificatesigningrequest_cleaner"));
    queue.add(ObjectKey::new("", CertificateSigningRequest::RESOURCE.plural));
    let reconciler = Arc::new(Cleaner {
        requests: manager.registry().store(),
        writer: manager.writer(DESCRIPTOR.service_account),
        clock: context.clock.clone(),
    });
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers: 1, max_retries: None }, queue, reconciler);
}

/// Returns the reason to delete a request; `None` to keep it.
fn deletion_reason(request: &CertificateSigningRequest, now: Timestamp) -> Option<&'static str> {
    let now = now.as_second();
    let older = |time: Time, seconds: i64| !time.is_zero() && now - time.0 > seconds;
    let said = |kind: &str, seconds: i64| {
        request.conditions.iter().any(|condition| &*condition.kind == kind && older(condition.updated, seconds))
    };
    let issued = !request.certificate.is_empty();
    if issued && said("Approved", DECIDED) {
        Some("issued for more than an hour")
    } else if said("Denied", DECIDED) {
        Some("denied for more than an hour")
    } else if said("Failed", DECIDED) {
        Some("failed for more than an hour")
    } else if request.conditions.is_empty() && older(request.meta.created, PENDING) {
        Some("undecided for more than a day")
    } else if issued && request.has("Approved") && not_after(&request.certificate).is_some_and(|end| now > end) {
        Some("its certificate has expired")
    } else if !issued && said("Approved", PENDING) {
        Some("approved and not issued for more than a day")
    } else {
        None
    }
}

/// Returns the end of the first certificate, in seconds; `None` if that cannot be read.
fn not_after(pem: &[u8]) -> Option<i64> {
    let (_, block) = parse_x509_pem(pem).ok()?;
    let (_, certificate) = parse_x509_certificate(&block.contents).ok()?;
    Some(certificate.validity().not_after.timestamp())
}

struct Cleaner {
    requests: Arc<Store<CertificateSigningRequest>>,
    writer: Writer,
    clock: Clock,
}

impl Reconcile for Cleaner {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, _: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        async move {
            self.pass().await;
            Ok(Outcome::RequeueAfter(PASS))
        }
        .boxed()
    }
}

impl Cleaner {
    async fn pass(&self) {
        for request in self.requests.by_index(&ALL, index_key(())) {
            let Some(why) = deletion_reason(&request, (self.clock)()) else { continue };
            let key = request.meta.key();
            info!(request = %key, why, "deleting a certificate request");
            // In this version: it may have been approved or signed since, and has more time then.
            match self.writer.delete_unchanged(&CertificateSigningRequest::RESOURCE, &key, &request.meta).await {
                Err(error) if !error.is_not_found() && !error.is_conflict() => {
                    error!(%error, request = %key, "a certificate request was not deleted");
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::request::KUBELET_CLIENT;
    use crate::certificates::request::tests::request;

    #[test]
    fn requests_are_deleted_after_their_time() {
        // The requests were made at 1,000,000 seconds.
        const MADE: i64 = 1_000_000;
        let hour = 3600;
        for (conditions, certificate, age, goes) in [
            (&[][..], "", 24 * hour, false),
            (&[], "", 24 * hour + 1, true),
            (&[("Approved", MADE)], "PEM", hour, false),
            (&[("Approved", MADE)], "PEM", hour + 1, true),
            (&[("Approved", 0)], "PEM", 99 * hour, false),
            (&[("Approved", MADE)], "", 24 * hour, false),
            (&[("Approved", MADE)], "", 24 * hour + 1, true),
            (&[("Denied", MADE)], "", hour, false),
            (&[("Denied", MADE)], "", hour + 1, true),
            (&[("Denied", 0)], "", 99 * hour, false),
            (&[("Failed", MADE)], "", hour + 1, true),
            (&[("Approved", MADE + 2 * hour), ("Failed", MADE)], "", 2 * hour, true),
            (&[("Other", MADE)], "", 99 * hour, false),
        ] {
            let now = Timestamp::from_second(MADE + age).expect("a time");
            let request = request(KUBELET_CLIENT, &[], conditions, certificate);
            assert_eq!(deletion_reason(&request, now).is_some(), goes, "{conditions:?} {certificate:?} {age}");
        }
    }

    #[test]
    fn requests_with_expired_certificates_are_deleted() {
        // Any certificate will do; this one ends in a hundred years.
        let pem = include_str!("signing/testdata/p256-ca.crt");
        let end = not_after(pem.as_bytes()).expect("it has an end");
        for (certificate, after, goes) in [(pem, 0, false), (pem, 1, true), ("damaged", 1, false)] {
            let now = Timestamp::from_second(end + after).expect("a time");
            let request = request(KUBELET_CLIENT, &[], &[("Approved", 0)], certificate);
            assert_eq!(deletion_reason(&request, now).is_some(), goes, "{certificate:?} {after}");
        }
    }
}
