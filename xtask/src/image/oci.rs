//! OCI images as files: a layout of blobs that are named by their digests, written and read back.
//!
//! The format is a few JSON documents and one tar file; a crate for registries would add an HTTP client and more. Times
//! and owners are fixed, so that the same content has the same digest everywhere.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// An unprivileged user without a name, as in distroless images.
const USER: &str = "65532:65532";

/// The search path of commands, as in upstream's images.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A file of an image.
#[derive(Debug)]
pub struct Content {
    /// Its path, without a leading slash.
    pub path: String,
    /// Its content.
    pub data: Data,
}

/// The content of a file of an image.
#[derive(Debug)]
pub enum Data {
    /// A folder.
    Folder,
    /// A file that all users may read.
    File(Vec<u8>),
    /// A file that all users may execute.
    Program(Vec<u8>),
    /// A symbolic link to this path.
    Link(String),
}

/// An image for one architecture.
#[derive(Debug)]
pub struct Platform {
    /// The architecture's name in images.
    pub architecture: &'static str,
    /// All its files; a folder precedes its contents.
    pub contents: Vec<Content>,
    /// The default command.
    pub entrypoint: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

/// An image that was read, with verified digests.
#[derive(Debug)]
pub struct Image {
    /// The architecture's name in images.
    pub architecture: String,
    /// Its complete config.
    pub config: Value,
    /// Its layer, as a tar file.
    pub layer: Vec<u8>,
}

/// Writes a layout with one image, named `name` (with its tag), and replaces an existing one.
pub fn write(layout: &Path, name: &str, platforms: &[Platform]) -> Result<()> {
    if layout.exists() {
        fs::remove_dir_all(layout).with_context(|| format!("remove the previous {}", layout.display()))?;
    }
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs).with_context(|| format!("make {}", blobs.display()))?;
    let mut manifests = Vec::new();
    for platform in platforms {
        let mut manifest = descriptor(&blobs, MANIFEST, &write_manifest(&blobs, platform)?)?;
        manifest["platform"] = json!({"os": "linux", "architecture": platform.architecture});
        manifests.push(manifest);
    }
    let mut top = match manifests.as_slice() {
        [one] => one.clone(),
        several => descriptor(&blobs, INDEX, &to_json(&index(several))?)?,
    };
    let tag = name.rsplit_once(':').map_or(name, |(_, tag)| tag);
    top["annotations"] = json!({"org.opencontainers.image.ref.name": tag, "io.containerd.image.name": name});
    write_file(&layout.join("index.json"), &to_json(&index(&[top]))?)?;
    write_file(&layout.join("oci-layout"), &to_json(&json!({"imageLayoutVersion": "1.0.0"}))?)
}

/// Packs a layout into a tar file.
pub fn pack(layout: &Path, tar: &Path) -> Result<()> {
    let mut files = Vec::new();
    for blob in fs::read_dir(layout.join("blobs/sha256")).context("list the blobs")? {
        files.push(Path::new("blobs/sha256").join(blob?.file_name()));
    }
    files.sort();
    files.extend(["index.json", "oci-layout"].map(PathBuf::from));
    let mut packed = Builder::new(fs::File::create(tar).with_context(|| format!("make {}", tar.display()))?);
    for path in files {
        let bytes = fs::read(layout.join(&path)).with_context(|| format!("read {}", path.display()))?;
        append(&mut packed, &path.to_string_lossy(), EntryType::Regular, 0o644, &bytes)?;
    }
    packed.into_inner().and_then(|mut file| file.flush()).with_context(|| format!("write {}", tar.display()))
}

/// Reads a layout's images. Fails unless the size and the digest of each blob match its references.
pub fn read(layout: &Path) -> Result<Vec<Image>> {
    let text = fs::read(layout.join("index.json")).context("read index.json")?;
    let mut remaining = manifests(&serde_json::from_slice(&text).context("read index.json")?)?;
    let mut images = Vec::new();
    while let Some(descriptor) = remaining.pop() {
        let blob = blob(layout, &descriptor)?;
        let document: Value = serde_json::from_slice(&blob)?;
        if descriptor["mediaType"] == INDEX {
            remaining.extend(manifests(&document)?);
        } else {
            images.push(read_image(layout, &document, &descriptor["platform"])?);
        }
    }
    images.reverse();
    Ok(images)
}

fn read_image(layout: &Path, manifest: &Value, platform: &Value) -> Result<Image> {
    let config: Value = serde_json::from_slice(&blob(layout, &manifest["config"])?).context("read a config")?;
    let layers = manifest["layers"].as_array().context("a manifest without layers")?;
    ensure!(layers.len() == 1, "{} layers instead of one", layers.len());
    let mut layer = Vec::new();
    GzDecoder::new(&*blob(layout, &layers[0])?).read_to_end(&mut layer).context("unpack the layer")?;
    let (actual, recorded) = (digest(&layer), &config["rootfs"]["diff_ids"]);
    ensure!(*recorded == json!([actual]), "the layer is {actual}, the config has {recorded}");
    let architecture = config["architecture"].as_str().context("a config without an architecture")?;
    ensure!(platform["architecture"] == architecture, "the index has {platform}, the image is for {architecture}");
    Ok(Image { architecture: architecture.to_owned(), layer, config })
}

fn manifests(index: &Value) -> Result<Vec<Value>> {
    index["manifests"].as_array().cloned().context("an index without manifests")
}

/// Returns the blob that a descriptor refers to.
fn blob(layout: &Path, descriptor: &Value) -> Result<Vec<u8>> {
    let expected = descriptor["digest"].as_str().context("a descriptor without a digest")?;
    let hash = expected.strip_prefix("sha256:").with_context(|| format!("{expected} is not a SHA-256 digest"))?;
    let bytes =
        fs::read(layout.join("blobs/sha256").join(hash)).with_context(|| format!("read the blob {expected}"))?;
    ensure!(digest(&bytes) == expected, "the blob {expected} has another digest");
    ensure!(descriptor["size"] == bytes.len(), "the blob {expected} has {} bytes: {descriptor}", bytes.len());
    Ok(bytes)
}

/// Writes a platform's layer and config; returns its manifest.
fn write_manifest(blobs: &Path, platform: &Platform) -> Result<Vec<u8>> {
    let layer = layer(&platform.contents)?;
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(&layer)?;
    let config = json!({
        "architecture": platform.architecture, "os": "linux",
        "config": {
            "User": USER, "Env": [PATH], "Entrypoint": [platform.entrypoint], "WorkingDir": "/",
            "Labels": platform.labels,
        },
        "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]},
        "history": [{"created_by": "cargo xtask image"}],
    });
    to_json(&json!({
        "schemaVersion": 2, "mediaType": MANIFEST,
        "config": descriptor(blobs, CONFIG, &to_json(&config)?)?,
        "layers": [descriptor(blobs, LAYER, &packed.finish()?)?],
        "annotations": platform.labels,
    }))
}

/// Returns a tar file of these contents, which belong to root and have the oldest time.
fn layer(contents: &[Content]) -> Result<Vec<u8>> {
    let mut layer = Builder::new(Vec::new());
    for Content { path, data } in contents {
        match data {
            Data::Folder => append(&mut layer, &format!("{path}/"), EntryType::Directory, 0o755, b"")?,
            Data::File(bytes) => append(&mut layer, path, EntryType::Regular, 0o644, bytes)?,
            Data::Program(bytes) => append(&mut layer, path, EntryType::Regular, 0o755, bytes)?,
            Data::Link(target) => {
                let mut header = header(EntryType::Symlink, 0o777, 0);
                layer.append_link(&mut header, path, target).with_context(|| format!("pack {path}"))?;
            }
        }
    }
    layer.into_inner().context("pack a layer")
}

fn append<W: Write>(tar: &mut Builder<W>, path: &str, kind: EntryType, mode: u32, bytes: &[u8]) -> Result<()> {
    let mut header = header(kind, mode, bytes.len() as u64);
    tar.append_data(&mut header, path, bytes).with_context(|| format!("pack {path}"))
}

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

fn index(manifests: &[Value]) -> Value {
    json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests})
}

/// Writes a blob; returns its descriptor.
fn descriptor(blobs: &Path, media_type: &str, bytes: &[u8]) -> Result<Value> {
    let digest = digest(bytes);
    write_file(&blobs.join(digest.trim_start_matches("sha256:")), bytes)?;
    Ok(json!({"mediaType": media_type, "digest": digest, "size": bytes.len()}))
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).with_context(|| format!("write {}", path.display()))
}

fn to_json(value: &Value) -> Result<Vec<u8>> {
    Ok(serde_json::to_vec(value)?)
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold("sha256:".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}
