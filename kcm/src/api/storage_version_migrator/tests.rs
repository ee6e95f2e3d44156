//! Tables for decisions about migrations and definitions.

use std::sync::Arc;

use kinds::envelope::{ApiStatus, ContinueToken};
use kinds::schema::{object_meta, storage_version_migration as f};
use kinds::wire::Put;
use kinds::{Decode, Kind, Resource, Sections, StorageVersionMigration, Time};
use runtime::discovery::Verbs;
use runtime::write::WriteError;
use serde_json::{Value, json};

use super::crd::{Step, applied};
use super::decide::{
    Absence, ListFailure, PatchResult, classify, failed_message, is_migratable, is_new, latest_version_error,
    list_failure, may_be_served_later, next_migrations, read_version, resource_name, running_message,
};
use super::{start_of, true_condition};
use crate::context::Start;
use crate::flags::{Invocation, Options, parse};

/// Returns a migration with this name, creation time and conditions.
fn migration(name: &str, created: i64, conditions: &[&str]) -> Arc<StorageVersionMigration> {
    let mut object = Vec::new();
    object.put_message(f::METADATA, |meta| {
        meta.put_str(object_meta::NAME, name);
        meta.put_str(object_meta::RESOURCE_VERSION, "1");
        Time(created).put(meta, object_meta::CREATION_TIMESTAMP);
    });
    let decode = Decode { interner: Arc::default(), sections: Sections::default() };
    let mut migration = StorageVersionMigration::decode(&decode, &object).expect("well-formed");
    for kind in conditions {
        migration.set_condition(true_condition(kind, "", String::new(), Time(1)));
    }
    Arc::new(migration)
}

fn options(flags: &[&str]) -> Options {
    match parse(flags.iter().map(|flag| (*flag).to_owned())) {
        Ok(Invocation::Run(options)) => *options,
        other => panic!("{other:?}"),
    }
}

#[test]
fn migrator_requires_its_gates_and_the_garbage_collector() {
    let no_collector = "--enable-garbage-collector=false";
    for gate in ["StorageVersionMigrator", "InformerResourceVersion"] {
        let off = format!("--feature-gates={gate}=false");
        let start = start_of(&options(&[no_collector, &off])).expect("it is not needed");
        assert!(matches!(start, Start::Skip(_)), "{gate}");
    }
    assert_eq!(start_of(&options(&[])).expect("both are on"), Start::Run);
    let error = start_of(&options(&[no_collector])).expect_err("no garbage collector").to_string();
    assert!(error.starts_with(no_collector) && error.contains("-storage-version-migrator-controller"), "{error}");
}

#[test]
fn oldest_migration_of_a_resource_runs_alone() {
    let running = || migration("running", 5, &["Running"]);
    let ended = || migration("ended", 1, &["Running", "Succeeded"]);
    let failed = || migration("failed", 1, &["Running", "Failed"]);
    let completed = || migration("completed", 1, &["Succeeded"]);
    let (a, b, old) = (|| migration("a", 3, &[]), || migration("b", 3, &[]), || migration("z", 2, &[]));
    for (name, migrations, expected_ended, expected_next) in [
        ("none", vec![], &[][..], None),
        ("one", vec![a()], &[], Some("a")),
        ("same age", vec![b(), a()], &[], Some("a")),
        ("older", vec![a(), old()], &[], Some("z")),
        ("one runs", vec![a(), running(), old()], &[], None),
        ("one has ended", vec![ended(), a()], &["ended"], Some("a")),
        ("one has failed", vec![a(), failed()], &["failed"], Some("a")),
        ("one has completed", vec![completed(), a()], &[], Some("a")),
        ("one has ended, one runs", vec![ended(), running(), a()], &["ended"], None),
    ] {
        let found = next_migrations(migrations);
        let ended: Vec<&str> = found.ended.iter().map(|migration| &*migration.meta.name).collect();
        assert_eq!(ended, expected_ended, "{name}");
        assert_eq!(found.next.as_ref().map(|migration| &*migration.meta.name), expected_next, "{name}");
    }
}

#[test]
fn messages_count_the_objects_that_are_not_migrated_yet() {
    for (objects, transient, expected) in [
        (None, None, "The migration is running"),
        (Some((0, 0)), None, "The migration is running"),
        (Some((0, 3)), None, "The migration is running, 3 objects verified migrated"),
        (Some((1, 2)), None, "The migration is running, 1/2 objects not yet migrated"),
        (Some((1, 2)), Some("busy"), "The migration is running, 1/2 objects not yet migrated; transient error: busy"),
    ] {
        assert_eq!(running_message(objects, transient), expected);
    }
    let failed = failed_message(Some((1, 2)), "fatal error");
    assert_eq!(failed, "1/2 not yet migrated. migration encountered unhandled error: fatal error");
    assert_eq!(failed_message(None, "e"), "migration encountered unhandled error: e");
    assert!(failed_message(Some((1, 2)), &"ö".repeat(100_000)).len() < 5000);
}

#[test]
fn versions_are_numbers_without_leading_zeros() {
    for (text, expected) in [("1", Some(1)), ("100", Some(100)), ("18446744073709551615", Some(u64::MAX))] {
        assert_eq!(read_version(text).ok(), expected, "{text}");
    }
    for text in ["", "0", "01", "abcde", "+1", "-1", "1.0", "18446744073709551616"] {
        assert_eq!(read_version(text), Err(format!("resource version is not well formed: {text}")));
    }
}

#[test]
fn missing_resource_is_awaited_in_the_first_minute() {
    for (age, expected) in [(-5, true), (0, true), (59, true), (60, false), (3600, false)] {
        assert_eq!(is_new(Time(10_000 - age), Time(10_000)), expected, "{age}");
    }
    let pods = Resource { group: "", version: "v1", kind: "Pod", plural: "pods", namespaced: true };
    assert_eq!(resource_name(&pods), "/v1, Resource=pods");
}

#[test]
fn error_of_the_first_list_names_the_resource() {
    let status = ApiStatus { code: 503, message: "too busy".to_owned(), ..ApiStatus::default() };
    let error = latest_version_error("apps/v1, Resource=deployments", WriteError::Refused(status));
    let expected = "error getting latest resourceVersion for apps/v1, Resource=deployments: ";
    assert!(error.message.starts_with(expected) && error.message.contains("too busy"), "{}", error.message);
    assert!(!error.terminal);
}

#[test]
fn migration_of_a_missing_resource_fails_after_ten_minutes_while_its_group_is_unavailable() {
    for (name, age, absent, is_unavailable, expected) in [
        ("new", 59, 59, false, true),
        ("old", 60, 0, false, false),
        ("old, in an unavailable group", 9000, 0, true, true),
        ("shortly before the end", 9000, 599, true, true),
        ("for too long", 9000, 600, true, false),
        ("for too long, although new", 59, 600, true, true),
        ("missing since a future time", 9000, -5, true, true),
    ] {
        let now = Time(10_000);
        let absence = Absence { created: Time(now.0 - age), since: Time(now.0 - absent), is_unavailable };
        assert_eq!(may_be_served_later(absence, now), expected, "{name}");
    }
}

#[test]
fn object_that_another_client_changed_or_deleted_counts_as_migrated() {
    let refused = |code: u16, reason: &str| {
        Err(WriteError::Refused(ApiStatus { code, reason: reason.to_owned(), ..ApiStatus::default() }))
    };
    for (name, result, expected) in [
        ("done", Ok(()), PatchResult::Migrated),
        ("conflict", refused(409, "Conflict"), PatchResult::Migrated),
        ("deleted", refused(404, "NotFound"), PatchResult::Migrated),
        ("not served", refused(404, ""), PatchResult::Retry),
        ("too many requests", refused(429, "TooManyRequests"), PatchResult::Retry),
        ("webhook failed", refused(500, "InternalError"), PatchResult::Retry),
        ("unavailable", refused(503, "ServiceUnavailable"), PatchResult::Retry),
        ("server timeout", refused(500, "ServerTimeout"), PatchResult::Retry),
        ("gateway timeout", refused(504, "Timeout"), PatchResult::Retry),
        ("not leading", Err(WriteError::NotLeading), PatchResult::Retry),
        ("forbidden", refused(403, "Forbidden"), PatchResult::Fail),
        ("invalid", refused(422, "Invalid"), PatchResult::Fail),
    ] {
        assert_eq!(classify(&result), expected, "{name}");
    }
}

#[test]
fn list_continues_after_an_error_where_it_ended() {
    let refused = |code: u16, reason: &str, next: &str| {
        let reason = reason.to_owned();
        let next = ContinueToken::boxed(next);
        WriteError::Refused(ApiStatus { code, reason, next, ..ApiStatus::default() })
    };
    for (name, error, expected) in [
        ("expired", refused(410, "Expired", "t"), ListFailure::ContinueAt("t".to_owned())),
        ("expired without a token", refused(410, "Expired", ""), ListFailure::StartAgain),
        ("too many requests", refused(429, "TooManyRequests", ""), ListFailure::Retry),
        ("not served", refused(404, "", ""), ListFailure::Retry),
        ("not leading", WriteError::NotLeading, ListFailure::Retry),
        ("forbidden", refused(403, "Forbidden", ""), ListFailure::Fatal),
    ] {
        assert_eq!(list_failure(&error), expected, "{name}");
    }
}

fn definition(generation: i64, migrating: Option<i64>) -> Value {
    let condition = migrating
        .map(|generation| json!({"type": "StorageMigrating", "status": "True", "observedGeneration": generation}));
    json!({
        "metadata": {"name": "widgets.example.com", "resourceVersion": "7", "generation": generation},
        "spec": {"versions": [{"name": "v1", "storage": false}, {"name": "v2", "storage": true}]},
        "status": {"conditions": [condition], "storedVersions": ["v1", "v2"]},
    })
}

#[test]
fn stored_versions_are_removed_only_after_a_success_of_the_same_generation() {
    const UPDATED: &str = "The migration has succeeded and the stored versions have been updated";
    const MISMATCH: &str =
        "The migration has succeeded but the stored versions have not been updated due to a generation mismatch";
    for (name, definition, step, expected_stored, expected) in [
        ("begin", definition(1, None), Step::Begin("m"), json!(["v1", "v2"]), ("True", "Migration m is running")),
        (
            "begin again",
            definition(2, Some(1)),
            Step::Begin("m"),
            json!(["v1", "v2"]),
            ("True", "Migration m is running"),
        ),
        ("success", definition(1, Some(1)), Step::Succeeded, json!(["v2"]), ("False", UPDATED)),
        ("changed since", definition(2, Some(1)), Step::Succeeded, json!(["v1", "v2"]), ("False", MISMATCH)),
        ("never marked", definition(1, None), Step::Succeeded, json!(["v1", "v2"]), ("False", MISMATCH)),
        ("failure", definition(1, Some(1)), Step::Failed, json!(["v1", "v2"]), ("False", "The migration has failed")),
    ] {
        let generation = definition["metadata"]["generation"].clone();
        let applied = applied(&definition, step, "2026-01-01T00:00:00Z");
        assert_eq!(applied["metadata"], json!({"name": "widgets.example.com", "resourceVersion": "7"}), "{name}");
        assert_eq!(applied["status"]["storedVersions"], expected_stored, "{name}");
        let condition = &applied["status"]["conditions"][0];
        assert_eq!((&condition["status"], &condition["message"]), (&json!(expected.0), &json!(expected.1)), "{name}");
        assert_eq!(condition["observedGeneration"], generation, "{name}");
    }
}

#[test]
fn resource_is_migratable_with_all_of_the_verbs_that_a_migration_needs() {
    let needed = [Verbs::UPDATE, Verbs::PATCH, Verbs::LIST];
    let all = needed.into_iter().fold(Verbs::GET, |verbs, verb| verbs | verb);
    assert!(is_migratable(all));
    for missing in needed {
        let others = needed.into_iter().filter(|verb| *verb != missing);
        assert!(!is_migratable(others.fold(Verbs::GET, |verbs, verb| verbs | verb)), "{missing:?}");
    }
}
