//! `auth`: the auth file, which holds the rules and names the credentials, and the token file.

mod can;
mod check;
mod token;

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Subcommand;
use reveille::{Error, auth::Principal};

use self::{can::Can, check::Check};
use super::exit::{Exit, Usage};

/// Check the auth file of a relay, ask what its rules allow, and create tokens
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example:
  reveille auth check auth.toml
  reveille auth can billing notify acct/orders --auth auth.toml
  reveille auth token new billing --auth auth.toml --out billing.token")]
pub(super) enum Verb {
    Check(Check),
    Can(Can),
    #[command(subcommand)]
    Token(token::Verb),
}

/// The auth file of a verb, as typed.
#[derive(Debug, Clone, Default, clap::Args)]
struct AuthArgs {
    /// The auth file of the relay
    #[arg(long, env = VARIABLE, value_name = "FILE")]
    auth: Option<PathBuf>,
}

const VARIABLE: &str = "REVEILLE_AUTH";

impl Verb {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        match self {
            Self::Check(args) => args.run(),
            Self::Can(args) => args.run(),
            Self::Token(args) => args.run().await,
        }
    }
}

/// Runs work on files. The caller may be dropped, for example by Ctrl-C while another process holds
/// a file's lock.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.context("the work on files ended early")?
}

/// Returns the path of the auth file that an argument of this name has to state.
fn named(path: Option<PathBuf>, argument: &str) -> Result<PathBuf, Usage> {
    let rule = format!("{argument}: no auth file is named: state it, or set {VARIABLE}");
    path.ok_or(Usage(rule))
}

/// Converts an error of the auth file to wrong configuration, for any kind of cause.
#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn misconfigured(error: Error) -> Usage {
    Usage(error.to_string())
}

/// Parses a principal; the error is its rule.
fn principal(text: &str) -> Result<Principal, String> {
    Principal::new(text).map_err(|error| {
        let rule = error.message();
        rule.trim_start_matches("principal: ").to_owned()
    })
}
