//! Tests of authentication as a whole: files in, callers and denials out.

mod audit;
mod bad_files;
mod credentials;
mod jwt;
mod keys;
mod tokens;

use std::{
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tempfile::TempDir;

use super::{AuthConfig, AuthFile, NewToken, Principal, TokenFile};
use crate::error::Error;

/// A directory with the operator's files.
struct Home(TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), content).expect("written");
    }

    fn load(&self, text: &str) -> Result<AuthConfig, Error> {
        self.write("auth.toml", text);
        AuthFile::new(self.path("auth.toml")).read()
    }

    /// Loads a good file.
    fn config(&self, text: &str) -> AuthConfig {
        self.load(text).unwrap_or_else(|error| panic!("{error}"))
    }

    fn tokens(&self) -> TokenFile {
        TokenFile::new(self.path("tokens.toml"))
    }
}

/// The clock of the tests, in seconds since a fixed time.
fn at(seconds: i64) -> SystemTime {
    let start = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    let span = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 {
        start - span
    } else {
        start + span
    }
}

fn new_token(principal: &str) -> NewToken {
    NewToken {
        principal: Principal::new(principal).expect("a name"),
        expires: None,
        note: String::new(),
    }
}
