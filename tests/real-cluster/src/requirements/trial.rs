//! Trials of kernel features and programs that nodes need, in namespaces and cgroups that end with the trial.

use std::env;
use std::path::Path;
use std::process::Command;

use crate::cgroups::{self, Layout};

/// Arguments of `unshare` for the namespaces of a node.
const NAMESPACES: [&str; 9] =
    ["--net", "--mount", "--pid", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child", "--propagation=private"];

/// The first trial. The others cannot succeed if it fails.
const NAMESPACE_TRIAL: Trial = Trial {
    need: "the right to make namespaces with unshare of util-linux: in a container, start it with --privileged; if AppArmor has \
        a profile for unshare, disable that",
    script: "mount -t proc proc /proc",
    tools: &["unshare", "sh", "mount"],
};

/// Trials in the namespaces of a node. The first argument of each is a temporary folder, on the file system of nodes'
/// folders. The mounts are in the namespace only.
const TRIALS: [Trial; 4] = [
    Trial {
        need: "the overlay file system: modprobe overlay, or, if the folder for temporary files is itself an overlay or on \
            a network, set TMPDIR to a folder on a disk",
        script: "cd \"$1\" && mkdir lower upper work all \
            && mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work all && touch all/file",
        tools: &[],
    },
    Trial {
        need: "network bridges, veth pairs and routes with several next hops, with ip of iproute2: modprobe bridge veth",
        script: "ip -batch - <<'END'
link add bridge0 type bridge
link add cable0 type veth peer name cable1
link set cable0 master bridge0 up
address add 192.0.2.1/24 dev bridge0
link set bridge0 up
route replace 198.51.100.1/32 nexthop via 192.0.2.2 nexthop via 192.0.2.3
route replace unreachable 198.51.100.2/32
END",
        tools: &["ip"],
    },
    Trial {
        // Upstream: sigs.k8s.io/knftables, New, of the CNI plugins.
        need: "nft 1.0.1 or later: upgrade nftables",
        script: r#"case "$(nft --version)" in "nftables v0."* | "nftables v1.0.0 "*) nft --version >&2; exit 1 ;; esac"#,
        tools: &["nft"],
    },
    Trial {
        need: "nftables with the expressions of kube-proxy: modprobe nf_tables nft_nat nft_masq nft_numgen nft_fib_ipv4 \
            nft_reject_ipv4 nft_ct",
        script: "nft -f - <<'END'
add table ip trial
add chain ip trial post { type nat hook postrouting priority 100; }
add rule ip trial post ip saddr 192.0.2.0/24 masquerade
add chain ip trial one
add rule ip trial one ip protocol tcp dnat to 192.0.2.1:80
add chain ip trial two
add rule ip trial two ct state new reject
add map ip trial services { type ipv4_addr . inet_proto . inet_service : verdict ; }
add element ip trial services { 192.0.2.2 . tcp . 80 : goto one }
add chain ip trial pre { type nat hook prerouting priority -100; }
add rule ip trial pre ip daddr . meta l4proto . th dport vmap @services
add rule ip trial pre fib daddr type local numgen random mod 2 vmap { 0 : goto one, 1 : goto one }
END",
        tools: &["nft"],
    },
];

/// A requirement and the commands that try it.
struct Trial {
    need: &'static str,
    script: &'static str,
    /// The programs of the script, without those of [`NAMESPACE_TRIAL`].
    tools: &'static [&'static str],
}

/// Returns a sentence for each trial that fails. Trials whose programs this machine lacks are left out, because the
/// programs are reported themselves.
pub(super) fn failures(has: impl Fn(&str) -> bool) -> Vec<String> {
    let mut failures = Vec::new();
    if NAMESPACE_TRIAL.is_possible(&has) {
        match NAMESPACE_TRIAL.failure() {
            Some(failure) => failures.push(failure),
            None => failures.extend(possible(&has).filter_map(Trial::failure)),
        }
    }
    failures.extend(cgroup());
    failures
}

/// Returns the trials whose programs this machine has.
fn possible(has: &impl Fn(&str) -> bool) -> impl Iterator<Item = &'static Trial> {
    TRIALS.iter().filter(move |trial| trial.is_possible(has))
}

impl Trial {
    fn is_possible(&self, has: &impl Fn(&str) -> bool) -> bool {
        self.tools.iter().all(|tool| has(tool))
    }

    fn failure(&self) -> Option<String> {
        self.failure_in(&env::temp_dir())
    }

    /// Runs the trial with a temporary folder in `parent`.
    fn failure_in(&self, parent: &Path) -> Option<String> {
        let folder = match tempfile::Builder::new().prefix("cluster-trial-").tempdir_in(parent) {
            Ok(folder) => folder,
            Err(error) => return Some(format!("a folder for temporary files ({error}): set TMPDIR to another one")),
        };
        let script = ["--", "sh", "-c", self.script, "trial"];
        let output = Command::new("unshare").args(NAMESPACES).args(script).arg(folder.path()).output();
        match output {
            Ok(output) if output.status.success() => None,
            Ok(output) => Some(format!("{} ({})", self.need, in_one_line(&String::from_utf8_lossy(&output.stderr)))),
            Err(error) => Some(format!("the program unshare ({error})")),
        }
    }
}

/// Joins the lines of an error: a process that was started with sudo reports each failure in one line of its output.
fn in_one_line(error: &str) -> String {
    let lines = error.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("; ")
}

/// Tries to make a cgroup in each hierarchy and to move a process into them.
fn cgroup() -> Option<String> {
    let attempt = Layout::of_machine().and_then(|layout| cgroups::try_out(&layout));
    let error = attempt.err()?;
    Some(format!(
        "the right to create cgroups ({error:#}): in a container, start it with --privileged, and with \
         --cgroupns=host if it has cgroup v2, whose root must have no processes"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trial_reports_its_need_and_the_error() {
        let trial = Trial { need: "a need", script: "echo refused >&2; echo; echo twice >&2; exit 1", tools: &[] };
        let failure = trial.failure().unwrap();
        // Without the rights to make namespaces, unshare itself reports the error.
        assert!(failure.starts_with("a need (") && failure.lines().count() == 1, "{failure}");
    }

    #[test]
    fn only_trials_with_missing_programs_are_left_out() {
        let needs = |missing: &str| -> Vec<&str> {
            possible(&|tool: &str| tool != missing).map(|trial| &trial.need[..12]).collect()
        };
        let (overlay, network, version, rules) = ("the overlay ", "network brid", "nft 1.0.1 or", "nftables wit");
        assert_eq!(needs("none"), [overlay, network, version, rules]);
        assert_eq!(needs("nft"), [overlay, network]);
        assert_eq!(needs("ip"), [overlay, version, rules]);
        for tool in ["unshare", "mount", "sh"] {
            assert!(!NAMESPACE_TRIAL.is_possible(&|name: &str| name != tool), "{tool}");
        }
    }

    #[test]
    fn trials_leave_no_file_behind() {
        let folder = tempfile::tempdir().unwrap();
        for trial in TRIALS.iter().chain([&NAMESPACE_TRIAL]) {
            drop(trial.failure_in(folder.path()));
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn trial_has_a_folder_in_the_place_of_nodes() {
        let parent = tempfile::tempdir().unwrap();
        let trial = Trial { need: "a need", script: "echo \"in $1\" >&2; exit 1", tools: &[] };
        let failure = trial.failure_in(parent.path()).unwrap();
        // Without the rights to make namespaces, which root in a container may lack, the script does not run.
        let has_run = failure.contains(&format!("in {}", parent.path().display()));
        let namespaces = Trial { need: "namespaces", script: "true", tools: &[] };
        assert!(has_run || namespaces.failure().is_some(), "{failure}");
        assert!(trial.failure_in(Path::new("/nonexistent")).unwrap().contains("set TMPDIR"));
    }
}
