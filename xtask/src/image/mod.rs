//! `cargo xtask image`: static binaries, and minimal OCI images, built without a daemon.

mod build;
mod elf;
mod empty_root;
mod oci;
mod program;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use build::{Arch, Toolchain};
use empty_root::RunResult;
use oci::Platform;
use program::Program;

/// Build static binaries and OCI images of them.
///
/// An image contains the binary, under the program's name in upstream's manifests, and the certificates of authorities
/// if the program calls a cloud. It runs as an unprivileged user (65532). It is written as an OCI layout and as a tar
/// file of it, which ctr, podman, skopeo and docker can read. The result is read back, and the binary is run in an
/// empty root if this host allows that.
///
/// Requirements: the Rust target (rustup target add ARCH-unknown-linux-musl) and a C compiler for it; missing ones are
/// named. A release build takes about ten minutes per program on two cores; the last minutes use one core.
#[derive(clap::Args)]
#[command(after_long_help = "Examples:
  cargo xtask image                                      # both programs, for each architecture with a toolchain
  cargo xtask image kcm --arch amd64
  cargo xtask image kcm --registry registry.example.com/control --tag v0.1.0

Load one on a node, and push one to a registry:
  ctr --namespace k8s.io images import target/image/kcm.tar
  skopeo copy --all oci:target/image/kcm docker://registry.example.com/control/kcm:v0.1.0")]
pub struct Arguments {
    /// Programs to build; all by default
    #[arg(value_enum, value_name = "PROGRAM")]
    programs: Vec<Program>,

    /// Architectures; by default each whose toolchain is installed
    #[arg(long, value_enum, value_delimiter = ',')]
    arch: Vec<Arch>,

    /// The prefix of the image's name
    #[arg(long, value_name = "PREFIX", default_value = "localhost")]
    registry: String,

    /// The image's tag
    #[arg(long, default_value = concat!("v", env!("CARGO_PKG_VERSION")))]
    tag: String,

    /// The folder for layouts and tar files
    #[arg(long, value_name = "FOLDER", default_value = "target/image")]
    output: PathBuf,

    /// Authorities that a cloud program trusts, as PEM
    #[arg(long, value_name = "FILE", default_value = "/etc/ssl/certs/ca-certificates.crt")]
    certificates: PathBuf,
}

/// Builds, writes, reads back and runs the requested images.
///
/// # Errors
/// If a requested image cannot be built, no toolchain is complete, or the result is invalid.
pub fn run(arguments: Arguments) -> Result<()> {
    let programs = if arguments.programs.is_empty() { Program::ALL.to_vec() } else { arguments.programs.clone() };
    let toolchains = toolchains(&arguments.arch)?;
    for program in programs {
        let mut platforms = Vec::new();
        for toolchain in &toolchains {
            println!("==> {} for {}", program.package(), toolchain.arch.oci());
            let binary = build::build(program.package(), program.features(), toolchain)?;
            platforms.push(platform(program, toolchain.arch, &binary, &arguments)?);
        }
        let name = format!("{}/{}:{}", arguments.registry, program.package(), arguments.tag);
        let layout = arguments.output.join(program.package());
        let tar = arguments.output.join(format!("{}.tar", program.package()));
        oci::write(&layout, &name, &platforms)?;
        oci::pack(&layout, &tar)?;
        for image in oci::read(&layout)? {
            println!("{}: {}", image.architecture, test_run(program, &image)?);
        }
        println!("{name}: {} and {} ({})", layout.display(), tar.display(), megabytes(fs::metadata(&tar)?.len()));
    }
    Ok(())
}

/// Returns the requested toolchains; without a request, the installed ones, with a message about each missing one.
fn toolchains(wanted: &[Arch]) -> Result<Vec<Toolchain>> {
    if !wanted.is_empty() {
        return wanted.iter().map(|arch| Toolchain::find(*arch)).collect();
    }
    let mut found = Vec::new();
    for arch in Arch::ALL {
        match Toolchain::find(arch) {
            Ok(toolchain) => found.push(toolchain),
            Err(missing) => println!("NOT BUILT for {}: {missing:#}", arch.oci()),
        }
    }
    ensure!(!found.is_empty(), "no toolchain for static binaries is complete; the missing parts are named above");
    Ok(found)
}

/// Returns a program's content for one architecture, after checks that its binary is static and small enough.
fn platform(program: Program, arch: Arch, binary: &Path, arguments: &Arguments) -> Result<Platform> {
    let bytes = fs::read(binary).with_context(|| format!("read {}", binary.display()))?;
    let elf = elf::read(&bytes).with_context(|| format!("read {}", binary.display()))?;
    elf.must_be_static(arch.machine()).with_context(|| format!("{} cannot run in an empty root", binary.display()))?;
    let (size, limit) = (bytes.len() as u64, program.limit());
    println!("{}: static, {}; its limit is {}", binary.display(), megabytes(size), megabytes(limit));
    ensure!(
        size <= limit,
        "{} has grown beyond its limit: find what made it grow, or raise the limit in xtask/src/image/program.rs",
        program.package()
    );
    let certificates = if program.calls_a_cloud() {
        Some(fs::read(&arguments.certificates).with_context(|| {
            format!(
                "read the authorities {} that {} trusts: install ca-certificates, or name a file with --certificates",
                arguments.certificates.display(),
                program.package()
            )
        })?)
    } else {
        None
    };
    Ok(Platform {
        architecture: arch.oci(),
        contents: program.contents(bytes, certificates),
        entrypoint: program.entrypoint(),
        labels: program.labels(&arguments.tag),
    })
}

/// Runs the image's command with `--version`, if this host allows that; returns the result.
fn test_run(program: Program, image: &oci::Image) -> Result<String> {
    let command = [program.command(), "--version"];
    Ok(match empty_root::run(image, &command)? {
        RunResult::Succeeded(output) => {
            format!("'{}' in an empty root prints: {}", command.join(" "), output.trim_end())
        }
        RunResult::Failed(message) => bail!("'{}' fails in an empty root: {message}", command.join(" ")),
        RunResult::Unsupported(why) => format!("read back, and NOT run in an empty root: {why}"),
    })
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests;
