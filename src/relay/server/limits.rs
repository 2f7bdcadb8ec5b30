//! The limits of open connections, from the configuration and the limit of open files.

/// Maximum connections at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConnectionLimits {
    /// Connections that have sent their preface.
    pub(super) established: usize,
    /// Connections that have not sent it yet.
    pub(super) handshakes: usize,
}

/// File descriptors reserved for other uses: the store's files, the admin port, the log and the
/// runtime.
const RESERVE: usize = 128;
/// A regular client sends its preface within a round trip. This number allows 256 / 0.1 s = 2,560
/// new connections a second at a latency of 100 ms.
const HANDSHAKES: usize = 256;

impl ConnectionLimits {
    /// Limits the stated number of connections to the number that `open_files` allow. Each kind
    /// gets at least one.
    pub(super) fn new(stated: usize, open_files: Option<usize>) -> Self {
        let available = open_files.map_or(usize::MAX, |files| files.saturating_sub(RESERVE));
        let handshakes = (available / 4).clamp(1, HANDSHAKES);
        let established = available.saturating_sub(handshakes).max(1);
        Self {
            established: stated.clamp(1, established),
            handshakes,
        }
    }
}

/// Returns the number of files that this process may have open, or `None` if it is unlimited or
/// unknown.
pub(super) fn open_files() -> Option<usize> {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, getrlimit};
        let limit = getrlimit(Resource::Nofile).current?;
        Some(usize::try_from(limit).unwrap_or(usize::MAX))
    }
    #[cfg(not(unix))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_the_reserve_and_the_handshakes_their_files() {
        for (stated, files, established, handshakes) in [
            (100_000, None, 100_000, 256),
            (100_000, Some(20_000), 20_000 - 128 - 256, 256),
            (1_000, Some(20_000), 1_000, 256),
            (100_000, Some(300), 129, 43),
            // Too few for anything: it still serves one.
            (100_000, Some(64), 1, 1),
            (0, None, 1, 256),
        ] {
            let limits = ConnectionLimits::new(stated, files);
            let expected = ConnectionLimits {
                established,
                handshakes,
            };
            assert_eq!(limits, expected, "{stated} of {files:?} files");
        }
    }
}
