//! Decisions about migrations, without IO.

use std::sync::Arc;
use std::time::Duration;

use kinds::{Resource, StorageVersionMigration, Time};
use runtime::discovery::Verbs;
use runtime::worker::ReconcileError;
use runtime::write::WriteError;

/// Maximum time for which a new migration waits for a resource that is not served yet: the resource's definition may be
/// new, too.
const NEW_DEFINITION_WAIT: Duration = Duration::from_secs(60);

/// Maximum time for which a migration waits for a resource while a version of the resource's group is unavailable.
const UNAVAILABLE_GROUP_WAIT: Duration = Duration::from_secs(600);

/// Maximum bytes of an error in a message. The API accepts messages of up to 32 KiB.
const MAX_ERROR_BYTES: usize = 4096;

/// The migrations of one resource that need an action.
#[derive(Debug, Default)]
pub struct NextMigrations {
    /// Migrations that have ended, but whose condition `Running` is still True.
    pub ended: Vec<Arc<StorageVersionMigration>>,
    /// The next migration to run; `None` while one runs.
    pub next: Option<Arc<StorageVersionMigration>>,
}

/// Returns the migrations of a resource that need an action. The oldest one that has not ended runs next; migrations of
/// the same age run in the order of their names.
pub fn next_migrations(mut migrations: Vec<Arc<StorageVersionMigration>>) -> NextMigrations {
    migrations.sort_by(|a, b| a.meta.by_creation(&b.meta));
    let mut actions = NextMigrations::default();
    let mut is_running = false;
    for migration in migrations {
        match (migration.is_true("Running"), migration.is_terminal()) {
            (true, true) => actions.ended.push(migration),
            (true, false) => is_running = true,
            (false, true) => {}
            (false, false) if actions.next.is_none() => actions.next = Some(migration),
            (false, false) => {}
        }
    }
    actions.next = actions.next.filter(|_| !is_running);
    actions
}

/// Returns the message of the condition `Running`. `objects` are the numbers of objects that are not migrated yet and
/// of all objects of the resource, once they are known.
pub fn running_message(objects: Option<(usize, usize)>, transient: Option<&str>) -> String {
    let mut message = "The migration is running".to_owned();
    match objects {
        Some((0, total)) if total > 0 => message += &format!(", {total} objects verified migrated"),
        Some((left, total)) if total > 0 => message += &format!(", {left}/{total} objects not yet migrated"),
        _ => {}
    }
    if let Some(error) = transient {
        message += &format!("; transient error: {}", shortened(error));
    }
    message
}

/// Returns the message of the condition `Failed`. `objects` are as in [`running_message`].
pub fn failed_message(objects: Option<(usize, usize)>, error: &str) -> String {
    let error = shortened(error);
    match objects {
        Some((left, total)) => {
            format!("{left}/{total} not yet migrated. migration encountered unhandled error: {error}")
        }
        None => format!("migration encountered unhandled error: {error}"),
    }
}

fn shortened(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_ERROR_BYTES)]
}

/// Returns true if a migration was created less than a minute ago.
pub fn is_new(created: Time, now: Time) -> bool {
    now.0.saturating_sub(created.0) < NEW_DEFINITION_WAIT.as_secs() as i64
}

/// The absence of a migration's resource from the API server.
#[derive(Debug, Clone, Copy)]
pub struct Absence {
    /// The time at which the migration was created.
    pub created: Time,
    /// The time since which discovery has not listed the resource.
    pub since: Time,
    /// A version of the resource's group is unavailable, and may have the resource.
    pub is_unavailable: bool,
}

/// Returns true if a resource that is not served may be served later. Otherwise its migration fails.
///
/// Differs from upstream: a migration survives an outage of an aggregated API server of up to ten minutes instead of
/// one.
pub fn may_be_served_later(absence: Absence, now: Time) -> bool {
    let seconds = now.0.saturating_sub(absence.since.0);
    let may_return = absence.is_unavailable && seconds < UNAVAILABLE_GROUP_WAIT.as_secs() as i64;
    may_return || is_new(absence.created, now)
}

/// Parses a resourceVersion: a number without leading zeros. Upstream: apimachinery/pkg/util/resourceversion.
pub fn read_version(text: &str) -> Result<u64, String> {
    let is_well_formed = !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit());
    let version = text.parse().ok().filter(|_| is_well_formed);
    version.ok_or_else(|| format!("resource version is not well formed: {}", shortened(text)))
}

/// Returns true if the objects of a resource with these verbs can be migrated.
pub fn is_migratable(verbs: Verbs) -> bool {
    verbs.contains(Verbs::UPDATE | Verbs::PATCH | Verbs::LIST)
}

/// Returns a resource in the format of upstream's messages. Upstream: apimachinery/pkg/runtime/schema,
/// GroupVersionResource.String.
pub fn resource_name(resource: &Resource) -> String {
    format!("{}/{}, Resource={}", resource.group, resource.version, resource.plural)
}

/// Returns the error of a reconcile that could not read the version at which a migration begins.
pub fn latest_version_error(resource: &str, error: WriteError) -> ReconcileError {
    let message = format!("error getting latest resourceVersion for {resource}: {error}");
    ReconcileError { message, ..error.into() }
}

/// The result of a patch of one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchResult {
    /// The object was stored again, by this patch or by another write since it was listed, or it was deleted.
    Migrated,
    /// The same patch may succeed later.
    Retry,
    /// A retry cannot succeed: the migration fails.
    Fail,
}

/// Classifies the result of a patch. Differs from upstream: a missing response never fails a migration, and a missing
/// resource does not count as a deleted object.
pub fn classify(result: &Result<(), WriteError>) -> PatchResult {
    let Err(error) = result else { return PatchResult::Migrated };
    if is_not_served(error) {
        return PatchResult::Retry;
    }
    if error.is_conflict() || error.is_not_found() {
        return PatchResult::Migrated;
    }
    if is_retriable(error) { PatchResult::Retry } else { PatchResult::Fail }
}

/// Returns true if the server does not serve the resource, for example while its definition is replaced. The body of
/// such a response is not a `Status`; the response about a missing object is one.
fn is_not_served(error: &WriteError) -> bool {
    matches!(error, WriteError::Refused(status) if status.code == 404 && status.reason.is_empty())
}

/// The way to continue a list after an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListFailure {
    /// A retry may succeed. Discovery decides whether the resource is still served.
    Retry,
    /// The token has expired; this new token lists the remaining objects, in a newer state of the server.
    ContinueAt(String),
    /// The token has expired, and the list cannot be continued.
    StartAgain,
    /// A retry cannot succeed.
    Fatal,
}

/// Classifies the error of a list. Upstream does not list: it waits forever for the garbage collector's cache.
pub fn list_failure(error: &WriteError) -> ListFailure {
    match error {
        WriteError::Refused(status) if status.code == 410 => {
            status.next.as_ref().map_or(ListFailure::StartAgain, |next| ListFailure::ContinueAt(next.0.clone()))
        }
        error if is_retriable(error) || error.is_not_found() => ListFailure::Retry,
        _ => ListFailure::Fatal,
    }
}

/// Returns true if a request may succeed later: it was not sent, the server is too busy or has failed, or there is no
/// readable response.
pub fn is_retriable(error: &WriteError) -> bool {
    match error {
        WriteError::Refused(status) => {
            matches!(status.code, 429 | 500 | 503 | 504)
                || matches!(&*status.reason, "ServerTimeout" | "Timeout" | "TooManyRequests" | "InternalError")
        }
        WriteError::InvalidName(_) | WriteError::InvalidRequest(_) => false,
        WriteError::NotLeading
        | WriteError::Stale(_)
        | WriteError::NotSent(_)
        | WriteError::Lost(_)
        | WriteError::TooLong(_)
        | WriteError::Unreadable(_) => true,
    }
}
