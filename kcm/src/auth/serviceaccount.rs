//! serviceaccount-controller: creates the ServiceAccount `default` in every active namespace that has none.
//!
//! Upstream: pkg/controller/serviceaccount, ServiceAccountsController.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::schema::{object_meta, service_account};
use kinds::wire::Put;
use kinds::{Kind, Namespace, Sections, ServiceAccount};
use runtime::consistency::Consistency;
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Change, Store};
use runtime::watch::Builder;
use runtime::worker::{Outcome, Reconcile, ReconcileError, WorkOptions};
use runtime::write::Writer;

use crate::context::{Context, Descriptor, QueueKeys, Verb, Write};

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "serviceaccount-controller",
    service_account: "service-account-controller",
    watches,
    writes: &[Write { verb: Verb::Create, group: "", resource: "serviceaccounts" }],
    queues: &[QueueKeys::of("serviceaccount", "Namespace")],
    start,
    ..Descriptor::NONE
};

/// Name of the account of pods that do not name one.
const DEFAULT: &str = "default";

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<Namespace>(Sections::default(), &[]);
    builder.need::<ServiceAccount>(Sections::default(), &[]);
}

fn start(manager: &mut Manager, _: &Context) {
    let queue = Queue::new(QueueOptions::named("serviceaccount"));
    let (namespaces, accounts) = (manager.registry().store::<Namespace>(), manager.registry().store());
    let (of_namespaces, of_accounts) = (queue.clone(), queue.clone());
    namespaces.subscribe(move |change| {
        if let Some(key) = of_namespace(change) {
            of_namespaces.add(key);
        }
    });
    accounts.subscribe(move |change| {
        if let Some(key) = of_account(change) {
            of_accounts.add(key);
        }
    });
    let writer = manager.writer(DESCRIPTOR.service_account);
    let consistency = Consistency::default();
    let reconciler = Arc::new(Accounts { namespaces, accounts, writer, consistency, queue: queue.clone() });
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers: 1 }, queue, reconciler);
}

/// Returns the key of a namespace for every change except its deletion.
fn of_namespace(change: &Change<'_, Namespace>) -> Option<ObjectKey> {
    change.new.map(|namespace| namespace.meta.key())
}

/// Returns the key of the namespace of a deleted account.
fn of_account(change: &Change<'_, ServiceAccount>) -> Option<ObjectKey> {
    let deleted = change.old.filter(|_| change.new.is_none())?;
    Some(ObjectKey { namespace: "".into(), name: deleted.meta.namespace.clone() })
}

/// Returns true if the account has to be created.
fn is_missing(namespace: Option<&Namespace>, account: Option<&ServiceAccount>) -> bool {
    namespace.is_some_and(|namespace| namespace.active) && account.is_none()
}

struct Accounts {
    namespaces: Arc<Store<Namespace>>,
    accounts: Arc<Store<ServiceAccount>>,
    writer: Writer,
    consistency: Consistency,
    queue: Arc<Queue<ObjectKey>>,
}

impl Reconcile for Accounts {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl Accounts {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let Some(namespace) = self.namespaces.get(key) else {
            self.consistency.forget(key);
            return Ok(Outcome::Done);
        };
        if !self.consistency.caught_up(key, &self.accounts, self.queue.waker(key)) {
            return Ok(Outcome::WaitingForCache);
        }
        let account = self.accounts.get(&ObjectKey { namespace: key.name.clone(), name: DEFAULT.into() });
        if !is_missing(Some(&namespace), account.as_deref()) {
            return Ok(Outcome::Done);
        }
        let body = new_account(&key.name);
        match self.writer.create(&ServiceAccount::RESOURCE, &key.name, &body, false).await {
            Ok(response) => {
                if let Ok(meta) = response.meta() {
                    self.consistency.wrote(key, &self.accounts, meta.version);
                }
                Ok(Outcome::Done)
            }
            Err(error) if error.is_already_exists() || error.is_namespace_terminating() => Ok(Outcome::Done),
            Err(error) => Err(error.into()),
        }
    }
}

fn new_account(namespace: &str) -> Vec<u8> {
    let mut object = Vec::new();
    object.put_message(service_account::METADATA, |meta| {
        meta.put_str(object_meta::NAME, DEFAULT);
        meta.put_str(object_meta::NAMESPACE, namespace);
    });
    object
}

#[cfg(test)]
mod tests {
    use kinds::Decode;

    use super::*;

    fn meta(name: &str, namespace: &str) -> Vec<u8> {
        let mut object = Vec::new();
        object.put_message(1, |meta| {
            meta.put_str(object_meta::NAME, name);
            meta.put_str(object_meta::NAMESPACE, namespace);
            meta.put_str(object_meta::RESOURCE_VERSION, "1");
        });
        object
    }

    fn decode<K: Kind>(object: &[u8]) -> Arc<K> {
        let context = Decode { interner: Arc::default(), sections: Sections::default() };
        Arc::new(K::decode(&context, object).expect("an object"))
    }

    fn namespace(phase: &str) -> Arc<Namespace> {
        let mut object = meta("a", "");
        object.put_message(kinds::schema::namespace::STATUS, |status| status.put_str(1, phase));
        decode(&object)
    }

    #[test]
    fn account_is_created_only_in_an_active_namespace_without_it() {
        let account = decode::<ServiceAccount>(&meta(DEFAULT, "a"));
        for (phase, exists, expected) in [
            ("Active", false, true),
            ("Active", true, false),
            ("Terminating", false, false),
            ("Terminating", true, false),
            ("", false, false),
        ] {
            let account = exists.then_some(&*account);
            assert_eq!(is_missing(Some(&namespace(phase)), account), expected, "{phase} {exists}");
        }
        assert!(!is_missing(None, None));
    }

    #[test]
    fn changes_are_mapped_to_the_namespace() {
        let namespace = namespace("Active");
        let account = decode::<ServiceAccount>(&meta("robot", "a"));
        let expected = Some(ObjectKey::new("", "a"));
        assert_eq!(of_namespace(&Change { old: None, new: Some(&namespace) }), expected);
        assert_eq!(of_namespace(&Change { old: Some(&namespace), new: None }), None);
        assert_eq!(of_account(&Change { old: Some(&account), new: None }), expected);
        assert_eq!(of_account(&Change { old: None, new: Some(&account) }), None);
        assert_eq!(of_account(&Change { old: Some(&account), new: Some(&account) }), None);
    }
}
