//! A tar file with an OCI layout, as container runtimes import it: layers, configs and manifests, named by their
//! digests.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

/// The media type of manifests.
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// The annotation with an image's full name.
pub const NAME: &str = "io.containerd.image.name";

/// The search path for commands, as in upstream's images.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A layer in the layout.
#[derive(Clone, Debug)]
pub struct Layer {
    digest: String,
    size: usize,
}

/// The command and user of an image.
#[derive(Clone, Debug, Default)]
pub struct Start<'a> {
    /// The program.
    pub entrypoint: &'a [&'a str],
    /// Its arguments, which a pod may replace.
    pub command: &'a [&'a str],
    /// The user; root if empty.
    pub user: &'a str,
}

/// A layout that is being written.
pub struct Layout {
    tar: Builder<File>,
    blobs: BTreeSet<String>,
    manifests: Vec<Value>,
}

impl Layout {
    /// Creates a layout in a new file.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("make {}", path.display()))?;
        Ok(Self { tar: Builder::new(file), blobs: BTreeSet::new(), manifests: Vec::new() })
    }

    /// Adds a layer, which is a tar file.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn layer(&mut self, bytes: &[u8]) -> Result<Layer> {
        Ok(Layer { digest: self.blob(bytes)?, size: bytes.len() })
    }

    /// Adds an image under its full names.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn image(&mut self, names: &[&str], layers: &[Layer], start: &Start) -> Result<()> {
        for name in names {
            let config = json!({
                "architecture": architecture(std::env::consts::ARCH), "os": "linux",
                // The label gives images with the same content different digests, as the originals have.
                "config": {
                    "User": start.user, "Env": [PATH], "Entrypoint": start.entrypoint, "Cmd": start.command,
                    "Labels": { "name": name },
                },
                "rootfs": {
                    "type": "layers", "diff_ids": layers.iter().map(|layer| &layer.digest).collect::<Vec<_>>(),
                },
            });
            let config = self.descriptor(CONFIG, &config)?;
            let layers: Vec<Value> = layers
                .iter()
                .map(|layer| json!({ "mediaType": LAYER, "digest": layer.digest, "size": layer.size }))
                .collect();
            let manifest = json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers });
            let mut manifest = self.descriptor(MANIFEST, &manifest)?;
            let tag = name.rsplit_once(':').map_or(*name, |(_, tag)| tag);
            manifest["annotations"] = json!({ NAME: name, "org.opencontainers.image.ref.name": tag });
            self.manifests.push(manifest);
        }
        Ok(())
    }

    /// Writes the index, which completes the layout.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn finish(mut self) -> Result<()> {
        let index = json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": self.manifests,
        });
        append(&mut self.tar, "oci-layout", 0o644, json!({ "imageLayoutVersion": "1.0.0" }).to_string().as_bytes())?;
        append(&mut self.tar, "index.json", 0o644, index.to_string().as_bytes())?;
        self.tar.into_inner().and_then(|mut file| file.flush()).context("write an image layout")
    }

    fn descriptor(&mut self, media_type: &str, document: &Value) -> Result<Value> {
        let bytes = document.to_string().into_bytes();
        Ok(json!({ "mediaType": media_type, "digest": self.blob(&bytes)?, "size": bytes.len() }))
    }

    /// Adds a blob, once; returns its digest.
    fn blob(&mut self, bytes: &[u8]) -> Result<String> {
        let hash: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        if self.blobs.insert(hash.clone()) {
            append(&mut self.tar, &format!("blobs/sha256/{hash}"), 0o644, bytes)?;
        }
        Ok(format!("sha256:{hash}"))
    }
}

/// Converts Rust's name of a processor architecture into the name in images, which is Go's.
fn architecture(name: &str) -> &str {
    match name {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        "loongarch64" => "loong64",
        "x86" => "386",
        // riscv64, s390x and arm have the same name.
        other => other,
    }
}

/// A file, folder or link of a layer; paths have no leading slash.
#[derive(Clone, Debug)]
pub enum Entry {
    /// A folder with its permissions.
    Folder(String, u32),
    /// A file with its permissions and content.
    File(String, u32, Vec<u8>),
    /// A symbolic link and its target.
    Link(String, String),
    /// A hard link to an earlier file.
    HardLink(String, String),
}

impl Entry {
    /// Folders that every user may read.
    pub fn folders(paths: &[&str]) -> Vec<Self> {
        paths.iter().map(|path| Self::Folder((*path).to_owned(), 0o755)).collect()
    }
}

/// Returns the content of a layer.
///
/// # Errors
/// When a path is too long for a tar file.
pub fn layer(entries: &[Entry]) -> Result<Vec<u8>> {
    let mut layer = Builder::new(Vec::new());
    for entry in entries {
        match entry {
            Entry::Folder(path, mode) => append_folder(&mut layer, &format!("{path}/"), *mode)?,
            Entry::File(path, mode, bytes) => append(&mut layer, path, *mode, bytes)?,
            Entry::Link(path, target) => append_link(&mut layer, EntryType::Symlink, path, target)?,
            Entry::HardLink(path, target) => append_link(&mut layer, EntryType::Link, path, target)?,
        }
    }
    layer.into_inner().context("pack a layer")
}

/// Returns the content of a layer with a program and the files that programs expect.
///
/// # Errors
/// When the program cannot be read.
pub fn program_layer(path: &str, program: &Path) -> Result<Vec<u8>> {
    let bytes = std::fs::read(program).with_context(|| format!("read {}", program.display()))?;
    layer(&[
        Entry::Folder("tmp".into(), 0o1777),
        Entry::Folder("etc".into(), 0o755),
        Entry::File("etc/passwd".into(), 0o644, b"root:x:0:0:root:/root:/bin/sh\n".to_vec()),
        Entry::File(path.trim_start_matches('/').into(), 0o755, bytes),
    ])
}

fn append_link<W: Write>(tar: &mut Builder<W>, kind: EntryType, path: &str, target: &str) -> Result<()> {
    let mut header = header(kind, 0o777, 0);
    tar.append_link(&mut header, path, target).with_context(|| format!("pack {path}"))
}

fn append_folder<W: Write>(tar: &mut Builder<W>, path: &str, mode: u32) -> Result<()> {
    let mut header = header(EntryType::Directory, mode, 0);
    tar.append_data(&mut header, path, &b""[..]).with_context(|| format!("pack {path}"))
}

fn append<W: Write>(tar: &mut Builder<W>, path: &str, mode: u32, bytes: &[u8]) -> Result<()> {
    let mut header = header(EntryType::Regular, mode, bytes.len() as u64);
    tar.append_data(&mut header, path, bytes).with_context(|| format!("pack {path}"))
}

/// Owners and times are fixed, so that the same content has the same digest.
fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architecture_is_named_as_in_go() {
        for (rust, go) in [("x86_64", "amd64"), ("aarch64", "arm64"), ("riscv64", "riscv64"), ("s390x", "s390x")] {
            assert_eq!(architecture(rust), go);
        }
    }
}
