//! Migrations of stored objects on a real API server, with a crash in the middle: a custom resource to a new stored
//! version, and Secrets to a new encryption key.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use cluster_tests::{Bed, Call, Effect, Faults, Manager, Rule, Space, Verb, eventually};
use control_plane::{CustomKind, Options};
use serde_json::{Value, json};

/// Flags for only this controller, which requires the flag of the garbage collector.
pub const ALONE: [&str; 2] = ["--controllers=storage-version-migrator-controller", "--enable-garbage-collector=true"];
const OBJECTS: usize = 25;

/// Creates a separate control plane for a test.
pub async fn bed(extra_apiserver_flags: Vec<String>) -> Result<Arc<Bed>> {
    let options = Options { kwok: false, scheduler: false, extra_apiserver_flags, ..Options::default() };
    Ok(Arc::new(Bed::without_accounts(options).await?))
}

/// Applies an object.
pub fn apply(bed: &Bed, object: &Value) -> Result<()> {
    bed.cluster.kubectl_with_input(&["apply", "--server-side", "-f", "-"], &object.to_string())?;
    Ok(())
}

/// Reads an object, or a list.
pub fn read(bed: &Bed, what: &[&str]) -> Result<Value> {
    Ok(serde_json::from_str(&bed.cluster.kubectl(&[&["get", "-o", "json"], what].concat())?)?)
}

/// Creates a migration.
pub fn migrate(bed: &Bed, name: &str, group: &str, resource: &str) -> Result<()> {
    apply(
        bed,
        &json!({
            "apiVersion": "storagemigration.k8s.io/v1", "kind": "StorageVersionMigration",
            "metadata": {"name": name}, "spec": {"resource": {"group": group, "resource": resource}},
        }),
    )
}

fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

/// Waits until a migration has ended and no longer counts as running.
pub async fn until_ended(bed: &Bed, name: &str, kind: &str) -> Result<Value> {
    eventually(format!("migration {name} has {kind}"), || async {
        let migration = read(bed, &["storageversionmigration", name])?;
        let is = |kind: &str, status: &str| condition(&migration, kind).is_some_and(|it| it["status"] == status);
        ensure!(is(kind, "True") && is("Running", "False"), "{}", migration["status"]);
        Ok(migration)
    })
    .await
}

fn version(object: &Value) -> Result<u64> {
    Ok(object["metadata"]["resourceVersion"].as_str().context("no version")?.parse()?)
}

/// Runs a migration with a manager that crashes in the middle of it and another one that finishes it.
async fn migrate_across_a_crash(space: &Space, name: &str, group: &str, resource: &'static str) -> Result<Value> {
    let is_patch = move |call: &Call| call.verb == Verb::Patch && call.resource == resource;
    let first = Faults::script([Rule::new(is_patch, Effect::CrashBeforeResponse).nth(OBJECTS / 2)]);
    let manager = Manager::start_cluster_wide(space, &first, &ALONE).await?;
    migrate(&space.bed, name, group, resource)?;
    first.crashes().await;
    manager.crash().await;
    let status = read(&space.bed, &["storageversionmigration", name])?;
    ensure!(condition(&status, "Succeeded").is_none(), "the manager crashed too late: {status}");
    let second = Faults::default();
    let manager = Manager::start_cluster_wide(space, &second, &ALONE).await?;
    let migration = until_ended(&space.bed, name, "Succeeded").await?;
    manager.stop().await?;
    let patches = (first.count(is_patch), second.count(is_patch));
    let objects = read(&space.bed, &[resource, "--all-namespaces"])?["items"].as_array().map_or(0, Vec::len);
    ensure!(patches.0 == OBJECTS / 2 && patches.0 + patches.1 <= objects, "{patches:?} patches of {objects} objects");
    Ok(migration)
}

fn widgets(stored: &str, served: &[&str]) -> Value {
    CustomKind::new("example.com", "Widget").with_versions(served.iter().copied(), stored).definition()
}

pub async fn stored_version_of_a_custom_resource_is_migrated_across_a_crash(_: Space) -> Result<()> {
    let bed = bed(Vec::new()).await?;
    let space = bed.space("migration").await?;
    apply(&bed, &widgets("v1", &["v1"]))?;
    eventually("widgets are served", || async {
        let widget = |number: usize| {
            let metadata = json!({"name": format!("widget-{number}"), "namespace": space.namespace});
            json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": metadata})
        };
        apply(&bed, &json!({"apiVersion": "v1", "kind": "List", "items": (0..OBJECTS).map(widget).collect::<Vec<_>>()}))
    })
    .await?;
    apply(&bed, &widgets("v2", &["v1", "v2"]))?;
    eventually("both versions are listed as stored", || async {
        let definition = read(&bed, &["crd", "widgets.example.com"])?;
        ensure!(definition["status"]["storedVersions"] == json!(["v1", "v2"]), "{}", definition["status"]);
        // The API server writes objects in the new version only after it has switched to that version.
        bed.cluster.kubectl(&["get", "widgets.v2.example.com", "-n", &space.namespace, "widget-0"])?;
        Ok(())
    })
    .await?;

    let migration = migrate_across_a_crash(&space, "widgets", "example.com", "widgets").await?;
    let message = &condition(&migration, "Succeeded").context("no condition Succeeded")?["message"];
    ensure!(message == "Migration completed", "{message}");
    let from: u64 = migration["status"]["resourceVersion"].as_str().context("no version")?.parse()?;
    let all = read(&bed, &["widgets", "-n", &space.namespace])?;
    for widget in all["items"].as_array().context("no items")? {
        ensure!(version(widget)? > from, "an object was not stored again: {widget}");
        ensure!(widget["metadata"]["generation"] == 1, "an object was changed: {widget}");
    }
    let has_only_new_version = |definition: &Value| definition["status"]["storedVersions"] == json!(["v2"]);
    let definition = read(&bed, &["crd", "widgets.example.com"])?;
    ensure!(has_only_new_version(&definition), "{}", definition["status"]);
    let migrating = condition(&definition, "StorageMigrating").context("no condition StorageMigrating")?;
    ensure!(
        (&migrating["status"], &migrating["reason"]) == (&json!("False"), &json!("MigrationSucceeded")),
        "{migrating}"
    );

    // A further migration has nothing to do, and the stored versions stay.
    let manager = Manager::start_cluster_wide(&space, &Faults::default(), &ALONE).await?;
    migrate(&bed, "again", "example.com", "widgets")?;
    until_ended(&bed, "again", "Succeeded").await?;
    manager.stop().await?;
    let definition = read(&bed, &["crd", "widgets.example.com"])?;
    ensure!(has_only_new_version(&definition), "{}", definition["status"]);
    // The API server refuses to drop a version that is still listed as stored.
    bed.cluster.kubectl_with_input(&["replace", "-f", "-"], &widgets("v2", &["v2"]).to_string())?;
    eventually("all widgets are read without the old version", || async {
        let all = read(&bed, &["widgets.v2.example.com", "-n", &space.namespace])?;
        ensure!(all["items"].as_array().is_some_and(|items| items.len() == OBJECTS), "{all}");
        Ok(())
    })
    .await
}

/// Writes the API server's configuration with these encryption keys; the first one encrypts.
fn encrypt_with(file: &PathBuf, keys: &[&str], reads_plain: bool) -> Result<()> {
    let secret = |name: &str| BASE64.encode(format!("{name:-<32}"));
    let keys: Vec<Value> = keys.iter().map(|name| json!({"name": name, "secret": secret(name)})).collect();
    let mut providers = vec![json!({"aescbc": {"keys": keys}})];
    providers.extend(reads_plain.then(|| json!({"identity": {}})));
    let configuration = json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "EncryptionConfiguration",
        "resources": [{"resources": ["secrets"], "providers": providers}],
    });
    Ok(fs::write(file, configuration.to_string())?)
}

pub async fn secrets_are_encrypted_with_a_new_key_across_a_crash(_: Space) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("encryption.json");
    encrypt_with(&file, &["old"], true)?;
    let bed = bed(vec![format!("--encryption-provider-config={}", file.display())]).await?;
    let space = bed.space("encryption").await?;
    for number in 0..OBJECTS {
        let metadata = json!({"name": format!("secret-{number}"), "namespace": space.namespace});
        let data = json!({"number": number.to_string()});
        apply(&bed, &json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data}))?;
    }
    encrypt_with(&file, &["new", "old"], true)?;
    bed.cluster.restart_apiserver().await?;
    migrate_across_a_crash(&space, "secrets", "", "secrets").await?;
    // Without the old key, and without plain text, only migrated objects can be read.
    encrypt_with(&file, &["new"], false)?;
    bed.cluster.restart_apiserver().await?;
    let all = read(&bed, &["secrets", "-n", &space.namespace])?;
    let all = all["items"].as_array().context("no items")?;
    ensure!(all.len() == OBJECTS, "{}", all.len());
    for secret in all {
        let number = secret["data"]["number"].as_str().context("no data")?;
        let number = String::from_utf8(BASE64.decode(number)?)?;
        ensure!(secret["metadata"]["name"] == format!("secret-{number}"), "{secret}");
    }
    Ok(())
}

pub async fn migration_that_cannot_succeed_fails_with_its_reason(_: Space) -> Result<()> {
    let bed = bed(Vec::new()).await?;
    let space = bed.space("failing").await?;
    let metadata = json!({"name": "map", "namespace": space.namespace});
    apply(&bed, &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}))?;
    let is_patch = |call: &Call| call.verb == Verb::Patch && call.resource == "configmaps";
    // The first patch gets an overload error, the second one is refused.
    let faults = Faults::script([
        Rule::new(is_patch, Effect::Refuse(503, None)),
        Rule::new(is_patch, Effect::Refuse(403, None)),
    ]);
    let manager = Manager::start_cluster_wide(&space, &faults, &ALONE).await?;
    migrate(&bed, "maps", "", "configmaps")?;
    let failed = until_ended(&bed, "maps", "Failed").await?;
    let message = condition(&failed, "Failed").and_then(|it| it["message"].as_str()).unwrap_or_default();
    ensure!(message.contains(" not yet migrated. migration encountered unhandled error: "), "{message}");
    ensure!(faults.count(is_patch) == 2, "{:?}", faults.requests());
    migrate(&bed, "bindings", "", "bindings")?;
    let failed = until_ended(&bed, "bindings", "Failed").await?;
    let message = condition(&failed, "Failed").and_then(|it| it["message"].as_str()).unwrap_or_default();
    let expected = "resource \"/v1, Resource=bindings\" does not support discovery operations: [update patch list]";
    ensure!(message == expected, "{message}");
    manager.stop().await?;
    Ok(())
}

/// A migration begins with a list, which returns the resourceVersion. Errors of that list do not fail the migration,
/// but it does not begin without a resourceVersion.
pub async fn migration_begins_when_its_resource_can_be_listed(_: Space) -> Result<()> {
    let bed = bed(Vec::new()).await?;
    let space = bed.space("unlisted").await?;
    let is_list = |call: &Call| call.verb == Verb::List && call.resource == "configmaps";
    let faults = Faults::script([
        Rule::new(is_list, Effect::Refuse(503, None)),
        Rule::new(is_list, Effect::Refuse(403, None)),
        Rule::new(is_list, Effect::LostAfter),
    ]);
    let manager = Manager::start_cluster_wide(&space, &faults, &ALONE).await?;
    migrate(&bed, "unlisted", "", "configmaps")?;
    let ended = until_ended(&bed, "unlisted", "Succeeded").await?;
    ensure!(condition(&ended, "Failed").is_none(), "{}", ended["status"]);
    ensure!(ended["status"]["resourceVersion"].as_str().is_some_and(|version| !version.is_empty()), "{ended}");
    let lists: Vec<_> = faults.requests().into_iter().filter(|request| is_list(&request.call)).collect();
    ensure!(lists.len() > 3 && lists[0].status != Some(200) && lists[1].status != Some(200), "{lists:?}");
    manager.stop().await?;
    Ok(())
}
