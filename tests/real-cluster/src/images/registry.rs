//! A read-only registry that serves the images in the image files, for pods that pull an image even if their node has
//! it.
//!
//! Upstream: the distribution specification of OCI, as far as containerd reads images.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};

use super::layout::{MANIFEST, NAME};
use crate::network;

/// The port at the router's address.
pub const PORT: u16 = 5000;

/// The registry that this one replaces.
pub const HOST: &str = "registry.k8s.io";

/// A running registry. It ends when this value is dropped.
#[derive(Debug)]
pub struct Registry {
    task: JoinHandle<()>,
}

impl Registry {
    /// Starts a registry for image files in a network namespace. If a name is in several files, the last one applies.
    ///
    /// # Errors
    /// If a file is not an image layout, or the kernel refuses.
    pub async fn start(namespace: PathBuf, address: SocketAddr, files: Vec<PathBuf>) -> Result<Self> {
        let content = Arc::new(spawn_blocking(move || Content::read(&files)).await??);
        let listener = spawn_blocking(move || network::listen_in(&namespace, address)).await??;
        let listener = TcpListener::from_std(listener).context("use the registry's socket")?;
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                while connections.try_join_next().is_some() {}
                let Ok((stream, _)) = listener.accept().await else {
                    // Too many open files, for instance.
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                    continue;
                };
                let content = Arc::clone(&content);
                let service = service_fn(move |request| respond(Arc::clone(&content), request));
                let connection =
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                // A client that closes its connection is not an error.
                connections.spawn(async move { drop(connection.await) });
            }
        });
        Ok(Self { task })
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Delay after a connection could not be accepted.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Positions of blobs in the image files, and the manifest of each image name.
#[derive(Debug, Default)]
struct Content {
    blobs: BTreeMap<String, Blob>,
    /// Digests, by image name without the registry.
    tags: BTreeMap<String, String>,
}

#[derive(Debug)]
struct Blob {
    file: Arc<File>,
    offset: u64,
    size: u64,
}

impl Content {
    fn read(files: &[PathBuf]) -> Result<Self> {
        let mut content = Self::default();
        for path in files {
            content.add(path).with_context(|| format!("read the images in {}", path.display()))?;
        }
        Ok(content)
    }

    fn add(&mut self, path: &Path) -> Result<()> {
        let file = Arc::new(File::open(path)?);
        let mut tar = tar::Archive::new(File::open(path)?);
        for entry in tar.entries_with_seek()? {
            let mut entry = entry?;
            let name = entry.path()?.to_string_lossy().into_owned();
            if name == "index.json" {
                let mut text = String::new();
                entry.read_to_string(&mut text)?;
                self.add_tags(&serde_json::from_str(&text)?);
            } else if let Some(hash) = name.strip_prefix("blobs/sha256/") {
                let blob = Blob { file: Arc::clone(&file), offset: entry.raw_file_position(), size: entry.size() };
                self.blobs.insert(format!("sha256:{hash}"), blob);
            }
        }
        Ok(())
    }

    fn add_tags(&mut self, index: &Value) {
        for manifest in index["manifests"].as_array().into_iter().flatten() {
            let name = manifest["annotations"][NAME].as_str().and_then(|name| name.split_once('/'));
            if let (Some((_, name)), Some(digest)) = (name, manifest["digest"].as_str()) {
                self.tags.insert(name.to_owned(), digest.to_owned());
            }
        }
    }

    /// Returns the digest and the media type for a path of the registry's interface.
    fn find(&self, path: &str) -> Option<(&str, &'static str)> {
        let path = path.strip_prefix("/v2/")?;
        if let Some((_, digest)) = path.rsplit_once("/blobs/") {
            return Some((self.blobs.get_key_value(digest)?.0, "application/octet-stream"));
        }
        let (repository, reference) = path.rsplit_once("/manifests/")?;
        let digest = self.tags.get(&format!("{repository}:{reference}")).map_or(reference, String::as_str);
        Some((self.blobs.get_key_value(digest)?.0, MANIFEST))
    }
}

impl Blob {
    fn read(&self) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(self.size).map_err(std::io::Error::other)?];
        self.file.read_exact_at(&mut bytes, self.offset)?;
        Ok(bytes)
    }
}

async fn respond(content: Arc<Content>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let is_head = request.method() == Method::HEAD;
    let path = request.uri().path().to_owned();
    let result = {
        let path = path.clone();
        spawn_blocking(move || response(&content, &path, is_head)).await.map_err(Into::into).flatten()
    };
    Ok(result.unwrap_or_else(|error| {
        eprintln!("registry: {path} cannot be served: {error:#}");
        empty(StatusCode::INTERNAL_SERVER_ERROR)
    }))
}

fn response(content: &Content, path: &str, is_head: bool) -> Result<Response<Full<Bytes>>> {
    if path.trim_end_matches('/') == "/v2" {
        return Ok(empty(StatusCode::OK));
    }
    let Some((digest, kind)) = content.find(path) else { return Ok(empty(StatusCode::NOT_FOUND)) };
    let blob = &content.blobs[digest];
    let body = if is_head { Vec::new() } else { blob.read()? };
    Ok(Response::builder()
        .header(CONTENT_TYPE, kind)
        .header(CONTENT_LENGTH, blob.size)
        .header("Docker-Content-Digest", digest)
        .body(Full::new(body.into()))?)
}

fn empty(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::super::layout::{Entry, Layout, Start, layer};
    use super::*;

    #[test]
    fn content_finds_manifests_by_tag_and_digest_and_blobs_by_digest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("images.tar");
        let mut layout = Layout::create(&path).unwrap();
        let bytes = layer(&[Entry::File("a".into(), 0o644, b"content".to_vec())]).unwrap();
        let own = layout.layer(&bytes).unwrap();
        layout.image(&["registry.k8s.io/e2e/web:1.0"], &[own], &Start::default()).unwrap();
        layout.finish().unwrap();

        let content = Content::read(&[path]).unwrap();
        let (digest, kind) = content.find("/v2/e2e/web/manifests/1.0").unwrap();
        assert_eq!(kind, MANIFEST);
        assert_eq!(content.find(&format!("/v2/e2e/web/manifests/{digest}")), Some((digest, MANIFEST)));
        let manifest: Value = serde_json::from_slice(&content.blobs[digest].read().unwrap()).unwrap();
        let blob = manifest["layers"][0]["digest"].as_str().unwrap();
        let found = content.find(&format!("/v2/e2e/web/blobs/{blob}")).unwrap();
        assert_eq!(content.blobs[found.0].read().unwrap(), bytes);
        for path in ["/v2/e2e/web/manifests/2.0", "/v2/e2e/web/blobs/sha256:0", "/v2/", "/other"] {
            assert_eq!(content.find(path), None, "{path}");
        }
    }
}
