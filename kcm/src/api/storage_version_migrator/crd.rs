//! The definition (CustomResourceDefinition) of a resource during a migration: its condition, and its stored versions.

use kinds::Resource;
use kinds::meta::ObjectKey;
use runtime::write::{WriteError, Writer};
use serde_json::{Value, json};

use super::GroupResource;

/// The field manager of the applied fields.
const MANAGER: &str = "migration-runner-controller";

const DEFINITIONS: Resource = Resource {
    group: "apiextensions.k8s.io",
    version: "v1",
    kind: "CustomResourceDefinition",
    plural: "customresourcedefinitions",
    namespaced: false,
};

/// Type of the condition in a definition.
const CONDITION: &str = "StorageMigrating";

/// A step of a migration that is reported in the definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step<'a> {
    /// The migration with this name begins.
    Begin(&'a str),
    /// All objects are stored in the current version.
    Succeeded,
    /// Objects may be stored in an older version.
    Failed,
}

/// Reports a step in the definition of a resource, if the resource has one.
///
/// # Errors
/// When a request fails. It fails with a conflict if the definition changed since it was read: stored versions may be
/// removed only from an unchanged definition.
pub async fn report_step(
    writer: &Writer,
    resource: &GroupResource,
    step: Step<'_>,
    now: &str,
) -> Result<(), WriteError> {
    // Resources of the core group are never custom resources.
    if resource.group.is_empty() {
        return Ok(());
    }
    let key = ObjectKey::new("", format!("{}.{}", resource.resource, resource.group));
    let definition = match writer.get_json(&DEFINITIONS, &key).await {
        Err(error) if error.is_not_found() => return Ok(()),
        definition => definition?,
    };
    let applied = applied(&definition, step, now);
    match writer.apply(&DEFINITIONS, &key, Some("status"), MANAGER, &applied).await {
        Err(error) if !error.is_object_deleted() => Err(error),
        _ => Ok(()),
    }
}

/// Returns the fields to apply. The definition's resourceVersion makes the write fail if the definition has changed.
///
/// The stored versions are always included: the API server removes a field that its field manager no longer applies.
pub fn applied(definition: &Value, step: Step<'_>, now: &str) -> Value {
    let metadata = &definition["metadata"];
    let generation = &metadata["generation"];
    let conditions = definition["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let known = conditions.iter().find(|condition| condition["type"] == CONDITION);
    let is_same = known.is_some_and(|condition| condition["observedGeneration"] == *generation);
    let (status, reason, message) = match step {
        Step::Begin(name) => ("True", "MigrationRunning", format!("Migration {name} is running")),
        Step::Succeeded if is_same => (
            "False",
            "MigrationSucceeded",
            "The migration has succeeded and the stored versions have been updated".to_owned(),
        ),
        Step::Succeeded => (
            "False",
            "MigrationSucceeded",
            "The migration has succeeded but the stored versions have not been updated due to a generation mismatch"
                .to_owned(),
        ),
        Step::Failed => ("False", "MigrationFailed", "The migration has failed".to_owned()),
    };
    // Differs from upstream: after a failure objects may still be stored in an older version, which must stay listed.
    let only_version = (step == Step::Succeeded && is_same).then(|| storage_version(definition)).flatten();
    let stored =
        only_version.map_or_else(|| definition["status"]["storedVersions"].clone(), |version| json!([version]));
    let mut status = json!({"conditions": [{
        "type": CONDITION, "status": status, "lastTransitionTime": now, "reason": reason, "message": message,
        "observedGeneration": generation,
    }]});
    if stored.is_array() {
        status["storedVersions"] = stored;
    }
    json!({
        "apiVersion": DEFINITIONS.api_version(), "kind": DEFINITIONS.kind,
        "metadata": {"name": metadata["name"], "resourceVersion": metadata["resourceVersion"]},
        "status": status,
    })
}

fn storage_version(definition: &Value) -> Option<&Value> {
    let versions = definition["spec"]["versions"].as_array()?;
    versions.iter().find(|version| version["storage"] == true).map(|version| &version["name"])
}
