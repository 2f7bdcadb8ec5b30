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

/// Gives the memory that the allocator holds without need back to the system. Takes up to some
/// milliseconds for each GiB; allocations of other threads wait for a part of that.
pub(crate) fn give_back() {
    // glibc keeps the pages between used ones until it is asked for them.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[allow(unsafe_code, reason = "it has no safe wrapper")]
    // SAFETY: it takes no pointer, and may be called from any thread at any time.
    unsafe {
        libc::malloc_trim(0);
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

    /// Small blocks with one in use behind them, so that their region does not become smaller by itself.
    #[test]
    #[cfg(target_env = "gnu")]
    fn freed_memory_is_given_back() {
        let memory = ResidentMemory::open().expect("Linux");
        let mut blocks: Vec<_> = (0..100_000).map(|_| vec![1_u8; 1024]).collect();
        let last = blocks.pop();
        drop(blocks);
        let held = memory.read().expect("Linux");
        give_back();
        let left = memory.read().expect("Linux");
        assert!(left + (64 << 20) < held, "{left} of {held}");
        drop(last);
    }

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
