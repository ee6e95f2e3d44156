//! `/debug/reconcile` in a real browser, used with mouse and keyboard for a stuck Deployment.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use browser::{Page, Program};
use cluster_tests::programs::KCM;
use cluster_tests::{Space, eventually};
use control_plane::ControlPlane;
use tokio::task::block_in_place;
use tokio::time::sleep;

use crate::process::serving::{ManagerProcess, bare_control_plane};

const CONTROLLERS: &str = "--controllers=deployment,replicaset,resourcequota,serviceaccount-controller";

/// The permission in docs/stuck.md, for a user that has no other permission.
const VIEWER: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reconcile-viewer}
rules: [{nonResourceURLs: ["/debug/reconcile"], verbs: ["get"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: reconcile-viewer}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reconcile-viewer}
subjects: [{kind: ServiceAccount, name: viewer, namespace: default}]
"#;

/// Maximum time from a click to the complete page, on a machine that also runs other tests; the quickest of several
/// loads counts.
const MAX_LOAD_TIME: Duration = Duration::from_secs(3);

/// Number of times that a page is loaded.
const LOADS: usize = 3;

/// Width and height of the screenshot in CSS pixels.
const SCREENSHOT: (u32, u32) = (1100, 620);

/// A telephone's width in CSS pixels.
const NARROW: u32 = 390;

/// Creates a Deployment whose pods a quota forbids; returns the ReplicaSet that fails.
async fn create_stuck_deployment(cluster: &ControlPlane) -> Result<String> {
    let shop = |arguments: &[&str]| block_in_place(|| cluster.kubectl(&[arguments, &["-n", "shop"]].concat()));
    block_in_place(|| cluster.kubectl(&["create", "namespace", "shop"]))?;
    shop(&["create", "quota", "few", "--hard=pods=0"])?;
    eventually("the quota has a status", || async {
        let hard = shop(&["get", "quota", "few", "-o", "jsonpath={.status.hard.pods}"])?;
        ensure!(hard == "0", "{hard:?}");
        Ok(())
    })
    .await?;
    shop(&["create", "deployment", "web", "--image=nginx"])?;
    eventually("the ReplicaSet exists", || async {
        let name = shop(&["get", "replicaset", "-o", "jsonpath={.items[*].metadata.name}"])?;
        ensure!(!name.is_empty(), "no ReplicaSet");
        Ok(name)
    })
    .await
}

/// Returns a token of a user who may only read the page.
fn viewers_token(cluster: &ControlPlane) -> Result<String> {
    cluster.kubectl(&["create", "serviceaccount", "viewer"])?;
    cluster.kubectl_with_input(&["apply", "-f", "-"], VIEWER)?;
    Ok(cluster.kubectl(&["create", "token", "viewer"])?.trim().to_owned())
}

/// Uses the page from the certificate warning to the violated quota, with mouse and keyboard.
pub async fn page_leads_to_the_violated_quota(_: Space) -> Result<()> {
    let program = match block_in_place(Program::find) {
        Ok(program) => program,
        Err(why) => {
            println!("SKIPPED: /debug/reconcile is NOT tested in a browser: {why:#}");
            return Ok(());
        }
    };
    let cluster = bare_control_plane().await?;
    let token = block_in_place(|| viewers_token(&cluster))?;
    let kcm = ManagerProcess::start(&cluster, KCM, &[CONTROLLERS.to_owned()]).await?;
    let set = create_stuck_deployment(&cluster).await?;
    let mut page = Page::open(&program).await?;

    let overview_url = kcm.url("/debug/reconcile");
    page_requires_a_token(&mut page, &overview_url).await?;
    page.send_header("Authorization", &format!("Bearer {token}")).await?;
    let earlier_messages = page.console_messages().len();

    let failing = format!("a[href*=\"name={set}\"]");
    until_shown(&mut page, &overview_url, &failing).await?;
    ensure!(page.text("h1").await?.contains("kube-controller-manager"), "{}", page.text("h1").await?);
    ensure!(page.text("table").await?.contains("exceeded quota: few"), "{}", page.text("table").await?);
    ensure!(page.text("body").await?.contains("deployment-controller"), "no row of a controller");

    click_is_quick(&mut page, &overview_url, &failing).await?;
    ensure!(page.text("h1").await? == format!("ReplicaSet shop/{set}"), "{}", page.text("h1").await?);
    ensure!(page.text("table").await?.contains("exceeded quota: few"), "{}", page.text("table").await?);
    keep_screenshot(&mut page).await?;
    page.click("a[href*=\"kind=Deployment\"]").await?;
    ensure!(
        page.text("h1").await? == "Deployment shop/web",
        "the link to the owner leads to {}",
        page.text("h1").await?
    );

    submit_form(&mut page, ["ReplicaSet", "shop", &set]).await?;
    ensure!(page.text("table").await?.contains("exceeded quota: few"), "{}", page.text("table").await?);
    let hostile = "\"><img src=x onerror=alert(1)><script>alert(2)</script>";
    submit_form(&mut page, [hostile, "shop", hostile]).await?;
    ensure!(page.count("img, script").await? == 0, "typed text became elements of the page");
    ensure!(page.text("body").await?.contains("Not in the cache"), "{}", page.text("body").await?);

    page.resize(NARROW, 800).await?;
    for path in ["/debug/reconcile", &format!("/debug/reconcile?kind=ReplicaSet&namespace=shop&name={set}")] {
        page_is_narrow_and_quick(&mut page, &kcm.url(path)).await?;
    }

    let messages = page.console_messages().split_off(earlier_messages);
    ensure!(messages.is_empty(), "errors in the console: {messages:#?}");
    let origin = kcm.url("/debug/reconcile");
    let elsewhere: Vec<_> = page.requests().into_iter().filter(|request| !request.url.starts_with(&origin)).collect();
    ensure!(elsewhere.is_empty(), "the page requests other URLs: {elsewhere:?}");
    ensure!(page.requests().iter().all(|request| request.method == "GET"), "{:?}", page.requests());
    kcm.terminate().await
}

/// Checks the time from a click on an element of the overview to the complete page. The quickest load counts.
async fn click_is_quick(page: &mut Page, overview_url: &str, selector: &str) -> Result<()> {
    let mut quickest = Duration::MAX;
    for _ in 0..LOADS {
        until_shown(page, overview_url, selector).await?;
        let clicked = Instant::now();
        page.click(selector).await?;
        quickest = quickest.min(clicked.elapsed());
    }
    ensure!(quickest < MAX_LOAD_TIME, "an object's page took {quickest:?}");
    Ok(())
}

/// Checks the width of a page on a telephone, and the time of its quickest load.
async fn page_is_narrow_and_quick(page: &mut Page, url: &str) -> Result<()> {
    page.go(url).await?;
    let width = page.run("document.documentElement.scrollWidth").await?;
    let is_narrow = width.as_u64().is_some_and(|width| width <= NARROW.into());
    ensure!(is_narrow, "{url} is {width} pixels wide on a telephone");
    let mut loads = Vec::new();
    for _ in 0..LOADS {
        page.go(url).await?;
        let loaded = page.run("performance.getEntriesByType('navigation')[0].loadEventEnd").await?;
        loads.push(loaded.as_f64().context("no time of the load")?);
    }
    ensure!(loads.iter().any(|took| *took < MAX_LOAD_TIME.as_millis() as f64), "{url} took {loads:?} ms");
    Ok(())
}

/// Writes docs/images/diagnostics.png if `cargo xtask docs --screenshot` runs this test.
async fn keep_screenshot(page: &mut Page) -> Result<()> {
    if std::env::var_os("UPDATE_DOCS").is_none() {
        return Ok(());
    }
    page.resize(SCREENSHOT.0, SCREENSHOT.1).await?;
    let image = page.screenshot().await?;
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/images/diagnostics.png");
    std::fs::write(file, image).with_context(|| format!("write {file}"))
}

/// Checks that the certificate is self-signed, and that a client without a token gets only an error.
async fn page_requires_a_token(page: &mut Page, overview_url: &str) -> Result<()> {
    let warned = page.go(overview_url).await.err().context("a self-signed certificate was accepted")?;
    ensure!(warned.to_string().contains("ERR_CERT_AUTHORITY_INVALID"), "{warned:#}");
    page.trust_any_certificate().await?;
    page.go(overview_url).await?;
    let text = page.text("body").await?;
    ensure!(text.contains("forbidden") && page.count("table, a").await? == 0, "a client without a token gets {text}");
    Ok(())
}

/// Reloads the page until it contains an element.
async fn until_shown(page: &mut Page, url: &str, selector: &str) -> Result<()> {
    let begun = Instant::now();
    loop {
        page.go(url).await?;
        if page.count(selector).await? > 0 {
            return Ok(());
        }
        ensure!(
            begun.elapsed() < cluster_tests::DEADLINE,
            "{selector} is not on the page: {}",
            page.text("body").await?
        );
        sleep(Duration::from_millis(200)).await;
    }
}

/// Types an object's kind, namespace and name into the form, and sends it.
async fn submit_form(page: &mut Page, object: [&str; 3]) -> Result<()> {
    for (field, text) in ["#kind", "#namespace", "#name"].into_iter().zip(object) {
        page.fill(field, text).await?;
    }
    page.click("button").await?;
    let [kind, namespace, name] = object;
    let title = page.text("h1").await?;
    ensure!(title == format!("{kind} {namespace}/{name}"), "requested {object:?}, got {title}");
    Ok(())
}
