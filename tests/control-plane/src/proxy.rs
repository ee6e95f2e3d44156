//! The environment's HTTP proxies, which downloads need and programs of a private control plane must not use.

use std::process::Command;

/// Variables that name a proxy.
pub const VARIABLES: [&str; 6] = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];

/// Removes proxies from the environment of a program, because it connects to addresses that no proxy reaches.
pub fn remove(command: &mut Command) -> &mut Command {
    for name in VARIABLES {
        command.env_remove(name);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn started_program_has_no_proxy_and_keeps_other_variables() {
        let mut command = Command::new("env");
        command.env_clear().env("OTHER", "kept");
        for name in VARIABLES {
            command.env(name, "http://proxy.invalid:3128");
        }
        let output = remove(&mut command).env("PATH", "/usr/bin:/bin").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(!text.contains("proxy.invalid"), "{text}");
        assert!(text.contains("OTHER=kept"), "{text}");
    }
}
