//! The busybox image, built from this machine's static programs.

use std::path::Path;

use anyhow::Result;

use super::super::layout::{Entry, Layout, Start, layer};
use super::{E2E, read};
use crate::command;

/// The static busybox.
pub(super) const BUSYBOX: &str = "/bin/busybox";

/// The shell for environments with variables that busybox' shell would drop.
pub(super) const BASH: &str = "/bin/bash-static";

/// Starts busybox' shell, whose messages specs expect, unless it would drop a variable because of its name: some specs
/// set variables whose names contain a dash.
const SHELL: &str = r#"#!/bin/bash
shell=/bin/busybox
while IFS= read -r -d '' variable; do
    [[ $variable =~ ^[A-Za-z_][A-Za-z0-9_]*= ]] || shell=/bin/bash
done 2> /dev/null < /proc/self/environ
exec -a "$0" "$shell" "$@"
"#;

const USERS: &str = "root:x:0:0:root:/root:/bin/sh
daemon:x:1:1:daemon:/usr/sbin:/bin/false
mail:x:8:8:mail:/var/spool/mail:/bin/false
nobody:x:65534:65534:nobody:/home:/bin/false
";

const GROUPS: &str = "root:x:0:
daemon:x:1:
mail:x:8:
users:x:100:
nobody:x:65534:
";

/// Writes the image.
pub(super) fn write(layout: &mut Layout) -> Result<()> {
    let layer = layout.layer(&root()?)?;
    let names = ["busybox:1.37.0-2", "busybox:1.36.1-1"].map(|name| format!("{E2E}/{name}"));
    let start = Start { command: &["sh"], ..Start::default() };
    layout.image(&names.each_ref().map(String::as_str), &[layer], &start)
}

/// Returns the layer with busybox, its commands, and a shell.
pub(super) fn root() -> Result<Vec<u8>> {
    let folders =
        ["bin", "dev", "etc", "home", "proc", "root", "sys", "usr", "usr/bin", "var", "var/spool", "var/spool/mail"];
    let mut entries = Entry::folders(&folders);
    entries.push(Entry::Folder("tmp".into(), 0o1777));
    entries.push(Entry::File("bin/busybox".into(), 0o755, read(Path::new(BUSYBOX))?));
    entries.push(Entry::File("bin/bash".into(), 0o755, read(Path::new(BASH))?));
    entries.push(Entry::File("bin/sh".into(), 0o755, SHELL.into()));
    let commands = applets()?.into_iter().filter(|name| !["bash", "busybox", "sh"].contains(&name.as_str()));
    entries.extend(commands.map(|name| Entry::HardLink(format!("bin/{name}"), "bin/busybox".into())));
    entries.push(Entry::Link("usr/bin/env".into(), "/bin/env".into()));
    entries.push(Entry::File("etc/passwd".into(), 0o644, USERS.into()));
    entries.push(Entry::File("etc/group".into(), 0o644, GROUPS.into()));
    layer(&entries)
}

/// Returns the names of busybox' commands.
pub(super) fn applets() -> Result<Vec<String>> {
    Ok(command::run(BUSYBOX, &["--list"])?.lines().map(String::from).collect())
}

/// Returns a link to a busybox at `program` for each command that a root file system lacks.
pub(super) fn links(root: &Path, program: &str) -> Result<Vec<Entry>> {
    const FOLDERS: [&str; 4] = ["bin", "sbin", "usr/bin", "usr/sbin"];
    let exists = |name: &str| FOLDERS.iter().any(|folder| root.join(folder).join(name).symlink_metadata().is_ok());
    let missing = applets()?.into_iter().filter(|name| name != "busybox" && !exists(name));
    Ok(missing.map(|name| Entry::Link(format!("usr/bin/{name}"), program.to_owned())).collect())
}

/// Returns the busybox program.
pub(super) fn program() -> Result<Vec<u8>> {
    read(Path::new(BUSYBOX))
}
