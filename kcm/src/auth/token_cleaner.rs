//! token-cleaner-controller: deletes bootstrap tokens when they expire.
//!
//! Upstream: pkg/controller/bootstrap, TokenCleaner.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::{Kind, Secret, Sections};
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::Store;
use runtime::watch::Builder;
use runtime::worker::{Outcome, Reconcile, ReconcileError, WorkOptions};
use runtime::write::Writer;
use tracing::info;

use crate::auth::bootstrap_token::{Expiration, expiration, token};
use crate::context::{Clock, Context, Descriptor, QueueKeys, Verb, Write};

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "token-cleaner-controller",
    service_account: "token-cleaner",
    watches,
    writes: &[Write { verb: Verb::Delete, group: "", resource: "secrets" }],
    queues: &[QueueKeys::of("token_cleaner", "Secret")],
    start,
    ..Descriptor::NONE
};

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<Secret>(Sections::default(), &[]);
}

fn start(manager: &mut Manager, context: &Context) {
    let queue = Queue::new(QueueOptions::named("token_cleaner"));
    let secrets = manager.registry().store::<Secret>();
    let changed = queue.clone();
    secrets.subscribe(move |change| {
        if let Some(new) = change.new.filter(|secret| token(secret).is_some()) {
            changed.add(new.meta.key());
        }
    });
    let writer = manager.writer(DESCRIPTOR.service_account);
    let reconciler = Arc::new(Cleaner { secrets, writer, clock: context.clock.clone() });
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers: 1 }, queue, reconciler);
}

struct Cleaner {
    secrets: Arc<Store<Secret>>,
    writer: Writer,
    clock: Clock,
}

impl Reconcile for Cleaner {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl Cleaner {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let secret = self.secrets.get(key);
        let Some((secret, token)) = secret.as_ref().and_then(|secret| Some((secret, token(secret)?))) else {
            return Ok(Outcome::Done);
        };
        match expiration(token, (self.clock)()) {
            Expiration::Never => Ok(Outcome::Done),
            Expiration::In(left) => Ok(Outcome::RequeueAfter(left)),
            Expiration::Expired => {
                info!(secret = %key, "deleting an expired bootstrap token");
                // Deletes only this version: the expiration may have been postponed since, and that change requeues the
                // key.
                match self.writer.delete_unchanged(&Secret::RESOURCE, key, &secret.meta).await {
                    Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error.into()),
                    _ => Ok(Outcome::Done),
                }
            }
        }
    }
}
