//! `auth check`, `auth can`: the auth file, which holds the rules and names the credentials.

mod can;
mod check;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Subcommand;
use reveille::Error;

pub(super) use self::can::principal;
use self::{can::Can, check::Check};
use super::{
    exit::{Exit, Usage},
    settings::Settings,
};

/// Check the auth file of a relay, and ask what its rules allow
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille auth check auth.toml
  reveille auth can billing notify acct/orders --auth auth.toml")]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Check(Check),
    Can(Can),
}

/// The auth file of a verb, as typed.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct AuthArgs {
    /// The auth file of the relay [default: the key `auth` in `[serve]` of the configuration file]
    #[arg(long, env = VARIABLE, value_name = "FILE")]
    auth: Option<PathBuf>,
}

pub(super) const VARIABLE: &str = "REVEILLE_AUTH";

impl Args {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        match self.verb {
            Verb::Check(args) => args.run(settings).await,
            Verb::Can(args) => args.run(settings).await,
        }
    }
}

impl AuthArgs {
    /// Returns the file of the argument or the variable.
    pub(super) fn typed(&self) -> Option<&Path> {
        self.auth.as_deref()
    }

    /// Merges the argument with the configuration file.
    pub(super) fn resolve(&self, settings: &Settings) -> Option<PathBuf> {
        self.auth.clone().or_else(|| settings.serve.auth.clone())
    }
}

/// Runs work on files. The caller may be dropped, for example by Ctrl-C while another process holds
/// a file's lock.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.context("the work on files ended early")?
}

/// Converts an error of the auth file to wrong configuration, for any kind of cause.
#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
pub(super) fn misconfigured(error: Error) -> Usage {
    Usage(error.to_string())
}
