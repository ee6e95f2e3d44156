//! Certificate requests: their contents, and the checks of the requests of kubelets and other clients. Shared by the
//! approving and the signing controller.
//!
//! Upstream: pkg/apis/certificates, helpers.go.

mod der_reader;
mod parse;
mod subject;

use std::collections::BTreeSet;

use kinds::CertificateSigningRequest;

pub use self::parse::Contents;
#[cfg(test)]
pub use self::subject::Subject;
pub use crate::credentials::authority::{CLIENT, KUBELET_CLIENT, KUBELET_SERVING, LEGACY_UNKNOWN};

/// Checks that the usages are `digital signature` and the purpose, with or without `key encipherment`, which only RSA
/// needs.
fn check_usages(request: &CertificateSigningRequest, purpose: &'static str) -> Result<(), String> {
    let usages: BTreeSet<&str> = request.usages.iter().map(|usage| &**usage).collect();
    let without = BTreeSet::from(["digital signature", purpose]);
    let with = BTreeSet::from(["digital signature", "key encipherment", purpose]);
    if usages == with || usages == without {
        return Ok(());
    }
    Err(format!("usages did not match [{}]", with.into_iter().collect::<Vec<_>>().join(" ")))
}

fn refuse_if(refused: bool, why: &str) -> Result<(), String> {
    if refused { Err(why.to_owned()) } else { Ok(()) }
}

const ORGANIZATION: &str = "subject organization is not system:nodes";
const COMMON_NAME: &str = "subject common name does not begin with system:node:";
const NODES: &[&str] = &["system:nodes"];

/// Checks a kubelet's request for a client certificate. Upstream: pkg/apis/certificates, ValidateKubeletClientCSR.
///
/// # Errors
/// When it has another form; the message is upstream's.
pub fn check_kubelet_client(request: &CertificateSigningRequest, contents: &Contents) -> Result<(), String> {
    refuse_if(contents.subject.organizations != NODES, ORGANIZATION)?;
    refuse_if(!contents.dns_names.is_empty(), "DNS subjectAltNames are not allowed")?;
    refuse_if(!contents.emails.is_empty(), "Email subjectAltNames are not allowed")?;
    refuse_if(!contents.addresses.is_empty(), "IP subjectAltNames are not allowed")?;
    refuse_if(!contents.uris.is_empty(), "URI subjectAltNames are not allowed")?;
    refuse_if(!contents.subject.common_name.starts_with("system:node:"), COMMON_NAME)?;
    check_usages(request, "client auth")
}

/// Checks a kubelet's request for a serving certificate. Upstream: pkg/apis/certificates, ValidateKubeletServingCSR.
///
/// # Errors
/// When it has another form; the message is upstream's.
pub fn check_kubelet_serving(request: &CertificateSigningRequest, contents: &Contents) -> Result<(), String> {
    refuse_if(contents.subject.organizations != NODES, ORGANIZATION)?;
    refuse_if(contents.dns_names.is_empty() && contents.addresses.is_empty(), "DNS or IP subjectAltName is required")?;
    refuse_if(!contents.emails.is_empty(), "Email subjectAltNames are not allowed")?;
    refuse_if(!contents.uris.is_empty(), "URI subjectAltNames are not allowed")?;
    check_usages(request, "server auth")?;
    refuse_if(!contents.subject.common_name.starts_with("system:node:"), COMMON_NAME)
}

/// Checks a request for a client certificate. Upstream: pkg/controller/certificates/signer, validAPIServerClientUsages.
///
/// # Errors
/// When it has another form; the message is upstream's.
pub fn check_client(request: &CertificateSigningRequest) -> Result<(), String> {
    let allowed = ["digital signature", "key encipherment", "client auth"];
    if let Some(usage) = request.usages.iter().find(|usage| !allowed.contains(&&***usage)) {
        return Err(format!("invalid usage for client certificate: {usage}"));
    }
    refuse_if(
        request.usages.iter().all(|usage| &**usage != "client auth"),
        "missing required usage for client certificate: client auth",
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use kinds::schema::{
        certificate_signing_request as f, certificate_signing_request_condition as c,
        certificate_signing_request_spec as s, certificate_signing_request_status as t, object_meta, time,
    };
    use kinds::wire::Put;
    use kinds::{Decode, Kind, Sections};

    use super::*;

    /// Returns a request of the node `a` for a signer, with conditions of these types at these seconds, and a
    /// certificate.
    pub fn request(
        signer: &str,
        usages: &[&str],
        conditions: &[(&str, i64)],
        certificate: &str,
    ) -> CertificateSigningRequest {
        let mut object = Vec::new();
        object.put_message(f::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "csr");
            meta.put_str(object_meta::RESOURCE_VERSION, "1");
            meta.put_message(object_meta::CREATION_TIMESTAMP, |at| at.put_int(time::SECONDS, 1_000_000));
        });
        object.put_message(f::SPEC, |spec| {
            spec.put_str(s::USERNAME, "system:node:a");
            usages.iter().for_each(|usage| spec.put_str(s::USAGES, usage));
            spec.put_str(s::SIGNER_NAME, signer);
        });
        object.put_message(f::STATUS, |status| {
            for (kind, updated) in conditions {
                status.put_message(t::CONDITIONS, |condition| {
                    condition.put_str(c::TYPE, kind);
                    condition.put_message(c::LAST_UPDATE_TIME, |at| at.put_int(time::SECONDS, *updated));
                    condition.put_str(c::STATUS, "True");
                });
            }
            status.put_str(t::CERTIFICATE, certificate);
        });
        let context = Decode { interner: Arc::default(), sections: Sections::default() };
        CertificateSigningRequest::decode(&context, &object).expect("a request")
    }

    /// Returns the contents of a kubelet's request.
    pub fn kubelet() -> Contents {
        named("system:node:a")
    }

    /// Returns the contents of a kubelet's request, with this common name.
    pub fn named(common_name: &str) -> Contents {
        let organizations = vec!["system:nodes".into()];
        let subject = Subject { common_name: common_name.into(), organizations, ..Subject::default() };
        Contents { subject, ..Contents::default() }
    }

    /// Returns the contents of a kubelet's request, with these organizations.
    fn in_groups(groups: &[&str]) -> Contents {
        let mut contents = kubelet();
        contents.subject.organizations = groups.iter().map(|group| (*group).to_owned()).collect();
        contents
    }

    #[test]
    fn kubelet_request_has_one_form_for_each_signer() {
        let good = ["key encipherment", "client auth", "digital signature"];
        let names = |field: fn(&mut Contents) -> &mut Vec<String>| {
            let mut contents = kubelet();
            field(&mut contents).push("x".into());
            contents
        };
        let ip = Contents { addresses: vec![vec![1, 2, 3, 4]], ..kubelet() };
        for (usages, contents, problem) in [
            (&good[..], kubelet(), ""),
            (&good[1..], kubelet(), ""),
            (&["client auth"], kubelet(), "usages did not match [client auth digital signature key encipherment]"),
            (&["server auth", "digital signature"], kubelet(), "usages did not match"),
            (&good, in_groups(&[]), ORGANIZATION),
            (&good, in_groups(&["system:nodes", "x"]), ORGANIZATION),
            (&good, named("a"), COMMON_NAME),
            (&good, names(|contents| &mut contents.dns_names), "DNS subjectAltNames are not allowed"),
            (&good, names(|contents| &mut contents.emails), "Email subjectAltNames are not allowed"),
            (&good, ip.clone(), "IP subjectAltNames are not allowed"),
            (&good, names(|contents| &mut contents.uris), "URI subjectAltNames are not allowed"),
        ] {
            let found =
                check_kubelet_client(&request(KUBELET_CLIENT, usages, &[], ""), &contents).err().unwrap_or_default();
            assert!(found.starts_with(problem) && found.is_empty() == problem.is_empty(), "{found} / {problem}");
        }
        let serving = ["key encipherment", "server auth", "digital signature"];
        for (usages, contents, problem) in [
            (&serving[..], ip.clone(), ""),
            (&serving[1..], names(|contents| &mut contents.dns_names), ""),
            (&serving, kubelet(), "DNS or IP subjectAltName is required"),
            (&serving, Contents { emails: vec!["x".into()], ..ip.clone() }, "Email subjectAltNames are not allowed"),
            (&serving, Contents { uris: vec!["x".into()], ..ip.clone() }, "URI subjectAltNames are not allowed"),
            (&good, ip.clone(), "usages did not match [digital signature key encipherment server auth]"),
            (&serving, Contents { subject: named("a").subject, ..ip.clone() }, COMMON_NAME),
        ] {
            let found =
                check_kubelet_serving(&request(KUBELET_SERVING, usages, &[], ""), &contents).err().unwrap_or_default();
            assert!(found.starts_with(problem) && found.is_empty() == problem.is_empty(), "{found} / {problem}");
        }
    }

    #[test]
    fn client_request_has_client_usages_only() {
        for (usages, problem) in [
            (&["client auth"][..], ""),
            (&["client auth", "digital signature", "key encipherment"], ""),
            (&["digital signature"], "missing required usage for client certificate: client auth"),
            (&["client auth", "server auth"], "invalid usage for client certificate: server auth"),
        ] {
            assert_eq!(check_client(&request(CLIENT, usages, &[], "")).err().unwrap_or_default(), problem);
        }
    }
}
