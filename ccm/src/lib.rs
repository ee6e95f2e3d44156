//! cloud-controller-manager: the controllers that connect a cluster with its cloud, for any cloud provider.
//!
//! A binary calls [`run`] with the factories of its providers.

pub mod app;
pub mod check_config;
pub mod cloud;
pub mod context;
pub mod controllers;
pub mod flags;
pub mod registry;

use std::process::ExitCode;

use providers::Factory;

/// Runs the process's command line until it exits: the manager, or, if the first word is `check-config`, a check of its
/// configuration. `--cloud-provider` names one of `factories`.
pub fn run(factories: &[Factory]) -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if(|word| word == check_config::COMMAND).is_some() {
        return check_config::main(arguments, factories);
    }
    app::main(arguments, factories)
}
