//! Upstream's manager and ours take over from each other while volumes are being attached and detached.

use anyhow::{Result, ensure};
use cluster_tests::{Faults, Manager, Space, eventually};
use k8s_openapi::api::core::v1::Pod;

use crate::storage::attach_detach::{CONTROLLERS, CsiFixture, own_space};
use crate::upstream::manager::{UPSTREAM, start_upstream};

/// Waits until a number of VolumeAttachments exist, some of which are being deleted.
async fn until_attachments(fixture: &CsiFixture, all: usize, deleted: usize) -> Result<()> {
    eventually(format!("{all} attachments, {deleted} of them being deleted"), || async {
        let found = fixture.attachments().await?;
        let being_deleted = found.iter().filter(|one| one.metadata.deletion_timestamp.is_some()).count();
        ensure!((found.len(), being_deleted) == (all, deleted), "{found:#?}");
        Ok(())
    })
    .await
}

/// Ends a leadership term of our manager, in which the driver must not have refused a request.
async fn end_term(fixture: &CsiFixture, manager: Manager, refused_before: usize) -> Result<()> {
    manager.crash().await;
    let refused = fixture.violations()?;
    ensure!(refused.len() == refused_before, "{refused:?}");
    Ok(())
}

/// Two takeovers in each direction, during an attachment and during a detachment.
///
/// Upstream's manager does not wait for a detachment that was in progress when it started: it marks the attachment as
/// uncertain, and GetNodesForAttachedVolume (pkg/controller/volume/attachdetach/cache) omits uncertain attachments. The
/// driver then refuses the second attachment. Therefore refused requests are failures only while our manager leads.
pub async fn attachments_continue_under_the_other_manager(_: Space) -> Result<()> {
    let delays = ["--attach-delay=3s", "--detach-delay=3s"];
    let fixture = CsiFixture::start(own_space("takeover").await?, &delays).await?;
    let cluster = &fixture.space.bed.cluster;
    start_upstream(cluster, CONTROLLERS, &[])?;
    fixture.create_claim("data").await?;
    fixture.create_pod("first", "data", &fixture.a).await?;
    until_attachments(&fixture, 1, 0).await?;
    cluster.kill(UPSTREAM)?;

    let refused = fixture.violations()?.len();
    let manager = fixture.manager(&Faults::default(), &[]).await?;
    fixture.until_running("first").await?;
    let (_, handle) = fixture.volume_of("data").await?;
    fixture.create_pod("second", "data", &fixture.b).await?;
    fixture.space.delete::<Pod>("first").await?;
    until_attachments(&fixture, 1, 1).await?;
    end_term(&fixture, manager, refused).await?;

    start_upstream(cluster, CONTROLLERS, &[])?;
    fixture.until_running("second").await?;
    fixture.create_pod("third", "data", &fixture.a).await?;
    fixture.space.delete::<Pod>("second").await?;
    until_attachments(&fixture, 1, 1).await?;
    cluster.kill(UPSTREAM)?;

    let refused = fixture.violations()?.len();
    let manager = fixture.manager(&Faults::default(), &[]).await?;
    fixture.until_running("third").await?;
    fixture.create_pod("fourth", "data", &fixture.b).await?;
    fixture.space.delete::<Pod>("third").await?;
    eventually("the volume is attached to the second node", || async {
        ensure!(fixture.attachments().await?.iter().any(|one| one.spec.node_name == fixture.b.node));
        Ok(())
    })
    .await?;
    end_term(&fixture, manager, refused).await?;
    let moves = fixture.moves(&handle)?;
    ensure!(moves.iter().filter(|one| *one == "detach a").count() == 2, "attached before it was detached: {moves:?}");

    start_upstream(cluster, CONTROLLERS, &[])?;
    fixture.until_running("fourth").await?;
    let moves = fixture.moves(&handle)?;
    let expected = ["attach a", "detach a", "attach b", "detach b", "attach a", "detach a", "attach b"];
    ensure!(moves == expected, "{moves:?}");
    fixture.space.delete::<Pod>("fourth").await?;
    fixture.until_deleted("fourth").await?;
    fixture.until_released().await?;
    fixture.stop()
}
