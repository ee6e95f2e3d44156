//! Objects in the namespace of one tenant that another tenant names wherever it can. No controller has a reason to read
//! them.

use anyhow::{Result, ensure};
use cluster_tests::Space;
use serde_json::{Value, json};

use super::hostile_objects::{Creation, config_map};
use crate::storage::objects::claim;

/// The name of all these objects.
const NAME: &str = "bait";

/// An object to read: its API version, kind, and UID.
struct Object {
    version: String,
    kind: String,
    uid: String,
}

/// The objects of one namespace.
pub struct Bait {
    namespace: String,
    objects: Vec<Object>,
}

impl Bait {
    /// Creates the objects.
    pub async fn create(space: &Space) -> Result<Self> {
        let objects = [
            json!({"apiVersion": "v1", "kind": "ConfigMap"}),
            json!({"apiVersion": "v1", "kind": "Secret"}),
            json!({"apiVersion": "v1", "kind": "ServiceAccount"}),
            json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": claim("")["spec"]}),
            json!({"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 80}]}}),
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}),
        ];
        let named = objects.map(|mut object| {
            object["metadata"] = json!({"name": NAME});
            object
        });
        let list = json!({"apiVersion": "v1", "kind": "List", "items": named});
        space.kubectl_with_input(&["create", "-f", "-"], list.to_string()).await?;
        let mut created = Vec::new();
        for object in named {
            let text = |field: &Value| field.as_str().unwrap_or_default().to_owned();
            let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
            let uid = space.kubectl(&["get", &kind, NAME, "-o", "jsonpath={.metadata.uid}"]).await?;
            ensure!(!uid.is_empty(), "{kind} has no UID");
            created.push(Object { version, kind, uid });
        }
        Ok(Self { namespace: space.namespace.clone(), objects: created })
    }

    /// Returns objects of another tenant that name these: as owners, with their true UIDs, and in all fields that
    /// controllers follow.
    pub fn references(&self) -> Vec<Creation> {
        let mut all: Vec<Creation> = self.objects.iter().map(owned_by).collect();
        all.push(self.token());
        all.push((
            "autoscaling/v2",
            "horizontalpodautoscalers",
            json!({
                "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": NAME},
                "spec": {"maxReplicas": 5, "scaleTargetRef": {"apiVersion": "v1", "kind": "Service", "name": NAME}},
            }),
        ));
        let mut copy = claim("copy");
        copy["spec"]["dataSourceRef"] =
            json!({"kind": "PersistentVolumeClaim", "name": NAME, "namespace": self.namespace});
        all.push(("v1", "persistentvolumeclaims", copy));
        all.push(pod());
        all.extend(self.endpoints());
        all
    }

    /// Returns a Secret for a token of the account.
    fn token(&self) -> Creation {
        let account = self.objects.iter().find(|object| object.kind == "ServiceAccount");
        let annotations = json!({
            "kubernetes.io/service-account.name": NAME,
            "kubernetes.io/service-account.uid": account.map(|account| &account.uid),
        });
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
            "metadata": {"name": "token-of-another-namespace", "annotations": annotations},
        });
        ("v1", "secrets", secret)
    }

    /// Returns Endpoints that name the objects as targets, and their Service.
    fn endpoints(&self) -> [Creation; 2] {
        let targets = self.objects.iter().enumerate().map(|(at, object)| {
            let target = json!({"kind": object.kind, "namespace": self.namespace, "name": NAME, "uid": object.uid});
            json!({"ip": format!("10.9.7.{}", at + 1), "targetRef": target})
        });
        let subsets = json!([{"addresses": targets.collect::<Vec<_>>(), "ports": [{"port": 80}]}]);
        let metadata = json!({"name": NAME});
        let endpoints = json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata, "subsets": subsets});
        let spec = json!({"clusterIP": "None", "ports": [{"port": 80}]});
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec});
        [("v1", "endpoints", endpoints), ("v1", "services", service)]
    }

    /// Returns true if an event of the audit log is a read of one of these objects.
    pub fn is_read(&self, event: &Value) -> bool {
        let is = |pointer: &str, text: &str| event.pointer(pointer).and_then(Value::as_str) == Some(text);
        is("/verb", "get") && is("/objectRef/namespace", &self.namespace) && is("/objectRef/name", NAME)
    }
}

fn owned_by(object: &Object) -> Creation {
    let Object { version, kind, uid } = object;
    let owner = json!({"apiVersion": version, "kind": kind, "name": NAME, "uid": uid});
    config_map(&format!("owned-by-{}", kind.to_lowercase()), json!({"ownerReferences": [owner]}))
}

/// Returns a pod with volumes of these names.
fn pod() -> Creation {
    let volumes = json!([
        {"name": "claim", "persistentVolumeClaim": {"claimName": NAME}},
        {"name": "secret", "secret": {"secretName": NAME}},
        {"name": "map", "configMap": {"name": NAME}},
    ]);
    let containers = json!([{"name": "main", "image": "example.com/image:1"}]);
    let spec = json!({"schedulerName": "none", "containers": containers, "volumes": volumes});
    ("v1", "pods", json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": NAME}, "spec": spec}))
}
