//! Times that processes of one machine compare.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns a point in time as nanoseconds of the wall clock.
pub(super) fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
