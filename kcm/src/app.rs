//! Assembly of the controllers from the command line.

use std::process::ExitCode;
use std::sync::Arc;

use component::assembly::{self, Assembly};
use component::finalizers;
use component::process::{self, manager_options};
use jiff::Timestamp;
use runtime::client::{ConnectOptions, connect};
use runtime::manager::Manager;
use runtime::metrics::set_native_histograms;

use crate::context::Context;
use crate::credentials::Credentials;
use crate::flags::{COMPONENT, Options};
use crate::registry::CONTROLLERS;

/// Runs the manager according to its command line, until it exits.
pub fn main(arguments: impl IntoIterator<Item = String>) -> ExitCode {
    process::main(&COMPONENT, arguments, async |options, connection| {
        let manager = manager(options, &connection).await?;
        Ok(Assembly {
            manager,
            key_kinds: assembly::key_kinds(CONTROLLERS),
            finalizers: finalizers::owners(CONTROLLERS),
        })
    })
}

/// Returns a manager with the enabled controllers, connected but not yet running.
///
/// # Errors
/// When the client configuration, or a file that an option names, cannot be read; when options contradict each other;
/// or when the API server cannot be reached, or its discovery documents cannot be decoded.
pub async fn manager(options: Options, connection: &ConnectOptions) -> anyhow::Result<Manager> {
    manager_in(options, connection, None).await
}

/// Like [`manager`]; with a namespace, for the objects of that namespace only.
///
/// # Errors
/// As [`manager`].
pub async fn manager_in(
    options: Options,
    connection: &ConnectOptions,
    namespace: Option<String>,
) -> anyhow::Result<Manager> {
    set_native_histograms(options.gates.enabled("NativeHistograms"));
    let enabled = assembly::enabled(CONTROLLERS, &options);
    let credentials = Credentials::new(connection);
    let mut context = Context { options, credentials, clock: Arc::new(Timestamp::now) };
    let prepared = assembly::prepare(enabled, &mut context)?;
    let clients = Arc::new(connect(connection).await?);
    let controllers = assembly::with_served_apis(prepared, &clients).await?;
    let watches = assembly::watches(&controllers, &context)
        .resyncing(context.options.values.get_duration("min-resync-period"))
        .paged(!context.options.gates.enabled("WatchListClient"))
        .build();
    let mut manager = Manager::new(clients, watches, manager_options(&context.options, namespace))?;
    manager.record_leadership(COMPONENT.name);
    assembly::start(&controllers, &mut manager, &context);
    Ok(manager)
}
