//! cloud-controller-manager: the controllers that bring a cluster and its cloud together, for any cloud provider.
//!
//! A binary is [`run`] with the factories of the providers that it is built with.

pub mod app;
pub mod check_config;
pub mod cloud;
pub mod context;
pub mod controllers;
pub mod flags;
pub mod registry;

use std::process::ExitCode;

use providers::Factory;

/// Runs what the process's command line says, its whole life long: the manager, or, with the word `check-config` first, a
/// look at its configuration. `--cloud-provider` names one of `factories`.
pub fn run(factories: &[Factory]) -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if(|word| word == check_config::COMMAND).is_some() {
        return check_config::main(arguments, factories);
    }
    app::main(arguments, factories)
}
