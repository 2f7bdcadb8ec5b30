//! Linux's figures of this process, under the metric names of Prometheus' client libraries.

use std::{fmt, fs};

use prometheus_client::{
    encoding::DescriptorEncoder,
    metrics::{counter::ConstCounter, gauge::ConstGauge, info::Info},
};
use rustix::{
    param::{clock_ticks_per_second, page_size},
    process::{Resource, getrlimit},
};

use super::prometheus::{encode_metric, metric_table};

/// A metric of the process: its name, its help text, its value.
type Figure = (&'static str, &'static str, f64);

/// Encodes the build and, on Linux, the process.
pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let build = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
    encode_metric(encoder, "reveille_build", "The program's version", &build)?;
    let Some((cpu_seconds, gauges)) = read() else {
        return Ok(());
    };
    let help = "Processor time of user and system in seconds";
    let cpu = ConstCounter::new(cpu_seconds);
    encode_metric(encoder, "process_cpu_seconds", help, &cpu)?;
    for (name, help, value) in gauges {
        encode_metric(encoder, name, help, &ConstGauge::new(value))?;
    }
    let files = getrlimit(Resource::Nofile).current;
    let files = ConstGauge::new(files.map_or(f64::INFINITY, |files| files as f64));
    encode_metric(encoder, "process_max_fds", "Files that can be open", &files)
}

/// Reads the seconds of the processor and the gauges from `/proc/self`; `None` on other systems.
fn read() -> Option<(f64, Vec<Figure>)> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The boot time, from which a process's start is counted.
    let system = fs::read_to_string("/proc/stat").ok()?;
    let booted = system
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?;
    let files = fs::read_dir("/proc/self/fd").ok()?.count();
    parse(&stat, booted.trim().parse().ok()?, files)
}

/// Parses a line of `/proc/PID/stat`: see proc_pid_stat(5).
fn parse(stat: &str, booted_at: f64, open_files: usize) -> Option<(f64, Vec<Figure>)> {
    // The name, in parentheses, may contain any character; the state follows it as field 3.
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
    let ticks = clock_ticks_per_second() as f64;
    let gauges = metric_table! {
        process_resident_memory_bytes = field(24)? * page_size() as f64, "Resident memory in bytes";
        process_virtual_memory_bytes = field(23)?, "Virtual memory in bytes";
        process_start_time_seconds = booted_at + field(22)? / ticks,
            "When the process started, in seconds since 1970";
        process_open_fds = open_files as f64, "Open files";
        process_threads = field(20)?, "Threads";
    };
    Some(((field(14)? + field(15)?) / ticks, gauges))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_any_name_is_parsed() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 9 0 1000 8192 3 1 1";
        let (cpu_seconds, gauges) = parse(stat, 1_000_000.0, 5).expect("well formed");
        let (ticks, page) = (clock_ticks_per_second() as f64, page_size() as f64);
        assert_eq!(cpu_seconds, 300.0 / ticks);
        let started_at = 1_000_000.0 + 1000.0 / ticks;
        let values: Vec<_> = gauges.into_iter().map(|(_, _, value)| value).collect();
        assert_eq!(values, [3.0 * page, 8192.0, started_at, 5.0, 9.0]);
        assert_eq!(parse("7 (cut) S 1", 0.0, 5), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_is_alive() {
        let (_, gauges) = read().expect("Linux");
        let values: Vec<_> = gauges.into_iter().map(|(_, _, value)| value).collect();
        let [resident, _, started_at, files, threads] = values[..] else {
            panic!("five gauges")
        };
        assert!(resident > 1e6 && threads >= 1.0);
        assert!(files >= 3.0 && started_at > 1e9);
    }
}
