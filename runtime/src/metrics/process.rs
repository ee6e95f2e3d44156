//! The process's use of system resources, from `/proc`.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::encode::{counters, gauges};

/// `process_start_time_seconds`, which is served with all metrics and with the results of health checks.
#[derive(Debug)]
pub(crate) struct StartTime;

impl Collector for StartTime {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
        let Some(start) = start_seconds(&read("/proc/self/stat"), &read("/proc/stat")) else { return Ok(()) };
        let help = "Start time of the process since unix epoch in seconds.";
        gauges(&mut encoder, "process_start_time_seconds", help, [([], start)])
    }
}

/// `process_*`, except for [`StartTime`].
#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
        let stat = read("/proc/self/stat");
        let open = std::fs::read_dir("/proc/self/fd").map(|files| files.count() as f64).ok();
        if let Some(seconds) = cpu_seconds(&stat) {
            let help = "Total user and system CPU time spent in seconds.";
            counters(&mut encoder, "process_cpu_seconds", help, [([], seconds)])?;
        }
        let traffic = read("/proc/self/net/netstat");
        for (name, help, field) in [
            ("process_network_receive_bytes", "Number of bytes received by the process over the network.", "InOctets"),
            ("process_network_transmit_bytes", "Number of bytes sent by the process over the network.", "OutOctets"),
        ] {
            counters(&mut encoder, name, help, [([], octets(&traffic, field).unwrap_or_default())])?;
        }
        let limits = read("/proc/self/limits");
        for (name, help, value) in [
            ("process_max_fds", "Maximum number of open file descriptors.", limit(&limits, "Max open files")),
            ("process_open_fds", "Number of open file descriptors.", open),
            (
                "process_resident_memory_bytes",
                "Resident memory size in bytes.",
                kilobytes(&read("/proc/self/status"), "VmRSS:"),
            ),
            (
                "process_virtual_memory_bytes",
                "Virtual memory size in bytes.",
                kilobytes(&read("/proc/self/status"), "VmSize:"),
            ),
            (
                "process_virtual_memory_max_bytes",
                "Maximum amount of virtual memory available in bytes.",
                limit(&limits, "Max address space"),
            ),
        ] {
            if let Some(value) = value {
                gauges(&mut encoder, name, help, [([], value)])?;
            }
        }
        Ok(())
    }
}

/// Units per second of the times that the kernel reports to user space, on every supported architecture.
const TICKS: f64 = 100.0;

/// Returns a field of `/proc/<pid>/stat` by its number in proc(5), from 3 on: the fields after the command in
/// parentheses.
fn stat_field(stat: &str, number: usize) -> Option<f64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(number - 3)?.parse().ok()
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    Some((stat_field(stat, 14)? + stat_field(stat, 15)?) / TICKS)
}

fn start_seconds(stat: &str, system: &str) -> Option<f64> {
    let booted: f64 = system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(booted + stat_field(stat, 22)? / TICKS)
}

fn kilobytes(status: &str, name: &str) -> Option<f64> {
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(value.split_whitespace().next()?.parse::<f64>().ok()? * 1024.0)
}

/// Returns a soft limit. "unlimited" is the largest value, as for Prometheus' Go library.
fn limit(limits: &str, name: &str) -> Option<f64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX as f64),
        number => number.parse().ok(),
    }
}

/// Returns a count of the process's network namespace: in the table, a line of names precedes each line of values.
fn octets(netstat: &str, name: &str) -> Option<f64> {
    let mut rows = netstat.lines().filter_map(|line| line.strip_prefix("IpExt:"));
    let (names, values) = (rows.next()?, rows.next()?);
    let at = names.split_whitespace().position(|other| other == name)?;
    values.split_whitespace().nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::Metrics;
    use super::*;

    #[test]
    fn process_metrics_report_plausible_sizes() {
        let text = Metrics::new().text();
        for name in [
            "process_cpu_seconds_total",
            "process_max_fds",
            "process_open_fds",
            "process_resident_memory_bytes",
            "process_start_time_seconds",
            "process_virtual_memory_bytes",
            "process_virtual_memory_max_bytes",
            "process_network_receive_bytes_total",
            "process_network_transmit_bytes_total",
        ] {
            let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
            let value: f64 = line.and_then(|line| line.rsplit_once(' ')).expect(name).1.parse().expect(name);
            let may_be_zero = name.contains("cpu") || name.contains("network");
            assert!(value >= 0.0 && (may_be_zero || value > 0.0), "{name} {value}");
        }
    }

    #[test]
    fn limits_and_traffic_are_read_by_name() {
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files  1024  4096  files\n\
                      Max address space  unlimited  unlimited  bytes\n";
        assert_eq!(limit(limits, "Max open files"), Some(1024.0));
        assert_eq!(limit(limits, "Max address space"), Some(18_446_744_073_709_551_615.0));
        assert_eq!(limit(limits, "Max nothing"), None);
        let netstat = "TcpExt: A InOctets\nTcpExt: 1 2\nIpExt: InNoRoutes InOctets OutOctets\nIpExt: 0 70 80\n";
        assert_eq!((octets(netstat, "InOctets"), octets(netstat, "OutOctets")), (Some(70.0), Some(80.0)));
        assert_eq!((octets(netstat, "Other"), octets("", "InOctets")), (None, None));
    }

    #[test]
    fn stat_fields_are_read_after_the_command() {
        let stat = "1 (a) b) S 1 1 1 0 -1 4 0 0 0 0 150 50 0 0 20 0 9 0 1000 7";
        assert_eq!(cpu_seconds(stat), Some(2.0));
        assert_eq!(start_seconds(stat, "cpu 1\nbtime 500\n"), Some(510.0));
    }
}
