//! `/debug/reconcile` of a real kcm: reports what objects wait for, as HTML and as JSON.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster_tests::certificates::inline_pair;
use cluster_tests::programs::KCM;
use cluster_tests::{Space, eventually};
use control_plane::{ControlPlane, Identity};
use serde_json::Value;

use crate::process::serving::{Credentials, ManagerProcess, bare_control_plane};

const CONTROLLERS: &str =
    "--controllers=deployment,replicaset,resourcequota,serviceaccount-controller,garbagecollector,namespace";

/// The manager whose page is read, its cluster, and the credentials for the page.
struct Page<'a> {
    cluster: &'a ControlPlane,
    kcm: &'a ManagerProcess,
    admin: Credentials,
}

impl Page<'_> {
    fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.cluster.kubectl(&[arguments, &["-n", "shop"]].concat())
    }

    async fn json(&self, query: &str) -> Result<Value> {
        let got = self.kcm.request(&self.admin, "GET", &format!("/debug/reconcile{query}"), "").await?;
        ensure!(
            got.status == 200 && got.head.contains("content-type: application/json"),
            "{} {}",
            got.status,
            got.head
        );
        serde_json::from_str(&got.body).with_context(|| got.body)
    }

    /// Waits until the page reports that an object waits for `what`, with `words` in the text.
    async fn until_waiting_for(&self, kind: &str, name: &str, what: &str, words: &str) -> Result<Value> {
        let query = format!("?kind={kind}&namespace=shop&name={name}");
        eventually(format!("{kind} {name} waits for {what}: {words}"), || async {
            let report = self.json(&query).await?;
            let waits = report["waitsFor"].as_array().context("no list")?;
            let is_expected =
                |wait: &Value| wait["what"] == what && wait["text"].as_str().is_some_and(|text| text.contains(words));
            ensure!(waits.iter().any(is_expected), "{report:#}");
            Ok(report)
        })
        .await
    }
}

/// Checks that the page names the quota, the owner, the last decision and the failures of a ReplicaSet without pods.
async fn check_quota_is_named(page: &Page<'_>, set: &str) -> Result<()> {
    let report = page.until_waiting_for("ReplicaSet", set, "quota", "exceeded quota: few").await?;
    ensure!(report["owners"][0]["kind"] == "Deployment" && report["owners"][0]["name"] == "web", "{report:#}");
    let controller = &report["controllers"][0];
    ensure!(controller["controller"] == "replicaset-controller", "{report:#}");
    let did = controller["lastDecision"]["did"].as_str().unwrap_or_default();
    ensure!(did.contains("POST /api/v1/namespaces/shop/pods: ") && did.contains("event FailedCreate"), "{report:#}");
    let deployment = page.json("?kind=deployments.apps&namespace=shop&name=web").await?;
    ensure!(deployment["dependents"]["shown"][0]["name"] == set, "{deployment:#}");

    let graph = format!(
        "/debug/controllers/garbage-collector-controller/graph?uid={}",
        report["object"]["uid"].as_str().unwrap_or_default()
    );
    let graph = page.kcm.request(&page.admin, "GET", &graph, "").await?;
    ensure!(graph.status == 200 && graph.head.contains("content-type: text/vnd.graphviz"), "{}", graph.head);
    for name in [format!("ReplicaSet.v1.apps/{set}"), "Deployment.v1.apps/web".to_owned(), " -> ".to_owned()] {
        ensure!(graph.body.contains(&name), "{name} is not in {}", graph.body);
    }

    let all = page.json("").await?;
    let controllers = all["controllers"].as_array().context("no list")?;
    let sets = controllers
        .iter()
        .find(|controller| controller["name"] == "replicaset-controller")
        .context("no replicaset-controller")?;
    let failing = sets["failing"].as_array().and_then(|failing| failing.first()).context("nothing fails")?;
    ensure!(failing["key"] == format!("shop/{set}") && failing["times"].as_u64() > Some(0), "{failing:#}");
    ensure!(failing["nextTryInSeconds"].as_f64().is_some(), "{failing:#}");
    Ok(())
}

/// A Deployment whose pods a quota forbids, and whose deletion waits for another client's finalizer.
pub async fn diagnostics_name_a_quota_and_a_finalizer(_: Space) -> Result<()> {
    let cluster = bare_control_plane().await?;
    let admin = Credentials::certificate(inline_pair(&cluster.kubeconfig(Identity::Admin)?)?);
    let kcm = ManagerProcess::start(&cluster, KCM, &[CONTROLLERS.to_owned()]).await?;
    let page = Page { cluster: &cluster, kcm: &kcm, admin };
    cluster.kubectl(&["create", "namespace", "shop"])?;
    page.kubectl(&["create", "quota", "few", "--hard=pods=0"])?;
    eventually("the quota has a status", || async {
        let hard = page.kubectl(&["get", "quota", "few", "-o", "jsonpath={.status.hard.pods}"])?;
        ensure!(hard == "0", "{hard:?}");
        Ok(())
    })
    .await?;
    page.kubectl(&["create", "deployment", "web", "--image=nginx", "--replicas=2"])?;
    let set = eventually("there is a ReplicaSet", || async {
        let name = page.kubectl(&["get", "replicaset", "-o", "jsonpath={.items[*].metadata.name}"])?;
        ensure!(!name.is_empty(), "there is none");
        Ok(name)
    })
    .await?;

    eventually("the page names the quota", || check_quota_is_named(&page, &set)).await?;
    check_html_page(&page, &set).await?;

    let held = r#"{"metadata":{"finalizers":["example.com/hold"]}}"#;
    page.kubectl(&["patch", "replicaset", &set, "--type=merge", "-p", held])?;
    page.kubectl(&["delete", "deployment", "web", "--cascade=foreground", "--wait=false"])?;
    let report = page.until_waiting_for("Deployment", "web", "finalizer", "1 dependents block it").await?;
    ensure!(report["waitsFor"][0]["by"] == "garbage-collector-controller", "{report:#}");
    let report = page.until_waiting_for("replicasets", &set, "finalizer", "example.com/hold").await?;
    ensure!(report["waitsFor"][0]["by"] == "the program that added it (example.com)", "{report:#}");
    page.kubectl(&["patch", "replicaset", &set, "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#])?;
    eventually("the Deployment is deleted", || async {
        let report = page.json("?kind=Deployment&namespace=shop&name=web").await?;
        ensure!(report["object"].is_null(), "{report:#}");
        Ok(())
    })
    .await?;
    kcm.terminate().await
}

/// Checks that the HTML page is quick and small, and loads nothing from other servers.
async fn check_html_page(page: &Page<'_>, set: &str) -> Result<()> {
    let browser = page.admin.clone().with("Accept", "text/html,application/xhtml+xml,*/*;q=0.8");
    for (query, words) in [
        (String::new(), "Failing keys"),
        (format!("?kind=ReplicaSet&namespace=shop&name={set}"), "exceeded quota: few"),
        ("?kind=<b>&namespace=&name=<i>".replace('<', "%3C").replace('>', "%3E"), "&lt;b&gt; &lt;i&gt;"),
    ] {
        let path = format!("/debug/reconcile{query}");
        let got = page.kcm.request(&browser, "GET", &path, "").await?;
        ensure!(got.status == 200 && got.body.contains(words), "{query}: {} {}", got.status, got.body);
        ensure!(got.head.contains("content-security-policy: default-src 'none'"), "{}", got.head);
        ensure!(!got.body.contains("<script") && !got.body.contains("http://") && !got.body.contains("https://"));
        ensure!(got.body.len() < 64 << 10, "{} bytes", got.body.len());
        // The quickest of several requests counts: the machine may be paused during one.
        let mut quickest = Duration::MAX;
        for _ in 0..5 {
            let begun = Instant::now();
            page.kcm.request(&browser, "GET", &path, "").await?;
            quickest = quickest.min(begun.elapsed());
        }
        ensure!(quickest < Duration::from_secs(2), "{quickest:?}");
    }
    Ok(())
}
