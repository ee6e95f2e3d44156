//! Serves a mock cloud over HTTP, so that several processes can use it: `mock-cloud mock.json`.

use std::process::ExitCode;

use provider_mock::{MockCloud, MockConfig};
use tokio::net::TcpListener;

const USAGE: &str = "usage: mock-cloud CONFIG.json, with \"listen\": \"127.0.0.1:9902\" in it";

#[tokio::main]
async fn main() -> ExitCode {
    match serve().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

async fn serve() -> Result<(), String> {
    let path = std::env::args().nth(1).ok_or(USAGE)?;
    let text = std::fs::read(&path).map_err(|error| format!("{path}: {error}"))?;
    let config: MockConfig = serde_json::from_slice(&text).map_err(|error| format!("{path}: {error}"))?;
    let address = config.listen.ok_or_else(|| format!("{path}: listen is missing; {USAGE}"))?;
    let cloud = MockCloud::new(config).map_err(|error| format!("{path}: faults: {error}"))?;
    let listener = TcpListener::bind(address)
        .await
        .map_err(|error| format!("{path}: listen is {address}: {error}; use a free address"))?;
    println!("the mock cloud listens on http://{address}");
    cloud.serve(listener).await;
    Ok(())
}
