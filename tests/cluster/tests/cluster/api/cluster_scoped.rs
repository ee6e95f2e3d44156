//! Observable behaviour of controllers of cluster-wide objects: aggregated roles, signed cluster info, bootstrap
//! tokens, trust bundles, the TTL annotation of nodes, and service CIDRs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::{Call, Faults, Manager, QUIET, Space, Verb, during, eventually};
use k8s_openapi::api::certificates::v1::ClusterTrustBundle;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret, Service};
use k8s_openapi::api::networking::v1::ServiceCIDR;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::Resource;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::auth::serviceaccount::on_bed_without_accounts;
use crate::robustness::invariants::{only_declared, until_quiet};

async fn create<K>(api: &Api<K>, object: Value) -> Result<K>
where
    K: Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let typed: K = serde_json::from_value(object)?;
    Ok(api.create(&PostParams::default(), &typed).await?)
}

async fn patch<K>(api: &Api<K>, name: &str, patch: Value) -> Result<K>
where
    K: Clone + std::fmt::Debug + DeserializeOwned + Resource,
{
    Ok(api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?)
}

/// Returns the resources in a role's rules, in order.
fn resources(role: &ClusterRole) -> Vec<String> {
    role.rules.iter().flatten().flat_map(|rule| rule.resources.clone().unwrap_or_default()).collect()
}

/// Returns a role that is aggregated into roles that select the label `key`.
fn part(name: &str, key: &str, resource: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {key: "true"}},
        "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": [resource]}],
    })
}

pub async fn cluster_roles_are_aggregated(space: Space) -> Result<()> {
    let space = on_bed_without_accounts(&space).await?;
    let roles: Api<ClusterRole> = Api::all(space.bed.client.clone());
    let key = format!("example.com/{}", space.namespace);
    let (sum, a, b) =
        (format!("{}-sum", space.namespace), format!("{}-a", space.namespace), format!("{}-b", space.namespace));
    create(&roles, part(&b, &key, "pods")).await?;
    let flags = ["--controllers=clusterrole-aggregation-controller"];
    let faults = Faults::default();
    let _manager = Manager::start_cluster_wide(&space, &faults, &flags).await?;
    let selector = json!({"clusterRoleSelectors": [{"matchLabels": {&key: "true"}}]});
    create(&roles, json!({"metadata": {"name": sum}, "aggregationRule": selector})).await?;
    let holds = |expected: &'static [&'static str]| {
        let (roles, sum) = (roles.clone(), sum.clone());
        async move {
            eventually(format!("the rules are {expected:?}"), || async {
                let role = roles.get(&sum).await?;
                ensure!(resources(&role) == expected, "{:?}", role.rules);
                Ok(role)
            })
            .await
        }
    };
    let role = holds(&["pods"]).await?;
    let managers: Vec<_> = role.metadata.managed_fields.unwrap_or_default().into_iter().collect();
    let ours = managers.iter().find(|fields| fields.manager.as_deref() == Some("clusterrole-aggregation-controller"));
    let ours = ours.context("the rules have no field manager")?;
    ensure!(ours.operation.as_deref() == Some("Apply"), "{ours:?}");
    ensure!(serde_json::to_value(&ours.fields_v1)?.get("f:rules").is_some(), "{ours:?}");

    create(&roles, part(&a, &key, "secrets")).await?;
    holds(&["secrets", "pods"]).await?;
    patch(&roles, &sum, json!({"rules": []})).await?;
    holds(&["secrets", "pods"]).await?;
    patch(&roles, &b, json!({"metadata": {"labels": {&key: null}}})).await?;
    holds(&["secrets"]).await?;
    roles.delete(&a, &DeleteParams::default()).await?;
    holds(&[]).await?;

    let admin = eventually("the built-in roles have rules", || async {
        let admin = roles.get("admin").await?;
        ensure!(resources(&admin).iter().any(|resource| resource == "deployments"), "{:?}", admin.rules);
        Ok(admin)
    })
    .await?;
    ensure!(resources(&admin).iter().any(|resource| resource == "rolebindings"));
    until_quiet(&faults).await?;
    only_declared(&faults, &["clusterrole-aggregation-controller"])
}

fn bootstrap_token(id: &str, expiration: &str) -> Value {
    json!({
        "metadata": {"name": format!("bootstrap-token-{id}")},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": id, "token-secret": "0123456789abcdef", "usage-bootstrap-signing": "true",
            "expiration": expiration,
        },
    })
}

pub async fn cluster_info_is_signed_until_tokens_expire(space: Space) -> Result<()> {
    let space = on_bed_without_accounts(&space).await?;
    let secrets: Api<Secret> = Api::namespaced(space.bed.client.clone(), "kube-system");
    let maps: Api<ConfigMap> = Api::namespaced(space.bed.client.clone(), "kube-public");
    let flags = ["--controllers=bootstrapsigner,tokencleaner"];
    let faults = Faults::default();
    let _manager = Manager::start_cluster_wide(&space, &faults, &flags).await?;
    eventually("the namespace kube-public exists", || async {
        create(&maps, json!({"metadata": {"name": "cluster-info"}, "data": {"kubeconfig": "text", "x": "y"}})).await
    })
    .await?;
    create(&secrets, bootstrap_token("aaaaaa", "9999-12-31T23:59:59Z")).await?;
    let expires_in =
        |seconds| (jiff::Timestamp::now() + Duration::from_secs(seconds)).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    create(&secrets, bootstrap_token("bbbbbb", &expires_in(3600))).await?;
    let signatures = |expected: &'static [&'static str]| {
        let maps = maps.clone();
        async move {
            eventually(format!("cluster-info has the signatures {expected:?}"), || async {
                let data = maps.get("cluster-info").await?.data.unwrap_or_default();
                let keys: Vec<&str> = data.keys().filter_map(|key| key.strip_prefix("jws-kubeconfig-")).collect();
                ensure!(keys == expected && data.contains_key("x"), "{:?}", data.keys());
                Ok(data)
            })
            .await
        }
    };
    let both = signatures(&["aaaaaa", "bbbbbb"]).await?;
    // HMAC-SHA256 of {"alg":"HS256","kid":"aaaaaa"} and "text", computed by OpenSSL.
    ensure!(
        both["jws-kubeconfig-aaaaaa"]
            == "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFhYWFhYSJ9..MYOSriEyuMcDu9omfPa5exHwMw-pML642UO7gLMlLdc",
        "{both:?}"
    );
    patch(&secrets, "bootstrap-token-bbbbbb", json!({"stringData": {"expiration": expires_in(3)}})).await?;
    let one = signatures(&["aaaaaa"]).await?;
    ensure!(one["jws-kubeconfig-aaaaaa"] == both["jws-kubeconfig-aaaaaa"]);
    eventually("the expired token is deleted", || async {
        ensure!(secrets.get_opt("bootstrap-token-bbbbbb").await?.is_none());
        Ok(())
    })
    .await?;

    create(&secrets, bootstrap_token("cccccc", "soon")).await?;
    eventually("a token with an invalid expiration is deleted", || async {
        ensure!(secrets.get_opt("bootstrap-token-cccccc").await?.is_none());
        Ok(())
    })
    .await?;
    patch(&secrets, "bootstrap-token-aaaaaa", json!({"stringData": {"usage-bootstrap-signing": "false"}})).await?;
    signatures(&[]).await?;
    let deletions = faults.count(|call| call.verb == Verb::Delete);
    ensure!(deletions == 2, "{:?}", faults.requests());
    only_declared(&faults, &["bootstrap-signer-controller", "token-cleaner-controller"])
}

pub async fn one_trust_bundle_is_published(space: Space) -> Result<()> {
    const SIGNER: &str = "kubernetes.io/kube-apiserver-serving";
    let space = on_bed_without_accounts(&space).await?;
    let bundles: Api<ClusterTrustBundle> = Api::all(space.bed.client.clone());
    let ca = std::fs::read_to_string(space.bed.cluster.ca_certificate())?;
    let other_signer = json!({
        "metadata": {"name": "example.com:a:b"}, "spec": {"signerName": "example.com/a", "trustBundle": ca},
    });
    create(&bundles, other_signer).await?;
    let root_ca = format!("--root-ca-file={}", space.bed.cluster.ca_certificate().display());
    let flags = ["--controllers=kube-apiserver-serving-clustertrustbundle-publisher-controller", &root_ca];
    let faults = Faults::default();
    let _manager = Manager::start_cluster_wide(&space, &faults, &flags).await?;
    let only = |what: &'static str| {
        let (bundles, ca) = (bundles.clone(), ca.clone());
        async move {
            eventually(what, || async {
                let all = bundles.list(&Default::default()).await?.items;
                let (ours, others): (Vec<_>, Vec<_>) =
                    all.into_iter().partition(|bundle| bundle.spec.signer_name.as_deref() == Some(SIGNER));
                ensure!(others.len() == 1, "{others:?}");
                let [bundle] = &ours[..] else { anyhow::bail!("{ours:?}") };
                ensure!(bundle.spec.trust_bundle == ca, "{bundle:?}");
                bundle.metadata.name.clone().context("no name")
            })
            .await
        }
    };
    let name = only("the bundle is published").await?;
    let hash = name.strip_prefix("kubernetes.io:kube-apiserver-serving:").context("no prefix")?;
    ensure!(hash.len() == 24 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{name}");

    let front_proxy = std::fs::read_to_string(space.bed.cluster.front_proxy_ca())?;
    patch(&bundles, &name, json!({"spec": {"trustBundle": front_proxy}})).await?;
    ensure!(only("the changed bundle is restored").await? == name);
    let second = json!({
        "metadata": {"name": "kubernetes.io:kube-apiserver-serving:old"},
        "spec": {"signerName": SIGNER, "trustBundle": front_proxy},
    });
    create(&bundles, second).await?;
    ensure!(only("another bundle of this signer is deleted").await? == name);
    only_declared(&faults, &["kube-apiserver-serving-clustertrustbundle-publisher-controller"])
}

pub async fn ttl_annotation_of_nodes_is_set(space: Space) -> Result<()> {
    const TTL: &str = "node.alpha.kubernetes.io/ttl";
    let space = on_bed_without_accounts(&space).await?;
    let nodes: Api<Node> = Api::all(space.bed.client.clone());
    let faults = Faults::default();
    let _manager = Manager::start_cluster_wide(&space, &faults, &["--controllers=ttl-controller"]).await?;
    let annotated = |what: &'static str| {
        let nodes = nodes.clone();
        async move {
            eventually(what, || async {
                for node in nodes.list(&Default::default()).await?.items {
                    let annotations = node.metadata.annotations.unwrap_or_default();
                    ensure!(annotations.get(TTL).is_some_and(|value| value == "0"), "{annotations:?}");
                }
                Ok(())
            })
            .await
        }
    };
    annotated("all nodes are annotated").await?;
    for wrong in [json!("abc"), json!("7"), json!(null)] {
        patch(&nodes, "node-0", json!({"metadata": {"annotations": {TTL: wrong}}})).await?;
        annotated("the changed annotation is restored").await?;
    }
    let patches = |call: &Call| call.is_write() && call.resource == "nodes";
    let before = faults.count(patches);
    patch(&nodes, "node-0", json!({"metadata": {"labels": {"example.com/x": "y"}}})).await?;
    during(QUIET, "other changes cause no write", || async {
        ensure!(faults.count(patches) == before);
        Ok(())
    })
    .await?;
    only_declared(&faults, &["ttl-controller"])
}

pub async fn service_cidr_exists_while_it_is_needed(space: Space) -> Result<()> {
    let space = on_bed_without_accounts(&space).await?;
    let ranges: Api<ServiceCIDR> = Api::all(space.bed.client.clone());
    let services: Api<Service> = space.api();
    let faults = Faults::default();
    let _manager = Manager::start_cluster_wide(&space, &faults, &["--controllers=service-cidr-controller"]).await?;
    let is_ready = |name: &'static str, status: &'static str, reason: &'static str| {
        let ranges = ranges.clone();
        async move {
            eventually(format!("{name} is Ready={status}"), || async {
                let range = ranges.get(name).await?;
                let conditions = range.status.and_then(|status| status.conditions).unwrap_or_default();
                let ready = conditions.iter().find(|condition| condition.type_ == "Ready").context("no condition")?;
                ensure!(ready.status == status && ready.reason == reason, "{ready:?}");
                let finalizers = range.metadata.finalizers.unwrap_or_default();
                ensure!(finalizers == ["networking.k8s.io/service-cidr-finalizer"], "{finalizers:?}");
                Ok(())
            })
            .await
        }
    };
    let until_deleted = |name: &'static str| {
        let ranges = ranges.clone();
        async move {
            eventually(format!("{name} is deleted"), || async {
                ensure!(ranges.get_opt(name).await?.is_none(), "it still exists");
                Ok(())
            })
            .await
        }
    };
    is_ready("kubernetes", "True", "").await?;
    create(&ranges, json!({"metadata": {"name": "narrow"}, "spec": {"cidrs": ["192.168.76.0/29"]}})).await?;
    is_ready("narrow", "True", "").await?;
    eventually("a Service gets an address of the narrow range", || async {
        let spec = json!({"clusterIP": "192.168.76.2", "ports": [{"port": 80}]});
        create(&services, json!({"metadata": {"name": "guest"}, "spec": spec})).await?;
        Ok(())
    })
    .await?;
    ranges.delete("narrow", &DeleteParams::default()).await?;
    is_ready("narrow", "False", "Terminating").await?;
    create(&ranges, json!({"metadata": {"name": "wide"}, "spec": {"cidrs": ["192.168.76.0/24"]}})).await?;
    is_ready("wide", "True", "").await?;
    until_deleted("narrow").await?;
    ranges.delete("wide", &DeleteParams::default()).await?;
    is_ready("wide", "False", "Terminating").await?;
    let service_deleted_at = std::time::Instant::now();
    services.delete("guest", &DeleteParams::default()).await?;
    create(&ranges, json!({"metadata": {"name": "short-lived"}, "spec": {"cidrs": ["192.168.80.0/24"]}})).await?;
    is_ready("short-lived", "True", "").await?;
    ranges.delete("short-lived", &DeleteParams::default()).await?;
    until_deleted("wide").await?;
    until_deleted("short-lived").await?;
    // API servers whose watches have not delivered the deletion may still allocate addresses from the ServiceCIDR.
    ensure!(service_deleted_at.elapsed() > Duration::from_secs(8), "after {:?}", service_deleted_at.elapsed());
    only_declared(&faults, &["service-cidr-controller"])
}
