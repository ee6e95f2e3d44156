//! root-ca-certificate-publisher-controller: keeps the cluster's root certificates in a ConfigMap of every namespace.
//!
//! Upstream: pkg/controller/certificates/rootcacertpublisher.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::config_map::{Body, ROOT_CA};
use kinds::meta::ObjectKey;
use kinds::schema::{config_map, object_meta};
use kinds::wire::Put;
use kinds::{ConfigMap, Kind, Namespace, Sections};
use runtime::consistency::Consistency;
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Change, Store};
use runtime::watch::Builder;
use runtime::worker::{Outcome, Reconcile, ReconcileError, WorkOptions};
use runtime::write::{WriteError, Writer};

use crate::certificates::publisher_metrics::{Failure, Plan, Syncs};
use crate::context::{Context, Descriptor, QueueKeys, Start, Verb, Write};

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "root-ca-certificate-publisher-controller",
    service_account: "root-ca-cert-publisher",
    prepare,
    watches,
    writes: &[
        Write { verb: Verb::Create, group: "", resource: "configmaps" },
        Write { verb: Verb::Update, group: "", resource: "configmaps" },
    ],
    queues: &[QueueKeys::of("root_ca_cert_publisher", "Namespace")],
    start,
    ..Descriptor::NONE
};

/// The key of the certificates in the data.
const CA_CERT: &str = "ca.crt";
/// The annotation with the purpose of the ConfigMap.
const DESCRIPTION: &str = "kubernetes.io/description";
const DESCRIPTION_TEXT: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.";

fn prepare(context: &mut Context) -> anyhow::Result<Start> {
    context.credentials.read_root_ca(&context.options)?;
    Ok(Start::Run)
}

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<Namespace>(Sections::default(), &[]);
    builder.need::<ConfigMap>(ConfigMap::ROOT_CAS, &[]);
}

fn start(manager: &mut Manager, context: &Context) {
    let queue = Queue::new(QueueOptions::named("root_ca_cert_publisher"));
    let (namespaces, maps) = (manager.registry().store::<Namespace>(), manager.registry().store::<ConfigMap>());
    let (of_namespaces, of_maps) = (queue.clone(), queue.clone());
    namespaces.subscribe(move |change| {
        if let Some(key) = of_namespace(change) {
            of_namespaces.add(key);
        }
    });
    maps.subscribe(move |change| {
        if let Some(key) = of_map(change) {
            of_maps.add(key);
        }
    });
    let syncs = Syncs::register(
        manager.metrics(),
        "root_ca_cert_publisher",
        ["Number of namespace syncs happened in root ca cert publisher."; 2],
    );
    let reconciler = Arc::new(Publisher {
        // PEM is ASCII. Other bytes around it are replaced if they are not UTF-8.
        root_ca: String::from_utf8_lossy(&context.credentials.root_ca).into(),
        namespaces,
        maps,
        writer: manager.writer(DESCRIPTOR.service_account),
        consistency: Consistency::default(),
        queue: queue.clone(),
        syncs,
    });
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers: 1 }, queue, reconciler);
}

/// Returns the key of a changed namespace, unless the namespace was deleted, or updated while it is being deleted.
fn of_namespace(change: &Change<'_, Namespace>) -> Option<ObjectKey> {
    change.new.filter(|namespace| change.old.is_none() || namespace.active).map(|namespace| namespace.meta.key())
}

/// Returns the key of the namespace whose root CA ConfigMap was changed or deleted.
fn of_map(change: &Change<'_, ConfigMap>) -> Option<ObjectKey> {
    let old = change.old.filter(|old| &*old.meta.name == ROOT_CA)?;
    Some(ObjectKey { namespace: "".into(), name: old.meta.namespace.clone() })
}

fn plan(body: Option<&Body>, root_ca: &str) -> Plan {
    let Some(body) = body else { return Plan::Create };
    let is_described = body.annotation(DESCRIPTION).is_some_and(|text| !text.is_empty());
    if body.data().eq([(CA_CERT, root_ca)]) && is_described { Plan::Nothing } else { Plan::Update }
}

struct Publisher {
    root_ca: Box<str>,
    namespaces: Arc<Store<Namespace>>,
    maps: Arc<Store<ConfigMap>>,
    writer: Writer,
    consistency: Consistency,
    queue: Arc<Queue<ObjectKey>>,
    syncs: Syncs,
}

impl Reconcile for Publisher {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.syncs.count(self.sync(key)).boxed()
    }
}

impl Publisher {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, Failure> {
        if !self.consistency.caught_up(key, &self.maps, self.queue.waker(key)) {
            return Ok(Outcome::WaitingForCache);
        }
        let name = ObjectKey { namespace: key.name.clone(), name: ROOT_CA.into() };
        let map = self.maps.get(&name);
        let body = map.as_ref().and_then(|map| map.body.as_ref());
        let written = match (plan(body, &self.root_ca), body) {
            (Plan::Nothing, _) => return Ok(Outcome::Done),
            (Plan::Update, Some(body)) => {
                let object = body
                    .update(&[(DESCRIPTION, DESCRIPTION_TEXT)], [(CA_CERT, &*self.root_ca)])
                    .map_err(|error| ReconcileError::new(error.to_string()))?;
                let written = self.writer.replace(&ConfigMap::RESOURCE, &name, None, &object).await;
                // The ConfigMap was deleted, and is created again. Upstream counts and retries this, too.
                match written {
                    Err(error) if error.is_not_found() => return Err(Failure::outdated(&error)),
                    written => written,
                }
            }
            // Every creation would be refused in a namespace that is being deleted or no longer exists.
            _ if self.namespaces.get(key).is_none_or(|namespace| namespace.meta.is_deleting()) => {
                self.consistency.forget(key);
                return Ok(Outcome::Done);
            }
            _ => {
                let object = self.new_map(&key.name);
                self.writer.create(&ConfigMap::RESOURCE, &key.name, &object, false).await
            }
        };
        match written {
            Ok(response) => {
                if let Ok(meta) = response.meta() {
                    self.consistency.wrote(key, &self.maps, meta.version);
                }
                Ok(Outcome::Done)
            }
            // The namespace was deleted or is being deleted; the watch will deliver that.
            Err(error) if is_namespace_deleted(&error) => {
                self.consistency.forget(key);
                Ok(Outcome::Done)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn new_map(&self, namespace: &str) -> Vec<u8> {
        let mut object = Vec::new();
        object.put_message(config_map::METADATA, |meta| {
            meta.put_str(object_meta::NAME, ROOT_CA);
            meta.put_str(object_meta::NAMESPACE, namespace);
            meta.put_entry(object_meta::ANNOTATIONS, DESCRIPTION, DESCRIPTION_TEXT);
        });
        object.put_entry(config_map::DATA, CA_CERT, &self.root_ca);
        object
    }
}

fn is_namespace_deleted(error: &WriteError) -> bool {
    error.is_not_found() || error.is_namespace_terminating()
}

#[cfg(test)]
mod tests {
    use kinds::Decode;

    use super::*;

    fn map(name: &str, description: Option<&str>, data: &[(&str, &str)]) -> Arc<ConfigMap> {
        let mut object = Vec::new();
        object.put_message(config_map::METADATA, |meta| {
            meta.put_str(object_meta::NAME, name);
            meta.put_str(object_meta::NAMESPACE, "a");
            meta.put_str(object_meta::RESOURCE_VERSION, "1");
            if let Some(text) = description {
                meta.put_entry(object_meta::ANNOTATIONS, DESCRIPTION, text);
            }
        });
        data.iter().for_each(|(key, value)| object.put_entry(config_map::DATA, key, value));
        let context = Decode { interner: Arc::default(), sections: ConfigMap::ROOT_CAS };
        Arc::new(ConfigMap::decode(&context, &object).expect("a ConfigMap"))
    }

    #[test]
    fn config_map_contains_only_the_certificates() {
        for (description, data, expected) in [
            (Some("any text"), &[(CA_CERT, "CA")][..], Plan::Nothing),
            (None, &[(CA_CERT, "CA")], Plan::Update),
            (Some(""), &[(CA_CERT, "CA")], Plan::Update),
            (Some("x"), &[(CA_CERT, "other")], Plan::Update),
            (Some("x"), &[(CA_CERT, "CA"), ("x", "")], Plan::Update),
            (Some("x"), &[("x", "CA")], Plan::Update),
            (Some("x"), &[], Plan::Update),
        ] {
            let map = map(ROOT_CA, description, data);
            assert_eq!(plan(map.body.as_ref(), "CA"), expected, "{description:?} {data:?}");
        }
        assert_eq!(plan(None, "CA"), Plan::Create);
    }

    #[test]
    fn changes_of_the_config_map_are_mapped_to_its_namespace() {
        let (ours, other) = (map(ROOT_CA, None, &[]), map("other", None, &[]));
        let key = Some(ObjectKey::new("", "a"));
        assert_eq!(of_map(&Change { old: Some(&ours), new: None }), key);
        assert_eq!(of_map(&Change { old: Some(&ours), new: Some(&ours) }), key);
        assert_eq!(of_map(&Change { old: None, new: Some(&ours) }), None, "its namespace is enqueued already");
        assert_eq!(of_map(&Change { old: Some(&other), new: None }), None);
    }

    fn publisher(
        writer: Writer,
        namespace: Option<Namespace>,
        map: Option<ConfigMap>,
        metrics: &runtime::metrics::Metrics,
    ) -> Publisher {
        let decode = || Decode { interner: Arc::default(), sections: Sections::default() };
        Publisher {
            root_ca: "CA".into(),
            namespaces: Arc::new(runtime::testing::filled_store(decode(), vec![], namespace)),
            maps: Arc::new(runtime::testing::filled_store(decode(), vec![], map)),
            writer,
            consistency: Consistency::default(),
            queue: Queue::new(QueueOptions::named("test")),
            syncs: Syncs::register(metrics, "test", [""; 2]),
        }
    }

    fn namespace(deletion: i64) -> Namespace {
        Namespace {
            meta: kinds::Meta { deletion: kinds::Time(deletion), ..runtime::testing::meta("", "a", 1) },
            active: deletion == 0,
        }
    }

    #[tokio::test]
    async fn config_map_is_created_only_in_namespaces_that_are_not_being_deleted() {
        for (name, namespace, expected) in [
            ("active", Some(namespace(0)), 1),
            ("being deleted", Some(namespace(5)), 0),
            ("no longer in the cache", None, 0),
        ] {
            let (writer, sent) = runtime::testing::counting_writer(403, "").await;
            let publisher = publisher(writer, namespace, None, &runtime::metrics::Metrics::new());
            let refused = publisher.reconcile(&ObjectKey::new("", "a")).await.is_err();
            let sent = sent.load(std::sync::atomic::Ordering::Relaxed);
            assert_eq!((sent, refused), (expected, expected == 1), "{name}");
        }
    }

    /// Cases of upstream's syncNamespace: a creation in a namespace that does not exist succeeds, an update of a ConfigMap
    /// that does not exist fails.
    #[tokio::test]
    async fn missing_config_map_is_counted_and_retried_and_missing_namespace_is_not() {
        let outdated = map(ROOT_CA, Some("x"), &[(CA_CERT, "other")]);
        for (name, map, code, expected) in [
            ("the namespace was deleted", None, 200, Outcome::Done),
            ("the ConfigMap was deleted", Some((*outdated).clone()), 404, Outcome::RequeueWithBackoff),
        ] {
            let (writer, _) = runtime::testing::counting_writer(404, "").await;
            let metrics = runtime::metrics::Metrics::new();
            let publisher = publisher(writer, Some(namespace(0)), map, &metrics);
            let outcome = publisher.reconcile(&ObjectKey::new("", "a")).await.expect("no error");
            assert_eq!(outcome, expected, "{name}");
            let text = metrics.text();
            let line = format!("test_sync_total{{code=\"{code}\"}} 1");
            assert!(text.lines().any(|found| found == line), "{name}: no {line} in {text}");
        }
    }
}
