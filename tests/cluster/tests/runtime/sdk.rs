//! An operator written with the SDK, on a real API server: it creates children, repairs them, updates them when their
//! inputs change, and deletes them before their owner.

#![allow(clippy::disallowed_methods, reason = "tests act as users do, who have no Writer")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use cluster_tests::eventually;
use control_plane::{ControlPlane, CustomKind, Identity, Options};
use k8s_openapi::api::core::v1::{ConfigMap, Event, Secret};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use runtime::client::{ConnectOptions, connect};
use runtime::manager::ManagerOptions;
use runtime::sdk::{
    Context, Controller, Error, EventType, ExitReason, ObjectKey, ObjectMeta, Operator, Outcome, Prepared,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::oneshot;

const FINALIZER: &str = "example.com/archive";

#[derive(Debug, Clone, Serialize, Deserialize)]
struct NoteSpec {
    text: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct NoteStatus {
    written: String,
}

fn notes() -> CustomKind {
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {"text": {"type": "string"}}},
        "status": {"type": "object", "properties": {"written": {"type": "string"}}},
    }});
    CustomKind::new("example.com", "Note").with_schema(schema).with_subresources(json!({"status": {}}))
}

runtime::custom_resource! {
    /// A text that is kept in a ConfigMap, under a heading from a Secret.
    Note { spec: NoteSpec, status: NoteStatus }
    namespaced "notes" in "example.com/v1"
}

async fn write_note(ctx: Context<Note>) -> Result<Outcome, Error> {
    let heading = ctx.look_up::<Secret>(&ObjectKey::new(ctx.namespace(), "heading"));
    let heading = heading.and_then(|secret| secret.data.clone()?.remove("text")).map(|bytes| bytes.0);
    let heading = String::from_utf8(heading.unwrap_or_default()).map_err(Error::other)?;
    let text = format!("{heading}{}", ctx.object.spec.text);
    let data = BTreeMap::from([("text".to_owned(), text.clone())]);
    let metadata = ObjectMeta { name: Some(ctx.name().to_owned()), ..ObjectMeta::default() };
    let applied = ctx.apply(&ConfigMap { metadata, data: Some(data), ..ConfigMap::default() }).await?;
    if applied.metadata.uid.is_none() {
        return Err(Error::other("the response is not the whole object"));
    }
    if ctx.set_status(&NoteStatus { written: text }).await? {
        ctx.event(EventType::Normal, "Written", "the note is written");
    }
    Ok(Outcome::Done)
}

/// Deletes the children before the note is deleted.
async fn archive(ctx: Context<Note>) -> Result<Outcome, Error> {
    for child in ctx.children::<ConfigMap>() {
        ctx.delete::<ConfigMap>(&child).await?;
    }
    let is_deleted = ctx.children::<ConfigMap>().is_empty();
    Ok(if is_deleted { Outcome::Done } else { Outcome::RequeueAfter(Duration::from_millis(50)) })
}

fn controller() -> Prepared {
    Controller::for_::<Note>("notes")
        .owns::<ConfigMap>()
        .watches::<Secret>(|secret| match (&secret.metadata.namespace, secret.metadata.name.as_deref()) {
            (Some(namespace), Some("heading")) => vec![ObjectKey::new(&**namespace, "first")],
            _ => Vec::new(),
        })
        .finalizer(FINALIZER, archive)
        .reconcile(write_note)
}

/// The notes of a cluster, and the ConfigMaps that the operator writes.
struct Notes {
    client: Client,
    notes: Api<Note>,
    maps: Api<ConfigMap>,
}

impl Notes {
    /// Waits until the first note is written with this text.
    async fn until_written(&self, text: &str) -> Result<ConfigMap> {
        eventually("the note is written", || async {
            let map = self.maps.get("first").await?;
            ensure!(map.data.as_ref().is_some_and(|data| data["text"] == text), "{map:?}");
            let status = self.notes.get("first").await?.status;
            ensure!(status == Some(NoteStatus { written: text.to_owned() }), "{status:?}");
            Ok(map)
        })
        .await
    }

    /// A child that is deleted or edited is restored, and fields of other field managers are kept.
    async fn child_is_repaired(&self) -> Result<()> {
        self.maps.delete("first", &DeleteParams::default()).await?;
        self.until_written("a").await?;
        let edit = json!({"data": {"text": "edited", "other": "theirs"}});
        self.maps.patch("first", &PatchParams::default(), &Patch::Merge(edit)).await?;
        let map = self.until_written("a").await?;
        ensure!(map.data.is_some_and(|data| data["other"] == "theirs"), "a field of another field manager was removed");
        Ok(())
    }

    /// The child is updated when the note or the watched Secret changes; an Event reports the update.
    async fn child_follows_its_inputs(&self) -> Result<()> {
        let text = json!({"spec": {"text": "b"}});
        self.notes.patch("first", &PatchParams::default(), &Patch::Merge(text)).await?;
        self.until_written("b").await?;
        let heading: Secret =
            serde_json::from_value(json!({"metadata": {"name": "heading"}, "stringData": {"text": "# "}}))?;
        Api::default_namespaced(self.client.clone()).create(&PostParams::default(), &heading).await?;
        self.until_written("# b").await?;
        let events: Api<Event> = Api::default_namespaced(self.client.clone());
        eventually("an event is recorded", || async {
            let events = events.list(&ListParams::default()).await?.items;
            ensure!(events.iter().any(|event| event.reason.as_deref() == Some("Written")), "{events:?}");
            Ok(())
        })
        .await
    }

    /// An object of another owner with a child's name is not changed: the reconcile fails.
    async fn foreign_object_is_kept(&self, failed: &AtomicU64) -> Result<()> {
        let foreign = json!({"metadata": {"name": "second", "ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "1", "controller": true},
        ]}});
        self.maps.create(&PostParams::default(), &serde_json::from_value(foreign)?).await?;
        let note = Note::new("second", NoteSpec { text: "a".to_owned() });
        self.notes.create(&PostParams::default(), &note).await?;
        eventually("the reconcile fails", || async {
            ensure!(failed.load(Ordering::Relaxed) > 0);
            Ok(())
        })
        .await?;
        ensure!(self.maps.get("second").await?.data.is_none());
        Ok(())
    }
}

#[tokio::test]
async fn notes_are_written_repaired_and_archived() -> Result<()> {
    let options = Options { kwok: false, scheduler: false, ..Options::default() };
    let cluster = ControlPlane::start(options).await?;
    let client = cluster.client(Identity::Admin).await?;
    cluster.kubectl_with_input(&["create", "-f", "-"], &notes().definition().to_string())?;

    let connection =
        ConnectOptions { kubeconfig: Some(cluster.kubeconfig(Identity::Admin)?), ..ConnectOptions::default() };
    let clients = Arc::new(connect(&connection).await?);
    let manager = Operator::new("notes").with(controller()).manager(clients, ManagerOptions::default())?;
    let counts = manager.work_counts();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(manager.run(async { stopped.await.unwrap_or_default() }));

    let (notes, maps) = (Api::default_namespaced(client.clone()), Api::default_namespaced(client.clone()));
    let bed = Notes { client, notes, maps };
    let first = Note::new("first", NoteSpec { text: "a".to_owned() });
    eventually("the definition is served", || async { Ok(bed.notes.create(&PostParams::default(), &first).await?) })
        .await?;
    let map = bed.until_written("a").await?;
    let note = bed.notes.get("first").await?;
    ensure!(note.metadata.finalizers == Some(vec![FINALIZER.to_owned()]), "{:?}", note.metadata);
    let owners = map.metadata.owner_references.unwrap_or_default();
    ensure!(owners.len() == 1 && owners[0].uid == note.metadata.uid.unwrap_or_default(), "{owners:?}");
    bed.child_is_repaired().await?;
    bed.child_follows_its_inputs().await?;
    bed.foreign_object_is_kept(&counts[0].1.failed).await?;

    bed.notes.delete("first", &DeleteParams::default()).await?;
    eventually("the note is archived", || async {
        ensure!(bed.notes.get_opt("first").await?.is_none() && bed.maps.get_opt("first").await?.is_none());
        Ok(())
    })
    .await?;
    let _ = stop.send(());
    ensure!(running.await? == ExitReason::Shutdown);
    Ok(())
}
