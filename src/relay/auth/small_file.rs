//! Reads the small files that the operator names: rules, keys, tokens.

use std::{io, path::Path};

use crate::{
    base::file::{self, Content},
    error::{Error, ErrorKind, Result},
};

/// Reads a regular file of at most `limit` bytes. `name` says in errors which file it is.
pub(super) fn read(name: &str, path: &Path, limit: u64) -> Result<Content> {
    file::read(path, limit).map_err(|error| {
        let path = path.display();
        let (kind, message) = match error.kind() {
            io::ErrorKind::FileTooLarge => {
                let message = format!("{name} `{path}` is longer than {limit} bytes");
                return Error::new(ErrorKind::Invalid, message);
            }
            io::ErrorKind::NotFound => (ErrorKind::NotFound, error.to_string()),
            _ => (ErrorKind::Unavailable, error.to_string()),
        };
        let message = format!("{name} `{path}` cannot be read: {message}");
        Error::new(kind, message).with_source(error)
    })
}

/// As [`read`], for UTF-8 text.
pub(super) fn read_text(name: &str, path: &Path, limit: u64) -> Result<String> {
    to_text(name, path, read(name, path, limit)?.bytes)
}

/// Returns the note on a file that every user of the machine may write, who could then do everything.
pub(super) fn note_open(path: &Path, content: &Content) -> Option<String> {
    let path = path.display();
    content
        .is_open
        .then(|| format!("file `{path}` can be written by every user of the machine"))
}

/// Returns the text of a file's bytes.
pub(super) fn to_text(name: &str, path: &Path, bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|_| {
        let message = format!("{name} `{}` is not UTF-8 text", path.display());
        Error::new(ErrorKind::Invalid, message)
    })
}

/// Parses TOML; an error is one line with the file and the line's number. It quotes no content of
/// the file, which may be secret.
pub(super) fn parse_toml<T: serde::de::DeserializeOwned>(
    name: &str,
    path: &Path,
    text: &str,
) -> Result<T> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        let line = 1 + before.unwrap_or_default().matches('\n').count();
        let message = error.message().replace('\n', " ");
        let place = format!("{name} `{}`, line {line}", path.display());
        Error::new(ErrorKind::Invalid, format!("{place}: {message}"))
    })
}
