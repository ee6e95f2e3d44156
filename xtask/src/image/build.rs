//! Static binaries with musl, and their toolchain: a Rust target and, for ring's C, a C compiler.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::cargo::{cargo, executable};

/// An architecture of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Arch {
    /// x86_64
    Amd64,
    /// aarch64
    Arm64,
}

impl Arch {
    /// All architectures.
    pub const ALL: [Arch; 2] = [Arch::Amd64, Arch::Arm64];

    /// Returns its name in images.
    pub fn oci(self) -> &'static str {
        match self {
            Arch::Amd64 => "amd64",
            Arch::Arm64 => "arm64",
        }
    }

    /// Returns its number in an ELF file (e_machine).
    pub fn machine(self) -> u16 {
        match self {
            Arch::Amd64 => 62,
            Arch::Arm64 => 183,
        }
    }

    /// Returns its name in the names of compilers and Rust targets.
    fn cpu(self) -> &'static str {
        match self {
            Arch::Amd64 => "x86_64",
            Arch::Arm64 => "aarch64",
        }
    }

    fn triple(self) -> String {
        format!("{}-unknown-linux-musl", self.cpu())
    }

    fn is_host(self) -> bool {
        env::consts::ARCH == self.cpu()
    }

    /// Returns names of C compilers for the architecture, the preferred one first. A compiler for glibc works if there
    /// is no other: ring's C calls only functions that both libraries have.
    fn compilers(self) -> Vec<String> {
        let own = format!("{}-linux-musl-gcc", self.cpu());
        if self.is_host() {
            vec!["musl-gcc".to_owned(), own]
        } else {
            vec![own, format!("{}-linux-gnu-gcc", self.cpu())]
        }
    }

    /// Returns the packages with such a compiler on Debian and Ubuntu.
    fn packages(self) -> String {
        if self.is_host() {
            "musl-tools".to_owned()
        } else {
            format!("gcc-{0}-linux-gnu libc6-dev-{1}-cross", self.cpu().replace('_', "-"), self.oci())
        }
    }
}

/// The toolchain for an architecture.
#[derive(Clone, Debug)]
pub struct Toolchain {
    /// The architecture.
    pub arch: Arch,
    /// The C compiler; `None` if the environment names one.
    compiler: Option<PathBuf>,
}

impl Toolchain {
    /// Finds the toolchain. The error names the packages to install.
    pub fn find(arch: Arch) -> Result<Self> {
        let triple = arch.triple();
        if !standard_library(&triple)?.is_dir() {
            bail!("the Rust target is missing: rustup target add {triple}");
        }
        let with_underscores = triple.replace('-', "_");
        if [format!("CC_{triple}"), format!("CC_{with_underscores}")].iter().any(|name| env::var_os(name).is_some()) {
            return Ok(Self { arch, compiler: None });
        }
        let names = arch.compilers();
        match names.iter().find_map(|name| find_in_path(name)) {
            Some(compiler) => Ok(Self { arch, compiler: Some(compiler) }),
            None => bail!(
                "no C compiler for {triple} ({}): install {} (Debian, Ubuntu), or set CC_{with_underscores}",
                names.join(", "),
                arch.packages()
            ),
        }
    }

    /// Returns the environment of the build. No linker for another architecture is needed: Rust includes one, with
    /// everything that a static binary is linked from.
    fn environment(&self) -> Vec<(String, PathBuf)> {
        let triple = self.arch.triple().replace('-', "_");
        let compiler = self.compiler.clone().map(|compiler| (format!("CC_{triple}"), compiler));
        let linker = (!self.arch.is_host())
            .then(|| (format!("CARGO_TARGET_{}_LINKER", triple.to_uppercase()), PathBuf::from("rust-lld")));
        compiler.into_iter().chain(linker).collect()
    }
}

/// Builds the binary with a package's name for release, with these features; returns its path.
pub fn build(package: &str, features: &[&str], toolchain: &Toolchain) -> Result<PathBuf> {
    let triple = toolchain.arch.triple();
    let arguments = ["build", "--release", "--locked", "--target", &triple, "--package", package, "--bin", package];
    let output = cargo()
        .args(arguments)
        .args(["--features", &features.join(",")])
        .args(["--message-format", "json-render-diagnostics"])
        .envs(toolchain.environment())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("run cargo build for {triple}"))?;
    if !output.status.success() {
        bail!("cargo could not build {package} for {triple} ({}); its messages are above", output.status);
    }
    let messages = String::from_utf8(output.stdout).context("read cargo's messages")?;
    executable(&messages, package).with_context(|| format!("cargo built {package} and did not report its path"))
}

/// Returns the folder of Rust's standard library for a target, which may not exist.
fn standard_library(triple: &str) -> Result<PathBuf> {
    let arguments = ["--print", "target-libdir", "--target", triple];
    let output = Command::new("rustc").args(arguments).output().context("run rustc")?;
    Ok(PathBuf::from(String::from_utf8(output.stdout).context("read rustc's output")?.trim_end()))
}

/// Finds a program on the PATH.
fn find_in_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder: PathBuf| folder.join(name)).find(|file: &PathBuf| Path::is_file(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_toolchain_parts_are_named_with_their_packages() {
        for arch in Arch::ALL {
            let (compilers, packages) = (arch.compilers(), arch.packages());
            if arch.is_host() {
                assert_eq!((compilers[0].as_str(), packages.as_str()), ("musl-gcc", "musl-tools"));
            } else {
                assert!(compilers.iter().all(|name| name.starts_with(arch.cpu())), "{compilers:?}");
                assert!(packages.ends_with(&format!("libc6-dev-{}-cross", arch.oci())), "{packages}");
            }
        }
    }

    #[test]
    fn other_architectures_are_linked_by_rusts_linker() {
        for arch in Arch::ALL {
            let toolchain = Toolchain { arch, compiler: Some("/bin/cc".into()) };
            let names: Vec<String> = toolchain.environment().into_iter().map(|(name, _)| name).collect();
            assert_eq!(names[0], format!("CC_{}_unknown_linux_musl", arch.cpu()));
            assert_eq!(names.len(), if arch.is_host() { 1 } else { 2 }, "{names:?}");
        }
    }
}
