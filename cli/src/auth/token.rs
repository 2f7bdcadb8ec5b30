//! `auth token`: static tokens in the token file.

use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};

use clap::Subcommand;
use reveille::{
    Error, ErrorKind,
    auth::{AuthFile, NewToken, Principal, TokenFile, TokenRecord},
};
use serde::Serialize;
use serde_json::json;

use super::{AuthArgs, VARIABLE as AUTH_VARIABLE, blocking, misconfigured, principal};
use crate::{
    exit::{Exit, Failed, Usage},
    output::{self, OutputArgs, Row},
    values,
};

/// Create, list and revoke the tokens of a relay's callers
///
/// The token file holds digests, not the tokens. These commands change the file and connect to no
/// relay. A running relay reads a changed token file within 10 s by itself.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  (umask 077; reveille auth token new billing --tokens tokens.toml > billing.token)
  reveille auth token list --tokens tokens.toml
  reveille auth token revoke abcdefgh23 --tokens tokens.toml")]
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
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    #[command(flatten)]
    auth: AuthArgs,
}

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        match self.verb {
            Verb::New(args) => args.run().await,
            Verb::List(args) => args.run().await,
            Verb::Revoke(args) => args.run().await,
        }
    }
}

impl TokenFileArgs {
    /// Returns the stated token file, else the token file of the auth file. It may be missing.
    async fn resolve(self) -> anyhow::Result<TokenFile> {
        if let Some(tokens) = &self.tokens {
            return Ok(TokenFile::new(tokens));
        }
        let path = self.auth.auth.ok_or_else(|| {
            Usage(format!(
                "--tokens: no token file is named: pass --tokens FILE or --auth FILE, or set \
                 {AUTH_VARIABLE}"
            ))
        })?;
        blocking(move || {
            let tokens = AuthFile::new(&path).token_file().map_err(misconfigured)?;
            tokens.ok_or_else(|| {
                let path = path.display();
                let rule = "has no `tokens`: add the line tokens = \"tokens.toml\" at its top, \
                            or pass --tokens FILE";
                Usage(format!("auth file `{path}` {rule}")).into()
            })
        })
        .await
    }
}

/// Converts an unreadable or unwritable file to exit code 1: no relay and no store is involved.
fn unavailable_as_failed(error: Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::Unavailable => Failed(error.to_string()).into(),
        _ => error.into(),
    }
}

/// Create a token, and print it once
///
/// Prints the token alone to stdout. The token file keeps only a digest, so the token cannot be
/// printed again. A missing token file is created, with mode 0600. A running relay reads the changed
/// file within 10 s by itself.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  (umask 077; reveille auth token new billing --tokens tokens.toml > billing.token)
  reveille auth token new worker-1 --auth auth.toml --expires 30d --note 'rack 7'
  reveille notify acct/orders --token-file billing.token

A client reads the token from --token-file or REVEILLE_TOKEN.")]
struct New {
    /// The principal of callers with this token: the name that the rules use
    #[arg(value_parser = principal)]
    principal: Principal,
    /// Refuse the token after this long [default: never; it is valid until it is revoked]
    #[arg(long, value_name = "D", value_parser = values::pause)]
    expires: Option<Duration>,
    /// A note for operators, at most 256 bytes
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    note: String,
    #[command(flatten)]
    file: TokenFileArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl New {
    async fn run(self) -> anyhow::Result<Exit> {
        let file = self.file.resolve().await?;
        let path = file.path().display().to_string();
        let principal = self.principal.name().to_owned();
        let now = SystemTime::now();
        let expires_at = self.expires.map(|span| {
            let at = now.checked_add(span);
            at.ok_or_else(|| Usage("--expires: is too long".to_owned()))
        });
        let expires_at = expires_at.transpose()?;
        let new = NewToken {
            principal: self.principal,
            expires: expires_at,
            note: self.note,
        };
        let add = move || file.add(&new, now).map_err(unavailable_as_failed);
        let token = blocking(add).await?;
        let (id, expires_at) = (token.id(), expires_at.map(output::time));
        let row = json!({
            "id": id,
            "principal": principal,
            "expires_at": expires_at,
            "token": token.reveal(),
        });
        let format = self.output.format;
        format.object(&row, || token.reveal().to_owned())?;
        let expires = match expires_at {
            Some(at) => format!("expires at {at}"),
            None => "does not expire".to_owned(),
        };
        output::note(format_args!(
            "token {id} for {principal} is in `{path}` and {expires}; its text is shown only this once"
        ));
        Ok(Exit::OK)
    }
}

/// List tokens
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille auth token list --tokens tokens.toml
  reveille auth token list --auth auth.toml -o json

The list has no secret. The relay refuses expired tokens; `auth token revoke` removes them from the file.")]
struct List {
    #[command(flatten)]
    file: TokenFileArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// A record of the token file.
#[derive(Debug, Serialize)]
struct TokenRow {
    id: String,
    principal: String,
    #[serde(serialize_with = "output::serialize_time")]
    created_at: Option<SystemTime>,
    #[serde(serialize_with = "output::serialize_time")]
    expires_at: Option<SystemTime>,
    expired: bool,
    note: String,
}

impl List {
    async fn run(self) -> anyhow::Result<Exit> {
        let file = self.file.resolve().await?;
        let records = blocking(move || file.list().map_err(unavailable_as_failed)).await?;
        let rows: Vec<_> = records.into_iter().map(TokenRow::from).collect();
        self.output.format.list(&rows)?;
        Ok(Exit::OK)
    }
}

impl From<TokenRecord> for TokenRow {
    fn from(record: TokenRecord) -> Self {
        let now = SystemTime::now();
        Self {
            created_at: Some(record.created()),
            expires_at: record.expires(),
            expired: record.expires().is_some_and(|expires| expires <= now),
            id: record.id,
            principal: record.principal,
            note: record.note,
        }
    }
}

impl Row for TokenRow {
    const COLUMNS: &'static [&'static str] = &[
        "id",
        "principal",
        "created_at",
        "expires_at",
        "expired",
        "note",
    ];
}

/// Revoke a token by its id
///
/// A running relay reads the changed file within 10 s by itself, also while another file of access is
/// broken. It then refuses the token, and ends its streams within 60 s; its audit log has a line `token`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille auth token revoke abcdefgh23 --tokens tokens.toml
  reveille auth token revoke abcdefgh23 --auth auth.toml -o json

`reveille auth token list` prints the ids. The id of a token is also in its text: rvl_ID_...")]
struct Revoke {
    /// The id of `reveille auth token list`
    id: String,
    #[command(flatten)]
    file: TokenFileArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl Revoke {
    async fn run(self) -> anyhow::Result<Exit> {
        let file = self.file.resolve().await?;
        let path = file.path().display().to_string();
        let revoke = move || file.revoke(&self.id).map_err(unavailable_as_failed);
        let revoked = blocking(revoke).await?;
        self.output.format.one(&TokenRow::from(revoked))?;
        output::note(format_args!(
            "revoked: a relay that reads `{path}` refuses it within 10 s, and ends its streams within 60 s"
        ));
        Ok(Exit::OK)
    }
}
