//! Both pools against a server in this process.

#![allow(clippy::disallowed_methods, reason = "tests of the clients themselves")]

mod accounts;
mod configuration;
mod proxies;
mod rotation;
mod runtimes;
mod server;
mod streams;
mod transport;

use std::path::PathBuf;

use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::json;
use tempfile::TempDir;

use self::server::{Authority, Script, Server, always, file, refusing_address, response};
use super::*;

/// A server, its authority, and a kubeconfig that refers to files next to it.
struct Bed {
    directory: TempDir,
    authority: Authority,
    server: Server,
    kubeconfig: PathBuf,
}

/// The credentials of the kubeconfig's user.
#[derive(Clone, Copy, PartialEq)]
enum User {
    Certificate,
    TokenFile,
}

impl Bed {
    async fn new(user: User, protocols: &[&str], script: Script) -> Self {
        let authority = Authority::new("first");
        let signed = authority.sign("server");
        let server = Server::start(&signed, &authority, protocols, script).await;
        let directory = TempDir::new().expect("a directory");
        let folder = directory.path();
        file(folder, "ca.crt", &authority.pem);
        let client = authority.sign("client");
        file(folder, "client.crt", &client.certificate);
        file(folder, "client.key", &client.key);
        file(folder, "token", "first-token\n");
        let user_json = match user {
            User::Certificate => {
                json!({"client-certificate": "client.crt", "client-key": "client.key", "as": "someone"})
            }
            User::TokenFile => json!({"tokenFile": "token", "token": "inline-token"}),
        };
        let url = format!("https://{}", server.address);
        let kubeconfig = file(folder, "kubeconfig", &kubeconfig(&url, user_json));
        Self { directory, authority, server, kubeconfig }
    }

    fn options(&self) -> ConnectOptions {
        ConnectOptions {
            kubeconfig: Some(self.kubeconfig.clone()),
            user_agent: "kcm/v1 (linux/amd64)".into(),
            reload_interval: Duration::from_millis(20),
            ..ConnectOptions::default()
        }
    }

    async fn connect(&self) -> Clients {
        connect(&self.options()).await.expect("clients")
    }
}

fn kubeconfig(server: &str, user: serde_json::Value) -> String {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "ns"}}],
        "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority": "ca.crt"}}],
        "users": [{"name": "u", "user": user}],
    })
    .to_string()
}

/// Maximum size of a response in these tests.
const MAX_BODY_BYTES: usize = 1 << 20;

fn request(method: Method, path: &str) -> Request<Bytes> {
    Request::builder().method(method).uri(path).body(Bytes::from_static(b"{}")).expect("a request")
}

async fn status(clients: &Clients, method: Method) -> StatusCode {
    clients.send(&Identity::Own, request(method, "/x"), MAX_BODY_BYTES).await.expect("a response").status()
}

/// Repeats `attempt` until it returns true, for at most a minute.
async fn until<F: Future<Output = bool>>(what: &str, mut attempt: impl FnMut() -> F) {
    let tries = async {
        while !attempt().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), tries)
        .await
        .unwrap_or_else(|_| panic!("not within a minute: {what}"));
}

/// Returns runtimes that run all requests on the test's own runtime.
fn runtimes() -> Runtimes {
    Runtimes { control: Handle::current(), work: Handle::current() }
}
