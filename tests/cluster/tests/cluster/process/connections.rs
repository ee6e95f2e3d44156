//! All ways of authentication, each against a real API server: a pod's own service account, token files, exec plugins.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use cluster_tests::{Space, eventually};
use control_plane::Identity;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::{SelfSubjectReview, TokenRequest};
use k8s_openapi::api::core::v1::ServiceAccount;
use kinds::Kind as _;
use kinds::meta::{ObjectKey, Uid};
use kube::Api;
use kube::api::PostParams;
use kube::config::Kubeconfig;
use runtime::client::rate::TokenBucket;
use runtime::client::{Clients, ConnectOptions, PodEnvironment, connect};
use runtime::fence::Fence;
use runtime::write::Writer;
use serde_json::{Value, json};

/// Creates a folder for one test's files. It is in the control plane's folder, and is removed together with that.
fn create_folder(space: &Space) -> Result<PathBuf> {
    let folder = space.bed.cluster.folder().join(&space.namespace);
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Creates a service account; returns a token of it.
async fn create_account(space: &Space, name: &str) -> Result<String> {
    space.create::<ServiceAccount>(json!({"metadata": {"name": name}})).await?;
    let api: Api<ServiceAccount> = space.api();
    let request: TokenRequest = serde_json::from_value(json!({"spec": {"audiences": []}}))?;
    let response = api.create_token_request(name, &PostParams::default(), &request).await?;
    response.status.and_then(|status| status.token).context("no token in the response")
}

/// Returns the user name that the server assigns to this client.
async fn user_name(clients: &Clients) -> Result<String> {
    let api: Api<SelfSubjectReview> = Api::all(clients.own.clone());
    let review = api.create(&PostParams::default(), &SelfSubjectReview::default()).await?;
    review.status.and_then(|status| status.user_info?.username).context("no user name")
}

async fn until_authenticated_as(clients: &Clients, user: &str) -> Result<()> {
    eventually(format!("the server authenticates the client as {user}"), || async {
        let found = user_name(clients).await?;
        ensure!(found == user, "authenticated as {found}");
        Ok(())
    })
    .await
}

/// Replaces a file atomically, as the kubelet does.
fn replace(file: &Path, text: &str) -> Result<()> {
    let next = file.with_extension("next");
    fs::write(&next, text)?;
    Ok(fs::rename(next, file)?)
}

fn options() -> ConnectOptions {
    ConnectOptions { reload_interval: Duration::from_millis(100), ..ConnectOptions::default() }
}

/// Writes a kubeconfig of this user for the space's server; returns options that use it.
fn write_kubeconfig(space: &Space, folder: &Path, user: Value) -> Result<ConnectOptions> {
    let cluster = &space.bed.cluster;
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {
            "server": cluster.server(), "certificate-authority": cluster.ca_certificate(),
        }}],
        "users": [{"name": "u", "user": user}],
    });
    let file = folder.join("kubeconfig");
    fs::write(&file, text.to_string())?;
    Ok(ConnectOptions { kubeconfig: Some(file), ..options() })
}

fn user(space: &Space, account: &str) -> String {
    format!("system:serviceaccount:{}:{account}", space.namespace)
}

pub async fn pod_authenticates_by_its_account_even_after_a_rotation(space: Space) -> Result<()> {
    let folder = create_folder(&space)?;
    fs::write(folder.join("token"), create_account(&space, "first").await?)?;
    fs::copy(space.bed.cluster.ca_certificate(), folder.join("ca.crt"))?;
    fs::write(folder.join("namespace"), &space.namespace)?;
    let server = space.bed.cluster.server();
    let (host, port) = server.trim_start_matches("https://").split_once(':').context("no port")?;
    let pod = PodEnvironment { host: host.into(), port: port.into(), folder: folder.clone() };
    let clients = connect(&ConnectOptions { pod, ..options() }).await?;
    ensure!(clients.default_namespace == space.namespace, "{}", clients.default_namespace);
    ensure!(user_name(&clients).await? == user(&space, "first"));
    replace(&folder.join("token"), &create_account(&space, "second").await?)?;
    until_authenticated_as(&clients, &user(&space, "second")).await
}

pub async fn token_file_of_a_kubeconfig_may_rotate(space: Space) -> Result<()> {
    let folder = create_folder(&space)?;
    let file = folder.join("token");
    fs::write(&file, create_account(&space, "first").await?)?;
    let clients = connect(&write_kubeconfig(&space, &folder, json!({"tokenFile": file}))?).await?;
    ensure!(user_name(&clients).await? == user(&space, "first"));
    replace(&file, &create_account(&space, "second").await?)?;
    until_authenticated_as(&clients, &user(&space, "second")).await
}

/// Returns a user whose credentials a plugin prints: `cat`, from a file.
fn plugin(file: &Path) -> Value {
    json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": "cat", "args": [file], "interactiveMode": "Never",
    }})
}

fn credential(status: Value) -> String {
    json!({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}).to_string()
}

pub async fn credential_plugin_is_called_again_before_its_token_expires(space: Space) -> Result<()> {
    let folder = create_folder(&space)?;
    let file = folder.join("credential");
    let expires_in = |seconds: i64| (Timestamp::now() + SignedDuration::from_secs(seconds)).to_string();
    let first = create_account(&space, "first").await?;
    fs::write(&file, credential(json!({"token": first, "expirationTimestamp": expires_in(30)})))?;
    let clients = connect(&write_kubeconfig(&space, &folder, plugin(&file))?).await?;
    ensure!(user_name(&clients).await? == user(&space, "first"));
    let second = create_account(&space, "second").await?;
    replace(&file, &credential(json!({"token": second, "expirationTimestamp": expires_in(3600)})))?;
    until_authenticated_as(&clients, &user(&space, "second")).await?;
    // The second token does not expire soon: the plugin is not called again.
    replace(&file, "no credential")?;
    ensure!(user_name(&clients).await? == user(&space, "second"));
    Ok(())
}

pub async fn credential_plugin_provides_a_certificate(space: Space) -> Result<()> {
    let folder = create_folder(&space)?;
    let file = folder.join("credential");
    let found = Kubeconfig::read_from(space.bed.cluster.kubeconfig(Identity::ControllerManager)?)?;
    let found = serde_json::to_value(&found)?;
    let pem = |field: &str| {
        let data = found["users"][0]["user"][field].as_str().with_context(|| format!("no {field}"))?;
        anyhow::Ok(String::from_utf8(BASE64.decode(data)?)?)
    };
    let (certificate, key) = (pem("client-certificate-data")?, pem("client-key-data")?);
    fs::write(&file, credential(json!({"clientCertificateData": certificate, "clientKeyData": key})))?;
    let clients = connect(&write_kubeconfig(&space, &folder, plugin(&file))?).await?;
    ensure!(user_name(&clients).await? == "system:kube-controller-manager");
    Ok(())
}

/// A conflict counts as a deleted object only if the server's message reports another uid.
pub async fn conflict_of_uid_is_distinguished_from_other_conflicts(space: Space) -> Result<()> {
    let options = ConnectOptions { kubeconfig: Some(space.bed.cluster.kubeconfig(Identity::Admin)?), ..options() };
    let clients = Arc::new(connect(&options).await?);
    let writer =
        Writer::new(clients, runtime::client::Identity::Own, Arc::new(TokenBucket::new(100.0, 100)), Fence::open());
    space.create::<ServiceAccount>(json!({"metadata": {"name": "successor"}})).await?;
    let (successor, missing) =
        (ObjectKey::new(&*space.namespace, "successor"), ObjectKey::new(&*space.namespace, "missing"));
    let uid = "11111111-2222-3333-4444-555555555555";
    let predecessor =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"uid": uid, "labels": {"a": "b"}}});
    let kind = &kinds::ServiceAccount::RESOURCE;
    let refusals = [
        ("patched", writer.patch(kind, &successor, &predecessor).await.err()),
        ("merged", writer.merge_patch(kind, &successor, &predecessor).await.err()),
        ("applied", writer.apply(kind, &successor, None, "tests", &predecessor).await.err()),
        ("applied, but missing", writer.apply(kind, &missing, None, "tests", &predecessor).await.err()),
        ("deleted", writer.delete(kind, &successor, &Uid::parse(uid)).await.err()),
        ("deleted, but missing", writer.delete(kind, &missing, &Uid::parse(uid)).await.err()),
    ];
    for (what, refusal) in refusals {
        let refusal = refusal.with_context(|| format!("{what}: no error"))?;
        ensure!(refusal.is_object_deleted(), "{what}: {refusal}");
    }
    let outdated = json!({"metadata": {"resourceVersion": "1", "labels": {"a": "b"}}});
    let conflict = writer.patch(kind, &successor, &outdated).await.err().context("an outdated version was accepted")?;
    ensure!(conflict.is_conflict() && !conflict.is_object_deleted(), "{conflict}");
    Ok(())
}
