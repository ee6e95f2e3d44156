//! Stand-ins for the images of upstream's conformance suite: a Debian base with upstream's programs.
//!
//! The base is created once by debootstrap from the machine's own package mirror. Names and users that specs need are
//! those of the originals.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::layout::{Entry, Layer, Layout, Start, layer};
use crate::command;
use crate::programs::Programs;

/// The name of the file in the folder of programs.
pub const FILE: &str = "conformance.tar";

const RELEASE: &str = "bookworm";

/// Programs that specs run in pods.
const PACKAGES: &str = "bash,curl,bind9-dnsutils,netcat-openbsd,iproute2,iputils-ping,procps,socat,wget,nginx-light,\
    ca-certificates,iperf,libseccomp2";

/// Files of the base that no spec needs.
const EXCLUDED: [&str; 8] = [
    "./proc/*",
    "./sys/*",
    "./dev/*",
    "./run/*",
    "./usr/share/doc/*",
    "./usr/share/locale/*",
    "./var/cache/*",
    "./var/lib/apt/lists/*",
];

const E2E: &str = "registry.k8s.io/e2e-test-images";

const NGINX: &str = "user www-data;
worker_processes 1;
pid /run/nginx.pid;
error_log /dev/stderr notice;
events { worker_connections 256; }
http {
    access_log /dev/stdout;
    server { listen 80; root /usr/share/nginx/html; index index.html; }
}
";

/// Returns the file with the images, which is created if it does not exist. Blocks for some minutes then.
///
/// # Errors
/// If debootstrap or busybox is not installed, or fails.
pub fn file(programs: &Programs) -> Result<PathBuf> {
    let path = programs.path(FILE);
    if path.is_file() {
        return Ok(path);
    }
    let unfinished = programs.path(&format!("conformance.{}.tar", std::process::id()));
    let base = base(programs)?;
    let mut layout = Layout::create(&unfinished)?;
    let base = layout.layer(&base)?;
    write_busybox(&mut layout)?;
    write_servers(&mut layout, programs, &base)?;
    let shell = Start { command: &["/bin/sh"], ..Start::default() };
    layout.image(
        &[&format!("{E2E}/nonroot:1.5")],
        std::slice::from_ref(&base),
        &Start { user: "1234", ..shell.clone() },
    )?;
    layout.image(
        &[&format!("{E2E}/ipc-utils:1.4"), &format!("{E2E}/perl:5.26")],
        std::slice::from_ref(&base),
        &shell,
    )?;
    layout.image(
        &["registry.k8s.io/build-image/distroless-iptables:v0.9.6", &format!("{E2E}/glibc-dns-testing:2.1.1")],
        &[base],
        &shell,
    )?;
    layout.finish()?;
    fs::rename(&unfinished, &path).with_context(|| format!("move the images to {}", path.display()))?;
    Ok(path)
}

/// Returns the layer of the base.
fn base(programs: &Programs) -> Result<Vec<u8>> {
    let tree = programs.path("debian");
    if !tree.exists() {
        let unfinished = programs.path("debian.unfinished");
        let _ = fs::remove_dir_all(&unfinished);
        eprintln!("cluster: creating the base of test images with debootstrap (once; some minutes)");
        let mirror = mirror()?;
        let include = format!("--include={PACKAGES}");
        let target = unfinished.display().to_string();
        command::run("debootstrap", &["--variant=minbase", &include, RELEASE, &target, &mirror])
            .context("create the base of test images; install the Debian package debootstrap")?;
        fs::rename(&unfinished, &tree).context("complete the base of test images")?;
    }
    let mut tar = Command::new("tar");
    tar.args(["--create", "--file=-", "--sort=name", "--mtime=@0", "--numeric-owner"]);
    tar.arg(format!("--directory={}", tree.display()));
    let output = tar.args(EXCLUDED.map(|path| format!("--exclude={path}"))).arg(".").output().context("run tar")?;
    ensure!(output.status.success(), "tar: {}", String::from_utf8_lossy(&output.stderr));
    Ok(output.stdout)
}

/// Returns the package mirror that this machine uses.
fn mirror() -> Result<String> {
    let mirrors = command::run("apt-get", &["indextargets", "--format", "$(REPO_URI)"])
        .context("find a Debian mirror; the test images can be created on Debian only")?;
    mirrors.lines().next().map(String::from).context("this machine has no Debian mirror in its apt sources")
}

fn write_busybox(layout: &mut Layout) -> Result<()> {
    const BUSYBOX: &str = "/bin/busybox";
    let Ok(program) = fs::read(BUSYBOX) else { bail!("no {BUSYBOX}: install the Debian package busybox-static") };
    let mut entries = Entry::folders(&["bin", "dev", "etc", "home", "proc", "root", "sys", "usr", "usr/bin", "var"]);
    entries.push(Entry::Folder("tmp".into(), 0o1777));
    entries.push(Entry::File("bin/busybox".into(), 0o755, program));
    let applets = command::run(BUSYBOX, &["--list"])?;
    entries.extend(
        applets
            .lines()
            .filter(|name| *name != "busybox")
            .map(|name| Entry::HardLink(format!("bin/{name}"), "bin/busybox".into())),
    );
    entries.push(Entry::File("etc/passwd".into(), 0o644, b"root:x:0:0:root:/root:/bin/sh\n".to_vec()));
    entries.push(Entry::File("etc/group".into(), 0o644, b"root:x:0:\n".to_vec()));
    let layer = layout.layer(&layer(&entries)?)?;
    let names = [format!("{E2E}/busybox:1.37.0-2"), format!("{E2E}/busybox:1.36.1-1")];
    layout.image(&[&names[0], &names[1]], &[layer], &Start { command: &["sh"], ..Start::default() })
}

fn write_servers(layout: &mut Layout, programs: &Programs, base: &Layer) -> Result<()> {
    let read = |path: &Path| fs::read(path).with_context(|| format!("read {}", path.display()));
    let users = read(&programs.path("debian/etc/passwd"))?;
    let users = [users, b"user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n".to_vec()].concat();
    let groups = read(&programs.path("debian/etc/group"))?;
    let groups =
        [groups, b"user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n".to_vec()]
            .concat();
    let agnhost = layout.layer(&layer(&[
        Entry::File("agnhost".into(), 0o755, read(&programs.path("agnhost"))?),
        Entry::Link("agnhost-2".into(), "agnhost".into()),
        Entry::Folder("uploads".into(), 0o755),
        Entry::File("etc/passwd".into(), 0o644, users),
        Entry::File("etc/group".into(), 0o644, groups),
        // dash drops variables whose names have a dash, as those of some specs do.
        Entry::Link("usr/bin/sh".into(), "bash".into()),
    ])?)?;
    let start = Start { entrypoint: &["/agnhost"], command: &["pause"], ..Start::default() };
    let layers = [base.clone(), agnhost];
    layout.image(&[super::AGNHOST, super::AGNHOST_OLD, &format!("{E2E}/agnhost:2.53")], &layers, &start)?;
    let nginx = layout.layer(&layer(&[
        Entry::File("etc/nginx/nginx.conf".into(), 0o644, NGINX.into()),
        Entry::File("usr/share/nginx/html/index.html".into(), 0o644, b"<h1>Welcome to nginx!</h1>\n".to_vec()),
    ])?)?;
    let start = Start { command: &["nginx", "-g", "daemon off;"], ..Start::default() };
    let names = [format!("{E2E}/nginx:1.27.0-2"), format!("{E2E}/nginx:1.28.0-2")];
    layout.image(&[&names[0], &names[1]], &[base.clone(), nginx], &start)
}
