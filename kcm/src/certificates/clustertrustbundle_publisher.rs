//! kube-apiserver-serving-clustertrustbundle-publisher-controller: keeps one ClusterTrustBundle with the CA
//! certificates that verify the API server's serving certificate.
//!
//! The bundle's name contains a hash of its content. New certificates therefore get a new bundle, which is created
//! before the old one is deleted. Upstream: pkg/controller/certificates/clustertrustbundlepublisher.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::{ClusterTrustBundle, Kind, Sections};
use ring::digest;
use runtime::consistency::Consistency;
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Index, Store, index_key};
use runtime::watch::Builder;
use runtime::worker::{Outcome, Reconcile, ReconcileError, WorkOptions};
use runtime::write::Writer;

use crate::certificates::publisher_metrics::{Failure, Plan, Syncs};
use crate::context::{Context, Descriptor, QueueKeys, Start, Verb, Write};

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "kube-apiserver-serving-clustertrustbundle-publisher-controller",
    service_account: "kube-apiserver-serving-clustertrustbundle-publisher",
    requires: &[ClusterTrustBundle::RESOURCE],
    prepare,
    watches,
    writes: &[
        Write { verb: Verb::Create, group: "certificates.k8s.io", resource: "clustertrustbundles" },
        Write { verb: Verb::Update, group: "certificates.k8s.io", resource: "clustertrustbundles" },
        Write { verb: Verb::Delete, group: "certificates.k8s.io", resource: "clustertrustbundles" },
    ],
    queues: &[QueueKeys::other("ca_cert_publisher_cluster_trust_bundles")],
    start,
    ..Descriptor::NONE
};

const SIGNER: &str = "kubernetes.io/kube-apiserver-serving";

/// Index of bundles by signer.
const BY_SIGNER: Index<ClusterTrustBundle> =
    Index { name: "signer", keys: |bundle, emit| emit(index_key(&*bundle.signer)) };

fn prepare(context: &mut Context) -> anyhow::Result<Start> {
    Ok(if context.credentials.read_root_ca(&context.options)? {
        Start::Run
    } else {
        Start::Skip("there is no CA to publish (--root-ca-file, or certificate-authority-data in the kubeconfig)")
    })
}

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<ClusterTrustBundle>(Sections::default(), &[BY_SIGNER]);
}

fn start(manager: &mut Manager, context: &Context) {
    let queue = Queue::new(QueueOptions::named("ca_cert_publisher_cluster_trust_bundles"));
    let bundles = manager.registry().store::<ClusterTrustBundle>();
    let key = ObjectKey::new("", SIGNER);
    let (changed, again) = (queue.clone(), key.clone());
    bundles.subscribe(move |change| {
        if change.old.into_iter().chain(change.new).any(|bundle| &*bundle.signer == SIGNER) {
            changed.add(again.clone());
        }
    });
    queue.add(key);
    let content = String::from_utf8_lossy(&context.credentials.root_ca);
    let syncs = Syncs::register(
        manager.metrics(),
        "clustertrustbundle_publisher",
        [
            "Number of syncs that occurred in cluster trust bundle publisher.",
            "The time it took to sync a cluster trust bundle.",
        ],
    );
    let reconciler = Arc::new(Publisher {
        name: bundle_name(content.as_bytes()).into(),
        content: content.into(),
        bundles,
        writer: manager.writer(DESCRIPTOR.service_account),
        consistency: Consistency::default(),
        queue: queue.clone(),
        syncs,
    });
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers: 1 }, queue, reconciler);
}

/// Returns the name of the bundle: the signer's name, and the first twelve bytes of the content's SHA-256. Upstream:
/// pkg/controller/certificates/clustertrustbundlepublisher, constructBundleName.
fn bundle_name(content: &[u8]) -> String {
    let hash = digest::digest(&digest::SHA256, content);
    let hash: String = hash.as_ref()[..12].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}:{hash}", SIGNER.replace('/', ":"))
}

fn plan(ours: Option<&ClusterTrustBundle>, content: &str) -> Plan {
    match ours {
        None => Plan::Create,
        Some(bundle) if *bundle.bundle == *content => Plan::Nothing,
        Some(_) => Plan::Update,
    }
}

struct Publisher {
    name: Box<str>,
    content: Box<str>,
    bundles: Arc<Store<ClusterTrustBundle>>,
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
        if !self.consistency.caught_up(key, &self.bundles, self.queue.waker(key)) {
            return Ok(Outcome::WaitingForCache);
        }
        let name = ObjectKey::new("", &*self.name);
        let all = self.bundles.by_index(&BY_SIGNER, index_key(SIGNER));
        let (ours, stale): (Vec<_>, Vec<_>) = all.into_iter().partition(|bundle| bundle.meta.name == name.name);
        let ours = ours.first();
        let written = match (plan(ours.map(|bundle| &**bundle), &self.content), ours) {
            (Plan::Nothing, _) => None,
            (Plan::Update, Some(bundle)) => {
                let object = bundle.update(&self.content).map_err(|error| ReconcileError::new(error.to_string()))?;
                Some(self.writer.replace(&ClusterTrustBundle::RESOURCE, &name, None, &object).await?)
            }
            _ => {
                let object = ClusterTrustBundle::new_object(&self.name, SIGNER, &self.content);
                Some(self.writer.create(&ClusterTrustBundle::RESOURCE, "", &object, false).await?)
            }
        };
        if let Some(meta) = written.and_then(|response| response.meta().ok()) {
            self.consistency.wrote(key, &self.bundles, meta.version);
        }
        let mut failed = None;
        for bundle in stale.iter().filter(|bundle| !bundle.meta.is_deleting()) {
            match self.writer.delete(&ClusterTrustBundle::RESOURCE, &bundle.meta.key(), &bundle.meta.uid).await {
                Err(error) if !error.is_not_found() && !error.is_conflict() => failed = Some(error),
                _ => {}
            }
        }
        failed.map_or(Ok(Outcome::Done), |error| Err(error.into()))
    }
}

#[cfg(test)]
mod tests {
    use kinds::{Decode, Interner};

    use super::*;

    #[test]
    fn names_contain_the_hash_of_the_content() {
        // The standard of SHA-256 contains the hash of "abc".
        assert_eq!(bundle_name(b"abc"), "kubernetes.io:kube-apiserver-serving:ba7816bf8f01cfea414140de");
    }

    #[test]
    fn own_bundle_contains_the_certificates() {
        let mut object = ClusterTrustBundle::new_object("x", SIGNER, "CA");
        object.extend(meta_version());
        let context = Decode { interner: Arc::new(Interner::default()), sections: Sections::default() };
        let bundle = ClusterTrustBundle::decode(&context, &object).expect("a bundle");
        assert_eq!(plan(None, "CA"), Plan::Create);
        assert_eq!(plan(Some(&bundle), "CA"), Plan::Nothing);
        assert_eq!(plan(Some(&bundle), "other"), Plan::Update);
        let updated = ClusterTrustBundle::decode(&context, &bundle.update("other").expect("well-formed"));
        let updated = updated.expect("a bundle");
        assert_eq!((&*updated.bundle, &*updated.signer), ("other", SIGNER));
    }

    /// Metadata with a resourceVersion, as the API server returns it. Appended to an object, it replaces the earlier
    /// metadata, because the last one of several protobuf fields with the same number applies.
    fn meta_version() -> Vec<u8> {
        use kinds::wire::Put;
        let mut meta = Vec::new();
        meta.put_message(kinds::schema::cluster_trust_bundle::METADATA, |meta| {
            meta.put_str(kinds::schema::object_meta::NAME, "x");
            meta.put_str(kinds::schema::object_meta::RESOURCE_VERSION, "1");
        });
        meta
    }
}
