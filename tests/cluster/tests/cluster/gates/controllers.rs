//! Gates of whole controllers, of watches and of pages.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Result, ensure};
use cluster_tests::certificates::inline_pair;
use cluster_tests::programs::KCM;
use cluster_tests::{Bed, Faults, Manager, QUIET, Space, Verb, all_gates, during, eventually};
use control_plane::{ControlPlane, Identity, Options};

use super::{flag, on_and_off};
use crate::nodes::lifecycle::{FLAGS, bed, nodes};
use crate::process::serving::{Credentials, ManagerProcess};

/// Controllers, and pages, with the gates that they need.
const GATED: &[(&str, &[&str])] = &[
    ("/flagz", &["ComponentFlagz"]),
    ("/statusz", &["ComponentStatusz"]),
    ("device-taint-eviction-controller", &["DRADeviceTaints"]),
    ("kube-apiserver-serving-clustertrustbundle-publisher-controller", &["ClusterTrustBundle"]),
    ("podcertificaterequest-cleaner-controller", &["PodCertificateRequest"]),
    ("podgroup-protection-controller", &["GenericWorkload"]),
    ("resourcepoolstatusrequest-controller", &["DRAResourcePoolStatus"]),
    ("storage-version-migrator-controller", &["StorageVersionMigrator", "InformerResourceVersion"]),
    ("storageversion-garbage-collector-controller", &["APIServerIdentity", "StorageVersionAPI"]),
];

/// Gates that can be on only together with others of the list.
const DEPENDENT: &[&str] =
    &["ClusterTrustBundleProjection", "DRADeviceTaintRules", "UnknownVersionInteroperabilityProxy"];

/// Checks which controllers run and which pages are served with these flags.
async fn check_gated(cluster: &ControlPlane, flags: &[String], expected: impl Fn(&[&str]) -> bool) -> Result<()> {
    let kcm = ManagerProcess::start(cluster, KCM, flags).await?;
    let admin = Credentials::certificate(inline_pair(&cluster.kubeconfig(Identity::Admin)?)?);
    let health = kcm.request(&admin, "GET", "/healthz?verbose", "").await?.body;
    for (subject, gates) in GATED {
        let exists = if subject.starts_with('/') {
            kcm.request(&admin, "GET", subject, "").await?.status == 200
        } else {
            health.contains(&format!("]{subject} ok"))
        };
        ensure!(exists == expected(gates), "{flags:?}: {subject} exists: {exists}; {health}");
    }
    kcm.terminate().await
}

pub async fn controllers_and_pages_exist_with_their_gates(_: Space) -> Result<()> {
    let extra_apiserver_flags = vec!["--runtime-config=api/all=true".to_owned(), flag(&["GenericWorkload"], true)];
    let options = Options { kwok: false, scheduler: false, extra_apiserver_flags, ..Options::default() };
    let cluster = all_gates::control_plane(options).await?;
    let all: Vec<&str> = GATED.iter().flat_map(|(_, gates)| *gates).chain(DEPENDENT).copied().collect();
    check_gated(&cluster, &[flag(&all, true)], |_| true).await?;
    check_gated(&cluster, &[flag(&all, false)], |_| false).await?;
    // Where a controller needs two gates, either one alone must not start it (unless one gate requires the other).
    for off in ["StorageVersionAPI", "StorageVersionMigrator", "InformerResourceVersion"] {
        let on: Vec<&str> = all.iter().copied().filter(|gate| *gate != off).collect();
        let flags = [flag(&on, true), flag(&[off], false)];
        check_gated(&cluster, &flags, |gates| !gates.contains(&off)).await?;
    }
    Ok(())
}

/// Without the gate, the rules are not even read.
pub async fn device_taint_rules_are_read(space: Space) -> Result<()> {
    on_and_off(&space, &["DRADeviceTaintRules"], |space, gate| async move {
        let faults = Faults::default();
        let flags = ["--controllers=device-taint-eviction-controller", &gate.flag];
        let _manager = Manager::start_with(&space, &faults, &flags).await?;
        eventually("devices are watched", || async {
            let watched = faults.max_watches();
            ensure!(watched.contains_key("resourceslices") && watched.contains_key("pods"), "{watched:?}");
            ensure!(watched.contains_key("devicetaintrules") == gate.is_on, "{watched:?}");
            Ok(())
        })
        .await?;
        during(QUIET, "rules are watched only with the gate", || async {
            let watched = faults.max_watches();
            ensure!(watched.contains_key("devicetaintrules") == gate.is_on, "{watched:?}");
            Ok(())
        })
        .await
    })
    .await
}

/// Without the gate, a list precedes the watch.
pub async fn objects_arrive_in_the_stream_of_the_watch(space: Space) -> Result<()> {
    on_and_off(&space, &["WatchListClient"], |space, gate| async move {
        let faults = Faults::default();
        let flags = ["--controllers=replicaset-controller", &gate.flag];
        let _manager = Manager::start_with(&space, &faults, &flags).await?;
        faults.until_watching(&["replicasets"]).await?;
        let lists = faults.count(|call| call.verb == Verb::List && call.resource == "replicasets");
        ensure!((lists == 0) == gate.is_on, "{lists} lists");
        Ok(())
    })
    .await
}

/// With the gate, the Lease of a node is read from the API server before its node is marked as unresponsive.
pub async fn lease_is_read_before_its_node_is_marked(_: Space) -> Result<()> {
    let bed: Arc<Bed> = bed(2).await?;
    let space = bed.space("leases").await?;
    let mut reads = BTreeMap::new();
    for (node, is_on) in [("node-0", true), ("node-1", false)] {
        let faults = Faults::default();
        let gate = flag(&["NodeControllerLeaseCircuitBreaker"], is_on);
        let flags: Vec<&str> = FLAGS.iter().copied().chain([&*gate]).collect();
        let manager = Manager::start_cluster_wide(&space, &faults, &flags).await?;
        bed.cluster.stop_node(node).await?;
        eventually(format!("{node} is marked"), || async {
            let status = nodes(&space).get(node).await?.status.unwrap_or_default();
            let ready = status.conditions.into_iter().flatten().find(|condition| condition.type_ == "Ready");
            ensure!(ready.as_ref().is_some_and(|ready| ready.status == "Unknown"), "{ready:?}");
            Ok(())
        })
        .await?;
        reads.insert(is_on, faults.count(|call| call.verb == Verb::Get && call.resource == "leases"));
        manager.stop().await?;
    }
    ensure!(reads[&true] > 0 && reads[&false] == 0, "{reads:?}");
    Ok(())
}
