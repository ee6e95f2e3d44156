//! Gates that concern clients of the HTTPS port: the UID in the SubjectAccessReviews of their requests, as the API
//! server logs them.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use cluster_tests::certificates::Pair;
use cluster_tests::programs::KCM;
use cluster_tests::{Space, all_gates, eventually};
use control_plane::{ControlPlane, Identity, Options};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use rcgen::{DistinguishedName, DnType, KeyPair};
use serde_json::Value;

use super::{flag, refusal};
use crate::process::serving::{Credentials, ManagerProcess, sign};

/// Logs reviews with their content.
const POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Request
  resources: [{group: authorization.k8s.io, resources: [subjectaccessreviews]}]
- level: None
";

/// The attribute of a certificate's subject that contains the user's UID.
const UID: [u64; 8] = [1, 3, 6, 1, 4, 1, 57683, 2];

const HEADERS: &str = "--requestheader-uid-headers=X-Remote-Uid";

/// A control plane whose API server logs SubjectAccessReviews in its audit log.
struct AuditedControlPlane {
    cluster: ControlPlane,
    log: PathBuf,
    _folder: tempfile::TempDir,
}

impl AuditedControlPlane {
    async fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let (policy, log) = (folder.path().join("policy.yaml"), folder.path().join("audit.log"));
        fs::write(&policy, POLICY)?;
        let flags = [
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", log.display()),
            HEADERS.to_owned(),
        ];
        let options =
            Options { kwok: false, scheduler: false, extra_apiserver_flags: flags.to_vec(), ..Options::default() };
        Ok(Self { cluster: all_gates::control_plane(options).await?, log, _folder: folder })
    }

    /// Starts kcm with these flags, and sends it a request. Returns the UID in the review for this user, who has no
    /// permissions.
    async fn reviewed_uid(&self, flags: &[String], client: &Credentials, user: &str) -> Result<Option<String>> {
        let flags = [flags, &["--controllers=serviceaccount-controller".to_owned()]].concat();
        let kcm = ManagerProcess::start(&self.cluster, KCM, &flags).await?;
        let response = kcm.request(client, "GET", "/metrics", "").await?;
        ensure!(response.status == 403, "{user}: {} {}", response.status, response.body);
        let uid = eventually(format!("the review for {user} is logged"), || async {
            let log = fs::read_to_string(&self.log)?;
            let complete = log.rsplit_once('\n').map_or("", |(lines, _)| lines);
            let events = complete.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
            let specs = events.iter().map(|event| &event["requestObject"]["spec"]);
            let spec = specs.into_iter().find(|spec| spec["user"] == user).context("no review")?;
            Ok(spec["uid"].as_str().map(ToOwned::to_owned))
        });
        let uid = uid.await?;
        kcm.terminate().await?;
        Ok(uid)
    }

    /// Returns a certificate of this user.
    fn certificate(&self, user: &str, uid: &str) -> Result<Pair> {
        let authority = KeyPair::from_pem(&fs::read_to_string(self.cluster.ca_key())?)?;
        sign(authority, |params| {
            params.distinguished_name = DistinguishedName::new();
            params.distinguished_name.push(DnType::CommonName, user);
            params.distinguished_name.push(DnType::CustomDnType(UID.to_vec()), uid);
        })
    }

    /// Returns the UID that the API server itself takes from a certificate.
    async fn uid_for_the_api_server(&self, (certificate, key): &Pair) -> Result<Option<String>> {
        let mut kubeconfig = Kubeconfig::read_from(self.cluster.kubeconfig(Identity::Admin)?)?;
        let user = kubeconfig.auth_infos.first_mut().and_then(|user| user.auth_info.as_mut()).context("no user")?;
        user.client_certificate_data = Some(BASE64.encode(certificate));
        user.client_key_data = Some(BASE64.encode(key).into());
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let reviews: Api<SelfSubjectReview> = Api::all(Client::try_from(config)?);
        let review = reviews.create(&Default::default(), &SelfSubjectReview::default()).await?;
        Ok(review.status.and_then(|status| status.user_info).and_then(|user| user.uid))
    }
}

pub async fn uid_of_a_certificate_is_reviewed(_: Space) -> Result<()> {
    let control_plane = AuditedControlPlane::start().await?;
    for is_on in [true, false] {
        let user = format!("ann-{is_on}");
        let pair = control_plane.certificate(&user, "u-1")?;
        let expected = Some("u-1".to_owned());
        let known = control_plane.uid_for_the_api_server(&pair).await?;
        ensure!(known == expected, "the API server has its gate on: {known:?}");
        let flags = [flag(&["AllowParsingUserUIDFromCertAuth"], is_on)];
        let reviewed = control_plane.reviewed_uid(&flags, &Credentials::certificate(pair), &user).await?;
        ensure!(reviewed == expected.filter(|_| is_on), "{user}: {reviewed:?}");
    }
    Ok(())
}

/// The gate applies to the flag only: the header names in the API server's ConfigMap are used with and without it.
pub async fn uid_in_the_headers_of_a_front_proxy_is_reviewed(_: Space) -> Result<()> {
    let control_plane = AuditedControlPlane::start().await?;
    let file =
        |name: &str| Ok::<_, anyhow::Error>(fs::read_to_string(control_plane.cluster.folder().join("pki").join(name))?);
    let pair = (file("front-proxy-client.crt")?, file("front-proxy-client.key")?);
    let own = format!("--requestheader-client-ca-file={}", control_plane.cluster.front_proxy_ca().display());
    let [on, off] = [true, false].map(|is_on| flag(&["RemoteRequestHeaderUID"], is_on));
    for (user, flags, expected) in [
        ("with-flags", vec![own.clone(), HEADERS.to_owned(), on], Some("u-2")),
        ("without-the-flag", vec![own.clone(), off.clone()], None),
        ("with-the-config-map", vec![off.clone()], Some("u-2")),
    ] {
        let client = Credentials::certificate(pair.clone()).with("X-Remote-User", user).with("X-Remote-Uid", "u-2");
        let reviewed = control_plane.reviewed_uid(&flags, &client, user).await?;
        ensure!(reviewed.as_deref() == expected, "{user}: {reviewed:?}");
    }
    let refused = refusal(&control_plane.cluster, &[own, HEADERS.to_owned(), off]).await?;
    ensure!(refused.contains("requires the feature gate RemoteRequestHeaderUID"), "{refused}");
    Ok(())
}
