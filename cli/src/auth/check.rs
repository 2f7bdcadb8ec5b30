//! `auth check`: reads an auth file and all files that it names.

use std::{path::PathBuf, time::SystemTime};

use reveille::auth::{AuthFile, TokenRecord};
use serde_json::json;

use super::{VARIABLE, misconfigured, named};
use crate::{
    exit::Exit,
    output::{self, OutputArgs, count},
};

/// Read an auth file and all files that it names
///
/// Prints a summary, or the first error with exit code 2. A relay keeps its rules and credentials if
/// the changed file has an error, so check the file before the relay reads it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille auth check auth.toml")]
pub(crate) struct Check {
    /// The auth file
    #[arg(env = VARIABLE)]
    file: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

impl Check {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let path = named(self.file, "FILE")?;
        let file = AuthFile::new(&path);
        let config = file.read().map_err(misconfigured)?;
        let file_notes = file.notes(&config);
        let tokens = file.token_file().map_err(misconfigured)?;
        let tokens = tokens.map(|tokens| tokens.list()).transpose();
        let tokens = tokens.map_err(misconfigured)?.unwrap_or_default();
        let (file, now) = (path.display().to_string(), SystemTime::now());
        let expiries = tokens.iter().filter_map(TokenRecord::expires);
        let expired = expiries.filter(|expires| *expires <= now).count();
        let (rules, tokens) = (config.policy().rule_count(), tokens.len());
        let (issuers, certificates) = (config.issuer_count(), config.certificate_count());
        let row = json!({
            "file": file,
            "rules": rules,
            "tokens": tokens,
            "expired": expired,
            "issuers": issuers,
            "certificates": certificates,
        });
        let line = || {
            format!(
                "{file}: {}, {} ({expired} expired), {}, {}",
                count(rules as u64, "rule"),
                count(tokens as u64, "token"),
                count(issuers as u64, "issuer"),
                count(certificates as u64, "certificate"),
            )
        };
        self.output.format.object(&row, line)?;
        for note in file_notes {
            output::note(note);
        }
        // Notes on a file without an error that lets no caller in.
        if rules == 0 {
            output::note("the file has no rule: the relay denies every request");
        }
        if tokens + issuers + certificates == 0 {
            output::note("the file has no credential: the relay authenticates no caller");
        }
        Ok(Exit::OK)
    }
}
