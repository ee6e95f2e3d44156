//! Reports about one object: what it waits for, the last decisions about it, its owners and its dependents.

use std::sync::Arc;

use kinds::Resource;
use kinds::meta::{Meta, ObjectKey, OwnerRef, Uid};
use serde::Serialize;

use super::overview::{Decision, next_try, seconds};
use super::{Explainer, FinalizerOwner, ObjectQuery, ReportedController};
use crate::queue::Waiting;
use crate::text::human_duration;
use crate::watch::Source;

/// Maximum number of listed dependents.
const MAX_LISTED: usize = 100;

/// The report about an object.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    pub(super) component: &'static str,
    pub(super) leader: bool,
    pub(super) time: String,
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
    /// The object; `null` if the cache does not contain it.
    pub(super) object: Option<Object>,
    /// The reasons to wait, the most important first.
    pub(super) waits_for: Vec<Wait>,
    /// The state of the object's key in each controller that has a key for it.
    pub(super) controllers: Vec<ControllerReport>,
    pub(super) owners: Vec<Related>,
    pub(super) dependents: Dependents,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Object {
    pub(super) api_version: String,
    pub(super) kind: &'static str,
    pub(super) uid: String,
    pub(super) resource_version: String,
    pub(super) generation: i64,
    pub(super) created: String,
    /// Time at which its deletion was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) deletion: Option<String>,
    pub(super) finalizers: Vec<String>,
}

/// A reason to wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Wait {
    pub(super) what: WaitKind,
    /// A human-readable sentence.
    pub(super) text: String,
    /// The program or person that has to act.
    pub(super) by: String,
}

/// The kind of a reason, the most important first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum WaitKind {
    /// This process does not lead.
    Leader,
    /// A finalizer blocks the deletion.
    Finalizer,
    /// A ResourceQuota is exhausted.
    Quota,
    /// A permission is missing.
    Permission,
    /// Admission refused a request.
    Admission,
    /// Some other failure.
    Error,
    /// A worker has been busy with the key for a long time.
    Worker,
    /// The cache does not contain the last write yet, its first list is not complete, or objects cannot be decoded.
    Store,
    /// The garbage collector has to act, because an owner no longer exists.
    Owner,
    /// A time has to pass, or containers have to terminate.
    Deadline,
    /// The key waits for a worker.
    Queue,
}

/// A controller's state for the object.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ControllerReport {
    pub(super) controller: &'static str,
    /// A sentence about the key's state.
    pub(super) state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next_try_in_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) last_decision: Option<Decision>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Related {
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
    /// A sentence about the related object's state.
    pub(super) state: String,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Dependents {
    pub(super) total: usize,
    /// Number of dependents that block a foreground deletion.
    pub(super) blocking: usize,
    /// At most a hundred dependents, sorted by kind, namespace and name.
    pub(super) shown: Vec<Related>,
}

/// Returns true if a word names this resource: its kind or its plural, with or without its group, in any case.
fn names_resource(resource: &Resource, word: &str) -> bool {
    let (name, group) = word.split_once('.').map_or((word, None), |(name, group)| (name, Some(group)));
    let named = name.eq_ignore_ascii_case(resource.kind) || name.eq_ignore_ascii_case(resource.plural);
    named && group.is_none_or(|group| group.eq_ignore_ascii_case(resource.group))
}

/// The state of an owner reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OwnerState {
    Exists,
    BeingDeleted,
    /// The owner was replaced by another object with the same name.
    Replaced,
    Deleted,
    /// The owner's newest state cannot be decoded, and no older one has the uid of the reference.
    Undecodable,
    /// Its kind is not watched, or the first list of its kind is not complete and lacks it.
    Unknown,
}

/// The input of [`waits`].
struct Facts<'a> {
    leads: bool,
    meta: Option<&'a Meta>,
    /// True if the first list of the object's kind is complete, and the number of undecodable objects; `None` if the
    /// kind has no typed store.
    store: Option<(bool, usize)>,
    /// The cache has an older state of the object, because the newest one cannot be decoded.
    is_stale: bool,
    /// Number of dependents that block a foreground deletion.
    blocking: usize,
    dependents: usize,
    owners: &'a [(OwnerRef, OwnerState)],
    finalizers: &'a [FinalizerOwner],
    states: &'a [KeyState],
}

/// The records of a controller's queue and journal about the object.
#[derive(Debug, Clone, Default)]
struct KeyState {
    controller: &'static str,
    /// The key waits for a worker, or was added again during its current run.
    ready: bool,
    /// Seconds since a worker started with the key.
    working: Option<f64>,
    /// Seconds until its next run.
    due: Option<f64>,
    /// The last error, and whether the key is retried only at the next change.
    error: Option<(String, bool)>,
    /// The notes of the last run, if the key waits for the cache since then.
    waiting_for_cache: Option<String>,
}

/// Seconds after which a worker that is busy with one key is reported.
const LONG_WORK_SECONDS: f64 = 10.0;

/// Returns the reasons why an object waits. A pure function.
fn waits(facts: &Facts<'_>) -> Vec<Wait> {
    let mut waits = Vec::new();
    let mut wait = |what, by: &str, text: String| waits.push(Wait { what, text, by: by.to_owned() });
    if !facts.leads {
        let text = "this process does not lead: request this page from the holder of the Lease".to_owned();
        wait(WaitKind::Leader, "the leader", text);
    }
    if let Some((complete, undecodable)) = facts.store {
        if !complete {
            wait(WaitKind::Store, "the API server", "the first list of its kind is not complete yet".to_owned());
        }
        if undecodable > 0 {
            let text = format!(
                "{undecodable} objects of its kind cannot be decoded (see the log); until they can, controllers delete no objects of that kind that seem surplus"
            );
            wait(WaitKind::Store, "the client that wrote them", text);
        }
    }
    if facts.is_stale {
        let text = "its newest state cannot be decoded (see the log): this page reports an older state, and a reconcile that reads that state deletes nothing in the object's namespace and no cluster-scoped object, or nothing at all if the object is cluster-scoped";
        wait(WaitKind::Store, "the client that wrote it", text.to_owned());
    }
    if let Some(meta) = facts.meta.filter(|meta| meta.is_deleting()) {
        deletion_waits(facts, meta, &mut wait);
    }
    for key_state in facts.states {
        key_waits(key_state, &mut wait);
    }
    for (owner, state) in facts.owners {
        if matches!(state, OwnerState::Deleted | OwnerState::Replaced) {
            let text = format!(
                "its owner {} {} (uid {}) no longer exists: the object will be deleted, or loses that reference",
                owner.kind, owner.name, owner.uid
            );
            wait(WaitKind::Owner, "the garbage collector", text);
        }
    }
    waits.sort_by_key(|wait| wait.what);
    waits
}

/// Adds the reasons why an object that is being deleted still exists.
fn deletion_waits(facts: &Facts<'_>, meta: &Meta, wait: &mut impl FnMut(WaitKind, &str, String)) {
    for finalizer in &*meta.finalizers {
        let (by, when) = finalizer_owner(facts.finalizers, finalizer);
        let more = match &**finalizer {
            "foregroundDeletion" => format!("; {} dependents block it", facts.blocking),
            "orphan" => format!("; {} dependents are left", facts.dependents),
            _ => String::new(),
        };
        wait(
            WaitKind::Finalizer,
            &by,
            format!("its deletion waits for the finalizer {finalizer}, which is removed {when}{more}"),
        );
    }
    if meta.finalizers.is_empty() {
        let text = "it is being deleted and has no finalizer: it waits for its grace period, or for the kubelet to report that its containers have terminated".to_owned();
        wait(WaitKind::Deadline, "the kubelet or the API server", text);
    }
}

/// Adds the reasons why a controller has not reconciled an object.
fn key_waits(key_state: &KeyState, wait: &mut impl FnMut(WaitKind, &str, String)) {
    let by = key_state.controller;
    if let Some((error, dropped)) = &key_state.error {
        let (what, hint) = cause(error);
        let next = match (dropped, key_state.due) {
            (true, _) => "retried at the next change".to_owned(),
            (false, Some(due)) => format!("retried in {}", human_duration(due)),
            (false, None) => "retried now".to_owned(),
        };
        wait(what, hint.unwrap_or(by), format!("{by} fails: {error} ({next})"));
    } else if let Some(waiting_for_cache) = &key_state.waiting_for_cache {
        wait(WaitKind::Store, by, format!("{by} waits for the cache to contain its last write: {waiting_for_cache}"));
    } else if let Some(due) = key_state.due {
        let text = format!("{by} reconciles it again in {}, for a deadline or a check", human_duration(due));
        wait(WaitKind::Deadline, by, text);
    }
    if key_state.working.is_some_and(|working| working > LONG_WORK_SECONDS) {
        let working = human_duration(key_state.working.unwrap_or_default());
        wait(WaitKind::Worker, by, format!("a worker of {by} has been reconciling it for {working}"));
    }
    if key_state.ready && key_state.working.is_none() {
        wait(WaitKind::Queue, by, format!("its key waits for a worker of {by}"));
    }
}

/// Returns the program that removes a finalizer, and the condition. For an unknown finalizer, the program is named by
/// the finalizer's domain.
fn finalizer_owner(known: &[FinalizerOwner], finalizer: &str) -> (String, String) {
    if let Some(owner) = known.iter().find(|owner| owner.matches(finalizer)) {
        return (owner.by.to_owned(), owner.condition.to_owned());
    }
    let domain = finalizer.split_once('/').map_or(finalizer, |(domain, _)| domain);
    let condition =
        "once the program that added it has cleaned up; if that program no longer runs, it is never removed";
    (format!("the program that added it ({domain})"), condition.to_owned())
}

/// Returns the kind of an error, by the API server's message, and the role that can fix it.
fn cause(error: &str) -> (WaitKind, Option<&'static str>) {
    if error.contains("exceeded quota") {
        (WaitKind::Quota, Some("the administrator of the namespace's ResourceQuota"))
    } else if error.contains("admission webhook")
        || error.contains("denied the request")
        || error.contains("denied request")
    {
        (WaitKind::Admission, Some("the administrator of that admission webhook or policy"))
    } else if error.contains("is forbidden: User") || error.contains(" cannot ") && error.contains("forbidden") {
        (WaitKind::Permission, Some("the administrator of RBAC"))
    } else {
        (WaitKind::Error, None)
    }
}

impl Explainer {
    pub(super) fn object(&self, wanted: &ObjectQuery) -> Report {
        let sources = self.all_sources();
        let key = |source: &Arc<dyn Source>| {
            let namespaced = source.resource().namespaced;
            ObjectKey::new(if namespaced { &*wanted.namespace } else { "" }, &*wanted.name)
        };
        let of_kind: Vec<_> =
            sources.iter().filter(|source| names_resource(&source.resource(), &wanted.kind)).collect();
        let found = of_kind.iter().find_map(|source| Some((*source, source.meta(&key(source))?)));
        let source = found.as_ref().map(|(source, _)| *source).or(of_kind.first().copied());
        let resource = source.map(|source| source.resource());
        let meta = found.as_ref().map(|(_, meta)| meta);
        let text = match source {
            Some(source) => key(source).to_string(),
            None => ObjectKey::new(&*wanted.namespace, &*wanted.name).to_string(),
        };
        let kind = resource.map_or(wanted.kind.as_str(), |resource| resource.kind);
        let reports = self.reports(kind, &text, meta.map(|meta| &meta.uid));
        let owners: Vec<(OwnerRef, OwnerState)> = meta
            .iter()
            .flat_map(|meta| meta.owners.iter().map(|owner| (owner.clone(), owner_state(&sources, meta, owner))))
            .collect();
        let dependents = meta.map(|meta| dependents(&sources, &meta.uid)).unwrap_or_default();
        let leads = self.fence.is_leader();
        let (key_states, controllers): (Vec<_>, Vec<_>) = reports.into_iter().unzip();
        let waits_for = waits(&Facts {
            leads,
            meta,
            store: resource.and_then(|resource| self.store(&resource)),
            is_stale: source.is_some_and(|source| source.is_stale(&key(source))),
            blocking: dependents.blocking,
            dependents: dependents.total,
            owners: &owners,
            finalizers: &self.finalizers,
            states: &key_states,
        });
        Report {
            component: self.component,
            leader: leads,
            time: seconds(jiff::Timestamp::now()),
            kind: kind.to_owned(),
            namespace: resource
                .filter(|resource| !resource.namespaced)
                .map_or(wanted.namespace.clone(), |_| String::new()),
            name: wanted.name.clone(),
            object: meta.zip(resource).map(|(meta, resource)| object(meta, &resource)),
            waits_for,
            controllers,
            owners: owners
                .into_iter()
                .map(|(owner, state)| Related {
                    namespace: namespace_of(&sources, &owner, &wanted.namespace),
                    kind: owner.kind.to_string(),
                    name: owner.name.to_string(),
                    state: owner_summary(&owner, state),
                })
                .collect(),
            dependents,
        }
    }

    /// Returns true if the first list of a kind is complete, and the number of its undecodable objects; `None` if the
    /// kind has no typed store.
    fn store(&self, resource: &Resource) -> Option<(bool, usize)> {
        let name = resource.qualified();
        let store = self.stores.iter().find(|store| store.resource() == name)?;
        Some((store.is_synced(), store.undecodable()))
    }

    /// Returns the state of a key in each controller that has a record of it. Controllers whose keys are of another
    /// kind are left out.
    fn reports(&self, kind: &str, key: &str, uid: Option<&Uid>) -> Vec<(KeyState, ControllerReport)> {
        let uid = uid.map(ToString::to_string);
        let may_have_key = |watched: &&ReportedController| self.kind_of(watched).is_none_or(|own| own == kind);
        let state = |watched: &ReportedController| {
            let keys = [Some(key), uid.as_deref().filter(|uid| !uid.is_empty())];
            let waiting = watched.queue.waiting();
            keys.into_iter().flatten().find_map(|key| report(watched, key, &waiting))
        };
        self.controllers.iter().filter(may_have_key).filter_map(state).collect()
    }
}

/// Returns a controller's state for a key; `None` if it has no record of it.
fn report(
    watched: &ReportedController,
    key: &str,
    waiting: &[Waiting<String>],
) -> Option<(KeyState, ControllerReport)> {
    let journal = &watched.counts.journal;
    let (last, failure) = (journal.last(key), journal.failure(key));
    let queued = waiting.iter().find(|waiting| waiting.key == key);
    if last.is_none() && failure.is_none() && queued.is_none() {
        return None;
    }
    let next = next_try(waiting, key);
    let waiting_for_cache = last.as_ref().filter(|last| last.is_waiting_for_cache()).map(|last| last.did.to_string());
    let key_state = KeyState {
        controller: watched.name,
        ready: queued.is_some_and(|queued| queued.ready),
        working: queued.and_then(|queued| queued.working).map(|working| working.as_secs_f64()),
        due: queued.and_then(|queued| queued.due).map(|due| due.as_secs_f64()),
        error: failure.as_ref().map(|failure| (failure.error.to_string(), failure.dropped)),
        waiting_for_cache: waiting_for_cache.filter(|_| queued.is_none_or(|queued| !queued.ready)),
    };
    let state = match (&key_state, &failure) {
        (KeyState { working: Some(working), .. }, _) => format!("being reconciled for {}", human_duration(*working)),
        (KeyState { ready: true, .. }, _) => "waits for a worker".to_owned(),
        (KeyState { waiting_for_cache: Some(_), .. }, _) => "waits for the cache".to_owned(),
        (KeyState { due: Some(due), .. }, Some(failure)) => {
            format!("failed {} times in a row; retried in {}", failure.times, human_duration(*due))
        }
        (KeyState { due: Some(due), .. }, None) => format!("requeued in {}", human_duration(*due)),
        (_, Some(_)) => "failed; retried at the next change".to_owned(),
        _ => "idle until the next change".to_owned(),
    };
    let report = ControllerReport {
        controller: watched.name,
        state,
        next_try_in_seconds: next,
        last_decision: last.map(Decision::from),
        error: failure.map(|failure| failure.error.into()),
    };
    Some((key_state, report))
}

fn object(meta: &Meta, resource: &Resource) -> Object {
    Object {
        api_version: resource.api_version(),
        kind: resource.kind,
        uid: meta.uid.to_string(),
        resource_version: meta.version.to_string(),
        generation: meta.generation,
        created: date(meta.created.0),
        deletion: meta.is_deleting().then(|| date(meta.deletion.0)),
        finalizers: meta.finalizers.iter().map(ToString::to_string).collect(),
    }
}

fn date(second: i64) -> String {
    jiff::Timestamp::from_second(second).map(seconds).unwrap_or_default()
}

fn source_of<'a>(sources: &'a [Arc<dyn Source>], owner: &OwnerRef) -> Option<&'a Arc<dyn Source>> {
    let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
    sources.iter().find(|source| {
        let resource = source.resource();
        *resource.kind == *owner.kind && *resource.group == *group
    })
}

/// Returns the owner's namespace: the dependent's, or an empty one if the owner is cluster-scoped.
fn namespace_of(sources: &[Arc<dyn Source>], owner: &OwnerRef, namespace: &str) -> String {
    let namespaced = source_of(sources, owner).is_none_or(|source| source.resource().namespaced);
    if namespaced { namespace.to_owned() } else { String::new() }
}

fn owner_state(sources: &[Arc<dyn Source>], meta: &Meta, owner: &OwnerRef) -> OwnerState {
    let Some(source) = source_of(sources, owner) else { return OwnerState::Unknown };
    let namespace = if source.resource().namespaced { &*meta.namespace } else { "" };
    let key = ObjectKey::new(namespace, &*owner.name);
    // Read first: an object that becomes decodable has its record before it is removed from the undecodable ones.
    let is_undecodable = source.is_undecodable(&key);
    match source.meta(&key) {
        Some(found) if found.uid == owner.uid && found.is_deleting() => OwnerState::BeingDeleted,
        Some(found) if found.uid == owner.uid => OwnerState::Exists,
        _ if is_undecodable => OwnerState::Undecodable,
        Some(_) => OwnerState::Replaced,
        None if source.is_synced() => OwnerState::Deleted,
        None => OwnerState::Unknown,
    }
}

fn owner_summary(owner: &OwnerRef, state: OwnerState) -> String {
    let role = if owner.controller == Some(true) { "its controller; " } else { "" };
    let state = match state {
        OwnerState::Exists => "exists",
        OwnerState::BeingDeleted => "is being deleted",
        OwnerState::Replaced => "replaced by another object with the same name",
        OwnerState::Deleted => "no longer exists",
        OwnerState::Undecodable => "cannot be decoded (see the log)",
        OwnerState::Unknown => "its kind is not watched, or the first list of its kind is not complete",
    };
    format!("{role}{state}")
}

/// Returns the objects of all watched kinds that refer to a uid as their owner.
fn dependents(sources: &[Arc<dyn Source>], uid: &Uid) -> Dependents {
    let mut found = Dependents::default();
    for source in sources {
        let resource = source.resource();
        source.each(&mut |meta| {
            let Some(owner) = meta.owners.iter().find(|owner| owner.uid == *uid) else { return };
            found.total += 1;
            let blocks = owner.block_owner_deletion == Some(true);
            found.blocking += usize::from(blocks);
            if found.shown.len() < MAX_LISTED {
                let state = if meta.is_deleting() { "is being deleted" } else { "exists" };
                let blocking = if blocks { "; blocks the owner's foreground deletion" } else { "" };
                found.shown.push(Related {
                    kind: resource.kind.to_owned(),
                    namespace: meta.namespace.to_string(),
                    name: meta.name.to_string(),
                    state: format!("{state}{blocking}"),
                });
            }
        });
    }
    found.shown.sort_by(|a, b| (&a.kind, &a.namespace, &a.name).cmp(&(&b.kind, &b.namespace, &b.name)));
    found
}

#[cfg(test)]
mod tests;
