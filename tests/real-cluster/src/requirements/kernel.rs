//! The kernel's version, its cgroup controllers and its devices.

use std::fs;
use std::path::Path;

use crate::cgroups::Layout;

/// The oldest kernel on which kube-proxy runs with nftables.
const OLDEST: (u32, u32) = (5, 13);

/// The device from which kubelets read the kernel's messages.
const MESSAGES: &str = "/dev/kmsg";

/// Returns a sentence for each thing that is missing.
pub(super) fn missing() -> Vec<String> {
    let mut missing = Vec::new();
    missing.extend(version(&fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default()));
    missing.extend(cgroup_controllers());
    if !Path::new(MESSAGES).exists() {
        missing.push(format!("the device {MESSAGES}, which kubelets read: in a container, pass it into the container"));
    }
    missing
}

/// Returns a sentence if the kernel's release, such as `6.1.0-13-amd64`, is too old. A release in another format counts
/// as new enough.
fn version(release: &str) -> Option<String> {
    let mut numbers = release.split(['.', '-']).map_while(|number| number.trim().parse::<u32>().ok());
    let own = (numbers.next()?, numbers.next()?);
    (own < OLDEST).then(|| {
        format!(
            "Linux {}.{} or later, which kube-proxy needs for nftables; this is {}",
            OLDEST.0,
            OLDEST.1,
            release.trim()
        )
    })
}

fn cgroup_controllers() -> Option<String> {
    let layout = match Layout::of_machine() {
        Ok(layout) => layout,
        Err(error) => return Some(format!("a list of mounts: {error:#}")),
    };
    let missing = layout.missing();
    (!missing.is_empty()).then(|| {
        format!(
            "the cgroup controllers {}: in a container, start it with cgroups of its own; else see cgroups(7)",
            missing.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_is_too_old_before_5_13() {
        for (release, is_missing) in [
            ("5.12.19-generic\n", true),
            ("4.18.0-553.el8", true),
            ("5.13.0", false),
            ("6.1.0-13-amd64\n", false),
            ("6.18.44-fc-v669", false),
            ("", false),
        ] {
            assert_eq!(version(release).is_some(), is_missing, "{release}");
        }
    }
}
