//! Changes of objects in etcd, for states that the API server reads but never writes.

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::cluster::ControlPlane;
use crate::flags::ETCD_SOCKET;

impl ControlPlane {
    /// Changes the stored form of the object with this key, such as `/registry/pods/default/web`.
    ///
    /// Needs an API server with `--storage-media-type=application/json`.
    ///
    /// # Errors
    /// If there is no such object, or it is not stored as JSON.
    pub async fn edit_stored(&self, key: &str, edit: impl FnOnce(&mut Value)) -> Result<()> {
        let encoded = BASE64.encode(key);
        let found = self.call_etcd("/v3/kv/range", &json!({ "key": encoded })).await?;
        let value = found["kvs"][0]["value"].as_str().with_context(|| format!("etcd has no {key}"))?;
        let mut object =
            serde_json::from_slice(&BASE64.decode(value)?).with_context(|| format!("{key} is not JSON"))?;
        edit(&mut object);
        let value = BASE64.encode(object.to_string());
        self.call_etcd("/v3/kv/put", &json!({ "key": encoded, "value": value })).await?;
        Ok(())
    }

    /// Calls etcd's JSON gateway with HTTP/1.0: the server closes the connection at the end of the response.
    async fn call_etcd(&self, path: &str, body: &Value) -> Result<Value> {
        let mut stream = UnixStream::connect(self.folder().join(ETCD_SOCKET)).await.context("connect to etcd")?;
        let body = body.to_string();
        let request = format!("POST {path} HTTP/1.0\r\nHost: etcd\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(request.as_bytes()).await?;
        let mut response = String::new();
        stream.read_to_string(&mut response).await?;
        let (head, body) = response.split_once("\r\n\r\n").context("etcd sent no response")?;
        ensure!(head.split(' ').nth(1) == Some("200"), "etcd: {response}");
        Ok(serde_json::from_str(body)?)
    }
}
