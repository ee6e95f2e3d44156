//! Observable behaviour of certificate requests: which are approved and signed, and which are not.

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use cluster_tests::{Faults, Manager, QUIET, Space, during, eventually};
use control_plane::Identity;
use k8s_openapi::api::authentication::v1::{SelfSubjectReview, UserInfo};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{Api, PostParams};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};

use crate::auth::serviceaccount::on_bed_without_accounts;
use crate::robustness::invariants::only_declared;

/// The attribute from which the API server reads the UID of a user.
const USER_UID: [u64; 8] = [1, 3, 6, 1, 4, 1, 57683, 2];

/// The usages of a client certificate.
const CLIENT: &[&str] = &["digital signature", "client auth"];

/// Returns a certificate signing request with this organization and common name, and its key, both as PEM.
pub fn signing_request(organization: &str, common_name: &str, dns_names: &[&str]) -> Result<(String, String)> {
    signing_request_with_uid(organization, common_name, dns_names, None)
}

/// Same as [`signing_request`], with a UID in the subject.
fn signing_request_with_uid(
    organization: &str,
    common_name: &str,
    dns_names: &[&str],
    uid: Option<&str>,
) -> Result<(String, String)> {
    let key = KeyPair::generate()?;
    let names: Vec<String> = dns_names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, organization);
    params.distinguished_name.push(DnType::CommonName, common_name);
    if let Some(uid) = uid {
        params.distinguished_name.push(DnType::CustomDnType(USER_UID.to_vec()), uid);
    }
    Ok((params.serialize_request(&key)?.pem()?, key.serialize_pem()))
}

pub fn object(name: &str, request: &str, signer: &str, usages: &[&str]) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "request": BASE64.encode(request), "signerName": format!("kubernetes.io/{signer}"),
            "usages": usages, "expirationSeconds": 3600,
        },
    })
}

pub async fn create(api: &Api<CertificateSigningRequest>, object: Value) -> Result<()> {
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    Ok(())
}

/// Waits for the certificate of a request.
pub async fn until_issued(api: &Api<CertificateSigningRequest>, name: &str) -> Result<String> {
    eventually(format!("{name} has a certificate"), || async {
        let status = api.get(name).await?.status.unwrap_or_default();
        let pem = status.certificate.with_context(|| format!("conditions {:?}", status.conditions))?;
        Ok(String::from_utf8(pem.0)?)
    })
    .await
}

/// Returns the user that the API server authenticates by a certificate.
async fn user(space: &Space, certificate: &str, key: &str) -> Result<UserInfo> {
    let kubeconfig = Kubeconfig::read_from(space.bed.cluster.kubeconfig(Identity::Admin)?)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.auth_info = AuthInfo {
        client_certificate_data: Some(BASE64.encode(certificate)),
        client_key_data: Some(BASE64.encode(key).into()),
        ..AuthInfo::default()
    };
    let reviews: Api<SelfSubjectReview> = Api::all(Client::try_from(config)?);
    let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await?;
    Ok(review.status.and_then(|status| status.user_info).unwrap_or_default())
}

async fn whoami(space: &Space, certificate: &str, key: &str) -> Result<String> {
    Ok(user(space, certificate, key).await?.username.unwrap_or_default())
}

/// Returns a client of CertificateSigningRequests with the identity of a joining node. As in kubeadm's clusters, its
/// group may request certificates of any node.
async fn joining_node(space: &Space) -> Result<Api<CertificateSigningRequest>> {
    let name = |suffix: &str| format!("{}-{suffix}", space.namespace);
    let bindings: Api<ClusterRoleBinding> = Api::all(space.bed.client.clone());
    for role in ["system:node-bootstrapper", "system:certificates.k8s.io:certificatesigningrequests:nodeclient"] {
        let binding = json!({
            "metadata": {"name": name(role.rsplit(':').next().unwrap_or(role))},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": name("joining")}],
        });
        bindings.create(&PostParams::default(), &serde_json::from_value(binding)?).await?;
    }
    let user = Identity::User { name: "system:bootstrap:abcdef".into(), groups: vec![name("joining")] };
    Ok(Api::all(space.bed.cluster.client(user).await?))
}

/// Checks that a node's client certificate is approved and signed, and lacks the UID that the request contains.
async fn check_client_certificate(
    space: &Space,
    all: &Api<CertificateSigningRequest>,
    node: &Api<CertificateSigningRequest>,
) -> Result<()> {
    let name = format!("{}-joins", space.namespace);
    let uid = "00000000-0000-4000-8000-000000000001";
    let (request, key) = signing_request_with_uid("system:nodes", "system:node:new", &[], Some(uid))?;
    // The API server's cache of role bindings can be behind the user's.
    let object = object(&name, &request, "kube-apiserver-client-kubelet", CLIENT);
    eventually("a joining node may request certificates", || create(node, object.clone())).await?;
    let certificate = until_issued(all, &name).await?;
    let user = user(space, &certificate, &key).await?;
    ensure!(user.username.as_deref() == Some("system:node:new"), "{user:?}");
    ensure!(user.uid.as_deref().is_none_or(str::is_empty), "the requester chose its UID: {user:?}");
    let conditions = all.get(&name).await?.status.and_then(|status| status.conditions).unwrap_or_default();
    let [approved] = &conditions[..] else { anyhow::bail!("{conditions:?}") };
    ensure!(approved.type_ == "Approved" && approved.reason.as_deref() == Some("AutoApproved"), "{approved:?}");
    let message = "Auto approving kubelet client certificate after SubjectAccessReview.";
    ensure!(approved.message.as_deref() == Some(message), "{approved:?}");
    Ok(())
}

pub async fn kubelet_certificates_are_signed(space: Space) -> Result<()> {
    let space = on_bed_without_accounts(&space).await?;
    let (ca, ca_key) = (space.bed.cluster.ca_certificate(), space.bed.cluster.ca_key());
    let signing = [
        format!("--cluster-signing-cert-file={}", ca.display()),
        format!("--cluster-signing-key-file={}", ca_key.display()),
    ];
    let flags = ["--controllers=csrapproving,csrsigning,csrcleaner", &signing[0], &signing[1]];
    let faults = Faults::default();
    let _manager = Manager::start_cluster_wide(&space, &faults, &flags).await?;
    let name = |suffix: &str| format!("{}-{suffix}", space.namespace);
    let all: Api<CertificateSigningRequest> = Api::all(space.bed.client.clone());
    let node = joining_node(&space).await?;
    check_client_certificate(&space, &all, &node).await?;

    // Requests for serving certificates and from other users have to be approved by an admin.
    let (request, _) = signing_request("system:nodes", "system:node:new", &["new.example.com"])?;
    let usages = ["digital signature", "server auth"];
    create(&node, object(&name("serves"), &request, "kubelet-serving", &usages)).await?;
    let (request, key) = signing_request("people", "jane", &[])?;
    create(&all, object(&name("jane"), &request, "kube-apiserver-client", CLIENT)).await?;
    create(&all, object(&name("wrong"), &request, "kubelet-serving", &usages)).await?;
    create(&all, object(&name("no"), &request, "kube-apiserver-client", CLIENT)).await?;
    create(&all, object(&name("else"), &request, "kube-apiserver-client-kubelet", CLIENT)).await?;
    during(QUIET, "no request is approved", || async {
        for suffix in ["serves", "jane", "wrong", "no", "else"] {
            let status = all.get(&name(suffix)).await?.status.unwrap_or_default();
            ensure!(status.conditions.is_none() && status.certificate.is_none(), "{suffix}: {status:?}");
        }
        Ok(())
    })
    .await?;
    space.kubectl(&["certificate", "approve", &name("serves"), &name("jane"), &name("wrong")]).await?;
    space.kubectl(&["certificate", "deny", &name("no")]).await?;
    until_issued(&all, &name("serves")).await?;
    let certificate = until_issued(&all, &name("jane")).await?;
    ensure!(whoami(&space, &certificate, &key).await? == "jane");
    eventually("the failure is reported", || async {
        let status = all.get(&name("wrong")).await?.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let failed = conditions.iter().find(|condition| condition.type_ == "Failed").context("it has not failed")?;
        ensure!(failed.reason.as_deref() == Some("SignerValidationFailure"), "{failed:?}");
        ensure!(failed.message.as_deref() == Some("subject organization is not system:nodes"), "{failed:?}");
        ensure!(failed.last_update_time.is_some() && status.certificate.is_none());
        Ok(())
    })
    .await?;
    ensure!(all.get(&name("no")).await?.status.is_some_and(|status| status.certificate.is_none()));
    only_declared(
        &faults,
        &["certificatesigningrequest-approving-controller", "certificatesigningrequest-signing-controller"],
    )
}
