//! `/debug/reconcile` in a real browser: seen, clicked on and typed into, as a person does whose Deployment is stuck.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use browser::{Page, Program};
use cluster_tests::programs::KCM;
use cluster_tests::{Space, eventually};
use control_plane::ControlPlane;
use tokio::task::block_in_place;

use crate::process::serving::{Running, bare};

const CONTROLLERS: &str = "--controllers=deployment,replicaset,resourcequota,serviceaccount-controller";

/// The right that docs/stuck.md names, for somebody who has no other.
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

/// Longer than this, and the page is not quick: from the click to all of it on the screen.
const QUICK: Duration = Duration::from_secs(1);

/// A telephone's width in CSS pixels.
const NARROW: u32 = 390;

/// A Deployment whose pods a quota forbids; answers the ReplicaSet that fails.
async fn something_stuck(cluster: &ControlPlane) -> Result<String> {
    let shop = |arguments: &[&str]| block_in_place(|| cluster.kubectl(&[arguments, &["-n", "shop"]].concat()));
    block_in_place(|| cluster.kubectl(&["create", "namespace", "shop"]))?;
    shop(&["create", "quota", "few", "--hard=pods=0"])?;
    eventually("the quota counts", || async {
        let hard = shop(&["get", "quota", "few", "-o", "jsonpath={.status.hard.pods}"])?;
        ensure!(hard == "0", "{hard:?}");
        Ok(())
    })
    .await?;
    shop(&["create", "deployment", "web", "--image=nginx"])?;
    eventually("there is a ReplicaSet", || async {
        let name = shop(&["get", "replicaset", "-o", "jsonpath={.items[*].metadata.name}"])?;
        ensure!(!name.is_empty(), "there is none");
        Ok(name)
    })
    .await
}

/// A token of somebody who may look at the page, and at nothing else.
fn viewers_token(cluster: &ControlPlane) -> Result<String> {
    cluster.kubectl(&["create", "serviceaccount", "viewer"])?;
    cluster.kubectl_with_input(&["apply", "-f", "-"], VIEWER)?;
    Ok(cluster.kubectl(&["create", "token", "viewer"])?.trim().to_owned())
}

/// From a warning about the certificate to the quota that is in the way, with the mouse and by typing.
pub async fn a_person_finds_out_what_is_in_the_way(_: Space) -> Result<()> {
    let program = match block_in_place(Program::find) {
        Ok(program) => program,
        Err(why) => {
            println!("SKIPPED: /debug/reconcile is NOT tested in a browser: {why:#}");
            return Ok(());
        }
    };
    let cluster = bare().await?;
    let token = block_in_place(|| viewers_token(&cluster))?;
    let kcm = Running::start(&cluster, KCM, &[CONTROLLERS.to_owned()]).await?;
    let set = something_stuck(&cluster).await?;
    let mut page = Page::open(&program).await?;

    let everything = kcm.url("/debug/reconcile");
    strangers_see_nothing(&mut page, &everything).await?;
    page.show_header("Authorization", &format!("Bearer {token}")).await?;
    let strangers = page.complaints().len();

    let failing = format!("a[href*=\"name={set}\"]");
    until_shown(&mut page, &everything, &failing).await?;
    ensure!(page.text("h1").await?.contains("kube-controller-manager"), "{}", page.text("h1").await?);
    ensure!(page.text("table").await?.contains("exceeded quota: few"), "{}", page.text("table").await?);
    ensure!(page.text("body").await?.contains("deployment-controller"), "no row of a controller");

    let clicked = Instant::now();
    page.click(&failing).await?;
    ensure!(clicked.elapsed() < QUICK, "an object's page took {:?}", clicked.elapsed());
    ensure!(page.text("h1").await? == format!("ReplicaSet shop/{set}"), "{}", page.text("h1").await?);
    ensure!(page.text("table").await?.contains("exceeded quota: few"), "{}", page.text("table").await?);
    page.click("a[href*=\"kind=Deployment\"]").await?;
    ensure!(page.text("h1").await? == "Deployment shop/web", "its owner: {}", page.text("h1").await?);

    asked_for(&mut page, ["ReplicaSet", "shop", &set]).await?;
    ensure!(page.text("table").await?.contains("exceeded quota: few"), "{}", page.text("table").await?);
    let hostile = "\"><img src=x onerror=alert(1)><script>alert(2)</script>";
    asked_for(&mut page, [hostile, "shop", hostile]).await?;
    ensure!(page.count("img, script").await? == 0, "what was typed is part of the page");
    ensure!(page.text("body").await?.contains("No watch of this process shows it"), "{}", page.text("body").await?);

    page.resize(NARROW, 800).await?;
    for path in ["/debug/reconcile", &format!("/debug/reconcile?kind=ReplicaSet&namespace=shop&name={set}")] {
        page.go(&kcm.url(path)).await?;
        let width = page.run("document.documentElement.scrollWidth").await?;
        ensure!(
            width.as_u64().is_some_and(|width| width <= NARROW.into()),
            "{path} is {width} pixels wide on a telephone"
        );
        let began = page.run("performance.getEntriesByType('navigation')[0].loadEventEnd").await?;
        ensure!(began.as_f64().is_some_and(|took| took < QUICK.as_millis() as f64), "{path} took {began} ms");
    }

    let complaints = page.complaints().split_off(strangers);
    ensure!(complaints.is_empty(), "the console complains: {complaints:#?}");
    let origin = kcm.url("/debug/reconcile");
    let elsewhere: Vec<_> = page.requests().into_iter().filter(|asked| !asked.url.starts_with(&origin)).collect();
    ensure!(elsewhere.is_empty(), "the page asks for more than itself: {elsewhere:?}");
    ensure!(page.requests().iter().all(|asked| asked.method == "GET"), "{:?}", page.requests());
    kcm.terminate().await
}

/// Nobody has signed the certificate, and whoever goes on in spite of that is told nothing without a token.
async fn strangers_see_nothing(page: &mut Page, everything: &str) -> Result<()> {
    let warned = page.go(everything).await.err().context("a certificate that nobody has signed is taken")?;
    ensure!(warned.to_string().contains("ERR_CERT_AUTHORITY_INVALID"), "{warned:#}");
    page.trust_any_certificate().await?;
    page.go(everything).await?;
    let told = page.text("body").await?;
    ensure!(told.contains("forbidden") && page.count("table, a").await? == 0, "a stranger is told {told}");
    Ok(())
}

/// Looks again and again, as a person does who has just made a Deployment.
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
    }
}

/// Types an object's kind, namespace and name into the form, and sends it.
async fn asked_for(page: &mut Page, object: [&str; 3]) -> Result<()> {
    for (field, text) in ["#kind", "#namespace", "#name"].into_iter().zip(object) {
        page.fill(field, text).await?;
    }
    page.click("button").await?;
    let [kind, namespace, name] = object;
    let title = page.text("h1").await?;
    ensure!(title == format!("{kind} {namespace}/{name}"), "asked for {object:?}, and told of {title}");
    Ok(())
}
