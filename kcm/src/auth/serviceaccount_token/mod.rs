//! serviceaccount-token-controller: fills the token Secrets that users create for a service account, and deletes them
//! when the account is deleted.
//!
//! It writes with the identity of the process, as in upstream, which gives this controller no service account.
//! Upstream: pkg/controller/serviceaccount, TokensController.

mod decide;
mod keys;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use kinds::{Secret, Sections, ServiceAccount};
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use crate::context::{Context, Descriptor, QueueKeys, Start, Verb, Write};
use sync::Tokens;

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "serviceaccount-token-controller",
    service_account: "",
    prepare,
    watches,
    writes: &[
        Write { verb: Verb::Update, group: "", resource: "secrets" },
        Write { verb: Verb::Delete, group: "", resource: "secrets" },
        Write { verb: Verb::Update, group: "", resource: "serviceaccounts" },
    ],
    queues: &[QueueKeys::other("serviceaccount_tokens_service")],
    start,
    ..Descriptor::NONE
};

fn prepare(context: &mut Context) -> anyhow::Result<Start> {
    context.credentials.read_root_ca(&context.options)?;
    Ok(if context.credentials.read_token_key(&context.options)? {
        Start::Run
    } else {
        Start::Skip("there is no private key (--service-account-private-key-file)")
    })
}

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<ServiceAccount>(Sections::default(), &[]);
    builder.need::<Secret>(Sections::default(), &[keys::BY_ACCOUNT]);
}

fn start(manager: &mut Manager, context: &Context) {
    // Without a key the controller is not started at all.
    let Some(key) = context.credentials.token_key.clone() else { return };
    let queue = Queue::new(QueueOptions::named("serviceaccount_tokens_service"));
    let (accounts, secrets) = (manager.registry().store::<ServiceAccount>(), manager.registry().store::<Secret>());
    keys::subscribe(&accounts, &secrets, &queue);
    let reconciler = Arc::new(Tokens {
        accounts,
        secrets,
        writer: manager.own_writer(),
        key,
        root_ca: context.credentials.root_ca.clone(),
    });
    // Upstream starts this number of workers for accounts and again for secrets; here both share one queue.
    let workers = 2 * context.workers("concurrent-serviceaccount-token-syncs");
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers }, queue, reconciler);
}
