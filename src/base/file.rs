//! Reads the small files that an operator names: regular ones of a bounded length.

use std::{
    fmt::Display,
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use crate::error::{Error, Result};

/// Reads a regular file of at most `longest` bytes.
///
/// # Errors
/// [`io::ErrorKind::FileTooLarge`] for a longer file.
pub(crate) fn read(path: &Path, longest: u64) -> io::Result<Vec<u8>> {
    // Before it is opened: that of a named pipe waits for a writer.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    let file = File::open(path)?;
    file.take(longest.saturating_add(1))
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > longest {
        let message = format!("it is longer than {longest} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

/// Reads the file that a setting names.
///
/// # Errors
/// `Invalid`, with the setting and the path.
pub(crate) fn read_setting(setting: &str, path: &Path, longest: u64) -> Result<Vec<u8>> {
    read(path, longest).map_err(|error| unfit(setting, path, error))
}

/// Creates the error for a setting whose file cannot be used.
pub(crate) fn unfit(setting: &str, path: &Path, reason: impl Display) -> Error {
    Error::invalid(setting, format_args!("`{}`: {reason}", path.display()))
}

/// Returns a note on a file that every user of the machine can write, or read if it is secret.
#[cfg(all(feature = "relay", unix))]
pub(crate) fn note_open(path: &Path, is_secret: bool) -> Option<String> {
    let file = std::fs::metadata(path).ok()?;
    let mode = std::os::unix::fs::PermissionsExt::mode(&file.permissions());
    let done = if mode & 0o002 != 0 {
        "written"
    } else if is_secret && mode & 0o004 != 0 {
        "read"
    } else {
        return None;
    };
    let path = path.display();
    Some(format!(
        "file `{path}` can be {done} by every user of the machine"
    ))
}

#[cfg(all(feature = "relay", not(unix)))]
pub(crate) fn note_open(_: &Path, _: bool) -> Option<String> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_regular_file_of_a_bounded_length_is_read() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("file");
        std::fs::write(&path, "12345").expect("written");
        assert_eq!(read(&path, 5).expect("short enough"), b"12345");
        let error = read(&path, 4).expect_err("too long");
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        #[cfg(unix)]
        for other in ["/dev/zero", "/"] {
            let error = read(Path::new(other), 5).expect_err(other).to_string();
            assert_eq!(error, "it is not a regular file");
        }
    }

    #[cfg(all(feature = "relay", unix))]
    #[test]
    fn a_file_that_others_can_write_or_a_secret_that_they_can_read_is_noted() {
        use std::{fs::Permissions, os::unix::fs::PermissionsExt as _};
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("file");
        std::fs::write(&path, "").expect("written");
        for (mode, is_secret, word) in [
            (0o640, true, None),
            (0o644, false, None),
            (0o644, true, Some("be read by")),
            (0o666, true, Some("be written by")),
            (0o602, false, Some("be written by")),
        ] {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).expect("it is ours");
            let note = note_open(&path, is_secret);
            assert_eq!(note.is_some(), word.is_some(), "{note:?}");
            assert!(note.is_none_or(|note| note.contains(word.unwrap_or_default())));
        }
    }
}
