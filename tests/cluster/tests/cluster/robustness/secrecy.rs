//! Secret data occurs in no log, even at the highest verbosity, in no page (metrics and configuration), and in no
//! event.

use std::fs;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD as BASE64, URL_SAFE_NO_PAD};
use cluster_tests::programs::{KCM, Process, command};
use cluster_tests::{Bed, Space, eventually};
use control_plane::{Identity, Options};
use k8s_openapi::api::core::v1::{ConfigMap, Event, Secret};
use kube::Api;
use kube::api::ListParams;
use tokio::task::block_in_place;

/// Secret data of users: in a Secret, in a pod's environment, and a bootstrap token.
const DATA: &str = "correct-horse-battery-staple";
const OTHER: &str = "quota-of-this-namespace-is-full";
const BOOTSTRAP: &str = "0123456789fedcba";

/// Flags with kubeadm's selection of controllers, and with the keys that its controllers use.
const FLAGS: [&str; 12] = [
    "--controllers=*,bootstrapsigner,tokencleaner",
    "--kubeconfig=/etc/kubernetes/controller-manager.conf",
    "--authentication-kubeconfig=/etc/kubernetes/controller-manager.conf",
    "--authorization-kubeconfig=/etc/kubernetes/controller-manager.conf",
    "--client-ca-file=/etc/kubernetes/pki/ca.crt",
    "--cluster-signing-cert-file=/etc/kubernetes/pki/ca.crt",
    "--cluster-signing-key-file=/etc/kubernetes/pki/ca.key",
    "--root-ca-file=/etc/kubernetes/pki/ca.crt",
    "--service-account-private-key-file=/etc/kubernetes/pki/sa.key",
    "--use-service-account-credentials=true",
    "--leader-elect=true",
    "--v=10",
];

const OBJECTS: &str = r"
apiVersion: v1
kind: Namespace
metadata: {name: vault}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: robot, namespace: vault}
---
apiVersion: v1
kind: Secret
metadata: {name: password, namespace: vault}
stringData: {password: DATA}
---
apiVersion: v1
kind: Secret
metadata: {name: token, namespace: vault, annotations: {kubernetes.io/service-account.name: robot}}
type: kubernetes.io/service-account-token
---
apiVersion: v1
kind: Secret
metadata: {name: bootstrap-token-abcdef, namespace: kube-system}
type: bootstrap.kubernetes.io/token
stringData: {token-id: abcdef, token-secret: BOOTSTRAP, usage-bootstrap-signing: 'true'}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: cluster-info, namespace: kube-public}
data: {kubeconfig: text}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: few, namespace: vault}
spec: {hard: {secrets: '4'}}
---
apiVersion: v1
kind: Secret
metadata: {name: owned, namespace: vault, ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: gone, uid: '1234'}]}
stringData: {password: OTHER}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: vault}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: 'example.com/web:1', env: [{name: PASSWORD, value: DATA}]}]}
";

/// Returns the forms in which a text may occur: plain, in base64 of both alphabets, and as Rust prints bytes.
fn shapes(secret: &str) -> Vec<String> {
    let mut shapes = vec![secret.to_owned()];
    // Within a longer text, base64 depends on the position modulo three; for each of the three, the inner part is the
    // same.
    for skipped in 0..3 {
        let encoded = URL_SAFE_NO_PAD.encode(&secret[skipped..]);
        let inner = &encoded[..encoded.len() / 4 * 4 - 4];
        shapes.extend([inner.to_owned(), inner.replace('-', "+").replace('_', "/")]);
    }
    let bytes: Vec<String> = secret.bytes().take(12).map(|byte| byte.to_string()).collect();
    shapes.push(bytes.join(", "));
    shapes
}

/// Returns the lines of a PEM file's content that are long enough to be unique.
fn lines_of_pem(pem: &str) -> impl Iterator<Item = &str> {
    pem.lines().filter(|line| line.len() > 40 && !line.starts_with("-----"))
}

/// Fails unless the search would find the secret at any position.
fn would_be_found(secret: &str) -> Result<()> {
    for before in ["", "a", "ab"] {
        let text = format!("{before}{secret} and more");
        for shown in
            [text.clone(), BASE64.encode(&text), URL_SAFE_NO_PAD.encode(&text), format!("{:?}", text.as_bytes())]
        {
            ensure!(
                shapes(secret).iter().any(|shape| shown.contains(shape.as_str())),
                "{secret} is not found in {shown}"
            );
        }
    }
    Ok(())
}

/// The texts that kcm has published while it worked on secrets.
struct Published {
    log: String,
    served: String,
    events: String,
    /// The token in a Secret.
    token: String,
}

/// Waits until the controllers have processed the Secrets; returns the token of the account.
async fn until_secrets_are_processed(bed: &Bed) -> Result<String> {
    let secrets: Api<Secret> = Api::namespaced(bed.client.clone(), "vault");
    let token = eventually("the account's token", || async {
        let data = secrets.get("token").await?.data.unwrap_or_default();
        Ok(String::from_utf8(data.get("token").context("none yet")?.0.clone())?)
    })
    .await?;
    let maps: Api<ConfigMap> = Api::namespaced(bed.client.clone(), "kube-public");
    eventually("the cluster's information is signed", || async {
        let data = maps.get("cluster-info").await?.data.unwrap_or_default();
        ensure!(data.contains_key("jws-kubeconfig-abcdef"), "{:?}", data.keys());
        Ok(())
    })
    .await?;
    eventually("the Secret whose owner does not exist is deleted", || async {
        ensure!(secrets.get_opt("owned").await?.is_none());
        Ok(())
    })
    .await?;
    Ok(token)
}

/// Runs all controllers over all kinds of secrets, at the highest verbosity, and requests pages with a known token and
/// with a wrong one.
async fn publish(bed: &Bed, wrong_token: &str) -> Result<Published> {
    let cluster = &bed.cluster;
    // Writes the kubeconfig that `FLAGS` names.
    cluster.kubeconfig(Identity::ControllerManager)?;
    let process = Process::start(cluster, "secrecy", &command(cluster, KCM)?, &FLAGS.map(str::to_owned))?;
    process.until_healthy(cluster, "/healthz").await?;
    let kubectl = |arguments: &str| {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        block_in_place(|| cluster.kubectl(&arguments))
    };
    eventually("the namespace kube-public exists", || async { kubectl("get namespace kube-public").map(drop) }).await?;
    let objects = OBJECTS.replace("DATA", DATA).replace("OTHER", OTHER).replace("BOOTSTRAP", BOOTSTRAP);
    block_in_place(|| cluster.kubectl_with_input(&["apply", "-f", "-"], &objects))?;
    let token = until_secrets_are_processed(bed).await?;
    kubectl("--namespace=vault rollout status deployment/web --timeout=180s")?;
    kubectl("--namespace=kube-system delete secret bootstrap-token-abcdef")?;
    kubectl("create clusterrole scraper --verb=get --non-resource-url=/metrics,/configz")?;
    kubectl("create clusterrolebinding scraper --clusterrole=scraper --serviceaccount=vault:robot")?;
    let mut served = eventually("the account may read the pages", || process.get("/metrics", Some(&token))).await?;
    served += &process.get("/configz", Some(&token)).await?;
    ensure!(process.get("/metrics", Some(wrong_token)).await.is_err(), "a wrong token is accepted");
    // The namespace's events are deleted with it.
    let all_events: Api<Event> = Api::all(bed.client.clone());
    let mut events = eventually("there are events of the namespace", || async {
        let events = all_events.list(&ListParams::default()).await?.items;
        ensure!(events.iter().any(|event| event.involved_object.namespace.as_deref() == Some("vault")), "{events:?}");
        Ok(events)
    })
    .await?;
    kubectl("delete namespace vault --timeout=180s")?;
    events.extend(all_events.list(&ListParams::default()).await?);
    let log = process.log(cluster)?;
    process.stop(cluster).await?;
    Ok(Published { log, served, events: serde_json::to_string(&events)?, token })
}

/// Returns the texts that must not be published, each with a description.
fn secret_texts(bed: &Bed, token: &str, wrong_token: &str) -> Result<Vec<(&'static str, String)>> {
    let signature = token.rsplit('.').next().context("a token without a signature")?;
    let mut texts: Vec<(&str, String)> = Vec::new();
    for (what, secret) in [
        ("a Secret's data", DATA),
        ("another Secret's data", OTHER),
        ("a bootstrap token", BOOTSTRAP),
        ("the token of a request", wrong_token),
        ("the signature of a token in a Secret", signature),
    ] {
        texts.extend(shapes(secret).into_iter().map(|shape| (what, shape)));
    }
    // The beginning of every token: base64 of JSON.
    texts.push(("a token", URL_SAFE_NO_PAD.encode("{\"alg\":\"")[..9].to_owned()));
    for (what, file) in [("the accounts' key", "sa.key"), ("the authority's key", "ca.key")] {
        let pem = fs::read_to_string(bed.cluster.folder().join("pki").join(file))?;
        texts.extend(lines_of_pem(&pem).map(|line| (what, line.to_owned())));
    }
    let kubeconfig = fs::read_to_string(bed.cluster.kubeconfig(Identity::ControllerManager)?)?;
    let key = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("client-key-data: ")).context("no key")?;
    texts.push(("kcm's own key, as the kubeconfig has it", key[..64].to_owned()));
    let pem = String::from_utf8(BASE64.decode(key)?)?;
    texts.extend(lines_of_pem(&pem).map(|line| ("kcm's own key", line.to_owned())));
    Ok(texts)
}

/// All controllers run over all kinds of secrets, at the highest verbosity.
pub async fn nothing_secret_is_logged_or_served(_: Space) -> Result<()> {
    [DATA, OTHER, BOOTSTRAP].into_iter().try_for_each(would_be_found)?;
    let bed = Bed::without_accounts(Options { nodes: 1, ..Options::default() }).await?;
    let wrong_token = format!("wrong-{DATA}");
    let Published { log, served, events, token } = publish(&bed, &wrong_token).await?;
    ensure!(log.contains(" TRACE ") && log.lines().count() > 1000, "the log is too short, or has no TRACE lines");
    ensure!(log.contains("vault"), "the log does not contain the controllers' decisions");

    let secret_texts = secret_texts(&bed, &token, &wrong_token)?;
    ensure!(secret_texts.len() > 40, "only {} texts to search for", secret_texts.len());
    for (place, text) in [("the log", &log), ("served pages", &served), ("events", &events)] {
        for (what, secret) in &secret_texts {
            let found = text.lines().find(|line| line.contains(secret.as_str()));
            let shown = found.map(|line| line.chars().take(400).collect::<String>());
            ensure!(shown.is_none(), "{what} is in {place}: {shown:?}");
        }
    }
    Ok(())
}
