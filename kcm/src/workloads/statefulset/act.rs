//! Executes the steps of a plan: writes of pods and claims, and their events.

use std::sync::Mutex;

use kinds::meta::{ObjectKey, OwnerRef, Uid};
use kinds::pod_edit::repaired;
use kinds::template::Template;
use kinds::{Decode, Interner, Kind, PersistentVolumeClaim, Pod, Sections, StatefulSet};
use runtime::events::{EventType, about};
use runtime::lock::lock;
use runtime::slow_start::slow_start;
use runtime::worker::ReconcileError;
use runtime::write::WriteError;
use serde_json::{Map, Value};
use tokio::sync::OnceCell;

use super::decide::{Defects, Plan, PodRevision, Step};
use super::identity::{self, Member};
use super::pods;
use super::retention::{self, PossibleOwners, Verdict};
use super::state::StatefulSets;
use super::status::{Revisions, SyncProgress};
use crate::workloads::controller_revisions::{History, template_of};

/// The writes of one reconcile of a StatefulSet.
pub struct Work<'a> {
    pub controller: &'a StatefulSets,
    pub key: &'a ObjectKey,
    pub set: &'a StatefulSet,
    pub template: &'a Template,
    pub history: History<'a>,
    pub revisions: Revisions,
    /// The template of the current revision, once it is read.
    current_template: OnceCell<Map<String, Value>>,
    done: Mutex<SyncProgress>,
}

/// The action that an event about a pod reports.
#[derive(Debug, Clone, Copy)]
enum Verb {
    Create,
    Update,
    Delete,
}

impl Verb {
    /// Returns the verb, and the reasons of events of success and failure.
    fn texts(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Create => ("Create", "SuccessfulCreate", "FailedCreate"),
            Self::Update => ("Update", "SuccessfulUpdate", "FailedUpdate"),
            Self::Delete => ("Delete", "SuccessfulDelete", "FailedDelete"),
        }
    }
}

type Outcome = Result<(), ReconcileError>;

impl<'a> Work<'a> {
    pub fn new(
        controller: &'a StatefulSets,
        key: &'a ObjectKey,
        set: &'a StatefulSet,
        template: &'a Template,
        history: History<'a>,
        revisions: Revisions,
    ) -> Self {
        Self {
            controller,
            key,
            set,
            template,
            history,
            revisions,
            current_template: OnceCell::new(),
            done: Mutex::default(),
        }
    }

    /// Returns the changes so far.
    pub fn done(&self) -> SyncProgress {
        lock(&self.done).clone()
    }

    fn note(&self, note: impl FnOnce(&mut SyncProgress)) {
        note(&mut lock(&self.done));
    }

    /// Executes a plan, up to the first stage with a failure.
    pub async fn carry_out(&self, plan: Plan) -> Outcome {
        self.note(|done| {
            done.recreation = plan.recreation;
            done.waits_for = plan.waits_for;
        });
        for stage in plan.stages {
            if stage.concurrent {
                let (_, failure) = slow_start(stage.steps.len(), |at| self.step(&stage.steps[at])).await;
                failure.map_or(Ok(()), Err)?;
            } else {
                for step in &stage.steps {
                    self.step(step).await?;
                }
            }
        }
        Ok(())
    }

    async fn step(&self, step: &Step) -> Outcome {
        match step {
            Step::Create(ordinal, pod_revision) => self.create(*ordinal, *pod_revision).await,
            Step::Repair(member, defects) => self.repair(member, *defects).await,
            Step::Delete(pod) => self.delete(pod).await,
        }
    }

    fn record_pod_event(&self, verb: Verb, pod: &str, failure: Option<&str>) {
        let ((verb, successful, failed), set) = (verb.texts(), &self.set.meta.name);
        let (kind, reason, message) = match failure {
            None => (EventType::Normal, successful, format!("{verb} Pod {pod} in StatefulSet {set} successful")),
            Some(why) => {
                (EventType::Warning, failed, format!("{verb} Pod {pod} in StatefulSet {set} failed error: {why}"))
            }
        };
        self.controller.recorder.event(&about(self.set), kind, reason, message);
    }

    fn record_claim_event(&self, claim: &str, pod: &str, failure: Option<&WriteError>) {
        let set = &self.set.meta.name;
        let (kind, reason, message) = match failure {
            None => {
                let message = format!("Create Claim {claim} Pod {pod} in StatefulSet {set} success");
                (EventType::Normal, "SuccessfulCreate", message)
            }
            Some(why) => {
                let message = format!("Create Claim {claim} for Pod {pod} in StatefulSet {set} failed error: {why}");
                (EventType::Warning, "FailedCreate", message)
            }
        };
        self.controller.recorder.event(&about(self.set), kind, reason, message);
    }

    async fn create(&self, ordinal: i32, pod_revision: PodRevision) -> Outcome {
        let name = identity::pod_name(self.set, ordinal);
        if let Err(error) = self.make_claims(ordinal, &name).await {
            self.record_pod_event(Verb::Create, &name, Some(&error.message));
            return Err(error);
        }
        let created = self.post(ordinal, pod_revision).await;
        if let Err(WriteError::Refused(_)) = &created
            && created.as_ref().is_err_and(WriteError::is_already_exists)
        {
            // The pod belongs to this StatefulSet and is not in the cache yet, or it belongs to another owner. Neither
            // is recorded as an event.
            return Err(ReconcileError::new(format!("pod {name} already exists")));
        }
        let owned = self.own_claims(ordinal, &missing_pod(&name)).await;
        if let Err(error) = &owned {
            self.record_pod_event(Verb::Update, &name, Some(&error.message));
        }
        match created {
            Ok(revision) => {
                self.record_pod_event(Verb::Create, &name, None);
                self.note(|done| done.created.push(revision));
                owned
            }
            Err(error) if error.is_namespace_terminating() => {
                self.controller.gate.close(&self.key.namespace);
                Err(error.into())
            }
            Err(error) => {
                self.note_refusal(&error);
                self.record_pod_event(Verb::Create, &name, Some(&error.to_string()));
                Err(error.into())
            }
        }
    }

    /// Records that the API server refused a creation: further creations then have a backoff.
    fn note_refusal(&self, error: &WriteError) {
        if error.is_denied() {
            self.note(|done| done.refusal = Some(error.to_string()));
        }
    }

    /// Creates a pod. Returns the name of its revision.
    async fn post(&self, ordinal: i32, pod_revision: PodRevision) -> Result<kinds::Str, WriteError> {
        let Revisions { current, update, .. } = &self.revisions;
        let (writer, namespace) = (&self.controller.writer, &self.key.namespace);
        let (revision, response) = if pod_revision == PodRevision::Update || current == update {
            let body = pods::from_template(self.set, self.template, ordinal, update);
            (update, writer.create(&Pod::RESOURCE, namespace, &body, false).await?)
        } else {
            let template = self.current_template.get_or_try_init(|| self.read_current_template()).await?;
            let body = pods::from_previous(self.set, template, ordinal, current);
            (current, writer.create_json(&Pod::RESOURCE, namespace, &body).await?)
        };
        let version = response.meta()?.version;
        self.controller.consistency.wrote(self.key, &self.controller.pods, version);
        Ok(revision.clone())
    }

    async fn read_current_template(&self) -> Result<Map<String, Value>, WriteError> {
        let data = self.history.data(&self.revisions.current).await?;
        let unreadable =
            || kinds::DecodeError::field("data", "of the ControllerRevision is not a patch of a pod template");
        Ok(template_of(&data).ok_or_else(unreadable)?)
    }

    async fn repair(&self, member: &Member, defects: Defects) -> Outcome {
        let name = &member.pod.meta.name;
        if defects.claims {
            self.make_claims(member.ordinal, name).await?;
        }
        if (defects.owners || defects.conflict)
            && let Err(error) = self.own_claims(member.ordinal, &member.pod.controller_ref()).await
        {
            self.record_pod_event(Verb::Update, name, Some(&error.message));
            return Err(error);
        }
        if !defects.pod {
            return Ok(());
        }
        let put = self.put_identity(member).await;
        self.record_pod_event(Verb::Update, name, put.as_ref().err().map(|error| &*error.message));
        put
    }

    /// Sets the labels and volumes that a pod has because of its ordinal.
    async fn put_identity(&self, member: &Member) -> Outcome {
        let ordinal = member.ordinal;
        let key = member.pod.meta.key();
        let claims = identity::claims(self.set, ordinal);
        if !identity::has_storage(&member.pod, &claims) {
            self.make_claims(ordinal, &key.name).await?;
        }
        let writer = &self.controller.writer;
        let response = writer.get(&Pod::RESOURCE, &key).await?;
        if response.meta().map_err(WriteError::from)?.uid != member.pod.meta.uid {
            return Err(ReconcileError::new(format!("pod {key} was replaced by another one")));
        }
        let object = response.object().map_err(WriteError::from)?;
        let object = repaired(object, &identity::labels(self.set, ordinal), &claims)
            .map_err(|error| WriteError::Unreadable(error.into()))?;
        let response = writer.replace(&Pod::RESOURCE, &key, None, &object).await?;
        let version = response.meta().map_err(WriteError::from)?.version;
        self.controller.consistency.wrote(self.key, &self.controller.pods, version);
        Ok(())
    }

    async fn delete(&self, pod: &Pod) -> Outcome {
        let unreadable = self.controller.pods.undecodable_in(&self.key.namespace);
        if unreadable > 0 {
            let message = format!("not deleting pods while {unreadable} pods cannot be decoded (see the log)");
            return Err(ReconcileError::new(message));
        }
        let (consistency, uid) = (&self.controller.consistency, &pod.meta.uid);
        consistency.deleting(self.key, &Pod::RESOURCE, &pod.meta);
        match self.controller.writer.delete(&Pod::RESOURCE, &pod.meta.key(), uid).await {
            Err(error) if !error.is_object_deleted() => {
                // The deletion may be repeated, because the UID is its precondition.
                consistency.not_deleting(self.key, uid);
                self.record_pod_event(Verb::Delete, &pod.meta.name, Some(&error.to_string()));
                Err(error.into())
            }
            _ => {
                self.note(|done| {
                    done.deleted.insert(uid.clone());
                });
                self.record_pod_event(Verb::Delete, &pod.meta.name, None);
                Ok(())
            }
        }
    }

    fn claim_key(&self, claim: &str) -> ObjectKey {
        ObjectKey::new(self.key.namespace.clone(), claim)
    }

    /// Creates the missing claims of an ordinal. Upstream: pkg/controller/statefulset, createPersistentVolumeClaims.
    async fn make_claims(&self, ordinal: i32, pod: &str) -> Outcome {
        let mut failures = Vec::new();
        for template in self.set.claim_templates() {
            let name = identity::claim_name(self.set, template.name, ordinal);
            let key = self.claim_key(&name);
            match self.controller.claims.get(&key) {
                Some(claim) if claim.meta.is_deleting() => failures.push(format!("pvc {name} is being deleted")),
                Some(_) => {}
                None => {
                    let owner = retention::first_owner(self.set.retention, self.history.reference)
                        .filter(|_| !template.has_controller());
                    let body = self.set.claim(&template, &key, owner.as_slice());
                    let resource = &PersistentVolumeClaim::RESOURCE;
                    let created = self.controller.writer.create(resource, &key.namespace, &body, false).await;
                    match created.and_then(|response| response.meta().map_err(WriteError::from)) {
                        Ok(meta) => {
                            self.controller.consistency.wrote(self.key, &self.controller.claims, meta.version);
                            self.record_claim_event(&name, pod, None);
                        }
                        Err(error) => {
                            if error.is_namespace_terminating() {
                                self.controller.gate.close(&self.key.namespace);
                            } else if !error.is_already_exists() {
                                self.note_refusal(&error);
                                self.record_claim_event(&name, pod, Some(&error));
                            }
                            failures.push(format!("failed to create PVC {name}: {error}"));
                            // Differs from upstream: no further claim is created, because the API server would refuse
                            // it, too.
                            if error.is_denied() && !error.is_already_exists() {
                                break;
                            }
                        }
                    }
                }
            }
        }
        match &*failures {
            [] => Ok(()),
            [one] => Err(ReconcileError::new(one)),
            all => Err(ReconcileError::new(format!("[{}]", all.join(", ")))),
        }
    }

    fn verdict(&self, claim: &PersistentVolumeClaim, ordinal: i32, pod: &OwnerRef) -> Verdict {
        let parties = PossibleOwners {
            policy: self.set.retention,
            set: self.history.reference,
            pod,
            wanted: identity::is_wanted(self.set, ordinal),
        };
        retention::decide(&claim.meta, &parties)
    }

    /// Sets the owners of an ordinal's claims by the retention policy. Upstream: pkg/controller/statefulset,
    /// UpdatePodClaimForRetentionPolicy.
    async fn own_claims(&self, ordinal: i32, pod: &OwnerRef) -> Outcome {
        for (_, name) in identity::claims(self.set, ordinal) {
            let Some(claim) = self.controller.claims.get(&self.claim_key(&name)) else { continue };
            let verdict = self.verdict(&claim, ordinal, pod);
            if verdict.foreign {
                let message = format!(
                    "PersistentVolumeClaim {name} has a conflicting OwnerReference that acts as a manging controller, \
                     the retention policy is ignored for this claim"
                );
                self.controller.recorder.event(&about(self.set), EventType::Warning, "ConflictingController", message);
            }
            if verdict.owners.is_some() {
                self.put_owners(&name, ordinal, pod).await.map_err(|error| {
                    let message = format!("could not update claim {name} for delete policy ownerRefs: {error}");
                    ReconcileError { message, ..ReconcileError::from(error) }
                })?;
            }
        }
        Ok(())
    }

    /// Reads the claim from the API server, decides again, and writes its owners.
    async fn put_owners(&self, claim: &str, ordinal: i32, pod: &OwnerRef) -> Result<(), WriteError> {
        let (resource, key, writer) =
            (&PersistentVolumeClaim::RESOURCE, self.claim_key(claim), &self.controller.writer);
        let response = writer.get(resource, &key).await?;
        let context = Decode { interner: Interner::default().into(), sections: Sections::default() };
        let fresh: PersistentVolumeClaim = response.decode(&context)?;
        let Some(owners) = self.verdict(&fresh, ordinal, pod).owners else { return Ok(()) };
        let object =
            PersistentVolumeClaim::with_owners(response.object()?, &owners).map_err(kinds::DecodeError::from)?;
        let version = writer.replace(resource, &key, None, &object).await?.meta()?.version;
        self.controller.consistency.wrote(self.key, &self.controller.claims, version);
        Ok(())
    }

    /// Returns the defects of a pod.
    pub fn defects(&self, member: &Member) -> Defects {
        let claims = identity::claims(self.set, member.ordinal);
        let mut defects = Defects {
            pod: !identity::has_identity(&member.pod) || !identity::has_storage(&member.pod, &claims),
            ..Defects::default()
        };
        let reference = member.pod.controller_ref();
        for (_, name) in &claims {
            match self.controller.claims.get(&self.claim_key(name)) {
                None => defects.claims = true,
                Some(claim) => {
                    let verdict = self.verdict(&claim, member.ordinal, &reference);
                    defects.claims |= claim.meta.is_deleting();
                    defects.owners |= verdict.owners.is_some();
                    defects.conflict |= verdict.foreign;
                }
            }
        }
        defects
    }

    /// Returns true if a claim of an ordinal belongs to a previous pod, and must be deleted before a new pod is
    /// created.
    pub fn has_stale_claim(&self, ordinal: i32) -> bool {
        let pod = missing_pod(&identity::pod_name(self.set, ordinal));
        identity::claims(self.set, ordinal).iter().any(|(_, name)| {
            let claim = self.controller.claims.get(&self.claim_key(name));
            claim.is_some_and(|claim| retention::is_stale(&claim.meta, self.set.retention, &pod))
        })
    }
}

/// Returns a reference to a pod that does not exist yet.
fn missing_pod(pod: &str) -> OwnerRef {
    OwnerRef {
        api_version: "v1".into(),
        kind: Pod::RESOURCE.kind.into(),
        name: pod.into(),
        uid: Uid::default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}
