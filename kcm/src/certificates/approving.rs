//! certificatesigningrequest-approving-controller: approves kubelets' requests for client certificates, if their author
//! is authorized to request them.
//!
//! Upstream: pkg/controller/certificates/approver.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::{ObjectKey, Time};
use kinds::schema::{
    certificate_signing_request_spec as s, resource_attributes as attributes, subject_access_review as review,
    subject_access_review_spec as r, subject_access_review_status as review_status,
};
use kinds::wire::{Put, WireError, fields, find};
use kinds::{CertificateSigningRequest, Kind, Resource, Sections};
use runtime::manager::Manager;
use runtime::store::Cached;
use runtime::watch::Builder;
use runtime::worker::{Outcome, Reconcile, ReconcileError, WorkOptions};
use runtime::write::WriteError;
use tracing::debug;

use crate::certificates::request::{Contents, KUBELET_CLIENT, check_kubelet_client};
use crate::certificates::requests::Requests;
use crate::context::{Context, Descriptor, QueueKeys, Verb, Write};

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "certificatesigningrequest-approving-controller",
    service_account: "certificate-controller",
    watches,
    writes: &[
        Write { verb: Verb::Update, group: "certificates.k8s.io", resource: "certificatesigningrequests/approval" },
        Write { verb: Verb::Create, group: "authorization.k8s.io", resource: "subjectaccessreviews" },
    ],
    queues: &[QueueKeys::of("certificate", "CertificateSigningRequest")],
    start,
    ..Descriptor::NONE
};

const WORKERS: usize = 5;

const REVIEWS: Resource = Resource {
    group: "authorization.k8s.io",
    version: "v1",
    kind: "SubjectAccessReview",
    plural: "subjectaccessreviews",
    namespaced: false,
};

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<CertificateSigningRequest>(Sections::default(), &[]);
}

fn start(manager: &mut Manager, _: &Context) {
    let requests = Requests::subscribe(manager, DESCRIPTOR.service_account);
    let queue = requests.queue();
    let reconciler = Arc::new(Approver { requests });
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers: WORKERS }, queue, reconciler);
}

/// A permission to request a certificate, and the message of the approval that it justifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Permission {
    subresource: &'static str,
    message: &'static str,
}

const SELF: Permission = Permission {
    subresource: "selfnodeclient",
    message: "Auto approving self kubelet client certificate after SubjectAccessReview.",
};
const ANY: Permission = Permission {
    subresource: "nodeclient",
    message: "Auto approving kubelet client certificate after SubjectAccessReview.",
};

/// Returns true if this controller may have to approve a request: it is for a kubelet's client certificate, and neither
/// approved, denied nor issued yet.
///
/// Requests for other signers are not even parsed: their keys and names may be of any kind, and an error would be
/// retried for as long as the request exists.
fn is_candidate(request: &CertificateSigningRequest) -> bool {
    *request.signer == *KUBELET_CLIENT
        && request.certificate.is_empty()
        && !request.has_condition("Approved")
        && !request.has_condition("Denied")
}

/// Returns the permissions of which the author needs at least one, in the order of their reviews; none if the request
/// does not have the form of a kubelet's.
fn permissions(request: &CertificateSigningRequest, contents: &Contents) -> &'static [Permission] {
    if check_kubelet_client(request, contents).is_err() {
        &[]
    } else if *request.username == *contents.subject.common_name {
        &[SELF, ANY]
    } else {
        &[ANY]
    }
}

/// Returns the SubjectAccessReview of one permission of a request's author.
fn access_review(request: &CertificateSigningRequest, permission: Permission) -> Result<Vec<u8>, WireError> {
    let mut spec = Vec::new();
    spec.put_message(r::RESOURCE_ATTRIBUTES, |message| {
        message.put_str(attributes::VERB, "create");
        message.put_str(attributes::GROUP, CertificateSigningRequest::RESOURCE.group);
        message.put_str(attributes::VERSION, "*");
        message.put_str(attributes::RESOURCE, CertificateSigningRequest::RESOURCE.plural);
        message.put_str(attributes::SUBRESOURCE, permission.subresource);
    });
    for field in fields(request.spec()) {
        let field = field?;
        let number = match field.number {
            s::USERNAME => r::USER,
            s::GROUPS => r::GROUPS,
            s::EXTRA => r::EXTRA,
            s::UID => r::UID,
            _ => continue,
        };
        spec.put_bytes(number, field.value.bytes());
    }
    let mut object = Vec::new();
    object.put_bytes(review::SPEC, &spec);
    Ok(object)
}

struct Approver {
    requests: Requests,
}

impl Reconcile for Approver {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl Approver {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let request = match self.requests.read(key) {
            Cached::Current(request) => request,
            Cached::Absent => return Ok(Outcome::Done),
            Cached::Lagging => return Ok(Outcome::WaitingForCache),
        };
        if !is_candidate(&request) {
            return Ok(Outcome::Done);
        }
        let contents = Contents::read(request.request())
            .map_err(|problem| ReconcileError::new(format!("unable to parse csr {:?}: {problem}", &*key.name)))?;
        let permissions = permissions(&request, &contents);
        for permission in permissions {
            if self.is_granted(&request, *permission).await? {
                return self.approve(key, &request, *permission).await;
            }
        }
        if permissions.is_empty() {
            return Ok(Outcome::Done);
        }
        debug!("author is not authorized to request a kubelet's certificate; retrying");
        Ok(Outcome::RequeueWithBackoff)
    }

    async fn is_granted(
        &self,
        request: &CertificateSigningRequest,
        permission: Permission,
    ) -> Result<bool, ReconcileError> {
        let access_review =
            access_review(request, permission).map_err(|error| ReconcileError::new(error.to_string()))?;
        let response = self.requests.writer.create(&REVIEWS, "", &access_review, true).await?;
        let object = response.object().map_err(WriteError::from)?;
        let allowed =
            fields(find(object, review::STATUS)).flatten().find(|field| field.number == review_status::ALLOWED);
        Ok(allowed.is_some_and(|field| field.value.bool()))
    }

    async fn approve(
        &self,
        key: &ObjectKey,
        request: &CertificateSigningRequest,
        permission: Permission,
    ) -> Result<Outcome, ReconcileError> {
        let object = request
            .with_condition("Approved", "AutoApproved", permission.message, Time::default())
            .map_err(|error| ReconcileError::new(error.to_string()))?;
        self.requests.replace(key, "approval", &object).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::request::tests::{kubelet, named, request};
    use crate::certificates::request::{CLIENT, KUBELET_SERVING};

    const USAGES: &[&str] = &["digital signature", "client auth"];

    #[test]
    fn kubelet_needs_the_permission_for_itself_or_for_any() {
        for (contents, expected) in [(kubelet(), &[SELF, ANY][..]), (named("system:node:b"), &[ANY]), (named("b"), &[])]
        {
            assert_eq!(permissions(&request(KUBELET_CLIENT, USAGES, &[], ""), &contents), expected, "{contents:?}");
        }
    }

    #[test]
    fn candidate_is_an_undecided_request_of_the_kubelets_signer() {
        for (signer, conditions, certificate, expected) in [
            (KUBELET_CLIENT, &[][..], "", true),
            (KUBELET_CLIENT, &[("Failed", 1)], "", true),
            (KUBELET_CLIENT, &[("Approved", 1)], "", false),
            (KUBELET_CLIENT, &[("Denied", 1)], "", false),
            (KUBELET_CLIENT, &[], "PEM", false),
            (KUBELET_SERVING, &[], "", false),
            (CLIENT, &[], "", false),
            ("example.com/other", &[], "", false),
        ] {
            assert_eq!(is_candidate(&request(signer, USAGES, conditions, certificate)), expected, "{signer}");
        }
    }

    #[test]
    fn review_is_about_the_author() {
        let access_review = access_review(&request(KUBELET_CLIENT, USAGES, &[], ""), SELF).expect("well-formed");
        let spec = find(&access_review, review::SPEC);
        assert_eq!(find(spec, r::USER), b"system:node:a");
        let resource = find(spec, r::RESOURCE_ATTRIBUTES);
        let texts =
            [attributes::VERB, attributes::GROUP, attributes::VERSION, attributes::RESOURCE, attributes::SUBRESOURCE];
        let texts = texts.map(|number| String::from_utf8_lossy(find(resource, number)).into_owned());
        assert_eq!(texts, ["create", "certificates.k8s.io", "*", "certificatesigningrequests", "selfnodeclient"]);
    }
}
