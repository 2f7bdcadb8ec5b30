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
}
