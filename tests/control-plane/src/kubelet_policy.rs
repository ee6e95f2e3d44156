//! Restricts the deletions of fake kubelets to pods that are being deleted.
//!
//! kwok removes a pod by its name, without the uid that a real kubelet sends. A late or repeated request would remove a
//! StatefulSet's next pod with the same name. The API server refuses such requests.

use anyhow::{Context, Result};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::api::{Api, PostParams};
use serde_json::json;

/// The user name of the fake kubelets.
pub(crate) const KUBELETS: &str = "kwok";

const NAME: &str = "fake-kubelets-remove-what-is-deleted";

/// Makes the API server refuse deletions by fake kubelets of pods that are not being deleted. The policy takes effect a
/// moment later.
pub(crate) async fn restrict_deletions(client: &kube::Client) -> Result<()> {
    let policy: ValidatingAdmissionPolicy = serde_json::from_value(json!({
        "metadata": { "name": NAME },
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["DELETE"],
            }] },
            "matchConditions": [{
                "name": "by-fake-kubelets", "expression": format!("request.userInfo.username == '{KUBELETS}'"),
            }],
            "validations": [{
                "expression": "has(oldObject.metadata.deletionTimestamp)",
                "message": "this pod is not being deleted: the request is for an earlier pod with the same name",
            }],
        },
    }))?;
    let binding: ValidatingAdmissionPolicyBinding = serde_json::from_value(json!({
        "metadata": { "name": NAME },
        "spec": { "policyName": NAME, "validationActions": ["Deny"] },
    }))?;
    let parameters = PostParams::default();
    Api::all(client.clone()).create(&parameters, &policy).await.with_context(|| format!("create the policy {NAME}"))?;
    Api::all(client.clone())
        .create(&parameters, &binding)
        .await
        .with_context(|| format!("create the binding {NAME}"))?;
    Ok(())
}
