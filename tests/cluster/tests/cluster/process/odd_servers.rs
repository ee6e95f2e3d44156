//! API servers whose configuration differs from kubeadm's, or that refuse a kind, and with which upstream's manager
//! starts.

use std::time::Duration;

use anyhow::{Result, ensure};
use cluster_tests::objects::{deployment, template};
use cluster_tests::programs::{KCM, Process, command};
use cluster_tests::{Call, Effect, Faults, Manager, Rule, Space, Verb, all_gates, during, eventually};
use control_plane::{Identity, Options};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use serde_json::json;

/// Without a CA for front proxies, `extension-apiserver-authentication` has a client CA only.
pub async fn manager_starts_without_a_request_header_ca(_: Space) -> Result<()> {
    let cluster = all_gates::control_plane(Options {
        kwok: false,
        scheduler: false,
        extra_apiserver_flags: vec!["--requestheader-client-ca-file=".to_owned()],
        ..Options::default()
    })
    .await?;
    let kubeconfig = cluster.kubeconfig(Identity::ControllerManager)?;
    let kubeconfig = kubeconfig.display();
    let flags = [
        format!("--kubeconfig={kubeconfig}"),
        format!("--authentication-kubeconfig={kubeconfig}"),
        format!("--authorization-kubeconfig={kubeconfig}"),
        "--controllers=serviceaccount-controller".to_owned(),
    ];
    let manager = Process::start(&cluster, "kcm-without-front-proxy", &command(&cluster, KCM)?, &flags)?;
    manager.until_healthy(&cluster, "/readyz").await?;
    manager.stop(&cluster).await
}

/// The server refuses every list of Jobs from the manager's start. Controllers that read Jobs wait; the others work.
pub async fn kind_that_cannot_be_listed_stops_only_controllers_that_read_it(space: Space) -> Result<()> {
    let is_read = |call: &Call| call.resource == "jobs" && matches!(call.verb, Verb::List | Verb::Watch);
    let faults = Faults::script([Rule::new(is_read, Effect::Refuse(403, None)).times(usize::MAX)]);
    let mut pods = template("sums", "example.com/image:1", &json!({}));
    pods["spec"]["restartPolicy"] = "Never".into();
    space.create::<Job>(json!({"metadata": {"name": "sums"}, "spec": {"template": pods}})).await?;
    let _manager = Manager::start(&space, &faults).await?;
    space.create::<Deployment>(deployment("web", 2)).await?;
    eventually("the Deployment is rolled out", || async {
        let found: Deployment = space.get("web").await?;
        let available = found.status.and_then(|status| status.available_replicas);
        ensure!(available == Some(2), "{available:?}");
        Ok(())
    })
    .await?;
    ensure!(faults.count(is_read) > 0, "Jobs were not listed");
    during(Duration::from_secs(2), "the Job has no pods", || async {
        ensure!(space.pods("sums").await?.is_empty());
        Ok(())
    })
    .await?;
    faults.clear();
    eventually("the Job has its pod", || async {
        ensure!(!space.pods("sums").await?.is_empty());
        Ok(())
    })
    .await
}
