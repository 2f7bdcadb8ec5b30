//! Replaces a file as a whole, under an advisory lock.
//!
//! A writer reads the file, changes it and writes it while it holds the lock. The new content is
//! synced before the rename: after a crash the file is the old one or the new one.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use super::super::token::new_id;
use crate::error::{Error, ErrorKind, Result};

/// The lock of one writer. The system ends it with the process.
#[derive(Debug)]
pub(super) struct FileLock {
    /// The file itself, where the given path is a symbolic link.
    path: PathBuf,
    _lock: File,
}

impl FileLock {
    /// Waits for the lock of this file.
    pub(super) fn acquire(path: &Path) -> Result<Self> {
        // A rename would replace the link instead of the file.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let lock = beside(&path, ".lock");
        let fail = |error| failed(&lock, "locked", error);
        let file = private().create(true).truncate(false).open(&lock);
        let file = file.map_err(fail)?;
        file.lock().map_err(fail)?;
        Ok(Self { path, _lock: file })
    }

    /// Replaces the file's content.
    pub(super) fn write(&self, text: &str) -> Result<()> {
        let new = beside(&self.path, &format!(".{}", new_id()?));
        let written = self.write_new(&new, text);
        if written.is_err() {
            // The error that counts is the first one.
            let _ = fs::remove_file(&new);
        }
        written.map_err(|error| failed(&self.path, "written", error))
    }

    fn write_new(&self, new: &Path, text: &str) -> io::Result<()> {
        let mut file = private().create_new(true).open(new)?;
        file.write_all(text.as_bytes())?;
        keep_owner(&file, &self.path)?;
        file.sync_all()?;
        fs::rename(new, &self.path)?;
        sync_directory(&self.path)
    }
}

/// Gives the new file the owner of the former one, and lets its group read it as before: the user that adds a token may not be
/// the relay's user.
#[cfg(unix)]
fn keep_owner(new: &File, former: &Path) -> io::Result<()> {
    use std::{
        fs::Permissions,
        os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown},
    };
    let Ok(former) = fs::metadata(former) else {
        return Ok(());
    };
    let own = new.metadata()?;
    if (own.uid(), own.gid()) != (former.uid(), former.gid()) {
        fchown(new, Some(former.uid()), Some(former.gid()))?;
    }
    // Its group may read it where that was so; others never.
    let mode = former.mode() & 0o640 | 0o600;
    new.set_permissions(Permissions::from_mode(mode))
}

#[cfg(not(unix))]
fn keep_owner(_: &File, _: &Path) -> io::Result<()> {
    Ok(())
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Makes the rename durable, where the system lets a directory be opened.
fn sync_directory(path: &Path) -> io::Result<()> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or_else(|| Path::new("."));
    if cfg!(unix) {
        File::open(parent)?.sync_all()
    } else {
        Ok(())
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn failed(path: &Path, verb: &str, error: io::Error) -> Error {
    let message = format!("token file `{}` cannot be {verb}: {error}", path.display());
    Error::new(ErrorKind::Unavailable, message).with_source(error)
}
