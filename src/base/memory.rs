//! The memory of this process and of its machine.

use std::fs::{self, File};

/// Reads the resident memory of this process. Its file stays open, so that it can also be read when no
/// further file can be opened.
#[derive(Debug)]
pub(crate) struct ResidentMemory(File);

impl ResidentMemory {
    /// Returns `None` on other systems than Linux.
    pub(crate) fn open() -> Option<Self> {
        File::open("/proc/self/statm").ok().map(Self)
    }

    /// Returns the resident memory in bytes; `None` if it cannot be read.
    pub(crate) fn read(&self) -> Option<u64> {
        #[cfg(unix)]
        {
            use std::os::unix::fs::FileExt as _;
            let mut text = [0; 128];
            let length = self.0.read_at(&mut text, 0).ok()?;
            let text = std::str::from_utf8(&text[..length]).ok()?;
            let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
            Some(pages * rustix::param::page_size() as u64)
        }
        #[cfg(not(unix))]
        None
    }
}

/// Returns the memory that this process may use in bytes: that of the machine, or of its control
/// group if that has less. `None` on other systems than Linux.
pub(crate) fn available() -> Option<u64> {
    #[cfg(target_os = "linux")]
    {
        let info = rustix::system::sysinfo();
        #[allow(clippy::useless_conversion, reason = "it has 32 bits on some machines")]
        let machine = u64::try_from(info.totalram).ok()? * u64::from(info.mem_unit.max(1));
        // Version 2, then version 1, as a container sees its own group.
        let groups = [
            "/sys/fs/cgroup/memory.max",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        ];
        let limit = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        Some(groups.into_iter().filter_map(limit).fold(machine, u64::min))
    }
    #[cfg(not(target_os = "linux"))]
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_a_part_of_the_machine() {
        let (memory, available) = (ResidentMemory::open(), available().expect("Linux"));
        let memory = memory.expect("Linux");
        let resident = memory.read().expect("Linux");
        assert!(resident > 1 << 20, "{resident}");
        // It is read anew each time.
        let block = vec![1_u8; 64 << 20];
        let grown = memory.read().expect("Linux");
        assert!(grown > resident + (32 << 20), "{grown} of {resident}");
        drop(block);
        assert!(resident < available, "{resident} of {available}");
    }
}
