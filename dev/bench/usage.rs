//! Processor time and memory of a process, from the kernel. Known on Linux only.

use std::time::Duration;

/// A process's processor time and memory; `None` if the system does not report them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    /// User and system time of all threads, in steps of 10 ms.
    pub(crate) cpu: Option<Duration>,
    /// The resident set.
    pub(crate) rss_kib: Option<u64>,
}

/// The kernel's unit of processor time in `/proc`, `USER_HZ`: 100 a second on every architecture
/// that Rust runs on but Alpha.
const TICK: Duration = Duration::from_millis(10);

impl Usage {
    /// Reads the usage of this process.
    pub(crate) fn own() -> Self {
        Self::of(Some(std::process::id()))
    }

    /// Reads the usage of process `pid`.
    pub(crate) fn of(pid: Option<u32>) -> Self {
        let Some(pid) = pid else {
            return Self::default();
        };
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
        Self {
            cpu: read("stat").and_then(|stat| cpu(&stat)),
            rss_kib: read("status").and_then(|status| rss_kib(&status)),
        }
    }

    /// Returns the sum of both processes; a value that one of them does not have is `None`.
    pub(crate) fn plus(self, other: Self) -> Self {
        let rss = self.rss_kib.zip(other.rss_kib);
        Self {
            cpu: self.cpu.zip(other.cpu).map(|(one, two)| one + two),
            rss_kib: rss.map(|(one, two)| one + two),
        }
    }

    /// Returns the processor time used since `before`, in seconds.
    pub(crate) fn seconds_since(&self, before: &Self) -> Option<f64> {
        Some(self.cpu?.saturating_sub(before.cpu?).as_secs_f64())
    }

    /// Returns the resident set in KiB.
    pub(crate) fn kib(&self) -> Option<f64> {
        self.rss_kib.map(|kib| kib as f64)
    }
}

/// Reads `utime` and `stime`, fields 14 and 15. The second field, the program's name, may contain
/// any character, and ends with the last parenthesis.
fn cpu(stat: &str) -> Option<Duration> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u32>().ok();
    Some(TICK * ticks()?.checked_add(ticks()?)?)
}

fn rss_kib(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_files_are_parsed() {
        let stat = "17 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 120 30 0 0 20";
        assert_eq!(cpu(stat), Some(Duration::from_millis(1500)));
        assert_eq!(rss_kib("VmPeak:\t 9 kB\nVmRSS:\t   1234 kB\n"), Some(1234));
        assert_eq!(cpu("nonsense"), None);
    }

    #[test]
    fn the_difference_of_unknown_usages_is_unknown() {
        let unknown = Usage::of(None);
        assert_eq!(unknown.seconds_since(&unknown), None);
    }
}
