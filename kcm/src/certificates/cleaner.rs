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
use runtime::stale;
use runtime::store::{Index, Store, index_key};
use runtime::watch::Builder;
use runtime::worker::{Outcome, Reconcile, ReconcileError, WorkOptions};
use runtime::write::Writer;
use tracing::{error, info};
use x509_parser::parse_x509_certificate;

use crate::context::{Clock, Context, Descriptor, QueueKeys, Verb, Write};
use crate::credentials::pem::first_block;

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

/// Seconds for which requests are kept after their denial, their failure, or, once issued, their approval.
const DECIDED_MAX_AGE_SECONDS: i64 = 60 * 60;
/// Seconds for which undecided requests are kept, and approved requests for which no certificate is issued.
const PENDING_MAX_AGE_SECONDS: i64 = 24 * 60 * 60;
/// Interval between two passes.
const PASS_INTERVAL: Duration = Duration::from_secs(60 * 60);

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
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers: 1 }, queue, reconciler);
}

/// Returns the reason to delete a request; `None` to keep it.
fn deletion_reason(request: &CertificateSigningRequest, now: Timestamp) -> Option<&'static str> {
    let now = now.as_second();
    let is_older = |time: Time, seconds: i64| !time.is_zero() && now - time.0 > seconds;
    let has_old_condition = |kind: &str, seconds: i64| {
        request.conditions.iter().any(|condition| &*condition.kind == kind && is_older(condition.updated, seconds))
    };
    let is_issued = !request.certificate.is_empty();
    if is_issued && has_old_condition("Approved", DECIDED_MAX_AGE_SECONDS) {
        Some("issued, and approved more than an hour ago")
    } else if has_old_condition("Denied", DECIDED_MAX_AGE_SECONDS) {
        Some("denied for more than an hour")
    } else if has_old_condition("Failed", DECIDED_MAX_AGE_SECONDS) {
        Some("failed for more than an hour")
    } else if request.conditions.is_empty() && is_older(request.meta.created, PENDING_MAX_AGE_SECONDS) {
        Some("undecided for more than a day")
    } else if is_issued
        && request.has_condition("Approved")
        && not_after(&request.certificate).is_some_and(|end| now > end)
    {
        Some("its certificate has expired")
    } else if !is_issued && has_old_condition("Approved", PENDING_MAX_AGE_SECONDS) {
        Some("approved and not issued for more than a day")
    } else {
        None
    }
}

/// Returns the end of the first certificate's validity, as a Unix time in seconds; `None` if it cannot be read.
fn not_after(pem: &[u8]) -> Option<i64> {
    let block = first_block(pem)?;
    let (_, certificate) = parse_x509_certificate(&block.der).ok()?;
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
            Ok(Outcome::RequeueAfter(PASS_INTERVAL))
        }
        .boxed()
    }
}

impl Cleaner {
    async fn pass(&self) {
        for request in self.requests.by_index(&ALL, index_key(())) {
            // A request that cannot be decoded does not delay the deletions of others.
            stale::separately(self.clean(&request.meta.key())).await;
        }
    }

    /// Deletes a request if it is too old.
    async fn clean(&self, key: &ObjectKey) {
        let Some(request) = self.requests.get(key) else { return };
        let Some(why) = deletion_reason(&request, (self.clock)()) else { return };
        info!(request = %key, reason = why, "deleting a certificate request");
        // Deletes only this version: a request that was approved or signed in the meantime is kept for longer.
        match self.writer.delete_unchanged(&CertificateSigningRequest::RESOURCE, key, &request.meta).await {
            Err(error) if !error.is_not_found() && !error.is_conflict() => {
                error!(%error, request = %key, "cannot delete a certificate request");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use kinds::Decode;
    use runtime::lock::lock;
    use runtime::testing::{deliver_undecodable, filled_store, recording_writer};

    use super::*;
    use crate::certificates::request::KUBELET_CLIENT;
    use crate::certificates::request::tests::request;

    #[test]
    fn requests_are_deleted_when_they_are_too_old_for_their_state() {
        // Creation time of the requests, in seconds.
        const CREATED: i64 = 1_000_000;
        let hour = 3600;
        for (conditions, certificate, age, is_deleted) in [
            (&[][..], "", 24 * hour, false),
            (&[], "", 24 * hour + 1, true),
            (&[("Approved", CREATED)], "PEM", hour, false),
            (&[("Approved", CREATED)], "PEM", hour + 1, true),
            (&[("Approved", 0)], "PEM", 99 * hour, false),
            (&[("Approved", CREATED)], "", 24 * hour, false),
            (&[("Approved", CREATED)], "", 24 * hour + 1, true),
            (&[("Denied", CREATED)], "", hour, false),
            (&[("Denied", CREATED)], "", hour + 1, true),
            (&[("Denied", 0)], "", 99 * hour, false),
            (&[("Failed", CREATED)], "", hour + 1, true),
            (&[("Approved", CREATED + 2 * hour), ("Failed", CREATED)], "", 2 * hour, true),
            (&[("Other", CREATED)], "", 99 * hour, false),
        ] {
            let now = Timestamp::from_second(CREATED + age).expect("a time");
            let request = request(KUBELET_CLIENT, &[], conditions, certificate);
            assert_eq!(deletion_reason(&request, now).is_some(), is_deleted, "{conditions:?} {certificate:?} {age}");
        }
    }

    #[test]
    fn requests_with_expired_certificates_are_deleted() {
        // Any certificate is enough; this one expires in a hundred years.
        let pem = include_str!("signing/testdata/p256-ca.crt");
        let end = not_after(pem.as_bytes()).expect("the certificate has an end");
        for (certificate, after, is_deleted) in [(pem, 0, false), (pem, 1, true), ("damaged", 1, false)] {
            let now = Timestamp::from_second(end + after).expect("a time");
            let request = request(KUBELET_CLIENT, &[], &[("Approved", 0)], certificate);
            assert_eq!(deletion_reason(&request, now).is_some(), is_deleted, "{certificate:?} {after}");
        }
    }
    #[tokio::test]
    async fn request_that_cannot_be_decoded_does_not_delay_the_deletion_of_others() {
        let named = |name: &str| {
            let mut request = request(KUBELET_CLIENT, &[], &[("Denied", 1)], "");
            request.meta.name = name.into();
            request
        };
        let decode = Decode { interner: Arc::default(), sections: Sections::default() };
        let requests = Arc::new(filled_store(decode, vec![ALL], ["a", "b", "c"].map(named)));
        deliver_undecodable(&requests, ObjectKey::new("", "b"));
        deliver_undecodable(&requests, ObjectKey::new("", "never-decoded"));
        let (writer, deleted) = recording_writer("/apis/certificates.k8s.io/v1/certificatesigningrequests").await;
        let now = Timestamp::from_second(1_000_000).expect("a time");
        let cleaner = Cleaner { requests, writer, clock: Arc::new(move || now) };
        // Stands for the worker, which records the stale records that the whole pass reads.
        stale::separately(cleaner.pass()).await;
        let mut deleted = lock(&deleted).clone();
        deleted.sort_unstable();
        assert_eq!(deleted, ["DELETE a", "DELETE c"]);
    }
}
