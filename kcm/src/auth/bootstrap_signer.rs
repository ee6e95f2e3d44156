//! bootstrap-signer-controller: signs the public ConfigMap `cluster-info` with each valid bootstrap token for this use,
//! so that joining nodes can verify it.
//!
//! Upstream: pkg/controller/bootstrap, Signer.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64_URL;
use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use kinds::config_map::{Body, CLUSTER_INFO, PUBLIC};
use kinds::meta::ObjectKey;
use kinds::{ConfigMap, Kind, Secret, Sections};
use ring::hmac;
use runtime::consistency::Consistency;
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::Store;
use runtime::watch::Builder;
use runtime::worker::{Outcome, Reconcile, ReconcileError, WorkOptions};
use runtime::write::Writer;
use serde_json::json;

use crate::auth::bootstrap_token::{TOKENS, all_tokens, signing_credentials, token};
use crate::context::{Clock, Context, Descriptor, QueueKeys, Verb, Write};

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "bootstrap-signer-controller",
    service_account: "bootstrap-signer",
    watches,
    writes: &[Write { verb: Verb::Update, group: "", resource: "configmaps" }],
    queues: &[QueueKeys::other("bootstrap_signer_queue")],
    start,
    ..Descriptor::NONE
};

/// Key of the signed text in the ConfigMap's data.
const KUBECONFIG: &str = "kubeconfig";
/// Prefix of the keys of signatures; the token's ID follows.
const SIGNATURE: &str = "jws-kubeconfig-";

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<ConfigMap>(ConfigMap::CLUSTER_INFOS, &[]);
    builder.need::<Secret>(Sections::default(), &[TOKENS]);
}

fn start(manager: &mut Manager, context: &Context) {
    let queue = Queue::new(QueueOptions::named("bootstrap_signer_queue"));
    let (maps, secrets) = (manager.registry().store::<ConfigMap>(), manager.registry().store::<Secret>());
    let key = ObjectKey::new(PUBLIC, CLUSTER_INFO);
    let (of_maps, of_secrets) = ((queue.clone(), key.clone()), (queue.clone(), key));
    maps.subscribe(move |change| {
        if change.new.is_some_and(|map| map.meta.key() == of_maps.1) {
            of_maps.0.add(of_maps.1.clone());
        }
    });
    secrets.subscribe(move |change| {
        if change.old.into_iter().chain(change.new).any(|secret| token(secret).is_some()) {
            of_secrets.0.add(of_secrets.1.clone());
        }
    });
    let reconciler = Arc::new(Signer {
        maps,
        secrets,
        writer: manager.writer(DESCRIPTOR.service_account),
        consistency: Consistency::default(),
        queue: queue.clone(),
        clock: context.clock.clone(),
    });
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers: 1 }, queue, reconciler);
}

/// Returns the detached signature of a text: a JWS without its payload (cluster-bootstrap/token/jws,
/// ComputeDetachedSignature). Joining nodes compare it byte by byte.
fn signature(content: &str, id: &str, secret: &[u8]) -> String {
    let header = BASE64_URL.encode(json!({"alg": "HS256", "kid": id}).to_string());
    let signed = format!("{header}.{}", BASE64_URL.encode(content));
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), signed.as_bytes());
    format!("{header}..{}", BASE64_URL.encode(tag))
}

/// Returns the data with all signatures that it should have; `None` if no signature is missing, wrong or superfluous,
/// or there is nothing to sign.
fn signed(body: &Body, tokens: &[Arc<Secret>], now: Timestamp) -> Option<BTreeMap<String, String>> {
    let old: BTreeMap<String, String> = body.data().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let content = old.get(KUBECONFIG)?;
    let mut new = old.clone();
    new.retain(|key, _| !key.starts_with(SIGNATURE));
    for (id, secret) in tokens.iter().filter_map(|secret| signing_credentials(secret, now)) {
        new.insert(format!("{SIGNATURE}{id}"), signature(content, id, secret));
    }
    (new != old).then_some(new)
}

struct Signer {
    maps: Arc<Store<ConfigMap>>,
    secrets: Arc<Store<Secret>>,
    writer: Writer,
    consistency: Consistency,
    queue: Arc<Queue<ObjectKey>>,
    clock: Clock,
}

impl Reconcile for Signer {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl Signer {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        if !self.consistency.caught_up(key, &self.maps, self.queue.waker(key)) {
            return Ok(Outcome::WaitingForCache);
        }
        let map = self.maps.get(key);
        let Some(body) = map.as_ref().and_then(|map| map.body.as_ref()) else { return Ok(Outcome::Done) };
        let tokens = self.secrets.by_index(&TOKENS, all_tokens());
        let Some(data) = signed(body, &tokens, (self.clock)()) else { return Ok(Outcome::Done) };
        let data = data.iter().map(|(key, value)| (&**key, &**value));
        let object = body.update(&[], data).map_err(|error| ReconcileError::new(error.to_string()))?;
        match self.writer.replace(&ConfigMap::RESOURCE, key, None, &object).await {
            Ok(response) => {
                if let Ok(meta) = response.meta() {
                    self.consistency.wrote(key, &self.maps, meta.version);
                }
                Ok(Outcome::Done)
            }
            // After a conflict, the watch delivers the other client's change, which requeues the key.
            Err(error) if error.is_conflict() || error.is_not_found() => Ok(Outcome::Done),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use kinds::Decode;
    use kinds::schema::{config_map, object_meta};
    use kinds::wire::Put;

    use super::*;
    use crate::auth::bootstrap_token::tests::{data, secret};

    #[test]
    fn signatures_are_those_that_joining_nodes_compute() {
        // From the cases of cluster-bootstrap/token/jws.
        let header = "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..";
        let text = "Hello from the other side. I must have called a thousand times.";
        for (content, secret, expected) in [
            (text, "my voice is my passcode", "VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8"),
            ("", "my voice is my passcode", "7Ui1ALizW4jXphVUB7xUqC9vLYLL9RZeOFfVLoB7Tgk"),
            (text, "", "UfkqvDGiIFxrMnFseDj9LYJOLNrvjW8aHhF71mvvAs8"),
        ] {
            assert_eq!(signature(content, "joshua", secret.as_bytes()), format!("{header}{expected}"));
        }
    }

    fn body(data: &BTreeMap<String, String>) -> Body {
        let mut object = Vec::new();
        object.put_message(config_map::METADATA, |meta| {
            meta.put_str(object_meta::NAMESPACE, PUBLIC);
            meta.put_str(object_meta::NAME, CLUSTER_INFO);
            meta.put_str(object_meta::RESOURCE_VERSION, "1");
        });
        data.iter().for_each(|(key, value)| object.put_entry(config_map::DATA, key, value));
        let context = Decode { interner: Arc::default(), sections: ConfigMap::CLUSTER_INFOS };
        ConfigMap::decode(&context, &object).expect("a ConfigMap").body.expect("the body is decoded")
    }

    fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn signatures_follow_tokens_and_text() {
        let now = "2026-01-01T00:00:00Z".parse().expect("a time");
        let tokens = |ids: &[&str]| -> Vec<Arc<Secret>> {
            ids.iter().map(|id| secret(&format!("bootstrap-token-{id}"), &data(id, &[]))).collect()
        };
        let keys = |data: &BTreeMap<String, String>| data.keys().cloned().collect::<Vec<_>>();
        let plain = map(&[("kubeconfig", "text"), ("other", "kept")]);

        let one = signed(&body(&plain), &tokens(&["abcdef"]), now).expect("a signature is missing");
        assert_eq!(keys(&one), ["jws-kubeconfig-abcdef", "kubeconfig", "other"]);
        assert_eq!(one["jws-kubeconfig-abcdef"], signature("text", "abcdef", b"s3cr3t"));
        assert_eq!(signed(&body(&one), &tokens(&["abcdef"]), now), None, "nothing changes");

        let two = signed(&body(&one), &tokens(&["abcdef", "fedcba"]), now).expect("another one is missing");
        assert_eq!(two.len(), 4);
        assert_eq!(two["jws-kubeconfig-abcdef"], one["jws-kubeconfig-abcdef"]);
        assert_eq!(signed(&body(&two), &tokens(&["abcdef"]), now), Some(one.clone()), "a token was deleted");

        let mut edited = one.clone();
        edited.insert("kubeconfig".into(), "new".into());
        let again = signed(&body(&edited), &tokens(&["abcdef"]), now).expect("the text has changed");
        assert_ne!(again["jws-kubeconfig-abcdef"], one["jws-kubeconfig-abcdef"]);

        edited = one.clone();
        edited.insert("jws-kubeconfig-abcdef".into(), "forged".into());
        assert_eq!(signed(&body(&edited), &tokens(&["abcdef"]), now), Some(one));

        let stale = map(&[("jws-kubeconfig-abcdef", "stale")]);
        assert_eq!(signed(&body(&stale), &tokens(&["abcdef"]), now), None, "nothing to sign");
    }
}
