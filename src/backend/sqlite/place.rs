//! The place of a database file: who it is, and whether SQLite can use it there.
//!
//! SQLite finds the log by the file's path, and the file by its descriptor. A file that was moved,
//! deleted or replaced while it is open is written on where nobody finds it, and a file with two
//! names has two logs. See <https://www.sqlite.org/howtocorrupt.html>, section 2.

use std::{fs, io, path::Path};

use super::error::{self, failed};
use crate::error::{ErrorKind, Result};

/// Distinguishes a file from another one that takes its path later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileId {
    #[cfg(unix)]
    inode: (u64, u64),
}

impl FileId {
    /// Reads the metadata without opening the file: closing any descriptor of the file would drop
    /// all locks that this process has on it.
    pub(super) fn of(path: &Path) -> Option<Self> {
        fs::metadata(path).ok().map(|metadata| Self::new(&metadata))
    }

    #[cfg(unix)]
    fn new(metadata: &fs::Metadata) -> Self {
        use std::os::unix::fs::MetadataExt as _;
        let inode = (metadata.dev(), metadata.ino());
        Self { inode }
    }

    #[cfg(not(unix))]
    fn new(_: &fs::Metadata) -> Self {
        Self {}
    }

    /// Fails if the path does not lead to this file any more.
    pub(super) fn check(self, path: &Path) -> Result<()> {
        match fs::metadata(path) {
            Ok(found) if Self::new(&found) == self => Ok(()),
            Ok(_) => Err(error::replaced(path)),
            Err(source) if source.kind() == io::ErrorKind::NotFound => {
                let what = "was moved or deleted while it is open: nothing is written any more: put \
                            it back, or restart this program";
                Err(failed(ErrorKind::Closed, path, what))
            }
            Err(source) => Err(error::not_found_out(path, source)),
        }
    }

    /// Returns whether another process has the file open: each one has a lock on it. Only Linux tells.
    #[cfg(unix)]
    pub(super) fn is_used_by_others(self) -> bool {
        let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
        let (inode, own) = (self.inode.1.to_string(), std::process::id().to_string());
        // `1: POSIX ADVISORY READ PROCESS MAJOR:MINOR:INODE START END` (proc_locks(5)).
        locks.lines().any(|line| {
            let mut fields = line.split_whitespace();
            let (process, file) = (fields.nth(4), fields.next());
            let number = file.and_then(|file| file.rsplit(':').next());
            process.is_some_and(|process| process != own) && number == Some(&inode)
        })
    }

    #[cfg(not(unix))]
    pub(super) fn is_used_by_others(self) -> bool {
        true
    }
}

/// Refuses a file whose log would not lie where all others look for it. Returns which file it is.
pub(super) fn check_place(path: &Path) -> Result<FileId> {
    let metadata = fs::metadata(path).map_err(|source| error::not_found_out(path, source))?;
    #[cfg(unix)]
    if std::os::unix::fs::MetadataExt::nlink(&metadata) > 1 {
        let what = "has several hard links: each name would have a log of its own, and one would \
                    lack the other's commits: keep one name";
        return Err(failed(ErrorKind::Invalid, path, what));
    }
    if is_mount_point(path) {
        let what =
            "is mounted alone: its log would stay behind in the container: mount its directory";
        return Err(failed(ErrorKind::Invalid, path, what));
    }
    Ok(FileId::new(&metadata))
}

/// Returns whether the file itself, and not a directory above it, is mounted here. Only Linux tells.
fn is_mount_point(path: &Path) -> bool {
    let (Ok(path), Ok(mounts)) = (path.canonicalize(), fs::read("/proc/self/mountinfo")) else {
        return false;
    };
    let path = escape(path.as_os_str().as_encoded_bytes());
    // The fifth field is the mount point (proc_pid_mountinfo(5)).
    let mut points = mounts
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    points.any(|point| point == path)
}

/// Escapes a path as the kernel does in that file.
fn escape(path: &[u8]) -> Vec<u8> {
    let escaped = path.iter().flat_map(|byte| match byte {
        b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
        byte => vec![*byte],
    });
    escaped.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_is_found_by_its_path() {
        assert_eq!(escape(b"/a b\\c"), b"/a\\040b\\134c");
        assert!(is_mount_point(Path::new("/proc")));
        assert!(!is_mount_point(Path::new("/proc/self")));
    }
}
