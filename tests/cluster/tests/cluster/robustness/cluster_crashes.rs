//! Scenarios of controllers of cluster-wide objects, each with a crash after any of its writes, on a separate control
//! plane.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use cluster_tests::{Bed, Call, Effect, Faults, Manager, Rule, Space, eventually, restart_after_crashes};
use control_plane::Options;
use futures::future::BoxFuture;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;
use kube::Api;

use crate::certificates::requests;
use crate::network::node_ipam::{create_node, ranges};
use crate::nodes::lifecycle::{nodes, patch_node};

/// The future of a scenario's actions.
pub type StepFuture = BoxFuture<'static, Result<()>>;

/// A scenario of a controller whose objects have no namespace.
pub struct Scenario {
    /// Its name, in lower case without blanks: it becomes part of the names of objects.
    pub name: &'static str,
    /// Flags of its managers.
    pub flags: fn(&Space) -> Vec<String>,
    /// A resource that its managers watch. In the end, a further manager is started: once it watches the resource, it
    /// must not write.
    pub kind: &'static str,
    /// Actions of users and the states that they wait for; each run uses another name.
    pub run: fn(Space, String) -> StepFuture,
    /// Checks an invariant at the end of the scenario.
    pub end: fn(Space) -> StepFuture,
    /// The minimum number of writes.
    pub writes: usize,
}

/// The scenarios, in order: the last one leaves nodes behind, which the manager of the first one would annotate.
const SCENARIOS: [Scenario; 3] = [
    Scenario {
        name: "ttl",
        flags: |_| vec!["--controllers=ttl-controller".to_owned()],
        kind: "nodes",
        run: |space, _| Box::pin(async move { annotation_is_restored(&space).await }),
        end: |_| Box::pin(async { Ok(()) }),
        writes: 1,
    },
    Scenario {
        name: "certificates",
        flags: |space| {
            let mut flags = signing(space);
            flags.push(format!("--controllers={SIGNING}"));
            flags
        },
        kind: "certificatesigningrequests",
        run: |space, name| Box::pin(async move { kubelet_gets_certificate(&space, &name).await }),
        end: |_| Box::pin(async { Ok(()) }),
        writes: 2,
    },
    Scenario {
        name: "ranges",
        flags: |_| range_flags(),
        kind: "nodes",
        run: |space, name| Box::pin(async move { two_nodes_get_ranges(&space, &name).await }),
        end: |space| Box::pin(async move { check_remaining_ranges(&space).await }),
        writes: 2,
    },
];

const SIGNING: &str = "certificatesigningrequest-approving-controller,certificatesigningrequest-signing-controller";

/// The node whose annotation the first scenario restores.
const OLD: &str = "old";
/// The annotation with the number of seconds for which kubelets may cache objects.
pub const TTL: &str = "node.alpha.kubernetes.io/ttl";

/// Number of ranges in the network.
const PARTS: usize = 16;

fn range_flags() -> Vec<String> {
    ["--controllers=node-ipam-controller", "--allocate-node-cidrs", "--cluster-cidr=10.200.0.0/20"]
        .map(str::to_owned)
        .into()
}

/// Flags of the signing controller.
pub fn signing(space: &Space) -> Vec<String> {
    let (ca, key) = (space.bed.cluster.ca_certificate(), space.bed.cluster.ca_key());
    vec![
        format!("--cluster-signing-cert-file={}", ca.display()),
        format!("--cluster-signing-key-file={}", key.display()),
    ]
}

async fn until_range_allocated(space: &Space, name: &str) -> Result<()> {
    eventually(format!("{name} has a range"), || async {
        ensure!(ranges(space, name).await?.len() == 1);
        Ok(())
    })
    .await
}

/// Creates two nodes, and waits until they have their ranges.
async fn two_nodes_get_ranges(space: &Space, name: &str) -> Result<()> {
    for name in [format!("{name}-a"), format!("{name}-b")] {
        create_node(space, &name, &[]).await?;
        until_range_allocated(space, &name).await?;
    }
    Ok(())
}

/// Returns the ranges of all nodes; fails if two have the same one.
pub async fn distinct_ranges(space: &Space) -> Result<BTreeSet<String>> {
    let all = nodes(space).list(&Default::default()).await?.items;
    let each = all.iter().filter_map(|node| node.spec.as_ref()?.pod_cidrs.as_ref());
    let ranges: Vec<&String> = each.flatten().collect();
    let distinct: BTreeSet<String> = ranges.iter().map(|range| (*range).clone()).collect();
    ensure!(distinct.len() == ranges.len(), "{ranges:?}");
    Ok(distinct)
}

/// Checks that the remaining ranges of the network can be allocated.
async fn check_remaining_ranges(space: &Space) -> Result<()> {
    let left = PARTS - distinct_ranges(space).await?.len();
    let flags = range_flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let manager = Manager::start_cluster_wide(space, &Faults::default(), &flags).await?;
    for number in 0..left {
        let name = format!("last-{number}");
        create_node(space, &name, &[]).await?;
        until_range_allocated(space, &name).await?;
    }
    ensure!(distinct_ranges(space).await?.len() == PARTS);
    manager.stop().await?;
    Ok(())
}

/// Removes a node's annotation as another client, and waits until it is restored.
pub async fn annotation_is_restored(space: &Space) -> Result<()> {
    let annotation = |value: Option<&str>| serde_json::json!({"metadata": {"annotations": {TTL: value}}});
    patch_node(space, OLD, annotation(None)).await?;
    eventually("the node is annotated again", || async {
        let annotations = nodes(space).get(OLD).await?.metadata.annotations.unwrap_or_default();
        ensure!(annotations.get(TTL).is_some_and(|value| value == "0"), "{annotations:?}");
        Ok(())
    })
    .await
}

/// Requests a kubelet's certificate; waits until it is issued, and checks that the request was approved once.
pub async fn kubelet_gets_certificate(space: &Space, name: &str) -> Result<()> {
    let all: Api<CertificateSigningRequest> = Api::all(space.bed.client.clone());
    let (request, _) = requests::signing_request("system:nodes", &format!("system:node:{name}"), &[])?;
    let usages = ["digital signature", "client auth"];
    let object = requests::object(name, &request, "kube-apiserver-client-kubelet", &usages);
    requests::create(&all, object).await?;
    requests::until_issued(&all, name).await?;
    let conditions = all.get(name).await?.status.and_then(|status| status.conditions).unwrap_or_default();
    ensure!(conditions.len() == 1 && conditions[0].type_ == "Approved", "{conditions:?}");
    Ok(())
}

/// Starts a control plane without kubelets and scheduler.
pub async fn bed() -> Result<Arc<Bed>> {
    let options = Options { kwok: false, scheduler: false, ..Options::default() };
    Ok(Arc::new(Bed::without_accounts(options).await?))
}

impl Scenario {
    async fn run_with_a_fault(&self, space: &Space, n: usize, effect: Effect) -> Result<()> {
        let name = format!("{}-{n}-{effect:?}", self.name).to_lowercase();
        let flags = (self.flags)(space);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let faults = Faults::script([Rule::new(Call::is_object_write, effect).nth(n)]);
        tokio::select! {
            done = (self.run)(space.clone(), name) => done.with_context(|| format!("{:?}", faults.requests()))?,
            ended = restart_after_crashes(&faults, || Manager::start_cluster_wide(space, &faults, &flags)) => ended?,
        }
        ensure!(faults.unmet() == 0, "the fault did not occur: the run tests nothing");
        let faults = Faults::default();
        let manager = Manager::start_cluster_wide(space, &faults, &flags).await?;
        faults.until_watching(&[self.kind]).await?;
        faults.none_while_quiet(Call::is_write).await?;
        manager.crash().await;
        Ok(())
    }

    /// Runs the scenario with each of these faults at each of its writes.
    pub async fn check_all_faults(&self, space: &Space, effects: &[Effect]) -> Result<()> {
        for n in 1..=self.writes {
            for effect in effects {
                let what = format!("{}: {effect:?} at write {n}", self.name);
                self.run_with_a_fault(space, n, effect.clone()).await.context(what)?;
            }
        }
        (self.end)(space.clone()).await
    }
}

pub async fn crash_after_every_write(_: Space) -> Result<()> {
    let bed = bed().await?;
    let space = bed.space("scenarios").await?;
    // This node has the last range of the network, which the scenario of ranges must not allocate again.
    let old: Node = serde_json::from_value(serde_json::json!({
        "metadata": {"name": OLD, "annotations": {TTL: "0"}},
        "spec": {"podCIDR": "10.200.15.0/24", "podCIDRs": ["10.200.15.0/24"]},
    }))?;
    nodes(&space).create(&Default::default(), &old).await?;
    for scenario in &SCENARIOS {
        scenario.check_all_faults(&space, &[Effect::CrashAfter, Effect::CrashBeforeResponse]).await?;
    }
    Ok(())
}
