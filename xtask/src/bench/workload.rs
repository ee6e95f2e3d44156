//! Objects as in real clusters: a container with environment, resources, a probe and volumes; in templates, and in
//! running pods.

use serde_json::{Value, json};

/// The common names of a Deployment's objects.
#[derive(Clone, Debug)]
pub struct App {
    /// The namespace.
    pub namespace: String,
    /// The Deployment's name.
    pub name: String,
    /// Its desired number of pods.
    pub replicas: u32,
}

/// The version that Deployments begin with.
pub const FIRST_VERSION: &str = "v1.4.0";

/// A constant instead of the hash that a manager computes: managers find a ReplicaSet by its template, not by its name.
const HASH: &str = "7d9c5b8f46";

/// The start time of the pods that exist from the beginning.
const START_TIME: &str = "2026-01-05T08:30:00Z";

const SUFFIX_CHARACTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

impl App {
    /// Returns the image of its main container in a version.
    pub fn image(&self, version: &str) -> String {
        format!("registry.example.com/shop/{}:{version}", self.name)
    }

    /// Returns the labels of everything that belongs to it.
    pub fn labels(&self) -> Value {
        json!({
            "app.kubernetes.io/name": self.name,
            "app.kubernetes.io/instance": format!("{}-production", self.name),
            "app.kubernetes.io/managed-by": "Helm",
        })
    }

    /// Returns the labels of its selector.
    pub fn selector(&self) -> Value {
        json!({ "app.kubernetes.io/name": self.name })
    }

    /// Returns the annotations of its pods.
    pub fn annotations(&self) -> Value {
        json!({
            "checksum/config": format!("{:0>64}", self.name.bytes().map(|byte| format!("{byte:x}")).collect::<String>()),
            "prometheus.io/scrape": "true",
            "prometheus.io/port": "8080",
        })
    }

    /// Returns the ReplicaSet's name.
    pub fn replica_set(&self) -> String {
        format!("{}-{HASH}", self.name)
    }

    /// Returns a Deployment without a ReplicaSet.
    pub fn deployment(&self) -> Value {
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": { "name": self.name, "namespace": self.namespace, "labels": self.labels() },
            "spec": {
                "replicas": self.replicas,
                "selector": { "matchLabels": self.selector() },
                "template": {
                    "metadata": { "labels": self.labels(), "annotations": self.annotations() },
                    "spec": self.pod_spec(),
                },
            },
        })
    }

    /// Returns the Deployment after its rollout, without its status.
    pub fn finished_deployment(&self) -> Value {
        let mut deployment = self.deployment();
        deployment["metadata"]["annotations"] = json!({ "deployment.kubernetes.io/revision": "1" });
        deployment
    }

    /// Returns its ReplicaSet as the Deployment controller creates it.
    pub fn finished_replica_set(&self, deployment_uid: &str) -> Value {
        let hashed = |mut labels: Value| {
            labels["pod-template-hash"] = HASH.into();
            labels
        };
        let mut set = self.deployment();
        set["kind"] = "ReplicaSet".into();
        set["metadata"] = json!({
            "name": self.replica_set(),
            "namespace": self.namespace,
            "labels": hashed(self.labels()),
            "annotations": {
                "deployment.kubernetes.io/desired-replicas": self.replicas.to_string(),
                "deployment.kubernetes.io/max-replicas": (self.replicas + self.replicas.div_ceil(4)).to_string(),
                "deployment.kubernetes.io/revision": "1",
            },
            "ownerReferences": [owner("Deployment", &self.name, deployment_uid)],
        });
        set["spec"]["selector"]["matchLabels"] = hashed(self.selector());
        set["spec"]["template"]["metadata"]["labels"] = hashed(self.labels());
        set
    }

    /// Returns the ReplicaSet without an owner.
    pub fn replica_set_alone(&self) -> Value {
        let mut set = self.finished_replica_set("");
        if let Some(metadata) = set["metadata"].as_object_mut() {
            metadata.remove("ownerReferences");
        }
        set
    }

    /// Returns a merge patch with the status of the finished Deployment.
    pub fn deployment_status(&self) -> Value {
        let n = self.replicas;
        let condition = |kind: &str, reason: &str, message: String| {
            json!({
                "type": kind, "status": "True", "reason": reason, "message": message,
                "lastUpdateTime": START_TIME, "lastTransitionTime": START_TIME,
            })
        };
        let progressed = format!("ReplicaSet \"{}\" has successfully progressed.", self.replica_set());
        json!({ "status": {
            "observedGeneration": 1, "replicas": n, "updatedReplicas": n, "readyReplicas": n,
            "availableReplicas": n, "terminatingReplicas": 0,
            "conditions": [
                condition("Available", "MinimumReplicasAvailable", "Deployment has minimum availability.".into()),
                condition("Progressing", "NewReplicaSetAvailable", progressed),
            ],
        } })
    }

    /// Returns a merge patch with the status of the finished ReplicaSet.
    pub fn replica_set_status(&self) -> Value {
        let n = self.replicas;
        json!({ "status": {
            "observedGeneration": 1, "replicas": n, "fullyLabeledReplicas": n, "readyReplicas": n,
            "availableReplicas": n, "terminatingReplicas": 0,
        } })
    }

    /// Returns the name of its pod with that index.
    pub fn pod_name(&self, index: u32) -> String {
        let mut rest = u64::from(index).wrapping_mul(0x9e37_79b9) + 7_919;
        let suffix = (0..5).map(|_| {
            let character = SUFFIX_CHARACTERS[(rest % SUFFIX_CHARACTERS.len() as u64) as usize];
            rest /= SUFFIX_CHARACTERS.len() as u64;
            char::from(character)
        });
        format!("{}-{}", self.replica_set(), suffix.collect::<String>())
    }

    /// Returns one of the ReplicaSet's pods, bound to a node, without its status.
    pub fn pod(&self, index: u32, node: &str, replica_set_uid: &str) -> Value {
        let name = self.pod_name(index);
        let access = format!("kube-api-access-{}", &name[name.len() - 5..]);
        let mut spec = self.pod_spec();
        spec["nodeName"] = node.into();
        append(&mut spec["volumes"], token_volume(&access));
        for container in spec["containers"].as_array_mut().into_iter().flatten() {
            let mount = json!({
                "name": access, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true,
            });
            append(&mut container["volumeMounts"], mount);
        }
        let mut labels = self.labels();
        labels["pod-template-hash"] = HASH.into();
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "generateName": format!("{}-", self.replica_set()),
                "namespace": self.namespace,
                "labels": labels,
                "annotations": self.annotations(),
                "ownerReferences": [owner("ReplicaSet", &self.replica_set(), replica_set_uid)],
            },
            "spec": spec,
        })
    }

    /// Returns a merge patch with the status of a running and ready pod; `number` is unique among all pods, below
    /// 65,536.
    pub fn pod_status(&self, number: u32) -> Value {
        let conditions = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|kind| {
                json!({ "type": kind, "status": "True", "lastTransitionTime": START_TIME, "observedGeneration": 1 })
            })
            .collect();
        let ip = format!("10.128.{}.{}", number >> 8 & 255, number & 255);
        let image = self.image(FIRST_VERSION);
        let container = json!({
            "name": "main", "image": image, "ready": true, "started": true, "restartCount": 0, "lastState": {},
            "imageID": format!("{image}@sha256:{:064x}", u64::MAX),
            "containerID": format!("containerd://{:064x}", u64::from(number) << 32),
            "state": { "running": { "startedAt": START_TIME } },
        });
        json!({ "status": {
            "phase": "Running", "qosClass": "Burstable", "observedGeneration": 1, "startTime": START_TIME,
            "hostIP": "10.0.0.1", "hostIPs": [{ "ip": "10.0.0.1" }], "podIP": ip, "podIPs": [{ "ip": ip }],
            "conditions": conditions,
            "containerStatuses": [container],
        } })
    }

    /// Returns the spec of its pods.
    pub fn pod_spec(&self) -> Value {
        let field_ref = |path: &str| json!({ "fieldRef": { "fieldPath": path } });
        json!({
            "serviceAccountName": "default",
            "terminationGracePeriodSeconds": 30,
            "containers": [
                {
                    "name": "main",
                    "image": self.image(FIRST_VERSION),
                    "args": ["serve", "--config=/etc/app/config.yaml"],
                    "ports": [{ "name": "http", "containerPort": 8080 }],
                    "env": [
                        { "name": "POD_NAME", "valueFrom": field_ref("metadata.name") },
                        { "name": "DATABASE_HOST", "value": format!("{}-db.{}.svc", self.name, self.namespace) },
                        { "name": "DATABASE_PASSWORD",
                          "valueFrom": { "secretKeyRef": { "name": format!("{}-db", self.name), "key": "password" } } },
                        { "name": "FEATURES", "value": "checkout-v2,recommendations,fast-search" },
                    ],
                    "resources": {
                        "requests": { "cpu": "100m", "memory": "128Mi" }, "limits": { "memory": "512Mi" },
                    },
                    "volumeMounts": [
                        { "name": "config", "mountPath": "/etc/app", "readOnly": true },
                        { "name": "scratch", "mountPath": "/tmp" },
                    ],
                    "readinessProbe": { "httpGet": { "path": "/ready", "port": "http" }, "periodSeconds": 10 },
                },
            ],
            "volumes": [
                { "name": "config", "configMap": { "name": format!("{}-config", self.name) } },
                { "name": "scratch", "emptyDir": { "sizeLimit": "1Gi" } },
            ],
        })
    }
}

fn owner(kind: &str, name: &str, uid: &str) -> Value {
    let version = "apps/v1";
    json!({
        "apiVersion": version, "kind": kind, "name": name, "uid": uid,
        "controller": true, "blockOwnerDeletion": true,
    })
}

/// Returns the volume that admission gives each pod for its service account's token.
fn token_volume(name: &str) -> Value {
    let namespace = json!({ "path": "namespace", "fieldRef": { "fieldPath": "metadata.namespace" } });
    json!({
        "name": name,
        "projected": { "sources": [
            { "serviceAccountToken": { "expirationSeconds": 3607, "path": "token" } },
            { "configMap": { "name": "kube-root-ca.crt", "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
            { "downwardAPI": { "items": [namespace] } },
        ] },
    })
}

fn append(list: &mut Value, item: Value) {
    if let Some(list) = list.as_array_mut() {
        list.push(item);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn app() -> App {
        App { namespace: "crowd-0".into(), name: "app-7".into(), replicas: 50 }
    }

    #[test]
    fn replica_set_differs_from_its_deployment_by_the_hash_only() {
        let (deployment, mut set) = (app().finished_deployment(), app().finished_replica_set("uid"));
        let labels = set["spec"]["template"]["metadata"]["labels"].as_object_mut().unwrap();
        assert_eq!(labels.remove("pod-template-hash"), Some(HASH.into()));
        assert_eq!(set["spec"]["template"], deployment["spec"]["template"]);
        assert_eq!(set["spec"]["selector"]["matchLabels"]["pod-template-hash"], HASH);
        assert_eq!(set["metadata"]["annotations"]["deployment.kubernetes.io/max-replicas"], "63");
    }

    #[test]
    fn pods_have_unique_names_and_token_volumes() {
        let names: BTreeSet<String> = (0..1000).map(|index| app().pod_name(index)).collect();
        assert_eq!(names.len(), 1000);
        let pod = app().pod(3, "node-1", "uid");
        for container in pod["spec"]["containers"].as_array().unwrap() {
            let mounts = container["volumeMounts"].as_array().unwrap();
            assert!(mounts.iter().any(|mount| mount["name"].as_str().unwrap().starts_with("kube-api-access-")));
        }
    }
}
