//! Reads the small files that the operator names: rules, keys, tokens.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use crate::error::{Error, ErrorKind, Result};

/// Reads a regular file of at most `limit` bytes. `name` says in errors which file it is.
pub(super) fn read(name: &str, path: &Path, limit: u64) -> Result<Vec<u8>> {
    let fail = |error: io::Error| {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Unavailable,
        };
        let message = format!("{name} `{}` cannot be read: {error}", path.display());
        Error::new(kind, message).with_source(error)
    };
    let file = File::open(path).map_err(fail)?;
    let kind = file.metadata().map_err(fail)?.file_type();
    if !kind.is_file() {
        return Err(fail(io::Error::other("it is not a regular file")));
    }
    let mut content = Vec::new();
    file.take(limit + 1)
        .read_to_end(&mut content)
        .map_err(fail)?;
    if content.len() as u64 > limit {
        let message = format!("{name} `{}` is longer than {limit} bytes", path.display());
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(content)
}

/// As [`read`], for UTF-8 text.
pub(super) fn read_text(name: &str, path: &Path, limit: u64) -> Result<String> {
    String::from_utf8(read(name, path, limit)?).map_err(|_| {
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
