//! `auth token`: static tokens in the token file.

use std::{
    fs::File,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use clap::Subcommand;
use reveille::{
    ErrorKind,
    auth::{AuthFile, NewToken, Principal, TokenFile, TokenRecord},
};
use serde_json::{Value, json};

use super::{AuthArgs, blocking, misconfigured, named, principal};
use crate::{
    exit::{Exit, Failed, Usage, failed_if},
    output::{self, Format, OutputArgs, time},
    values,
};

/// Create, list and revoke the tokens of a relay's callers
///
/// The token file holds digests, not the tokens. These commands change the file and connect to no
/// relay. A running relay reads a changed token file within 10 s by itself.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example:
  reveille auth token new billing --tokens tokens.toml --out billing.token
  reveille auth token list --tokens tokens.toml
  reveille auth token revoke abcdefgh23 --tokens tokens.toml")]
pub(crate) enum Verb {
    New(New),
    /// List tokens
    #[command(after_help = "\
Example:
  reveille auth token list --tokens tokens.toml

The list has no secret. The relay refuses expired tokens; `auth token revoke` removes them from the file.")]
    List {
        #[command(flatten)]
        file: TokenFileArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Revoke a token by its id
    ///
    /// A running relay reads the changed file within 10 s by itself, also while another file of access is
    /// broken. It then refuses the token, and ends its streams within 60 s.
    #[command(after_help = "\
Example:
  reveille auth token revoke abcdefgh23 --tokens tokens.toml

`reveille auth token list` prints the ids. The id of a token is also in its text: rvl_ID_...")]
    Revoke {
        /// The id of `reveille auth token list`
        id: String,
        #[command(flatten)]
        file: TokenFileArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
}

/// A file that cannot be read or written: no relay and no store is involved.
const UNUSABLE: ErrorKind = ErrorKind::Unavailable;

/// The token file of a verb, as typed.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct TokenFileArgs {
    /// The token file [default: the file that the auth file names]
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    #[command(flatten)]
    auth: AuthArgs,
}

impl Verb {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        match self {
            Self::New(args) => args.run().await,
            Self::List { file, output } => {
                let records = file.resolve()?.list().map_err(failed_if(UNUSABLE))?;
                let rows: Vec<_> = records.iter().map(row).collect();
                output.format.rows(COLUMNS, &rows)?;
                Ok(Exit::OK)
            }
            Self::Revoke { id, file, output } => revoke(id, &file.resolve()?, output.format).await,
        }
    }
}

impl TokenFileArgs {
    /// Returns the stated token file, else the token file of the auth file. It may be missing.
    fn resolve(&self) -> Result<TokenFile, Usage> {
        if let Some(tokens) = &self.tokens {
            return Ok(TokenFile::new(tokens));
        }
        let path = named(self.auth.auth.clone(), "--tokens FILE or --auth FILE")?;
        let tokens = AuthFile::new(&path).token_file().map_err(misconfigured)?;
        tokens.ok_or_else(|| {
            let path = path.display();
            let rule = "has no `tokens`: add the line tokens = \"tokens.toml\" at its top, \
                        or pass --tokens FILE";
            Usage(format!("auth file `{path}` {rule}"))
        })
    }
}

/// Create a token, and print it once
///
/// Prints the token alone to stdout, or writes it to the file of --out, which only its owner can read.
/// The token file keeps only a digest, so the token cannot be printed again. A missing token file is
/// created, with mode 0600. A running relay reads the changed file within 10 s by itself.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille auth token new billing --tokens tokens.toml --out billing.token
  reveille auth token new worker-1 --auth auth.toml --expires 30d --note 'rack 7'
  reveille notify acct/orders --token-file billing.token

A client reads the token from --token-file or REVEILLE_TOKEN.")]
pub(crate) struct New {
    /// The principal of callers with this token: the name that the rules use
    #[arg(value_parser = principal)]
    principal: Principal,
    /// Refuse the token after this long [default: never; it is valid until it is revoked]
    #[arg(long, value_name = "D", value_parser = values::pause)]
    expires: Option<Duration>,
    /// A note for operators, at most 256 bytes
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// Write the token to this new file, with mode 0600, in place of printing it
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    file: TokenFileArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl New {
    async fn run(self) -> anyhow::Result<Exit> {
        let file = self.file.resolve()?;
        let path = file.path().display().to_string();
        let principal = self.principal.name().to_owned();
        let now = SystemTime::now();
        let expires_at = self.expires.map(|span| {
            let at = now.checked_add(span);
            at.map(to_the_second)
                .ok_or_else(|| Usage("--expires: is too long".to_owned()))
        });
        let expires_at = expires_at.transpose()?;
        let new = NewToken {
            principal: self.principal,
            expires: expires_at,
            note: self.note.unwrap_or_default(),
        };
        // The file of the token first: one that exists is kept.
        let mut out = self.out.as_deref().map(create).transpose()?;
        let add = move || file.add(&new, now).map_err(failed_if(UNUSABLE));
        let added = blocking(add).await;
        if let (Err(_), Some(path)) = (&added, &self.out) {
            let _ = std::fs::remove_file(path);
        }
        let token = added?;
        let (id, expires_at) = (token.id(), expires_at.map(time));
        let mut row = json!({ "id": id, "principal": principal, "expires_at": expires_at });
        let format = self.output.format;
        let written = match &mut out {
            Some(out) => writeln!(out, "{}", token.reveal()).and_then(|()| out.sync_all()),
            None => {
                row["token"] = token.reveal().into();
                format.object(&row, || token.reveal().to_owned())
            }
        };
        written.map_err(|error| {
            if let Some(path) = &self.out {
                let _ = std::fs::remove_file(path);
            }
            let text = format!("the text of token {id} is lost: {error}; revoke it");
            Failed(text)
        })?;
        if out.is_some() && format != Format::Table {
            format.object(&row, String::new)?;
        }
        let place = match &self.out {
            Some(path) => format!("is in `{}`", path.display()),
            None => "is shown only this once".to_owned(),
        };
        let expires = match expires_at {
            Some(at) => format!("expires at {at}"),
            None => "does not expire".to_owned(),
        };
        output::note(format_args!(
            "token {id} for {principal} is in `{path}` and {expires}; its text {place}"
        ));
        Ok(Exit::OK)
    }
}

/// Cuts a time as the token file does.
fn to_the_second(at: SystemTime) -> SystemTime {
    let since = at.duration_since(SystemTime::UNIX_EPOCH);
    SystemTime::UNIX_EPOCH + Duration::from_secs(since.unwrap_or_default().as_secs())
}

/// Creates the file of a token, which only its owner can read.
fn create(path: &Path) -> Result<File, Failed> {
    let mut options = File::options();
    let created = options.write(true).create_new(true).mode(0o600).open(path);
    let path = path.display();
    created.map_err(|error| Failed(format!("--out `{path}` cannot be made: {error}")))
}

const COLUMNS: &str = "id principal created_at expires_at expired note";

fn row(record: &TokenRecord) -> Value {
    let expires = record.expires();
    json!({
        "id": record.id,
        "principal": record.principal,
        "created_at": time(record.created()),
        "expires_at": expires.map(time),
        "expired": expires.is_some_and(|expires| expires <= SystemTime::now()),
        "note": record.note,
    })
}

/// A relay reads its files this often.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(10);
/// Letters and digits of an id.
const ID: usize = 10;

async fn revoke(id: String, file: &TokenFile, format: Format) -> anyhow::Result<Exit> {
    if id.len() != ID || !id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        // It may be a token or a key, pasted by mistake.
        let text = "ID: is not the id of a token, which has ten letters and digits";
        return Err(Usage(text.to_owned()).into());
    }
    let (path, file) = (file.path().display().to_string(), file.clone());
    let revoked = blocking(move || file.revoke(&id).map_err(failed_if(UNUSABLE))).await?;
    format.row(COLUMNS, &row(&revoked))?;
    let by = time(SystemTime::now() + FOLLOWED_WITHIN);
    output::note(format_args!(
        "a relay that reads `{path}` refuses it from {by} on at the latest, and ends its streams \
         within 60 s"
    ));
    Ok(Exit::OK)
}
