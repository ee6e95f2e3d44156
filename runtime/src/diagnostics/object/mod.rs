//! One object: what it waits for, what was last decided on it, who owns it and what it owns.

use std::sync::Arc;

use kinds::Resource;
use kinds::meta::{Meta, ObjectKey, OwnerRef, Uid};
use serde::Serialize;

use super::overview::{Decision, next_try, seconds};
use super::{Explainer, FinalizerOwner, Wanted, Watched};
use crate::queue::Waiting;
use crate::text::words;
use crate::watch::Source;

/// Dependents that are listed.
const LISTED: usize = 100;

/// What is known of an object.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    pub(super) component: &'static str,
    pub(super) leader: bool,
    pub(super) time: String,
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
    /// `null` when no watch shows it.
    pub(super) object: Option<Object>,
    /// What it waits for, the weightiest first.
    pub(super) waits_for: Vec<Wait>,
    /// What controllers that know its key do about it.
    pub(super) controllers: Vec<Course>,
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
    /// When its deletion was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) deletion: Option<String>,
    pub(super) finalizers: Vec<String>,
}

/// Something that the object waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Wait {
    pub(super) what: What,
    /// In words.
    pub(super) text: String,
    /// Who has to do something.
    pub(super) by: String,
}

/// The kinds of things that objects wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum What {
    /// Nobody here works.
    Leader,
    Finalizer,
    Quota,
    /// A right is missing.
    Permission,
    /// Admission said no.
    Admission,
    /// Some other failure.
    Error,
    /// A worker is at it for long.
    Worker,
    /// The store does not show yet what was written, or is not complete.
    Store,
    /// The garbage collector.
    Owner,
    Deadline,
    Queue,
}

/// What a controller does about the object.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Course {
    pub(super) controller: &'static str,
    /// Where its key is, in words.
    pub(super) state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next_look_in_seconds: Option<f64>,
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
    /// In words: whether it is there, and what of it.
    pub(super) state: String,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Dependents {
    pub(super) total: usize,
    /// Those that hold up a foreground deletion.
    pub(super) blocking: usize,
    /// The first hundred.
    pub(super) shown: Vec<Related>,
}

/// Whether a word means this resource: its kind, its plural, or that with its group.
fn means(resource: &Resource, word: &str) -> bool {
    let (name, group) = word.split_once('.').map_or((word, None), |(name, group)| (name, Some(group)));
    let named = name.eq_ignore_ascii_case(resource.kind) || name.eq_ignore_ascii_case(resource.plural);
    named && group.is_none_or(|group| group.eq_ignore_ascii_case(resource.group))
}

/// What an owner's reference has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Here,
    Going,
    /// Another object has its name.
    Another,
    Gone,
    /// Its kind is not watched here.
    Unknown,
}

/// Everything that [`waits`] decides on.
struct Facts<'a> {
    leads: bool,
    meta: Option<&'a Meta>,
    /// Whether the store of its kind is complete, and how many of that kind cannot be decoded.
    store: Option<(bool, usize)>,
    blocking: usize,
    dependents: usize,
    owners: &'a [(OwnerRef, Owner)],
    finalizers: &'a [FinalizerOwner],
    states: &'a [Facet],
}

/// What a controller's queue and journal say of the object.
#[derive(Debug, Clone, Default)]
struct Facet {
    controller: &'static str,
    ready: bool,
    working: Option<f64>,
    due: Option<f64>,
    error: Option<(String, bool)>,
    /// What it did before it began to wait for a store.
    waiting_for_cache: Option<String>,
}

/// A worker that takes longer than this for one key is told of.
const LONG: f64 = 10.0;

/// What an object waits for, in words: all policy, no IO.
fn waits(facts: &Facts<'_>) -> Vec<Wait> {
    let mut waits = Vec::new();
    let mut wait = |what, by: &str, text: String| waits.push(Wait { what, text, by: by.to_owned() });
    if !facts.leads {
        let text = "this process does not lead: ask the one that holds the Lease what it does".to_owned();
        wait(What::Leader, "the leader", text);
    }
    if let Some((complete, undecodable)) = facts.store {
        if !complete {
            wait(What::Store, "the API server", "the first list of its kind is not complete yet".to_owned());
        }
        if undecodable > 0 {
            let text = format!(
                "{undecodable} objects of its kind cannot be decoded (see the log); while that is so nothing of that kind is deleted as surplus"
            );
            wait(What::Store, "whoever wrote them", text);
        }
    }
    if let Some(meta) = facts.meta.filter(|meta| meta.is_deleting()) {
        for finalizer in &*meta.finalizers {
            let (by, when) = finalizer_owner(facts.finalizers, finalizer);
            let more = match &**finalizer {
                "foregroundDeletion" => format!("; {} dependents block it", facts.blocking),
                "orphan" => format!("; {} dependents are left", facts.dependents),
                _ => String::new(),
            };
            wait(
                What::Finalizer,
                &by,
                format!("its deletion waits for the finalizer {finalizer}, which is removed {when}{more}"),
            );
        }
        if meta.finalizers.is_empty() {
            let text = "it is being deleted and no finalizer holds it: what is left is its grace period, or the kubelet's word that its containers have ended".to_owned();
            wait(What::Deadline, "the kubelet or the API server", text);
        }
    }
    for facet in facts.states {
        let by = facet.controller;
        if let Some((error, dropped)) = &facet.error {
            let (what, hint) = cause(error);
            let next = match (dropped, facet.due) {
                (true, _) => "not tried again until something changes".to_owned(),
                (false, Some(due)) => format!("tried again in {}", words(due)),
                (false, None) => "tried again now".to_owned(),
            };
            wait(what, hint.unwrap_or(by), format!("{by} fails: {error} ({next})"));
        } else if let Some(waiting_for_cache) = &facet.waiting_for_cache {
            wait(What::Store, by, format!("{by} waits for its store to show what was written: {waiting_for_cache}"));
        } else if let Some(due) = facet.due {
            let text = format!("{by} looks at it again in {}, at a deadline or to see how something went", words(due));
            wait(What::Deadline, by, text);
        }
        if facet.working.is_some_and(|working| working > LONG) {
            let working = words(facet.working.unwrap_or_default());
            wait(What::Worker, by, format!("a worker of {by} has been at it for {working}"));
        }
        if facet.ready {
            wait(What::Queue, by, format!("its key waits for a worker of {by}"));
        }
    }
    for (owner, state) in facts.owners {
        if matches!(state, Owner::Gone | Owner::Another) {
            let text = format!(
                "its owner {} {} (uid {}) is gone: it is deleted, or loses that reference",
                owner.kind, owner.name, owner.uid
            );
            wait(What::Owner, "the garbage collector", text);
        }
    }
    waits.sort_by_key(|wait| wait.what);
    waits
}

/// Returns the program that removes a finalizer, and the condition. The owner of an unknown one is named by its domain.
fn finalizer_owner(known: &[FinalizerOwner], finalizer: &str) -> (String, String) {
    if let Some(owner) = known.iter().find(|owner| owner.matches(finalizer)) {
        return (owner.by.to_owned(), owner.condition.to_owned());
    }
    let domain = finalizer.split_once('/').map_or(finalizer, |(domain, _)| domain);
    let condition =
        "once the program that added it has cleaned up; if that program no longer runs, it is never removed";
    (format!("the program that added it ({domain})"), condition.to_owned())
}

/// What kind of thing an error is, by the API server's words, and who can do something about it.
fn cause(error: &str) -> (What, Option<&'static str>) {
    if error.contains("exceeded quota") {
        (What::Quota, Some("whoever sets the namespace's ResourceQuota"))
    } else if error.contains("admission webhook")
        || error.contains("denied the request")
        || error.contains("denied request")
    {
        (What::Admission, Some("whoever set up that admission"))
    } else if error.contains("is forbidden: User") || error.contains(" cannot ") && error.contains("forbidden") {
        (What::Permission, Some("whoever gives roles"))
    } else {
        (What::Error, None)
    }
}

impl Explainer {
    pub(super) fn object(&self, wanted: &Wanted) -> Report {
        let sources = self.all_sources();
        let key = |source: &Arc<dyn Source>| {
            let namespaced = source.resource().namespaced;
            ObjectKey::new(if namespaced { &*wanted.namespace } else { "" }, &*wanted.name)
        };
        let of_kind: Vec<_> = sources.iter().filter(|source| means(&source.resource(), &wanted.kind)).collect();
        let found = of_kind.iter().find_map(|source| Some((*source, source.meta(&key(source))?)));
        let source = found.as_ref().map(|(source, _)| *source).or(of_kind.first().copied());
        let resource = source.map(|source| source.resource());
        let meta = found.as_ref().map(|(_, meta)| meta);
        let text = match source {
            Some(source) => key(source).to_string(),
            None => ObjectKey::new(&*wanted.namespace, &*wanted.name).to_string(),
        };
        let kind = resource.map_or(wanted.kind.as_str(), |resource| resource.kind);
        let courses = self.courses(kind, &text, meta.map(|meta| &meta.uid));
        let owners: Vec<(OwnerRef, Owner)> = meta
            .iter()
            .flat_map(|meta| meta.owners.iter().map(|owner| (owner.clone(), owner_state(&sources, meta, owner))))
            .collect();
        let dependents = meta.map(|meta| dependents(&sources, &meta.uid)).unwrap_or_default();
        let leads = self.fence.is_leader();
        let (facets, controllers): (Vec<_>, Vec<_>) = courses.into_iter().unzip();
        let waits_for = waits(&Facts {
            leads,
            meta,
            store: resource.and_then(|resource| self.store(&resource)),
            blocking: dependents.blocking,
            dependents: dependents.total,
            owners: &owners,
            finalizers: &self.finalizers,
            states: &facets,
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
                    state: told(&owner, state),
                })
                .collect(),
            dependents,
        }
    }

    /// Whether the first list of a kind is complete, and how many objects of it cannot be decoded.
    fn store(&self, resource: &Resource) -> Option<(bool, usize)> {
        let name = match resource.group {
            "" => resource.plural.to_owned(),
            group => format!("{}.{group}", resource.plural),
        };
        let store = self.stores.iter().find(|store| store.resource() == name)?;
        Some((store.is_synced(), store.undecodable()))
    }

    /// What each controller has to do with a key: those whose keys are of this kind, and those of which nobody knows
    /// what their keys are and that know this one.
    fn courses(&self, kind: &str, key: &str, uid: Option<&Uid>) -> Vec<(Facet, Course)> {
        let uid = uid.map(ToString::to_string);
        let of = |watched: &&Watched| self.kind_of(watched).is_none_or(|own| own == kind);
        let known = |watched: &Watched| {
            let keys = [Some(key), uid.as_deref().filter(|uid| !uid.is_empty())];
            let waiting = watched.queue.waiting();
            keys.into_iter().flatten().find_map(|key| course(watched, key, &waiting))
        };
        self.controllers.iter().filter(of).filter_map(known).collect()
    }
}

/// A controller's course on a key; `None` if it knows nothing of it.
fn course(watched: &Watched, key: &str, waiting: &[Waiting<String>]) -> Option<(Facet, Course)> {
    let journal = &watched.counts.journal;
    let (last, failure) = (journal.last(key), journal.failure(key));
    let queued = waiting.iter().find(|waiting| waiting.key == key);
    if last.is_none() && failure.is_none() && queued.is_none() {
        return None;
    }
    let next = next_try(waiting, key);
    let waiting_for_cache = last.as_ref().filter(|last| last.is_waiting_for_cache()).map(|last| last.did.to_string());
    let facet = Facet {
        controller: watched.name,
        ready: queued.is_some_and(|queued| queued.ready),
        working: queued.and_then(|queued| queued.working).map(|working| working.as_secs_f64()),
        due: queued.and_then(|queued| queued.due).map(|due| due.as_secs_f64()),
        error: failure.as_ref().map(|failure| (failure.error.to_string(), failure.dropped)),
        waiting_for_cache: waiting_for_cache.filter(|_| queued.is_none_or(|queued| !queued.ready)),
    };
    let state = match (&facet, &failure) {
        (Facet { working: Some(working), .. }, _) => format!("worked on for {}", words(*working)),
        (Facet { ready: true, .. }, _) => "waits for a worker".to_owned(),
        (Facet { waiting_for_cache: Some(_), .. }, _) => "waits for a store".to_owned(),
        (Facet { due: Some(due), .. }, Some(failure)) => {
            format!("failed {} times in a row; tried again in {}", failure.times, words(*due))
        }
        (Facet { due: Some(due), .. }, None) => format!("looked at again in {}", words(*due)),
        (_, Some(_)) => "failed; not tried again until something changes".to_owned(),
        _ => "nothing to do until something changes".to_owned(),
    };
    let course = Course {
        controller: watched.name,
        state,
        next_look_in_seconds: next,
        last_decision: last.map(Decision::from),
        error: failure.map(|failure| failure.error.into()),
    };
    Some((facet, course))
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

/// The owner's namespace: the dependent's, or none.
fn namespace_of(sources: &[Arc<dyn Source>], owner: &OwnerRef, namespace: &str) -> String {
    let namespaced = source_of(sources, owner).is_none_or(|source| source.resource().namespaced);
    if namespaced { namespace.to_owned() } else { String::new() }
}

fn owner_state(sources: &[Arc<dyn Source>], meta: &Meta, owner: &OwnerRef) -> Owner {
    let Some(source) = source_of(sources, owner) else { return Owner::Unknown };
    let namespace = if source.resource().namespaced { &*meta.namespace } else { "" };
    match source.meta(&ObjectKey::new(namespace, &*owner.name)) {
        Some(found) if found.uid != owner.uid => Owner::Another,
        Some(found) if found.is_deleting() => Owner::Going,
        Some(_) => Owner::Here,
        None if source.is_synced() => Owner::Gone,
        None => Owner::Unknown,
    }
}

fn told(owner: &OwnerRef, state: Owner) -> String {
    let role = if owner.controller == Some(true) { "its controller; " } else { "" };
    let state = match state {
        Owner::Here => "is there",
        Owner::Going => "is being deleted",
        Owner::Another => "is gone; another object has its name",
        Owner::Gone => "is gone",
        Owner::Unknown => "its kind is not watched here",
    };
    format!("{role}{state}")
}

/// Objects of all watched kinds that refer to a uid as their owner.
fn dependents(sources: &[Arc<dyn Source>], uid: &Uid) -> Dependents {
    let mut found = Dependents::default();
    for source in sources {
        let resource = source.resource();
        source.each(&mut |meta| {
            let Some(owner) = meta.owners.iter().find(|owner| owner.uid == *uid) else { return };
            found.total += 1;
            let blocks = owner.block_owner_deletion == Some(true);
            found.blocking += usize::from(blocks);
            if found.shown.len() < LISTED {
                let going = if meta.is_deleting() { "is being deleted" } else { "is there" };
                let blocking = if blocks { "; blocks the owner's foreground deletion" } else { "" };
                found.shown.push(Related {
                    kind: resource.kind.to_owned(),
                    namespace: meta.namespace.to_string(),
                    name: meta.name.to_string(),
                    state: format!("{going}{blocking}"),
                });
            }
        });
    }
    found.shown.sort_by(|a, b| (&a.kind, &a.namespace, &a.name).cmp(&(&b.kind, &b.namespace, &b.name)));
    found
}

#[cfg(test)]
mod tests;
