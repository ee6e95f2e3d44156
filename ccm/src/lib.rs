//! cloud-controller-manager: the controllers that bring a cluster and its cloud together, for any cloud provider.
//!
//! A binary is [`run`] with the factories of the providers that it is built with.

pub mod app;
pub mod check;
pub mod cloud;
pub mod context;
pub mod describe;
mod failure;
pub mod flags;
pub mod lifecycle;
pub mod names;
pub mod node;
pub mod registry;
pub mod route;
pub mod service;
pub mod tagging;
pub mod taint;

use std::process::ExitCode;

use providers::Factory;

/// Runs what the process's command line says, its whole life long: the manager, or, with the word `check-config` first, a
/// look at its configuration. `--cloud-provider` names one of `factories`.
pub fn run(factories: &[Factory]) -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if(|word| word == check::COMMAND).is_some() {
        return check::main(arguments, factories);
    }
    app::main(arguments, factories)
}
