//! Trials of everything that nodes do, in namespaces and cgroups that end with the trial.

use std::process::Command;

use crate::cgroups::{self, Layout};

/// Arguments of `unshare` for the namespaces of a node.
const NAMESPACES: [&str; 9] =
    ["--net", "--mount", "--pid", "--uts", "--ipc", "--cgroup", "--fork", "--propagation", "private"];

/// The first trial. The others cannot succeed if it fails.
const NAMESPACE_TRIAL: Trial = Trial {
    need: "the right to make namespaces: in a container, start it with --privileged",
    script: "mount -t proc proc /proc",
};

/// Trials in the namespaces of a node. The mounts are over a folder of the namespace only.
const TRIALS: [Trial; 3] = [
    Trial {
        need: "the overlay file system: modprobe overlay",
        script: "mount -t tmpfs tmpfs /run && cd /run && mkdir lower upper work all \
            && mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work all",
    },
    Trial {
        need: "network bridges and veth pairs: modprobe bridge veth",
        script: "ip link add name bridge0 type bridge && ip link add name cable0 type veth peer name cable1 \
            && ip link set dev cable0 master bridge0",
    },
    Trial {
        need: "nftables with NAT: modprobe nf_tables nft_nat nft_masq",
        script: "nft 'add table ip trial; add chain ip trial post { type nat hook postrouting priority 100; }; \
            add rule ip trial post ip saddr 192.0.2.0/24 masquerade'",
    },
];

/// A requirement and the commands that try it.
struct Trial {
    need: &'static str,
    script: &'static str,
}

/// Returns a sentence for each trial that fails.
pub(super) fn failures() -> Vec<String> {
    if let Some(failure) = NAMESPACE_TRIAL.failure() {
        return vec![failure];
    }
    TRIALS.iter().filter_map(Trial::failure).chain(cgroup()).collect()
}

impl Trial {
    fn failure(&self) -> Option<String> {
        let output = Command::new("unshare").args(NAMESPACES).args(["--", "sh", "-c", self.script]).output();
        match output {
            Ok(output) if output.status.success() => None,
            Ok(output) => Some(format!("{} ({})", self.need, String::from_utf8_lossy(&output.stderr).trim())),
            Err(error) => Some(format!("the program unshare ({error})")),
        }
    }
}

/// Tries to make a cgroup with all controllers and to move a process into it.
fn cgroup() -> Option<String> {
    let attempt = Layout::of_machine().and_then(|layout| cgroups::try_out(&layout));
    let error = attempt.err()?;
    Some(format!(
        "cgroups that this process may divide ({error:#}): in a container, start it with --privileged, and with \
         --cgroupns=host if it has cgroup v2, whose root must have no processes"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trial_reports_its_need_and_the_complaint() {
        let trial = Trial { need: "a need", script: "echo refused >&2; exit 1" };
        let failure = trial.failure().unwrap();
        // Without the rights to make namespaces, the complaint is that of unshare.
        assert!(failure.starts_with("a need ("), "{failure}");
    }

    #[test]
    fn trials_leave_no_file_behind() {
        let folder = tempfile::tempdir().unwrap();
        for trial in TRIALS.iter().chain([&NAMESPACE_TRIAL]) {
            let mut command = Command::new("unshare");
            let command = command.args(NAMESPACES).args(["--", "sh", "-c", trial.script]);
            drop(command.env("TMPDIR", folder.path()).current_dir(folder.path()).output());
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
