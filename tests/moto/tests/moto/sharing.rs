//! Target groups in which several clusters register targets: each cluster deregisters only its own, even after
//! restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};
use cluster_tests::{Space, eventually};
use k8s_openapi::api::core::v1::{ConfigMap, Service as KubeService};
use kube::api::{Api, PostParams};
use moto::{Effect, Fault, Instance, Moto, Service};
use providers::{CloudError, ErrorKind, LoadBalancerId, LoadBalancers, Records, async_trait};
use serde_json::json;

use crate::balancers::{AccountResources, PREFIX, delete, service, settle, spec, targets, texts};
use crate::bed::{AwsBed, CLUSTER, provider};

const RBAC: &str = include_str!("../../../../deploy/ccm-targets-rbac.yaml");

type Record = BTreeMap<String, String>;

/// Records that outlive processes.
#[derive(Default)]
pub struct RecordsInMemory {
    /// The uid of the Service and the content, by name.
    records: Mutex<BTreeMap<String, (String, Record)>>,
    /// Number of reads.
    pub reads: AtomicUsize,
    /// True while the API server does not allow the records to be read.
    pub denied: AtomicBool,
}

impl RecordsInMemory {
    /// Deletes all records, as Kubernetes does with those of a deleted Service.
    pub fn clear(&self) {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl RecordsInMemory {
    fn get(&self, name: &str) -> Result<Option<(String, Record)>, CloudError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        if self.denied.load(Ordering::Relaxed) {
            return Err(CloudError::new(ErrorKind::Denied, "ReadRecord", "as scripted"));
        }
        Ok(self.records.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned())
    }
}

#[async_trait]
impl Records for RecordsInMemory {
    async fn read(&self, _: &LoadBalancerId, name: &str) -> Result<Option<Record>, CloudError> {
        Ok(self.get(name)?.map(|(_, record)| record))
    }

    async fn read_own(&self, id: &LoadBalancerId, name: &str) -> Result<Option<Record>, CloudError> {
        Ok(self.get(name)?.filter(|(uid, _)| *uid == id.uid).map(|(_, record)| record))
    }

    async fn write(&self, id: &LoadBalancerId, name: &str, record: &Record) -> Result<(), CloudError> {
        let record = (id.uid.clone(), record.clone());
        self.records.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), record);
        Ok(())
    }
}

/// Returns the load balancers of a provider in a new process with these records.
pub async fn new_process(moto: &Moto, records: &Arc<RecordsInMemory>) -> Result<Arc<dyn LoadBalancers>> {
    let provider = provider(moto)?;
    provider.keep_records(records.clone());
    provider.initialize().await?;
    provider.load_balancers().context("no load balancers")
}

/// Returns the ids of a target group's targets.
pub async fn registered(moto: &Moto, group: &str) -> Result<BTreeSet<String>> {
    let health = moto.aws.call(Service::Elb, "DescribeTargetHealth", &[("TargetGroupArn", group)]).await?;
    Ok(texts(&health, "Id").into_iter().collect())
}

/// Returns the ids of instances.
pub fn ids(instances: &[&Instance]) -> BTreeSet<String> {
    instances.iter().map(|instance| instance.id.clone()).collect()
}

/// Another cluster's target stays, regardless of changes here and of crashes; the cluster's own targets are
/// deregistered even if another process registered them.
pub async fn cluster_deregisters_only_its_own_targets(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(4).await?;
    let (other_cluster, own) = instances.split_last().context("no instances")?;
    let one = spec(1, &[("multi-cluster-target-group", "true")]);
    let records = Arc::new(RecordsInMemory::default());
    let balancers = new_process(&moto, &records).await?;
    settle(&moto, &*balancers, &one, &targets(&own[..2])).await?;
    let group = AccountResources::read(&moto).await?.target_groups.first().cloned().context("no target group")?;
    let register =
        [("TargetGroupArn", &*group), ("Targets.member.1.Id", &other_cluster.id), ("Targets.member.1.Port", "30080")];
    moto.aws.call(Service::Elb, "RegisterTargets", &register).await?;

    // The targets change, first in the same process, then in processes without a cache.
    balancers.set_targets(&one, &targets(&own[1..])).await?;
    ensure!(
        registered(&moto, &group).await? == ids(&[&own[1], &own[2], other_cluster]),
        "wrong targets after a change"
    );
    let next = new_process(&moto, &records).await?;
    next.set_targets(&one, &targets(&own[2..])).await?;
    ensure!(registered(&moto, &group).await? == ids(&[&own[2], other_cluster]), "wrong targets after a restart");
    let next = new_process(&moto, &records).await?;
    settle(&moto, &*next, &one, &targets(&own[..1])).await?;
    ensure!(registered(&moto, &group).await? == ids(&[&own[0], other_cluster]), "wrong targets after `ensure`");

    // The response to a registration is lost, and the process crashes: the target was recorded before the call.
    moto.proxy.arm(Fault::first("RegisterTargets", Effect::ResponseLost));
    let crashing = new_process(&moto, &records).await?;
    ensure!(crashing.set_targets(&one, &targets(&own[..2])).await.is_err(), "the response was not lost");
    moto.proxy.disarm();
    ensure!(
        registered(&moto, &group).await? == ids(&[&own[0], &own[1], other_cluster]),
        "the target was not registered"
    );
    let next = new_process(&moto, &records).await?;
    settle(&moto, &*next, &one, &targets(&own[..1])).await?;
    ensure!(registered(&moto, &group).await? == ids(&[&own[0], other_cluster]), "wrong targets after a crash");
    let changes = moto.proxy.changes();
    settle(&moto, &*next, &one, &targets(&own[..1])).await?;
    ensure!(moto.proxy.changes() == changes, "changes without a reason");
    delete(&*next, &one.id).await
}

/// The record is the ConfigMap of the Load Balancer Controller, and is deleted with the Service.
pub async fn record_is_a_config_map(_: Space) -> Result<()> {
    let bed = AwsBed::start().await?;
    let cluster = bed.cloud.bed.clone();
    let applied =
        tokio::task::spawn_blocking(move || cluster.cluster.kubectl_with_input(&["apply", "--filename=-"], RBAC));
    applied.await??;
    let _manager = bed.ccm(&["--controllers=cloud-node,service"]).await?;
    let instances = bed.nodes(1).await?;
    let client = bed.cloud.bed.client.clone();
    let services: Api<KubeService> = Api::namespaced(client.clone(), "default");
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    let annotations = json!({format!("{PREFIX}type"): "nlb", format!("{PREFIX}multi-cluster-target-group"): "true"});
    let web = services.create(&PostParams::default(), &service("web", annotations)?).await?;
    eventually("the target is recorded", || async {
        let groups = bed.moto.aws.call(Service::Elb, "DescribeTargetGroups", &[]).await?;
        let name = texts(&groups, "TargetGroupName").into_iter().next().context("no target group")?;
        let map = maps.get(&format!("aws-lbc-targets-{name}")).await?;
        let port = services.get("web").await?.spec.and_then(|spec| spec.ports).context("no ports")?[0].node_port;
        let expected = format!("{}:{}", instances[0].id, port.unwrap_or_default());
        let data = map.data.unwrap_or_default();
        ensure!(data.get("targets") == Some(&expected), "{data:?}, not {expected}");
        let owners = map.metadata.owner_references.unwrap_or_default();
        ensure!(owners.len() == 1 && Some(&owners[0].uid) == web.metadata.uid.as_ref(), "{owners:?}");
        Ok(())
    })
    .await
}
