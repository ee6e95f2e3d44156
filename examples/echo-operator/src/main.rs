//! The echo-operator's process: `KUBECONFIG=<file> echo-operator`; in a pod, it needs no configuration.

use std::io::IsTerminal as _;

use echo_operator::{NAME, controller};
use runtime::client::ConnectOptions;
use runtime::sdk::{Operator, Settings, terminated};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal()).init();
    let kubeconfig = std::env::var_os("KUBECONFIG").map(Into::into);
    let connection = ConnectOptions { kubeconfig, ..ConnectOptions::default() };
    let settings = Settings { connection, ..Settings::default() };
    Operator::new(NAME).with(controller()).run(settings, terminated()).await?;
    Ok(())
}
