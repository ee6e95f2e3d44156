//! Volumes of a CSI driver are attached to the nodes of their pods, one node at a time, despite faults.
//!
//! Nodes and VolumeAttachments have no namespace, so each test has its own control plane.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{is_ready, pod, with};
use cluster_tests::{
    Bed, Call, Effect, Faults, Manager, QUIET, Rule, Space, Verb, during, eventually, restart_after_crashes,
};
use control_plane::behaviour::{BEHAVIOUR, PENDING};
use control_plane::csi::Driver;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};

use super::kubelet::{Kubelet, attachment_name};
use super::objects::{ClusterWide, claim, delete_with_force, start_driver, until_claim_deleted, until_done, volumes};
use crate::robustness::invariants::only_declared;

const ATTACH_DETACH: &str = "persistentvolume-attach-detach-controller";
const BINDER: &str = "persistentvolume-binder-controller";
const CLAIM_PROTECTION: &str = "persistentvolumeclaim-protection-controller";
/// Controllers of volumes.
pub const CONTROLLERS: &str = "persistentvolume-attach-detach-controller,persistentvolume-binder-controller,\
                           persistentvolume-expander-controller,persistentvolume-protection-controller,\
                           persistentvolumeclaim-protection-controller,statefulset-controller";

/// A driver, its class and two nodes, all named for the namespace.
pub struct CsiFixture {
    pub space: Space,
    driver: Driver,
    pub a: Kubelet,
    pub b: Kubelet,
}

impl CsiFixture {
    pub async fn start(space: Space, flags: &[&str]) -> Result<Self> {
        Self::start_in(space, flags, [None; 2], "Immediate").await
    }

    /// Starts a driver that distinguishes the zones of the two nodes, and binds claims once a pod uses them.
    pub async fn start_in_zones(space: Space, [a, b]: [&str; 2]) -> Result<Self> {
        Self::start_in(space, &["--topology"], [Some(a), Some(b)], "WaitForFirstConsumer").await
    }

    async fn start_in(space: Space, flags: &[&str], zones: [Option<&str>; 2], binding: &str) -> Result<Self> {
        let name = &space.namespace;
        let driver = start_driver(&space, flags, binding).await?;
        let node = |suffix: &str| format!("{name}-{suffix}");
        let (a, b) = (node("a"), node("b"));
        let a = Kubelet::start(&space.bed, &a, name, zones[0]).await?;
        let b = Kubelet::start(&space.bed, &b, name, zones[1]).await?;
        Ok(Self { driver, a, b, space })
    }

    pub async fn manager(&self, faults: &Faults, flags: &[&str]) -> Result<Manager> {
        let controllers = format!("--controllers={CONTROLLERS}");
        let flags: Vec<&str> = flags.iter().copied().chain([&*controllers]).collect();
        Manager::start_cluster_wide(&self.space, faults, &flags).await
    }

    pub async fn create_claim(&self, name: &str) -> Result<()> {
        let of_class = json!({"spec": {"storageClassName": self.space.namespace}});
        self.space.create::<PersistentVolumeClaim>(with(claim(name), of_class)).await?;
        Ok(())
    }

    /// Creates a pod on a node, with a volume of a claim.
    pub async fn create_pod(&self, name: &str, claim: &str, kubelet: &Kubelet) -> Result<()> {
        let spec = json!({"metadata": {"annotations": {BEHAVIOUR: PENDING}}, "spec": {
            "nodeName": kubelet.node, "tolerations": [{"operator": "Exists"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
        }});
        self.space.create::<Pod>(with(pod(name, "web"), spec)).await?;
        Ok(())
    }

    pub async fn until_running(&self, name: &str) -> Result<()> {
        eventually(format!("{name} runs"), || async {
            let pod: Pod = self.space.get(name).await?;
            ensure!(is_ready(&pod), "{:?}\n{}", pod.status.and_then(|status| status.phase), self.state().await?);
            Ok(())
        })
        .await
    }

    pub async fn until_deleted(&self, name: &str) -> Result<()> {
        eventually(format!("{name} no longer exists"), || async {
            ensure!(self.space.api::<Pod>().get_opt(name).await?.is_none(), "it exists");
            Ok(())
        })
        .await
    }

    /// Returns the state of nodes, attachments and driver, for the message of a failed test.
    async fn state(&self) -> Result<String> {
        let (a, b) = (self.a.volumes().await?, self.b.volumes().await?);
        let attachments: Vec<String> = self
            .attachments()
            .await?
            .into_iter()
            .map(|one| format!("{} {:?} {:?}", one.spec.node_name, one.metadata.deletion_timestamp, one.status))
            .collect();
        Ok(format!("a: {a:?}\nb: {b:?}\nattachments: {attachments:#?}\ndriver: {:#?}", self.driver.history()?))
    }

    pub async fn attachments(&self) -> Result<Vec<VolumeAttachment>> {
        let all: Api<VolumeAttachment> = Api::all(self.space.bed.client.clone());
        let mut all = all.list(&ListParams::default()).await?.items;
        all.retain(|attachment| attachment.spec.attacher == self.driver.name());
        Ok(all)
    }

    pub async fn volume_of(&self, claim: &str) -> Result<(PersistentVolume, String)> {
        eventually(format!("{claim} is bound"), || async {
            let claim: PersistentVolumeClaim = self.space.get(claim).await?;
            let name = claim.spec.and_then(|spec| spec.volume_name).context("no volume yet")?;
            let volume = volumes(&self.space).get(&name).await?;
            let source = volume.spec.as_ref().and_then(|spec| spec.csi.clone()).context("no CSI source")?;
            Ok((volume, source.volume_handle))
        })
        .await
    }

    async fn until_event(&self, pod: &str, event: &str) -> Result<()> {
        eventually(format!("{pod} has the event {event:?}"), || async {
            let events = self.space.events(pod).await?;
            ensure!(events.contains_key(event), "{events:#?}");
            Ok(())
        })
        .await
    }

    async fn until_done(&self, action: &str) -> Result<()> {
        until_done(&self.driver, action).await
    }

    /// Returns the driver's attachments and detachments of a volume, in order, by the nodes' suffixes. A call that
    /// csi-attacher repeats counts once.
    pub fn moves(&self, handle: &str) -> Result<Vec<String>> {
        let prefix = format!("{}-", self.space.namespace);
        let moved = |done: &String| {
            let parts: Vec<&str> = done.split(' ').collect();
            match parts[..] {
                [verb @ ("attach" | "detach"), of, node] if of == handle => {
                    Some(format!("{verb} {}", node.strip_prefix(&prefix).unwrap_or(node)))
                }
                _ => None,
            }
        };
        let mut moves: Vec<String> = self.driver.history()?.iter().filter_map(moved).collect();
        moves.dedup();
        Ok(moves)
    }

    /// Returns requests to the driver that would have damaged data.
    pub fn violations(&self) -> Result<Vec<String>> {
        self.driver.violations()
    }

    /// Waits until the nodes have no volumes and no attachment exists.
    pub async fn until_released(&self) -> Result<()> {
        self.a.until_empty().await?;
        self.b.until_empty().await?;
        eventually("no attachments", || async {
            let left = self.attachments().await?;
            ensure!(left.is_empty(), "{left:#?}");
            Ok(())
        })
        .await
    }

    /// Checks that nothing is left, and that no request would have damaged data.
    pub async fn finish(self) -> Result<()> {
        self.until_released().await?;
        ensure!(self.violations()?.is_empty(), "{:?}", self.violations()?);
        self.stop()
    }

    /// Stops the driver.
    pub fn stop(self) -> Result<()> {
        self.driver.stop()
    }
}

/// Creates a control plane whose VolumeAttachments are not handled by another test's manager.
pub async fn own_space(name: &str) -> Result<Space> {
    let bed: Arc<Bed> = Bed::start().await?;
    bed.space(name).await
}

const ATTACHED: &str = "Normal SuccessfulAttachVolume AttachVolume.Attach succeeded for volume";
const WAITING: &str = "Warning FailedAttachVolume Waiting for detach for volume";
const EXCLUSIVE: &str =
    "Volume is already exclusively attached to one node, waiting on detach before it can be attached to another node";

pub async fn volume_follows_its_pods_and_is_deleted_with_its_claim(_: Space) -> Result<()> {
    let fixture = CsiFixture::start(own_space("follows").await?, &[]).await?;
    let faults = Faults::default();
    let manager = fixture.manager(&faults, &[]).await?;
    fixture.create_claim("data").await?;
    fixture.create_pod("first", "data", &fixture.a).await?;
    fixture.until_running("first").await?;
    let (volume, handle) = fixture.volume_of("data").await?;
    let volume = volume.metadata.name.context("no name")?;
    let found = fixture.attachments().await?;
    let names: Vec<_> = found.iter().map(|one| one.metadata.name.clone().unwrap_or_default()).collect();
    ensure!(names == [attachment_name(&handle, fixture.driver.name(), &fixture.a.node)], "{names:?}");
    fixture.until_event("first", &format!("{ATTACHED} \"{volume}\" ")).await?;

    // The volume is expanded while it is in use.
    let more = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    fixture.space.patch::<PersistentVolumeClaim>("data", more).await?;
    fixture.until_done(&format!("expand {handle} {}", 2_u64 << 30)).await?;

    // A second pod on another node waits until the first one has ended.
    fixture.create_pod("second", "data", &fixture.b).await?;
    fixture.until_event("second", &format!("{WAITING} \"{volume}\" Volume is already used by pod(s) first")).await?;
    during(QUIET, "the volume stays where it is used", || async {
        ensure!(fixture.moves(&handle)? == ["attach a"], "{:?}", fixture.moves(&handle)?);
        Ok(())
    })
    .await?;
    fixture.space.delete::<Pod>("first").await?;
    fixture.until_running("second").await?;
    ensure!(fixture.moves(&handle)? == ["attach a", "detach a", "attach b"], "{:?}", fixture.moves(&handle)?);

    // An attachment that another client deletes is created again.
    let attachments = ClusterWide::<VolumeAttachment>::of(&fixture.space);
    attachments.delete(&attachment_name(&handle, fixture.driver.name(), &fixture.b.node)).await?;
    eventually("the volume is attached again", || async {
        let moves = fixture.moves(&handle)?;
        ensure!(moves == ["attach a", "detach a", "attach b", "detach b", "attach b"], "{moves:?}");
        Ok(())
    })
    .await?;

    // Attachments of other clients are not changed.
    let foreign = json!({"metadata": {"name": "foreign"}, "spec": {
        "attacher": "other.example.com", "nodeName": fixture.a.node, "source": {"persistentVolumeName": volume},
    }});
    attachments.create(foreign).await?;
    fixture.space.delete::<Pod>("second").await?;
    fixture.until_deleted("second").await?;
    fixture.space.delete::<PersistentVolumeClaim>("data").await?;
    until_claim_deleted(&fixture.space, "data").await?;
    fixture.until_done(&format!("detach {handle} {}", fixture.b.node)).await?;
    attachments.get("foreign").await?;
    attachments.delete("foreign").await?;
    volumes(&fixture.space).until_deleted(&volume).await?;
    fixture.until_done(&format!("delete {handle}")).await?;
    manager.stop().await?;
    only_declared(&faults, &[ATTACH_DETACH, BINDER, CLAIM_PROTECTION])?;
    fixture.finish().await
}

/// A failed node keeps its volumes until an operator declares it out of service.
pub async fn volume_leaves_a_dead_node_once_it_is_out_of_service(_: Space) -> Result<()> {
    let fixture = CsiFixture::start(own_space("dead").await?, &[]).await?;
    let manager = fixture.manager(&Faults::default(), &[]).await?;
    fixture.create_claim("data").await?;
    fixture.create_pod("first", "data", &fixture.a).await?;
    fixture.until_running("first").await?;
    let (_, handle) = fixture.volume_of("data").await?;
    fixture.a.stop().await;
    fixture.a.set_ready(false).await?;
    delete_with_force(&fixture.space, "first").await?;
    fixture.create_pod("second", "data", &fixture.b).await?;
    let (volume, _) = fixture.volume_of("data").await?;
    let volume = volume.metadata.name.context("no name")?;
    fixture.until_event("second", &format!("{WAITING} \"{volume}\" {EXCLUSIVE}")).await?;
    during(QUIET, "the volume stays on the dead node", || async {
        ensure!(fixture.moves(&handle)? == ["attach a"], "{:?}", fixture.moves(&handle)?);
        Ok(())
    })
    .await?;
    let taint = json!({"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"});
    fixture.a.set_taints(json!([taint])).await?;
    fixture.until_running("second").await?;
    ensure!(fixture.moves(&handle)? == ["attach a", "detach a", "attach b"], "{:?}", fixture.moves(&handle)?);
    let (attached, _) = fixture.a.volumes().await?;
    ensure!(attached.is_empty(), "{attached:?}");
    ensure!(fixture.driver.violations()?.is_empty(), "{:?}", fixture.driver.violations()?);
    manager.stop().await?;
    Ok(())
}

/// Failures of the driver are reported as events, and the calls are retried.
pub async fn failures_of_the_driver_are_reported_and_retried(_: Space) -> Result<()> {
    let fixture = CsiFixture::start(own_space("failures").await?, &["--fail-attach=2", "--fail-detach=1"]).await?;
    let manager = fixture.manager(&Faults::default(), &[]).await?;
    fixture.create_claim("data").await?;
    fixture.create_pod("first", "data", &fixture.a).await?;
    fixture.until_running("first").await?;
    let failed = "Warning FailedAttachVolume AttachVolume.Attach failed for volume";
    eventually("the failure was recorded", || async {
        let events = fixture.space.events("first").await?;
        ensure!(events.keys().any(|event| event.starts_with(failed)), "{events:#?}\n{}", fixture.state().await?);
        Ok(())
    })
    .await?;
    fixture.space.delete::<Pod>("first").await?;
    fixture.until_deleted("first").await?;
    manager.stop().await?;
    // The next manager starts without a record of the attempts.
    let _manager = fixture.manager(&Faults::default(), &[]).await?;
    fixture.finish().await
}

fn stateful_set(class: &str) -> Value {
    let template = with(claim("data"), json!({"spec": {"storageClassName": class}}));
    json!({
        "metadata": {"name": "web"},
        "spec": {
            "serviceName": "web", "replicas": 2, "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}, "annotations": {BEHAVIOUR: PENDING}},
                "spec": {
                    "terminationGracePeriodSeconds": 1, "tolerations": [{"operator": "Exists"}],
                    "nodeSelector": {"attach-detach-test": class},
                    "containers": [{"name": "main", "image": "example.com/image:1",
                        "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
                },
            },
            "volumeClaimTemplates": [template],
        },
    })
}

/// Each pod of a StatefulSet gets its own volume again on any node.
pub async fn volumes_follow_the_pods_of_a_statefulset_in_an_update(_: Space) -> Result<()> {
    let fixture = CsiFixture::start(own_space("rolling").await?, &["--detach-delay=1s"]).await?;
    let manager = fixture.manager(&Faults::default(), &[]).await?;
    fixture.space.create::<StatefulSet>(stateful_set(&fixture.space.namespace)).await?;
    for pod in ["web-0", "web-1"] {
        fixture.until_running(pod).await?;
    }
    let image = json!({"spec": {"template": {"spec": {"containers": [{
        "name": "main", "image": "example.com/image:2", "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }]}}}});
    fixture.space.patch::<StatefulSet>("web", image).await?;
    eventually("the rolling update is complete", || async {
        let status = fixture.space.get::<StatefulSet>("web").await?.status.unwrap_or_default();
        ensure!(
            status.updated_replicas == Some(2) && status.ready_replicas == Some(2),
            "{status:?}\n{}",
            fixture.state().await?
        );
        ensure!(status.current_revision == status.update_revision, "{status:?}");
        Ok(())
    })
    .await?;
    // A volume that moves with its pod is not a failure.
    for pod in ["web-0", "web-1"] {
        let events = fixture.space.events(pod).await?;
        ensure!(!events.keys().any(|event| event.starts_with(WAITING)), "{events:#?}");
    }
    fixture.space.delete::<StatefulSet>("web").await?;
    for pod in ["web-0", "web-1"] {
        fixture.space.delete::<Pod>(pod).await.ok();
        fixture.until_deleted(pod).await?;
    }
    fixture.a.until_empty().await?;
    fixture.b.until_empty().await?;
    eventually("nothing is attached", || async {
        ensure!(fixture.attachments().await?.is_empty(), "{}", fixture.state().await?);
        Ok(())
    })
    .await?;
    manager.stop().await?;
    fixture.finish().await
}

/// Moves a volume: a pod uses it on one node, then another pod on the other node; then both pods are deleted.
async fn move_volume(fixture: &CsiFixture) -> Result<()> {
    fixture.create_claim("data").await?;
    fixture.create_pod("first", "data", &fixture.a).await?;
    fixture.until_running("first").await?;
    fixture.create_pod("second", "data", &fixture.b).await?;
    fixture.space.delete::<Pod>("first").await?;
    fixture.until_running("second").await?;
    fixture.space.delete::<Pod>("second").await?;
    fixture.until_deleted("second").await?;
    fixture.a.until_empty().await?;
    fixture.b.until_empty().await?;
    eventually("nothing is attached", || async {
        ensure!(fixture.attachments().await?.is_empty(), "{}", fixture.state().await?);
        Ok(())
    })
    .await
}

fn is_own_write(call: &Call) -> bool {
    call.is_write() && (call.resource == "volumeattachments" || call.resource.starts_with("nodes"))
}

/// Moves a volume while this fault occurs, and checks that it is attached once to each node.
async fn move_volume_with_fault(bed: &Arc<Bed>, what: &str, rule: Rule) -> Result<()> {
    let fixture = CsiFixture::start(bed.space("moved").await?, &[]).await?;
    let faults = Faults::script([rule]);
    let calls = || {
        let own: Vec<String> = faults
            .requests()
            .iter()
            .filter(|request| is_own_write(&request.call))
            .map(|request| format!("{} {:?}", request.call, request.status))
            .collect();
        format!("{what}: {own:#?}")
    };
    tokio::select! {
        done = move_volume(&fixture) => done.with_context(calls)?,
        ended = restart_after_crashes(&faults, || fixture.manager(&faults, &[])) => ended.with_context(calls)?,
    }
    ensure!(faults.unmet() == 0, "the fault did not occur: {}", calls());
    let (_, handle) = fixture.volume_of("data").await?;
    let moves = fixture.moves(&handle)?;
    ensure!(moves == ["attach a", "detach a", "attach b", "detach b"], "{moves:?}; {}", calls());
    fixture.finish().await.with_context(calls)
}

/// There are eight writes. Each of two attachments is created, added to its node's status, removed from that status and
/// deleted.
const WRITES: usize = 8;

pub async fn volume_moves_once_when_the_manager_crashes_at_any_write(_: Space) -> Result<()> {
    let bed = Bed::start().await?;
    for n in 1..=WRITES {
        let effect = if n % 2 == 0 { Effect::CrashAfter } else { Effect::CrashBeforeResponse };
        move_volume_with_fault(&bed, &format!("{effect:?} at {n}"), Rule::new(is_own_write, effect).nth(n)).await?;
    }
    Ok(())
}

pub async fn volume_moves_once_when_any_response_is_lost(_: Space) -> Result<()> {
    let bed = Bed::start().await?;
    for n in 1..=WRITES {
        let effect = if n % 2 == 0 { Effect::LostBefore } else { Effect::LostAfter };
        move_volume_with_fault(&bed, &format!("{effect:?} at {n}"), Rule::new(is_own_write, effect).nth(n)).await?;
    }
    for effect in [Effect::LostAfter, Effect::Refuse(500, None), Effect::Refuse(409, None), Effect::NotSent] {
        for verb in [Verb::Create, Verb::Delete] {
            let rule = Rule::on(verb, "volumeattachments", effect.clone());
            move_volume_with_fault(&bed, &format!("{effect:?} of {verb:?}"), rule).await?;
        }
    }
    Ok(())
}

/// A leader with stale caches, and then a second concurrent leader, attach nothing twice.
pub async fn stale_cache_or_second_leader_attaches_nothing_twice(_: Space) -> Result<()> {
    let fixture = CsiFixture::start(own_space("stale").await?, &[]).await?;
    let faults = Faults::default();
    let first = fixture.manager(&faults, &[]).await?;
    fixture.create_claim("data").await?;
    fixture.create_pod("first", "data", &fixture.a).await?;
    fixture.until_running("first").await?;
    let (_, handle) = fixture.volume_of("data").await?;
    for resource in ["pods", "nodes", "volumeattachments"] {
        faults.freeze(resource);
    }
    // A second leader moves the volume while the caches of the first one are stalled.
    let second = fixture.manager(&Faults::default(), &[]).await?;
    fixture.create_pod("second", "data", &fixture.b).await?;
    fixture.space.delete::<Pod>("first").await?;
    fixture.until_running("second").await?;
    for resource in ["volumeattachments", "pods", "nodes"] {
        faults.thaw(resource);
        during(QUIET / 3, "the volume stays where it is used", || async {
            let moves = fixture.moves(&handle)?;
            ensure!(moves == ["attach a", "detach a", "attach b"], "{moves:?}\n{}", fixture.state().await?);
            Ok(())
        })
        .await?;
    }
    fixture.create_pod("third", "data", &fixture.a).await?;
    fixture.space.delete::<Pod>("second").await?;
    fixture.until_running("third").await?;
    first.crash().await;
    fixture.space.delete::<Pod>("third").await?;
    fixture.until_deleted("third").await?;
    fixture.a.until_empty().await?;
    second.stop().await?;
    let _last = fixture.manager(&Faults::default(), &[]).await?;
    fixture.finish().await
}
