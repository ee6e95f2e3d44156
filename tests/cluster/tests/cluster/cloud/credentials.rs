//! Credentials of a provider in a Secret: the process may read only that Secret, and uses changed credentials without a
//! restart.

use anyhow::{Result, ensure};
use cluster_tests::{CloudBed, Faults, QUIET, Space, during, eventually};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, Patch, PatchParams, PostParams};
use provider_mock::{MockCloud, MockConfig, Operation};
use serde_json::json;

use super::node::until_initialized;

/// The permissions in the guide for providers.
const PERMISSIONS: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: { name: cloud-credentials, namespace: kube-system }
rules:
  - { apiGroups: [""], resources: [secrets], resourceNames: [cloud-credentials], verbs: [get] }
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: { name: cloud-credentials, namespace: kube-system }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: Role, name: cloud-credentials }
subjects:
  - { apiGroup: rbac.authorization.k8s.io, kind: User, name: "system:cloud-controller-manager" }
"#;

pub async fn changed_secret_is_used_without_a_restart(_: Space) -> Result<()> {
    let bed = CloudBed::start().await?;
    let secret = Some("kube-system/cloud-credentials".to_owned());
    let mock = MockCloud::new(MockConfig { secret, auto_instances: true, ..MockConfig::default() })?;
    mock.set_token(Some("one"));
    let provider = |cluster: &str| Ok(mock.provider(cluster));
    let _manager = bed.start_ccm_with_provider(provider, &Faults::default(), &[], SignedDuration::ZERO).await?;
    bed.register("first", json!({})).await?;
    during(QUIET, "the cloud is not called without credentials", || async {
        let calls = mock.calls(Operation::DescribeInstances).calls;
        ensure!(calls == 0, "{calls} calls");
        Ok(())
    })
    .await?;

    let secrets: Api<Secret> = Api::namespaced(bed.bed.client.clone(), "kube-system");
    let made =
        serde_json::from_value(json!({"metadata": {"name": "cloud-credentials"}, "stringData": {"token": "one"}}))?;
    secrets.create(&PostParams::default(), &made).await?;
    let applying = bed.bed.clone();
    tokio::task::spawn_blocking(move || applying.cluster.kubectl_with_input(&["apply", "--filename=-"], PERMISSIONS))
        .await??;
    until_initialized(&bed, "first").await?;

    // The former credentials are refused from now on. No Node is deleted because of that, and the new credentials are
    // used soon.
    mock.set_token(Some("two"));
    let patch = json!({"stringData": {"token": "two"}});
    secrets.patch("cloud-credentials", &PatchParams::default(), &Patch::Merge(&patch)).await?;
    let successes = || {
        let count = mock.calls(Operation::DescribeInstances);
        count.calls - count.failed
    };
    let before = successes();
    eventually("the new credentials are used", || async {
        ensure!(successes() > before, "{:?}", mock.calls(Operation::DescribeInstances));
        Ok(())
    })
    .await?;
    bed.register("second", json!({})).await?;
    until_initialized(&bed, "second").await?;
    ensure!(bed.nodes().get_opt("first").await?.is_some(), "a Node was deleted while credentials were refused");
    Ok(())
}
