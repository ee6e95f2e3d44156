//! Resource usage of a process, from the kernel's counters in `/proc`.

use std::fs;

use anyhow::{Context, Result};

/// Clock ticks per second in `/proc/<pid>/stat`: the kernel's USER_HZ, which is the same on every architecture that
/// Rust and Go both run on.
const TICKS: f64 = 100.0;

/// CPU time and memory of a process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    /// User and system time since its start, in seconds.
    pub cpu: f64,
    /// Resident memory now (VmRSS), in MiB.
    pub resident: f64,
    /// Maximum resident memory (VmHWM), in MiB.
    pub peak: f64,
}

/// Reads the usage of a running process.
pub fn usage(id: u32) -> Result<Usage> {
    let read = |file: &str| fs::read_to_string(format!("/proc/{id}/{file}")).context("the manager's process has ended");
    let status = read("status")?;
    let memory = |name| memory(&status, name).with_context(|| format!("no {name} in /proc/{id}/status"));
    Ok(Usage {
        cpu: cpu(&read("stat")?).with_context(|| format!("cannot read /proc/{id}/stat"))?,
        resident: memory("VmRSS")?,
        peak: memory("VmHWM")?,
    })
}

/// Returns the seconds of user and system time in the text of a `stat` file. The program's name, in brackets, may
/// contain any characters; the times are the 12th and 13th field after it.
fn cpu(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11).map(str::parse::<f64>);
    let (user, system) = (times.next()?.ok()?, times.next()?.ok()?);
    Some((user + system) / TICKS)
}

/// Returns the MiB of a line such as `VmRSS:   2048 kB`.
fn memory(status: &str, name: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_parsed() {
        let stat = "17 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 9 0";
        assert_eq!(cpu(stat), Some(3.0));
        assert_eq!(cpu("17 (short) S 1 2"), None);
        let status = "Name:\tx\nVmHWM:\t    4096 kB\nVmRSS:\t    2048 kB\n";
        assert_eq!((memory(status, "VmRSS"), memory(status, "VmHWM")), (Some(2.0), Some(4.0)));
        assert_eq!(memory(status, "VmSwap"), None);
    }

    #[test]
    fn usage_of_this_process_is_read() {
        let usage = usage(std::process::id()).unwrap();
        assert!(usage.resident > 0.0 && usage.peak >= usage.resident, "{usage:?}");
    }
}
