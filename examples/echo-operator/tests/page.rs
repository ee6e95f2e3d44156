//! The listings of `docs/operators.md` are compiled and run here.

#![allow(clippy::disallowed_methods, reason = "tests act as users do, who have no Writer")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use control_plane::{ControlPlane, Identity, Options};
use runtime::client::{ConnectOptions, connect};
use runtime::manager::ManagerOptions;
use runtime::sdk::Operator;
use tokio::time::Instant;

#[allow(dead_code, reason = "the test does not call its main")]
#[path = "../examples/from_the_page.rs"]
mod from_the_page;

const PAGE: &str = include_str!("../../../docs/operators.md");
const PROGRAM: &str = include_str!("../examples/from_the_page.rs");
const WORKSPACE: &str = include_str!("../../../Cargo.toml");

/// The checkout's path in the listings.
const CHECKOUT: &str = "../kubewright/";

/// Returns the listings of the page in a language, in order.
fn listings(language: &str) -> Vec<&'static str> {
    let fences = PAGE.split("\n```").skip(1).step_by(2);
    fences
        .filter_map(|listing| listing.split_once('\n').filter(|(found, _)| *found == language))
        .map(|(_, text)| text)
        .collect()
}

#[test]
fn listings_are_a_complete_program() {
    let listed: Vec<String> = listings("rust").iter().map(|listing| format!("{listing}\n")).collect();
    assert_eq!(listed.join("\n"), PROGRAM, "examples/from_the_page.rs should be the page's listings in order");
}

#[test]
fn dependencies_have_the_versions_of_the_workspace() {
    let [manifest] = listings("toml")[..] else { panic!("the page should have one listing of Cargo.toml") };
    let (mut published, mut in_workspace) = (0, 0);
    for line in manifest.lines().filter(|line| line.contains(" = ")) {
        if let Some((_, path)) = line.split_once(CHECKOUT) {
            let folder = path.trim_end_matches(['"', ' ', '}']);
            assert!(root().join(folder).join("Cargo.toml").is_file(), "{line}");
            in_workspace += 1;
            continue;
        }
        // An operator needs fewer features than the workspace; only the version is compared.
        let (name, rest) = line.split_once(" = ").unwrap();
        let version = rest.split('"').nth(1).unwrap();
        let ours = WORKSPACE.lines().find_map(|ours| ours.strip_prefix(&format!("{name} = "))).unwrap_or_default();
        assert_eq!(ours.split('"').nth(1), Some(version), "{name}");
        published += 1;
    }
    // The runtime, and five crates of the registry.
    assert_eq!((in_workspace, published), (1, 5));
}

#[test]
fn named_files_exist() {
    let words = PAGE.split(|c: char| c.is_whitespace() || "`()".contains(c));
    let files: Vec<&str> =
        words.map(|word| word.trim_start_matches(CHECKOUT)).filter(|word| word.starts_with("examples/")).collect();
    assert!(files.len() >= 4, "{files:?}");
    for file in files {
        let file = root().join(file.trim_end_matches(['.', ';', ',']));
        assert!(file.exists(), "{} does not exist", file.display());
    }
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Runs the page's operator, definition and object together on a real API server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_behaves_as_the_page_describes() -> Result<()> {
    let cluster = ControlPlane::start(Options { kwok: false, scheduler: false, ..Options::default() }).await?;
    let kubectl = |arguments: &str| cluster.kubectl(&arguments.split(' ').collect::<Vec<_>>());
    cluster.kubectl_with_input(&["apply", "-f", "-"], include_str!("../deploy/crd.yaml"))?;
    let [object] = listings("yaml")[..] else { anyhow::bail!("the page should have one listing of an object") };
    eventually("the object is created", || cluster.kubectl_with_input(&["apply", "-f", "-"], object)).await?;

    let kubeconfig = Some(cluster.kubeconfig(Identity::Admin)?);
    let clients = Arc::new(connect(&ConnectOptions { kubeconfig, ..ConnectOptions::default() }).await?);
    let operator = Operator::new("echo-operator").with(from_the_page::controller());
    let operator = operator.manager(clients, ManagerOptions::default())?;
    let running = tokio::spawn(operator.run(std::future::pending()));

    let pods = eventually("the Deployment exists", || kubectl("get deployment echo -o jsonpath={.spec.template.spec}"))
        .await?;
    ensure!(pods.contains("-text=hello"), "{pods}");
    let status = "get echoconfig echo -o jsonpath={.status}";
    let has_status = |expected: &'static str| {
        move || {
            let found = kubectl(status)?;
            ensure!(found == expected, "{found}");
            Ok(())
        }
    };
    eventually("the status exists", has_status(r#"{"readyReplicas":0}"#)).await?;
    let ready = [
        "patch",
        "deployment",
        "echo",
        "--subresource=status",
        "--type=merge",
        "-p",
        r#"{"status":{"replicas":2,"readyReplicas":2}}"#,
    ];
    cluster.kubectl(&ready)?;
    eventually("the status is updated", has_status(r#"{"readyReplicas":2}"#)).await?;
    kubectl("delete service echo")?;
    eventually("the Service is recreated", || kubectl("get service echo")).await?;
    running.abort();
    Ok(())
}

async fn eventually<T>(what: &str, read: impl Fn() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match read() {
            Ok(state) => return Ok(state),
            Err(error) if Instant::now() > deadline => return Err(error).with_context(|| what.to_owned()),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}
