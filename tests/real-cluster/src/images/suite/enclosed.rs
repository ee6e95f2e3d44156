//! A program that makes a tree of files as root, enclosed in namespaces: its processes and mounts end with it, and an
//! unfinished tree is removed, even if the caller is killed.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context, Result};

/// The namespaces. Mounts end with the last process in them, and all processes with the first one.
const NAMESPACES: [&str; 6] = ["--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "--"];

/// The first process. Its standard input is a pipe that only the caller can write to: when the caller ends, for any
/// reason, the kernel closes it. The first argument is the tree, the others are the program and its arguments.
const SCRIPT: &str = r#"
tree=$1
shift
mount -t proc proc /proc
exec 3<&0
"$@" 3<&- < /dev/null &
program=$!
{ while read -r _; do :; done <&3; kill -s KILL "$program"; } &
wait "$program"
status=$?
exec 3<&-
trap '' TERM HUP INT
if [ "$status" -ne 0 ]; then
    kill -s KILL -- -1
    for mount in proc sys dev/pts dev; do
        umount -l -- "$tree/$mount" 2> /dev/null
    done
    rm -rf --one-file-system -- "$tree"
fi
exit "$status"
"#;

/// Runs a program that makes `tree`, and waits for it.
pub(super) fn output(program: &str, arguments: impl Iterator<Item = OsString>, tree: &Path) -> Result<Output> {
    let mut child = start(program.as_ref(), arguments, tree)?;
    // Waiting would close the pipe, which ends the program.
    let input = child.stdin.take();
    let output = child.wait_with_output().with_context(|| format!("wait for {program}"));
    drop(input);
    output
}

fn start(program: &OsStr, arguments: impl Iterator<Item = OsString>, tree: &Path) -> Result<Child> {
    Command::new("unshare")
        .args(NAMESPACES)
        .args(["sh", "-c", SCRIPT, "enclosed"])
        .arg(tree)
        .arg(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A signal of the terminal reaches only the caller; the program ends with the caller.
        .process_group(0)
        .spawn()
        .context("run unshare")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, Instant};

    use super::*;
    /// Returns the arguments of a program that makes the tree and mounts something in it, as debootstrap does.
    fn arguments(tree: &Path, end: &str) -> impl Iterator<Item = OsString> {
        let tree = tree.display();
        let script = format!("mkdir -p {tree}/proc && mount -t proc proc {tree}/proc && echo made; {end}");
        ["-c".to_owned(), script].map(OsString::from).into_iter()
    }

    /// Returns true if this process may mount in these namespaces. Root in a container usually may not.
    fn may_mount() -> bool {
        let mount = Command::new("unshare").args(NAMESPACES).args(["mount", "-t", "proc", "proc", "/proc"]).output();
        mount.is_ok_and(|output| output.status.success())
    }

    fn mounts(tree: &Path) -> usize {
        let tree = tree.display().to_string();
        fs::read_to_string("/proc/self/mountinfo").unwrap().lines().filter(|line| line.contains(&tree)).count()
    }

    #[test]
    fn tree_stays_when_the_program_succeeds() {
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("tree");
        if !may_mount() {
            println!("left out: this process may not mount");
            return;
        }
        let made = output("sh", arguments(&tree, "exit 0"), &tree).unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        assert_eq!(made.stdout, b"made\n");
        assert_eq!((tree.join("proc").is_dir(), mounts(&tree)), (true, 0));

        let failed = output("sh", arguments(&tree, "sleep 600 & exit 3"), &tree).unwrap();
        assert_eq!(failed.status.code(), Some(3));
        assert_eq!((tree.exists(), mounts(&tree)), (false, 0));
    }

    #[test]
    fn processes_mounts_and_tree_end_with_the_caller() {
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("tree");
        if !may_mount() {
            println!("left out: this process may not mount");
            return;
        }
        let mut child = start("sh".as_ref(), arguments(&tree, "sleep 600 & sleep 600"), &tree).unwrap();
        let mut made = [0; 5];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut made).unwrap();
        assert!(tree.exists());
        // As the kernel does when the caller is killed.
        drop(child.stdin.take());
        let deadline = Instant::now() + Duration::from_secs(30);
        while child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "the program runs without its caller");
            std::thread::yield_now();
        }
        assert_eq!((tree.exists(), mounts(&tree)), (false, 0));
    }
}
