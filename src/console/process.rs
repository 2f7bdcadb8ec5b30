//! Linux's figures of this process, under the metric names of Prometheus' client libraries.

use std::{fmt, fs};

use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge, info::Info},
};
use rustix::{
    param::{clock_ticks_per_second, page_size},
    process::{Resource, getrlimit},
};

/// A snapshot of the process.
#[derive(Debug, PartialEq)]
struct Process {
    cpu_seconds: f64,
    resident_bytes: f64,
    virtual_bytes: f64,
    /// Since 1970.
    started_at: f64,
    open_files: f64,
    threads: f64,
}

/// Encodes the build and, on Linux, the process.
pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let build = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
    let help = "The program's version";
    let part = encoder.encode_descriptor("reveille_build", help, None, build.metric_type())?;
    build.encode(part)?;
    let Some(process) = Process::read() else {
        return Ok(());
    };
    let cpu = ConstCounter::new(process.cpu_seconds);
    let help = "Processor time of user and system in seconds";
    let part = encoder.encode_descriptor("process_cpu_seconds", help, None, cpu.metric_type())?;
    cpu.encode(part)?;
    let files = getrlimit(Resource::Nofile).current;
    for (name, help, value) in [
        (
            "process_resident_memory_bytes",
            "Resident memory in bytes",
            process.resident_bytes,
        ),
        (
            "process_virtual_memory_bytes",
            "Virtual memory in bytes",
            process.virtual_bytes,
        ),
        (
            "process_start_time_seconds",
            "When the process started, in seconds since 1970",
            process.started_at,
        ),
        ("process_open_fds", "Open files", process.open_files),
        (
            "process_max_fds",
            "Files that can be open",
            files.map_or(f64::INFINITY, |files| files as f64),
        ),
        ("process_threads", "Threads", process.threads),
    ] {
        let gauge = ConstGauge::new(value);
        let part = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
        gauge.encode(part)?;
    }
    Ok(())
}

impl Process {
    /// Reads `/proc/self`; `None` on other systems.
    fn read() -> Option<Self> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        // The boot time, from which a process's start is counted.
        let system = fs::read_to_string("/proc/stat").ok()?;
        let booted = system
            .lines()
            .find_map(|line| line.strip_prefix("btime "))?;
        let files = fs::read_dir("/proc/self/fd").ok()?.count();
        Self::parse(&stat, booted.trim().parse().ok()?, files)
    }

    /// Parses a line of `/proc/PID/stat`: see proc_pid_stat(5).
    fn parse(stat: &str, booted_at: f64, open_files: usize) -> Option<Self> {
        // The name, in parentheses, may contain any character; the state follows it as field 3.
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        let ticks = clock_ticks_per_second() as f64;
        Some(Self {
            cpu_seconds: (field(14)? + field(15)?) / ticks,
            threads: field(20)?,
            started_at: booted_at + field(22)? / ticks,
            virtual_bytes: field(23)?,
            resident_bytes: field(24)? * page_size() as f64,
            open_files: open_files as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_any_name_is_parsed() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 9 0 1000 8192 3 1 1";
        let process = Process::parse(stat, 1_000_000.0, 5).expect("well formed");
        let (ticks, page) = (clock_ticks_per_second() as f64, page_size() as f64);
        assert_eq!(process.cpu_seconds, 300.0 / ticks);
        assert_eq!(process.threads, 9.0);
        assert_eq!(process.started_at, 1_000_000.0 + 1000.0 / ticks);
        assert_eq!(process.virtual_bytes, 8192.0);
        assert_eq!(process.resident_bytes, 3.0 * page);
        assert_eq!(process.open_files, 5.0);
        assert_eq!(Process::parse("7 (cut) S 1", 0.0, 5), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_is_alive() {
        let process = Process::read().expect("Linux");
        assert!(process.resident_bytes > 1e6 && process.threads >= 1.0);
        assert!(process.open_files >= 3.0 && process.started_at > 1e9);
    }
}
