//! `token new`, `token list`, `token revoke`: static tokens in the token file.

mod list;
mod new;
mod revoke;

use std::path::{Path, PathBuf};

use clap::Subcommand;
use reveille::{
    Error, ErrorKind,
    auth::{AuthFile, TokenFile},
};

use self::{list::List, new::New, revoke::Revoke};
use super::{
    auth::{self, AuthArgs, blocking, misconfigured},
    exit::{Exit, Failed, Usage},
    settings::Settings,
};

/// Create, list and revoke the tokens of a relay's callers
///
/// The token file holds digests, not the tokens. These commands change the file and connect to no
/// relay. A running relay reads a changed token file within 10 s by itself.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille token new billing --tokens tokens.toml --out billing.token
  reveille token list --tokens tokens.toml
  reveille token revoke abcdefgh23 --tokens tokens.toml")]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    New(New),
    List(List),
    Revoke(Revoke),
}

/// The token file of a verb, as typed.
#[derive(Debug, Clone, Default, clap::Args)]
struct TokenFileArgs {
    /// The token file [default: the file that the auth file names]
    #[arg(long, env = VARIABLE, value_name = "FILE")]
    tokens: Option<PathBuf>,
    #[command(flatten)]
    auth: AuthArgs,
}

const VARIABLE: &str = "REVEILLE_TOKENS";

impl Args {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        match self.verb {
            Verb::New(args) => args.run(settings).await,
            Verb::List(args) => args.run(settings).await,
            Verb::Revoke(args) => args.run(settings).await,
        }
    }
}

impl TokenFileArgs {
    /// Returns the typed token file, else the token file of the auth file. It may be missing.
    async fn resolve(self, settings: &Settings) -> anyhow::Result<TokenFile> {
        if let Some(tokens) = self.tokens.as_ref().filter(|_| !self.is_overridden()) {
            return Ok(TokenFile::new(tokens));
        }
        let Some(path) = self.auth.resolve(settings) else {
            return Err(Usage(format!(
                "--tokens: no token file is named: pass --tokens FILE or --auth FILE, or set \
                 {VARIABLE} or {}",
                auth::VARIABLE
            ))
            .into());
        };
        let read = move || {
            let tokens = AuthFile::new(&path).token_file().map_err(misconfigured)?;
            tokens.ok_or_else(|| {
                let path = path.display();
                let rule = "has no `tokens`: add the line tokens = \"tokens.toml\" at its top, \
                            or pass --tokens FILE";
                Usage(format!("auth file `{path}` {rule}")).into()
            })
        };
        blocking(read).await
    }

    /// Returns whether --auth was typed and the token file comes from a variable. Typed arguments
    /// take precedence over variables.
    fn is_overridden(&self) -> bool {
        let is_of = |name, path: Option<&Path>| {
            let variable = std::env::var_os(name);
            variable.as_deref() == path.map(Path::as_os_str)
        };
        let auth = self.auth.typed();
        is_of(VARIABLE, self.tokens.as_deref()) && auth.is_some() && !is_of(auth::VARIABLE, auth)
    }
}

/// Converts an unreadable or unwritable file to exit code 1: no relay and no store is involved.
fn unavailable_as_failed(error: Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::Unavailable => Failed(error.to_string()).into(),
        _ => error.into(),
    }
}
