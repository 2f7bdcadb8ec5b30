//! `auth check`: reads an auth file and all files that it names.

use std::{
    path::{Path, PathBuf},
    time::SystemTime,
};

use reveille::auth::{AuthFile, TokenRecord};
use serde::Serialize;

use super::{VARIABLE, blocking, misconfigured};
use crate::{
    exit::{Exit, Usage},
    output::{self, OutputArgs, count},
};

/// Read an auth file and all files that it names
///
/// Prints a summary, or the first error with exit code 2. A relay keeps its rules and credentials if
/// the changed file has an error, so check the file before the relay reads it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille auth check auth.toml
  reveille auth check auth.toml -o json")]
pub(super) struct Check {
    /// The auth file
    #[arg(env = VARIABLE)]
    file: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

/// The number of entries of each kind.
#[derive(Debug, Serialize)]
struct Summary {
    file: String,
    rules: usize,
    tokens: usize,
    /// Tokens that the relay refuses by now.
    expired: usize,
    issuers: usize,
    certificates: usize,
}

impl Check {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let path = self.file.ok_or_else(|| {
            Usage(format!(
                "FILE: no auth file is named: pass FILE, or set {VARIABLE}"
            ))
        })?;
        let read = move || Summary::read(&path, SystemTime::now()).map_err(Into::into);
        let summary = blocking(read).await?;
        let format = self.output.format;
        format.object(&summary, || summary.line())?;
        summary.warn();
        Ok(Exit::OK)
    }
}

impl Summary {
    fn read(path: &Path, now: SystemTime) -> Result<Self, Usage> {
        let file = AuthFile::new(path);
        let config = file.read().map_err(misconfigured)?;
        let tokens = file.token_file().map_err(misconfigured)?;
        let records = tokens.map(|tokens| tokens.list()).transpose();
        let records = records.map_err(misconfigured)?.unwrap_or_default();
        let expiries = records.iter().filter_map(TokenRecord::expires);
        Ok(Self {
            file: path.display().to_string(),
            rules: config.policy().rule_count(),
            tokens: records.len(),
            expired: expiries.filter(|expires| *expires <= now).count(),
            issuers: config.issuer_count(),
            certificates: config.certificate_count(),
        })
    }

    fn line(&self) -> String {
        let expired = match self.expired {
            0 => String::new(),
            expired => format!(" ({expired} expired)"),
        };
        format!(
            "{}: {}, {}{expired}, {}, {}",
            self.file,
            count(self.rules as u64, "rule"),
            count(self.tokens as u64, "token"),
            count(self.issuers as u64, "issuer"),
            count(self.certificates as u64, "certificate"),
        )
    }

    /// Prints notes on a file without an error that lets no caller in.
    fn warn(&self) {
        if self.rules == 0 {
            output::note("the file has no rule: the relay denies every request");
        }
        if self.tokens + self.issuers + self.certificates == 0 {
            output::note("the file has no credential: the relay authenticates no caller");
        }
    }
}
