//! cloud-controller-manager: the controllers that bring a cluster and its cloud together, for any cloud provider.
//!
//! A binary is [`run`] with the factories of the providers that it is built with.

pub mod app;
pub mod cloud;
pub mod controllers;
pub mod describe;
mod failure;
pub mod flags;
pub mod lifecycle;
pub mod names;
pub mod node;
pub mod route;
pub mod service;
pub mod taint;

use std::process::ExitCode;

use providers::Factory;

/// Runs the manager as the process's command line says; its whole life. `--cloud-provider` names one of `factories`.
pub fn run(factories: &[Factory]) -> ExitCode {
    app::main(std::env::args().skip(1), factories)
}
