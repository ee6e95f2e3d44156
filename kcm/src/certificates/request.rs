//! Certificate requests: what they ask for, and which shapes the kubelet's have. Shared by approver and signer.
//!
//! Follows upstream pkg/apis/certificates, helpers.

use std::collections::BTreeSet;

use kinds::CertificateSigningRequest;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::FromDer;

pub use crate::credentials::authority::{CLIENT, KUBELET_CLIENT, KUBELET_SERVING, LEGACY_UNKNOWN};

/// What a request asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// The common name; of several the last.
    pub common_name: String,
    /// The organizations.
    pub organizations: Vec<String>,
    /// DNS names.
    pub dns_names: Vec<String>,
    /// E-mail addresses.
    pub emails: Vec<String>,
    /// IP addresses: four or sixteen bytes each.
    pub addresses: Vec<Vec<u8>>,
    /// URIs.
    pub uris: Vec<String>,
    /// The subject, as DER.
    pub subject: Vec<u8>,
    /// The public key, as DER.
    pub public_key: Vec<u8>,
}

/// Reads a request (ParseCSR) and checks that its author has the private key.
///
/// # Errors
/// When the text holds no such request; the error says why.
pub fn read(pem: &[u8]) -> Result<Asked, String> {
    let block = parse_x509_pem(pem).ok().map(|(_, block)| block).filter(|block| block.label == "CERTIFICATE REQUEST");
    let block = block.ok_or("PEM block type must be CERTIFICATE REQUEST")?;
    let (_, request) = X509CertificationRequest::from_der(&block.contents).map_err(|error| error.to_string())?;
    request.verify_signature().map_err(|error| format!("the request's own signature: {error}"))?;
    let info = &request.certification_request_info;
    let texts = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| {
        attribute.as_str().map(ToOwned::to_owned).map_err(|error| format!("subject: {error}"))
    };
    let mut asked = Asked {
        common_name: info.subject.iter_common_name().last().map(texts).transpose()?.unwrap_or_default(),
        organizations: info.subject.iter_organization().map(texts).collect::<Result<_, _>>()?,
        subject: info.subject.as_raw().to_vec(),
        public_key: info.subject_pki.raw.to_vec(),
        ..Asked::default()
    };
    for extension in request.requested_extensions().into_iter().flatten() {
        let ParsedExtension::SubjectAlternativeName(names) = extension else { continue };
        for name in &names.general_names {
            match name {
                GeneralName::DNSName(name) => asked.dns_names.push((*name).to_owned()),
                GeneralName::RFC822Name(name) => asked.emails.push((*name).to_owned()),
                GeneralName::URI(name) => asked.uris.push((*name).to_owned()),
                GeneralName::IPAddress(address) if matches!(address.len(), 4 | 16) => {
                    asked.addresses.push(address.to_vec());
                }
                GeneralName::IPAddress(address) => {
                    return Err(format!("an IP address of {} bytes; there are those of 4 and 16", address.len()));
                }
                _ => {}
            }
        }
    }
    Ok(asked)
}

/// The usages are exactly these, with or without `key encipherment`, which only RSA needs.
fn has_usages(request: &CertificateSigningRequest, purpose: &'static str) -> Result<(), String> {
    let usages: BTreeSet<&str> = request.usages.iter().map(|usage| &**usage).collect();
    let without = BTreeSet::from(["digital signature", purpose]);
    let with = BTreeSet::from(["digital signature", "key encipherment", purpose]);
    if usages == with || usages == without {
        return Ok(());
    }
    Err(format!("usages did not match [{}]", with.into_iter().collect::<Vec<_>>().join(" ")))
}

fn named(refused: bool, why: &str) -> Result<(), String> {
    if refused { Err(why.to_owned()) } else { Ok(()) }
}

const ORGANIZATION: &str = "subject organization is not system:nodes";
const COMMON_NAME: &str = "subject common name does not begin with system:node:";
const NODES: &[&str] = &["system:nodes"];

/// Whether this is a kubelet's request for a client certificate (ValidateKubeletClientCSR).
///
/// # Errors
/// Upstream's words for what is wrong.
pub fn check_kubelet_client(request: &CertificateSigningRequest, asked: &Asked) -> Result<(), String> {
    named(asked.organizations != NODES, ORGANIZATION)?;
    named(!asked.dns_names.is_empty(), "DNS subjectAltNames are not allowed")?;
    named(!asked.emails.is_empty(), "Email subjectAltNames are not allowed")?;
    named(!asked.addresses.is_empty(), "IP subjectAltNames are not allowed")?;
    named(!asked.uris.is_empty(), "URI subjectAltNames are not allowed")?;
    named(!asked.common_name.starts_with("system:node:"), COMMON_NAME)?;
    has_usages(request, "client auth")
}

/// Whether this is a kubelet's request for a serving certificate (ValidateKubeletServingCSR).
///
/// # Errors
/// Upstream's words for what is wrong.
pub fn check_kubelet_serving(request: &CertificateSigningRequest, asked: &Asked) -> Result<(), String> {
    named(asked.organizations != NODES, ORGANIZATION)?;
    named(asked.dns_names.is_empty() && asked.addresses.is_empty(), "DNS or IP subjectAltName is required")?;
    named(!asked.emails.is_empty(), "Email subjectAltNames are not allowed")?;
    named(!asked.uris.is_empty(), "URI subjectAltNames are not allowed")?;
    has_usages(request, "server auth")?;
    named(!asked.common_name.starts_with("system:node:"), COMMON_NAME)
}

/// Whether this is a request for a client certificate of anybody (pkg/controller/certificates/signer,
/// validAPIServerClientUsages).
///
/// # Errors
/// Upstream's words for what is wrong.
pub fn check_client(request: &CertificateSigningRequest) -> Result<(), String> {
    let allowed = ["digital signature", "key encipherment", "client auth"];
    if let Some(usage) = request.usages.iter().find(|usage| !allowed.contains(&&***usage)) {
        return Err(format!("invalid usage for client certificate: {usage}"));
    }
    named(
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

    /// A request of `user` for a signer, with conditions of these types at these seconds, and a certificate.
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

    /// What a kubelet asks for.
    pub fn kubelet() -> Asked {
        Asked { common_name: "system:node:a".into(), organizations: vec!["system:nodes".into()], ..Asked::default() }
    }

    #[test]
    fn kubelets_ask_in_one_shape_only() {
        let good = ["key encipherment", "client auth", "digital signature"];
        let names = |field: fn(&mut Asked) -> &mut Vec<String>| {
            let mut asked = kubelet();
            field(&mut asked).push("x".into());
            asked
        };
        let ip = Asked { addresses: vec![vec![1, 2, 3, 4]], ..kubelet() };
        for (usages, asked, problem) in [
            (&good[..], kubelet(), ""),
            (&good[1..], kubelet(), ""),
            (&["client auth"], kubelet(), "usages did not match [client auth digital signature key encipherment]"),
            (&["server auth", "digital signature"], kubelet(), "usages did not match"),
            (&good, Asked { organizations: vec![], ..kubelet() }, ORGANIZATION),
            (&good, names(|asked| &mut asked.organizations), ORGANIZATION),
            (&good, Asked { common_name: "a".into(), ..kubelet() }, COMMON_NAME),
            (&good, names(|asked| &mut asked.dns_names), "DNS subjectAltNames are not allowed"),
            (&good, names(|asked| &mut asked.emails), "Email subjectAltNames are not allowed"),
            (&good, ip.clone(), "IP subjectAltNames are not allowed"),
            (&good, names(|asked| &mut asked.uris), "URI subjectAltNames are not allowed"),
        ] {
            let found =
                check_kubelet_client(&request(KUBELET_CLIENT, usages, &[], ""), &asked).err().unwrap_or_default();
            assert!(found.starts_with(problem) && found.is_empty() == problem.is_empty(), "{found} / {problem}");
        }
        let serving = ["key encipherment", "server auth", "digital signature"];
        for (usages, asked, problem) in [
            (&serving[..], ip.clone(), ""),
            (&serving[1..], names(|asked| &mut asked.dns_names), ""),
            (&serving, kubelet(), "DNS or IP subjectAltName is required"),
            (&serving, Asked { emails: vec!["x".into()], ..ip.clone() }, "Email subjectAltNames are not allowed"),
            (&serving, Asked { uris: vec!["x".into()], ..ip.clone() }, "URI subjectAltNames are not allowed"),
            (&good, ip.clone(), "usages did not match [digital signature key encipherment server auth]"),
            (&serving, Asked { common_name: "a".into(), ..ip.clone() }, COMMON_NAME),
        ] {
            let found =
                check_kubelet_serving(&request(KUBELET_SERVING, usages, &[], ""), &asked).err().unwrap_or_default();
            assert!(found.starts_with(problem) && found.is_empty() == problem.is_empty(), "{found} / {problem}");
        }
    }

    #[test]
    fn clients_are_for_nothing_else() {
        for (usages, problem) in [
            (&["client auth"][..], ""),
            (&["client auth", "digital signature", "key encipherment"], ""),
            (&["digital signature"], "missing required usage for client certificate: client auth"),
            (&["client auth", "server auth"], "invalid usage for client certificate: server auth"),
        ] {
            assert_eq!(check_client(&request(CLIENT, usages, &[], "")).err().unwrap_or_default(), problem);
        }
    }

    #[test]
    fn what_is_no_request_is_said() {
        for (pem, word) in [
            (&b""[..], "PEM block type must be CERTIFICATE REQUEST"),
            (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "PEM block type"),
        ] {
            assert!(read(pem).expect_err("no request").starts_with(word));
        }
    }
}
