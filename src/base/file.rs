//! Reads small files that an operator names: regular ones, of a bounded length, within a bounded time.
//!
//! A file system that hangs (a network file system without its server) blocks a reader for as long as
//! that lasts, and nothing ends the wait. So each file is read by a thread of its own, which is left
//! behind when the time is over.

use std::{
    fs::{File, Metadata},
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, Weak,
        mpsc::{RecvTimeoutError, sync_channel},
    },
    thread,
    time::Duration,
};

use super::sync::lock;

/// A file as it was read.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) bytes: Vec<u8>,
    /// Every user of the machine may read it.
    pub(crate) is_public: bool,
    /// Every user of the machine may write it.
    pub(crate) is_open: bool,
}

/// A file within reach takes milliseconds, also on a busy machine.
const LIMIT: Duration = Duration::from_secs(5);
/// Threads that may hang in one file. A later one can succeed where a dead file system was replaced.
const MOST_HANGING: usize = 4;

/// The threads that were left behind, by file. Each holds its `Arc` until it ends.
static HANGING: Mutex<Vec<(PathBuf, Weak<()>)>> = Mutex::new(Vec::new());

/// Reads a regular file of at most `longest` bytes.
///
/// # Errors
/// [`io::ErrorKind::FileTooLarge`] for a longer file, [`io::ErrorKind::TimedOut`] if it was not read
/// within five seconds.
pub(crate) fn read(path: &Path, longest: u64) -> io::Result<Content> {
    read_within(LIMIT, path, move |path| read_regular(path, longest))
}

#[expect(
    clippy::disallowed_methods,
    reason = "a thread that hangs must not be awaited at the end of the runtime"
)]
fn read_within(
    limit: Duration,
    path: &Path,
    read: impl FnOnce(&Path) -> io::Result<Content> + Send + 'static,
) -> io::Result<Content> {
    if hanging(path) >= MOST_HANGING {
        let message = format!("its file system hangs: {MOST_HANGING} reads have not ended");
        return Err(io::Error::new(io::ErrorKind::TimedOut, message));
    }
    let alive = Arc::new(());
    let is_alive = Arc::downgrade(&alive);
    let (sender, result) = sync_channel(1);
    let owned = path.to_owned();
    thread::Builder::new()
        .name("read-file".to_owned())
        .spawn(move || {
            // The receiver may have given up.
            let _ = sender.send(read(&owned));
            drop(alive);
        })?;
    match result.recv_timeout(limit) {
        Ok(read) => read,
        Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("its reader panicked")),
        Err(RecvTimeoutError::Timeout) => {
            lock(&HANGING).push((path.to_owned(), is_alive));
            let message = format!("its file system did not answer within {limit:?}");
            Err(io::Error::new(io::ErrorKind::TimedOut, message))
        }
    }
}

/// Returns the number of threads that hang in this file.
fn hanging(path: &Path) -> usize {
    let mut all = lock(&HANGING);
    all.retain(|(_, thread)| thread.strong_count() > 0);
    all.iter().filter(|(other, _)| other == path).count()
}

fn read_regular(path: &Path, longest: u64) -> io::Result<Content> {
    // Before it is opened: that of a named pipe waits for a writer.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    let file = File::open(path)?;
    let mode = mode(&file.metadata()?);
    file.take(longest.saturating_add(1))
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > longest {
        let message = format!("it is longer than {longest} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(Content {
        bytes,
        is_public: mode & 0o004 != 0,
        is_open: mode & 0o002 != 0,
    })
}

#[cfg(unix)]
fn mode(file: &Metadata) -> u32 {
    std::os::unix::fs::PermissionsExt::mode(&file.permissions())
}

#[cfg(not(unix))]
fn mode(_: &Metadata) -> u32 {
    0
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_file_that_hangs_ends_the_read_and_is_read_again_once_it_answers() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("rules");
        std::fs::write(&path, "rules").expect("written");
        let (answer, hang) = channel::<()>();
        let hang = Arc::new(Mutex::new(hang));
        let hanging_read = || {
            let hang = Arc::clone(&hang);
            let read = move |path: &Path| {
                let _ = lock(&hang).recv();
                read_regular(path, 100)
            };
            read_within(Duration::from_millis(1), &path, read)
        };
        for _ in 0..MOST_HANGING {
            let error = hanging_read().expect_err("it hangs");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        }
        let error = read(&path, 100).expect_err("too many hang").to_string();
        assert!(error.contains("reads have not ended"), "{error}");
        assert!(
            read(home.path(), 100).is_err_and(|error| error.kind() != io::ErrorKind::TimedOut),
            "another file"
        );
        drop(answer);
        while hanging(&path) > 0 {
            thread::yield_now();
        }
        assert_eq!(read(&path, 100).expect("it answers").bytes, b"rules");
    }

    #[test]
    fn only_a_regular_file_of_a_bounded_length_is_read() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("file");
        std::fs::write(&path, "12345").expect("written");
        assert_eq!(read(&path, 5).expect("short enough").bytes, b"12345");
        let error = read(&path, 4).expect_err("too long");
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        #[cfg(unix)]
        for other in ["/dev/zero", "/"] {
            let error = read(Path::new(other), 5).expect_err(other).to_string();
            assert_eq!(error, "it is not a regular file");
        }
    }
}
