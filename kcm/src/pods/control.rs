//! Creates and deletes single pods for an owner, each with its event. Upstream: pkg/controller, RealPodControl.

use std::sync::Arc;

use kinds::meta::ObjectKey;
use kinds::{Kind, Pod};
use runtime::consistency::Consistency;
use runtime::events::{EventType, Recorder, about};
use runtime::store::Store;
use runtime::write::{WriteError, Writer};

use super::creation_gate::CreationGate;

/// The reason why a pod was not created.
#[derive(Debug)]
pub enum CreateError {
    /// The namespace is being deleted. No other creation can succeed there, and this is not a failure of the owner.
    NamespaceTerminating,
    /// The request failed. An event was recorded.
    Failed(WriteError),
}

impl CreateError {
    /// Returns the failure that the owner has to report; `None` if the namespace is being deleted.
    pub fn into_failure(self) -> Option<WriteError> {
        match self {
            Self::NamespaceTerminating => None,
            Self::Failed(error) => Some(error),
        }
    }
}

/// Creates and deletes the pods of one controller's objects.
pub struct PodControl {
    /// All pods.
    pub pods: Arc<Store<Pod>>,
    /// The controller's client.
    pub writer: Writer,
    /// The controller's events.
    pub recorder: Recorder,
    /// The controller's own writes that the cache may not contain yet.
    pub consistency: Arc<Consistency>,
    /// Namespaces that are being deleted, in which nothing can be created.
    pub gate: CreationGate,
}

impl PodControl {
    /// Creates a pod. `key` is that of the owner, and `body` the encoded pod.
    ///
    /// # Errors
    /// When the request fails. If the namespace is known to be terminating, nothing is sent.
    pub async fn create<K: Kind>(&self, key: &ObjectKey, owner: &K, body: &[u8]) -> Result<(), CreateError> {
        if !self.gate.is_open(&key.namespace) {
            return Err(CreateError::NamespaceTerminating);
        }
        let created = self.writer.create(&Pod::RESOURCE, &key.namespace, body, false).await;
        match created.and_then(|response| response.meta().map_err(WriteError::from)) {
            Ok(pod) => {
                self.consistency.wrote(key, &self.pods, pod.version);
                let message = format!("Created pod: {}", pod.name);
                self.recorder.event(&about(owner), EventType::Normal, "SuccessfulCreate", message);
                Ok(())
            }
            Err(error) if error.is_namespace_terminating() => {
                self.gate.close(&key.namespace);
                Err(CreateError::NamespaceTerminating)
            }
            Err(error) => {
                if error.is_lost() {
                    self.consistency.lost(key);
                }
                let message = format!("Error creating: {error}");
                self.recorder.event(&about(owner), EventType::Warning, "FailedCreate", message);
                Err(CreateError::Failed(error))
            }
        }
    }

    /// Deletes a pod, with its UID as a precondition; `key` is that of the owner. A pod that no longer exists counts as
    /// deleted, even if another pod has its name.
    ///
    /// # Errors
    /// When the request fails. The deletion may be repeated.
    pub async fn delete<K: Kind>(&self, key: &ObjectKey, owner: &K, pod: &Pod) -> Result<(), WriteError> {
        self.consistency.deleting(key, &Pod::RESOURCE, &pod.meta);
        match self.writer.delete(&Pod::RESOURCE, &pod.meta.key(), &pod.meta.uid).await {
            Ok(()) => {
                let message = format!("Deleted pod: {}", pod.meta.name);
                self.recorder.event(&about(owner), EventType::Normal, "SuccessfulDelete", message);
                Ok(())
            }
            Err(error) if error.is_object_deleted() => Ok(()),
            Err(error) => {
                self.consistency.not_deleting(key, &pod.meta.uid);
                let message = format!("Error deleting: {error}");
                self.recorder.event(&about(owner), EventType::Warning, "FailedDelete", message);
                Err(error)
            }
        }
    }

    /// Checks that all pods of a namespace could be decoded, before surplus pods are deleted there: the pods that were
    /// not decoded may be the ones that are needed.
    ///
    /// # Errors
    /// The reason why no pod may be deleted, for the owner's status and the log.
    pub fn check_decodable(&self, namespace: &str) -> Result<(), String> {
        match self.pods.undecodable_in(namespace) {
            0 => Ok(()),
            count => Err(format!("not deleting pods while {count} pods cannot be decoded (see the log)")),
        }
    }
}

#[cfg(test)]
mod tests {
    use kinds::{Decode, ReplicaSet, Sections};
    use runtime::testing::{KeptEvents, deliver_undecodable, filled_store, object, writer};

    use super::*;

    fn decode() -> Decode {
        Decode { interner: Arc::default(), sections: Sections::default() }
    }

    /// A pod that another one has replaced was deleted: that is not a failure of its owner.
    #[tokio::test]
    async fn deletion_of_a_missing_or_replaced_pod_succeeds_without_an_event() {
        const CONFLICT: &str = r#"{"kind": "Status", "code": 409, "reason": "Conflict", "message": "MESSAGE"}"#;
        const UID: &str = "Precondition failed: UID in precondition: a, UID in object meta: b";
        let not_found = r#"{"kind": "Status", "code": 404, "reason": "NotFound"}"#;
        for (name, code, body, succeeds, events) in [
            ("deleted", 200, String::new(), true, 1),
            ("gone", 404, not_found.to_owned(), true, 0),
            ("replaced", 409, CONFLICT.replace("MESSAGE", UID), true, 0),
            ("another conflict", 409, CONFLICT.replace("MESSAGE", "please try again"), false, 1),
        ] {
            let kept = Arc::<KeptEvents>::default();
            let (recorder, sender) = Recorder::new("test", kept.clone());
            let control = PodControl {
                pods: Arc::new(filled_store(decode(), vec![], [])),
                writer: writer(move |_, _| (code, body.clone().into_bytes())).await,
                recorder,
                consistency: Arc::default(),
                gate: CreationGate::new(Arc::new(filled_store(decode(), vec![], []))),
            };
            let (owner, pod) = (object::<ReplicaSet>("web", decode().sections), object::<Pod>("a", decode().sections));
            let deleted = control.delete(&owner.meta.key(), &owner, &pod).await;
            assert_eq!(deleted.is_ok(), succeeds, "{name}: {deleted:?}");
            control.recorder.close();
            sender.await;
            assert_eq!(kept.bodies().len(), events, "{name}");
        }
    }

    #[tokio::test]
    async fn pod_that_cannot_be_decoded_prevents_deletions_in_its_namespace_only() {
        let pods = filled_store(decode(), vec![], []);
        deliver_undecodable(&pods, ObjectKey::new("broken", "a"));
        let control = PodControl {
            pods: Arc::new(pods),
            writer: writer(|_, _| (200, Vec::new())).await,
            recorder: Recorder::new("test", Arc::<KeptEvents>::default()).0,
            consistency: Arc::default(),
            gate: CreationGate::new(Arc::new(filled_store(decode(), vec![], []))),
        };
        assert!(control.check_decodable("broken").is_err());
        assert_eq!(control.check_decodable("other"), Ok(()));
    }
}
