//! The cloud controller manager of the demo, with its mock cloud.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use control_plane::{ControlPlane, Identity};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::console::Console;

/// The name of the cloud manager's package, process and log.
pub const CLOUD_MANAGER: &str = "ccm";

/// The user that the cloud manager runs as, with the permissions of its manifest.
const USER: &str = "system:cloud-controller-manager";
const RBAC: &str = include_str!("../../../deploy/ccm-rbac.yaml");

/// The range of all pods.
const ALL_POD_RANGES: &str = "10.244.0.0/16";

/// The cloud manager, with its cloud.
pub struct Cloud {
    binary: PathBuf,
    address: SocketAddr,
}

impl Cloud {
    /// Grants the cloud manager its permissions and starts it; the mock cloud is in its process.
    pub fn start(cluster: &ControlPlane, binary: PathBuf) -> Result<Self> {
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|port| port.local_addr());
        let address = address.context("find a free port")?;
        let config = cluster.folder().join("mock.json");
        let content = json!({"auto_instances": true, "listen": address.to_string()});
        fs::write(&config, content.to_string()).with_context(|| format!("write {}", config.display()))?;
        cluster.kubectl_with_input(&["apply", "--filename=-"], RBAC)?;
        let kubeconfig = cluster.kubeconfig(Identity::User { name: USER.into(), groups: Vec::new() })?;
        let flags = [
            format!("--kubeconfig={}", kubeconfig.display()),
            "--cloud-provider=mock".into(),
            format!("--cloud-config={}", config.display()),
            format!("--cluster-cidr={ALL_POD_RANGES}"),
            "--secure-port=0".into(),
            "--use-service-account-credentials=true".into(),
        ];
        cluster.run(CLOUD_MANAGER, &binary, &flags)?;
        Ok(Self { binary, address })
    }

    /// Returns a sentence about the process and its cloud.
    pub fn introduction(&self) -> String {
        format!(
            "The cloud controller manager is {}; its cloud is served at http://{}",
            self.binary.display(),
            self.address
        )
    }

    /// Changes the cloud, by its API.
    pub async fn call(&self, console: &Console, method: &str, path: &str) -> Result<()> {
        console.command(&format!("curl --request {method} http://{}{path}", self.address));
        self.request(method, path).await?;
        Ok(())
    }

    /// Returns the state of the cloud.
    pub async fn state(&self) -> Result<Value> {
        self.request("GET", "/state").await
    }

    async fn request(&self, method: &str, path: &str) -> Result<Value> {
        let mut connection = TcpStream::connect(self.address).await.context("connect to the mock cloud")?;
        let request =
            format!("{method} {path} HTTP/1.1\r\nHost: cloud\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        connection.write_all(request.as_bytes()).await.context("send a request to the mock cloud")?;
        let mut response = String::new();
        connection.read_to_string(&mut response).await.context("read the mock cloud's response")?;
        let status = response.lines().next().unwrap_or_default();
        ensure!(status.contains(" 200 "), "{method} {path}: the mock cloud returned {status:?}");
        let body = response.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        serde_json::from_str(body).with_context(|| format!("read the mock cloud's response to {method} {path}"))
    }
}
