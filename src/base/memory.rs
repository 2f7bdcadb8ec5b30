//! The memory of this process and of its machine.

use std::fs;

/// Returns the resident memory of this process in bytes; `None` on other systems than Linux.
pub(crate) fn resident() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
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
        let (resident, available) = (resident().expect("Linux"), available().expect("Linux"));
        assert!(resident > 1 << 20, "{resident}");
        assert!(resident < available, "{resident} of {available}");
    }
}
