//! Observable behaviour of service accounts: the default one, the root certificates, and tokens that the API server
//! accepts.
//!
//! The tests use a separate control plane, on which no other client creates accounts.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64_URL;
use cluster_tests::objects::{deployment, is_ready};
use cluster_tests::{Bed, Call, Effect, Faults, Manager, QUIET, Rule, Space, Verb, during, eventually};
use control_plane::{Identity, Options};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret, ServiceAccount};
use kube::api::{Api, DeleteParams, PostParams};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::robustness::invariants::only_declared;
use crate::robustness::scenario::Scenario;

/// An RSA key pair whose tokens the API server accepts, in addition to those of its own key.
const RSA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../kcm/src/credentials/testdata/rsa");

/// Creates a space on a second control plane, without a manager that creates accounts. All callers share that control
/// plane.
pub async fn on_bed_without_accounts(space: &Space) -> Result<Space> {
    static BED: OnceCell<Arc<Bed>> = OnceCell::const_new();
    let bed = BED.get_or_try_init(|| async {
        let extra_apiserver_flags = vec![format!("--service-account-key-file={RSA}.pub")];
        let bed = Bed::without_accounts(Options { nodes: 2, extra_apiserver_flags, ..Options::default() }).await?;
        anyhow::Ok(Arc::new(bed))
    });
    bed.await?.space(&space.namespace).await
}

fn root_ca_flag(space: &Space) -> String {
    format!("--root-ca-file={}", space.bed.cluster.ca_certificate().display())
}

async fn default_account(space: &Space) -> Result<ServiceAccount> {
    eventually("the default account exists", || space.get::<ServiceAccount>("default")).await
}

pub async fn default_account_is_created_and_recreated(space: Space) -> Result<()> {
    let space = on_bed_without_accounts(&space).await?;
    let faults = Faults::default();
    let _manager = Manager::start_with(&space, &faults, &["--controllers=serviceaccount-controller"]).await?;
    let first = default_account(&space).await?;
    ensure!(first.secrets.is_none() && first.automount_service_account_token.is_none(), "{first:?}");
    ensure!(first.metadata.labels.is_none() && first.metadata.annotations.is_none(), "{first:?}");

    space.delete::<ServiceAccount>("default").await?;
    let second = default_account(&space).await?;
    ensure!(second.metadata.uid != first.metadata.uid);
    let posts = |call: &Call| {
        call.verb == Verb::Create && call.resource == "serviceaccounts" && call.namespace == space.namespace
    };
    ensure!(faults.count(posts) == 2, "{:?}", faults.requests());

    // The namespace controller does not run: this namespace remains terminating.
    let namespaces: Api<Namespace> = Api::all(space.bed.client.clone());
    namespaces.delete(&space.namespace, &DeleteParams::default()).await?;
    space.delete::<ServiceAccount>("default").await?;
    during(QUIET, "a terminating namespace gets no account", || async {
        ensure!(space.list::<ServiceAccount>("").await?.is_empty());
        Ok(())
    })
    .await?;
    // The account's deletion may arrive before the namespace's, on another watch: then one creation is refused.
    let requests = faults.requests();
    let (created, refused): (Vec<_>, Vec<_>) =
        requests.iter().filter(|request| posts(&request.call)).partition(|request| request.status == Some(201));
    ensure!(created.len() == 2 && refused.len() <= 1, "{created:?} {refused:?}");
    ensure!(refused.iter().all(|request| request.status == Some(403)), "{refused:?}");
    Ok(())
}

pub async fn root_certificates_are_published_and_repaired(space: Space) -> Result<()> {
    const NAME: &str = "kube-root-ca.crt";
    const DESCRIPTION: &str = "kubernetes.io/description";
    let space = on_bed_without_accounts(&space).await?;
    let faults = Faults::default();
    let flags = ["--controllers=root-ca-certificate-publisher-controller", &root_ca_flag(&space)];
    let _manager = Manager::start_with(&space, &faults, &flags).await?;
    let ca = std::fs::read_to_string(space.bed.cluster.ca_certificate())?;
    let until_published = |what: &'static str| {
        let (space, ca) = (&space, &ca);
        async move {
            eventually(what, || async {
                let map: ConfigMap = space.get(NAME).await?;
                let data: Vec<_> = map.data.clone().unwrap_or_default().into_iter().collect();
                ensure!(data == [("ca.crt".to_owned(), ca.clone())], "{data:?}");
                let annotations = map.metadata.annotations.clone().unwrap_or_default();
                let description = annotations.get(DESCRIPTION).cloned().unwrap_or_default();
                ensure!(description.starts_with("Contains a CA bundle that can be used to"), "{description:?}");
                Ok(map)
            })
            .await
        }
    };
    let first = until_published("published").await?;
    ensure!(first.metadata.labels.is_none() && first.immutable.is_none(), "{first:?}");
    space.patch::<ConfigMap>(NAME, json!({"data": {"x": "1"}, "metadata": {"labels": {"kept": "1"}}})).await?;
    let map = until_published("added keys are removed").await?;
    ensure!(map.metadata.labels.is_some_and(|labels| labels.contains_key("kept")), "a label was removed");
    space.patch::<ConfigMap>(NAME, json!({"data": {"ca.crt": "other"}})).await?;
    until_published("changed data is restored").await?;
    space.patch::<ConfigMap>(NAME, json!({"metadata": {"annotations": {DESCRIPTION: null}}})).await?;
    until_published("the description is restored").await?;
    space.delete::<ConfigMap>(NAME).await?;
    let second = until_published("published again").await?;
    ensure!(second.metadata.uid != first.metadata.uid);

    let writes = |call: &Call| call.is_write() && call.namespace == space.namespace;
    let before = faults.count(writes);
    ensure!(before == 5, "one write each: {:?}", faults.requests());
    space.patch::<ConfigMap>(NAME, json!({"metadata": {"annotations": {DESCRIPTION: "other words"}}})).await?;
    during(QUIET, "another description is kept", || async {
        let map: ConfigMap = space.get(NAME).await?;
        ensure!(map.metadata.annotations.is_some_and(|all| all[DESCRIPTION] == "other words"));
        Ok(())
    })
    .await?;
    ensure!(faults.count(writes) == before, "{:?}", faults.requests());
    only_declared(&faults, &["root-ca-certificate-publisher-controller"])
}

pub async fn pods_of_a_deployment_have_a_token(space: Space) -> Result<()> {
    let space = on_bed_without_accounts(&space).await?;
    let workloads = "deployment-controller,replicaset-controller";
    let accounts = "serviceaccount-controller,root-ca-certificate-publisher-controller";
    let controllers = format!("--controllers={workloads},{accounts}");
    let flags = [&*controllers, &root_ca_flag(&space)];
    let _manager = Manager::start_with(&space, &Faults::default(), &flags).await?;
    space.create::<Deployment>(deployment("web", 2)).await?;
    let pods = eventually("its pods are ready", || async {
        let pods = space.pods("web").await?;
        ensure!(pods.len() == 2 && pods.iter().all(is_ready), "{} pods", pods.len());
        Ok(pods)
    })
    .await?;
    for pod in pods {
        let spec = pod.spec.context("no spec")?;
        ensure!(spec.service_account_name.as_deref() == Some("default"), "{:?}", spec.service_account_name);
        let volumes = serde_json::to_value(&spec.volumes)?;
        let volume = volumes.get(0).context("no volume")?;
        ensure!(volume["name"].as_str().is_some_and(|name| name.starts_with("kube-api-access-")), "{volume}");
        let sources = &volume["projected"]["sources"];
        ensure!(sources[0]["serviceAccountToken"]["path"] == "token", "{volume}");
        ensure!(sources[1]["configMap"]["name"] == "kube-root-ca.crt", "{volume}");
    }
    Ok(())
}

/// Returns a secret that requests a token.
pub fn token_secret(name: &str, account: &str, data: Value) -> Value {
    json!({
        "metadata": {"name": name, "annotations": {"kubernetes.io/service-account.name": account}},
        "type": "kubernetes.io/service-account-token",
        "stringData": data,
    })
}

/// Waits until a secret has its token; returns the token and the CA certificates.
pub async fn token_of(space: &Space, name: &str) -> Result<(String, String)> {
    eventually(format!("{name} has a token"), || async {
        let secret: Secret = space.get(name).await?;
        let data = secret.data.clone().unwrap_or_default();
        let text = |key: &str| data.get(key).map(|value| String::from_utf8_lossy(&value.0).into_owned());
        ensure!(text("namespace").as_deref() == Some(&space.namespace), "{:?}", data.keys());
        let annotations = secret.metadata.annotations.unwrap_or_default();
        ensure!(annotations.contains_key("kubernetes.io/service-account.uid"), "{annotations:?}");
        Ok((text("token").context("no token")?, text("ca.crt").unwrap_or_default()))
    })
    .await
}

/// Returns the user name that the API server assigns to a token.
async fn whoami(space: &Space, token: &str) -> Result<String> {
    let kubeconfig = Kubeconfig::read_from(space.bed.cluster.kubeconfig(Identity::Admin)?)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.auth_info = AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() };
    let reviews: Api<SelfSubjectReview> = Api::all(Client::try_from(config)?);
    let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await?;
    Ok(review.status.and_then(|status| status.user_info?.username).unwrap_or_default())
}

fn algorithm(token: &str) -> Result<String> {
    let header = BASE64_URL.decode(token.split('.').next().context("no header")?)?;
    Ok(serde_json::from_slice::<Value>(&header)?["alg"].as_str().unwrap_or_default().to_owned())
}

pub async fn tokens_in_secrets_are_valid(space: Space) -> Result<()> {
    let space = on_bed_without_accounts(&space).await?;
    let robot = format!("system:serviceaccount:{}:robot", space.namespace);
    space.create::<ServiceAccount>(json!({"metadata": {"name": "robot"}})).await?;
    let faults = Faults::default();
    let start = |key: String| {
        let (space, faults) = (space.clone(), faults.clone());
        async move {
            let key = format!("--service-account-private-key-file={key}");
            let flags = ["--controllers=serviceaccount-token-controller", &root_ca_flag(&space), &key];
            Manager::start_with(&space, &faults, &flags).await
        }
    };
    let ca = std::fs::read_to_string(space.bed.cluster.ca_certificate())?;

    let manager = start(space.bed.cluster.service_account_key().display().to_string()).await?;
    space.create::<Secret>(token_secret("elliptic", "robot", json!({"extra": "kept"}))).await?;
    let (token, certificates) = token_of(&space, "elliptic").await?;
    ensure!(algorithm(&token)? == "ES256" && certificates == ca, "{token} {certificates}");
    ensure!(whoami(&space, &token).await? == robot);
    let data = space.get::<Secret>("elliptic").await?.data.unwrap_or_default();
    ensure!(data.contains_key("extra"), "{:?}", data.keys());
    manager.stop().await?;

    // The next manager has another key: existing tokens are not changed.
    let _manager = start(format!("{RSA}-pkcs1.pem")).await?;
    space.create::<Secret>(token_secret("rsa", "robot", json!({"ca.crt": "wrong"}))).await?;
    let (other, certificates) = token_of(&space, "rsa").await?;
    ensure!(algorithm(&other)? == "RS256" && certificates == ca, "{other} {certificates}");
    ensure!(whoami(&space, &other).await? == robot);
    ensure!(token_of(&space, "elliptic").await?.0 == token);

    space.create::<Secret>(token_secret("lost", "missing", json!({}))).await?;
    until_secret_deleted(&space, "lost", "a token without an account is deleted").await?;
    space.patch::<ServiceAccount>("robot", json!({"secrets": [{"name": "rsa"}, {"name": "else"}]})).await?;
    space.delete::<Secret>("rsa").await?;
    eventually("the deleted Secret is removed from the account's list", || async {
        let listed = space.get::<ServiceAccount>("robot").await?.secrets.unwrap_or_default();
        ensure!(listed.len() == 1 && listed[0].name.as_deref() == Some("else"), "{listed:?}");
        Ok(())
    })
    .await?;
    eventually("the token is refused because its secret is deleted", || async {
        ensure!(whoami(&space, &other).await.is_err());
        Ok(())
    })
    .await?;
    space.delete::<ServiceAccount>("robot").await?;
    until_secret_deleted(&space, "elliptic", "tokens are deleted with their account").await?;
    only_declared(&faults, &["serviceaccount-token-controller"])
}

/// Upstream's controller drops the secret after the tenth retry.
pub async fn token_secret_that_was_refused_eleven_times_gets_its_token(space: Space) -> Result<()> {
    const REFUSALS: usize = 11;
    let space = on_bed_without_accounts(&space).await?;
    space.create::<ServiceAccount>(json!({"metadata": {"name": "robot"}})).await?;
    let faults = Faults::script([Rule::on(Verb::Update, "secrets", Effect::Refuse(403, None)).times(REFUSALS)]);
    let key = format!("--service-account-private-key-file={}", space.bed.cluster.service_account_key().display());
    let flags = ["--controllers=serviceaccount-token-controller", &root_ca_flag(&space), &key];
    let _manager = Manager::start_with(&space, &faults, &flags).await?;
    space.create::<Secret>(token_secret("refused", "robot", json!({}))).await?;
    token_of(&space, "refused").await?;
    ensure!(faults.unmet() == 0, "the write was not refused {REFUSALS} times");
    Ok(())
}

async fn until_secret_deleted(space: &Space, secret: &str, what: &str) -> Result<()> {
    eventually(what, || async {
        ensure!(space.api::<Secret>().get_opt(secret).await?.is_none());
        Ok(())
    })
    .await
}

pub async fn tokens_of_former_versions_are_marked_and_deleted(space: Space) -> Result<()> {
    const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
    const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";
    let space = on_bed_without_accounts(&space).await?;
    let maps: Api<ConfigMap> = Api::namespaced(space.bed.client.clone(), "kube-system");
    eventually("the API server records since when it tracks tokens", || async { Ok(maps.get(TRACKING).await?) })
        .await?;
    let since = kube::api::Patch::Merge(json!({"data": {"since": "2020-01-01"}}));
    maps.patch(TRACKING, &kube::api::PatchParams::default(), &since).await?;

    let listed = json!([{"name": "unused"}, {"name": "mounted"}]);
    space.create::<ServiceAccount>(json!({"metadata": {"name": "robot"}, "secrets": listed})).await?;
    for name in ["unused", "mounted", "by-hand"] {
        space.create::<Secret>(token_secret(name, "robot", json!({"token": "t"}))).await?;
    }
    let mut pod = cluster_tests::objects::pod("user", "user");
    pod["spec"]["serviceAccountName"] = "robot".into();
    pod["spec"]["automountServiceAccountToken"] = false.into();
    pod["spec"]["volumes"] = json!([{"name": "token", "secret": {"secretName": "mounted"}}]);
    space.create::<Pod>(pod).await?;
    let label = |name: &'static str| {
        let space = space.clone();
        async move {
            let labels = space.get::<Secret>(name).await?.metadata.labels.unwrap_or_default();
            anyhow::Ok(labels.get(INVALID_SINCE).cloned())
        }
    };
    // Ages have a resolution of seconds.
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    let flags = [
        "--controllers=legacy-serviceaccount-token-cleaner-controller",
        "--legacy-service-account-token-clean-up-period=1s",
    ];
    let faults = Faults::default();
    let manager = Manager::start_with(&space, &faults, &flags).await?;
    eventually("the unused one is marked", || async {
        ensure!(label("unused").await?.is_some());
        Ok(())
    })
    .await?;
    manager.stop().await?;
    space.patch::<Secret>("unused", json!({"metadata": {"labels": {INVALID_SINCE: "2020-01-01"}}})).await?;
    let _manager = Manager::start_with(&space, &faults, &flags).await?;
    until_secret_deleted(&space, "unused", "a token that was marked long ago is deleted").await?;
    ensure!(label("mounted").await?.is_none() && label("by-hand").await?.is_none());
    only_declared(&faults, &["legacy-serviceaccount-token-cleaner-controller"])
}

/// A ReplicaSet's pods are refused until their account exists; then they are created.
pub async fn pods_wait_for_their_account(space: Space) -> Result<()> {
    let space = on_bed_without_accounts(&space).await?;
    let workloads = "--controllers=replicaset-controller";
    let manager = Manager::start_with(&space, &Faults::default(), &[workloads]).await?;
    space.create::<ReplicaSet>(cluster_tests::objects::replica_set("web", 1)).await?;
    eventually("the refusal is reported", || async {
        let events = space.events("web").await?;
        ensure!(events.keys().any(|event| event.contains("error looking up service account")), "{events:?}");
        Ok(())
    })
    .await?;
    let accounts = ["--controllers=serviceaccount-controller"];
    let _accounts = Manager::start_with(&space, &Faults::default(), &accounts).await?;
    eventually("the pod exists", || async {
        ensure!(space.pods("web").await?.len() == 1);
        Ok(())
    })
    .await?;
    manager.stop().await?;
    Ok(())
}

/// Creates a token Secret of an account, which gets its token, and one without an account, which is deleted. Then
/// deletes the account, and waits until its Secret is deleted.
async fn robot(space: Space) -> Result<()> {
    space.create::<ServiceAccount>(json!({"metadata": {"name": "robot"}})).await?;
    space.create::<Secret>(token_secret("token", "robot", json!({}))).await?;
    token_of(&space, "token").await?;
    space.create::<Secret>(token_secret("lost", "missing", json!({}))).await?;
    until_secret_deleted(&space, "lost", "a token without an account is deleted").await?;
    space.delete::<ServiceAccount>("robot").await?;
    until_secret_deleted(&space, "token", "tokens are deleted with their account").await
}

pub const SCENARIO: Scenario = Scenario {
    name: "serviceaccount_token",
    flags: &[
        "--controllers=serviceaccount-token-controller",
        concat!(
            "--service-account-private-key-file=",
            env!("CARGO_MANIFEST_DIR"),
            "/../../kcm/src/credentials/testdata/rsa-pkcs1.pem"
        ),
    ],
    kind: "secrets",
    run: |space| Box::pin(robot(space)),
    writes: 3,
    fails: &[("update secrets ", 1), ("delete secrets ", 1), ("delete secrets ", 2)],
    ..Scenario::EMPTY
};
