//! `auth token`: static tokens in the token file.

use std::{
    collections::HashSet,
    fs::File,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use clap::Subcommand;
use reveille::{
    Error, ErrorKind,
    auth::{AuthFile, NewToken, Principal, TokenFile, TokenRecord},
};
use serde::Serialize;

use super::{AuthArgs, VARIABLE as AUTH_VARIABLE, blocking, misconfigured, principal};
use crate::{
    exit::{Exit, Failed, Usage},
    output::{self, Format, OutputArgs, Row},
    values,
};

/// Create, list and revoke the tokens of a relay's callers
///
/// The token file holds digests, not the tokens. These commands change the file and connect to no
/// relay. A running relay reads a changed token file within 10 s by itself.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille auth token new billing --tokens tokens.toml --out billing.token
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
/// Prints the token alone to stdout, or writes it to the file of --out, which only its owner can read.
/// The token file keeps only a digest, so the token cannot be
/// printed again. A missing token file is created, with mode 0600. A running relay reads the changed
/// file within 10 s by itself.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille auth token new billing --tokens tokens.toml --out billing.token
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
    /// Write the token to this new file, with mode 0600, in place of printing it
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    file: TokenFileArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// A new token, with its text.
#[derive(Serialize)]
struct Issued {
    id: String,
    principal: String,
    #[serde(serialize_with = "output::serialize_time")]
    expires_at: Option<SystemTime>,
    /// `None` if it is written to a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

impl New {
    async fn run(mut self) -> anyhow::Result<Exit> {
        let file = std::mem::take(&mut self.file).resolve().await?;
        blocking(move || {
            let mut out = self.out.as_deref().map(create).transpose()?;
            let done = self
                .issue(&file, SystemTime::now())
                .and_then(|issued| self.print(&file, issued, out.as_mut()));
            if let (Err(_), Some(path)) = (&done, &self.out) {
                // The error that counts is the first one.
                let _ = std::fs::remove_file(path);
            }
            done
        })
        .await
    }

    fn issue(&self, file: &TokenFile, now: SystemTime) -> anyhow::Result<Issued> {
        let expires = self.expires.map(|span| expiry(now, span)).transpose()?;
        let new = NewToken {
            principal: self.principal.clone(),
            expires,
            note: self.note.clone(),
        };
        let token = file.add(&new, now).map_err(unavailable_as_failed)?;
        Ok(Issued {
            id: token.id().to_owned(),
            principal: new.principal.name().to_owned(),
            expires_at: expires,
            token: Some(token.reveal().to_owned()),
        })
    }

    /// Prints the token. The only copy of its text is lost if that fails, so it is revoked.
    fn print(
        &self,
        file: &TokenFile,
        mut issued: Issued,
        out: Option<&mut File>,
    ) -> anyhow::Result<Exit> {
        let format = self.output.format;
        let shown = match out {
            Some(out) => {
                let token = issued.token.take().unwrap_or_default();
                out.write_all(format!("{token}\n").as_bytes())
                    .and_then(|()| out.sync_all())
                    .and_then(|()| match format {
                        Format::Table => Ok(()),
                        _ => format.object(&issued, String::new),
                    })
            }
            None => format.object(&issued, || issued.token.clone().unwrap_or_default()),
        };
        let id = &issued.id;
        if let Err(error) = shown {
            let outcome = match file.revoke(id) {
                Ok(_) => "was revoked again".to_owned(),
                Err(error) => format!("must be revoked, which failed: {error}"),
            };
            let message = format!("token {id} could not be printed and {outcome}: {error}");
            return Err(Failed(message).into());
        }
        let expires = match issued.expires_at {
            Some(at) => format!("expires at {}", output::time(at)),
            None => "does not expire".to_owned(),
        };
        let text = match &self.out {
            Some(path) => format!("its text is in `{}`", path.display()),
            None => "its text is shown only this once".to_owned(),
        };
        output::note(format_args!(
            "token {id} for {} is in `{}` and {expires}; {text}",
            issued.principal,
            file.path().display()
        ));
        Ok(Exit::OK)
    }
}

/// Creates the file of a token, which only its owner can read.
fn create(path: &Path) -> Result<File, Failed> {
    File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| {
            Failed(format!(
                "--out `{}` cannot be made: {error}",
                path.display()
            ))
        })
}

/// Returns the time of expiry, rounded up to a whole second as in the token file.
fn expiry(now: SystemTime, span: Duration) -> Result<SystemTime, Usage> {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let since = since.saturating_add(span);
    let up = u64::from(since.subsec_nanos() > 0);
    let since = Duration::from_secs(since.as_secs().saturating_add(up));
    let at = UNIX_EPOCH.checked_add(since);
    at.ok_or_else(|| Usage("--expires: is too long".to_owned()))
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
        let path = file.path().to_owned();
        let list = move || file.list().map_err(unavailable_as_failed);
        let records = blocking(list).await?;
        let now = SystemTime::now();
        let rows: Vec<_> = records.iter().map(|one| TokenRow::new(one, now)).collect();
        let format = self.output.format;
        format.list(&rows)?;
        if rows.is_empty() && !path.exists() {
            let path = path.display();
            output::note(format_args!(
                "token file `{path}` does not exist: `reveille auth token new` creates it"
            ));
        }
        Ok(Exit::OK)
    }
}

impl TokenRow {
    fn new(record: &TokenRecord, now: SystemTime) -> Self {
        Self {
            id: record.id.clone(),
            principal: record.principal.clone(),
            created_at: Some(record.created()),
            expires_at: record.expires(),
            expired: record.expires().is_some_and(|expires| expires <= now),
            note: record.note.clone(),
        }
    }

    /// Returns the record as a part of a sentence.
    fn line(&self) -> String {
        let mut line = format!("{}, token for {}", self.id, self.principal);
        if !self.note.is_empty() {
            line.push_str(&format!(": {}", self.note));
        }
        line
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

/// Revoke tokens by their ids
///
/// All known ids are revoked, also if others are unknown: then the exit code is 5. A running relay
/// reads the changed file within 10 s by itself, also while another file of access is broken. It then
/// refuses the token, and ends its streams within 60 s.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille auth token revoke abcdefgh23 --tokens tokens.toml
  reveille auth token revoke abcdefgh23 bcdefghi34 --auth auth.toml -o json

`reveille auth token list` prints the ids. The id of a token is also in its text: rvl_ID_...")]
struct Revoke {
    /// The ids of `reveille auth token list`
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    #[command(flatten)]
    file: TokenFileArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// A relay reads its files this often.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(10);
/// Length of an id.
const ID: usize = 10;

impl Revoke {
    async fn run(self) -> anyhow::Result<Exit> {
        let file = self.file.resolve().await?;
        let (ids, format) = (self.ids, self.output.format);
        blocking(move || revoke(&file, &ids, format)).await
    }
}

fn revoke(file: &TokenFile, ids: &[String], format: Format) -> anyhow::Result<Exit> {
    let now = SystemTime::now();
    let (mut rows, mut unknown, mut failed) = (Vec::new(), Vec::new(), None);
    let mut seen = HashSet::new();
    for id in ids.iter().filter(|id| seen.insert(*id)) {
        // A missing file has no ids. The library would leave a lock file beside it.
        if !is_id(id) || !file.path().exists() {
            unknown.push(shown(id));
            continue;
        }
        match file.revoke(id) {
            Ok(record) => rows.push(TokenRow::new(&record, now)),
            Err(error) if error.kind() == ErrorKind::NotFound => unknown.push(shown(id)),
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    match format {
        Format::Table => {
            let lines = rows.iter().map(|row| format!("revoked {}\n", row.line()));
            output::text(&lines.collect::<String>())?;
        }
        _ => format.list(&rows)?,
    }
    if let Some(error) = failed {
        return Err(unavailable_as_failed(error));
    }
    let path = file.path().display();
    if !unknown.is_empty() {
        let message = format!("token file `{path}` has no id {}", unknown.join(", "));
        return Err(Error::new(ErrorKind::NotFound, message).into());
    }
    let by = output::time(now + FOLLOWED_WITHIN);
    output::note(format_args!(
        "a relay that reads `{path}` refuses it from {by} on at the latest, and ends its streams within \
         60 s: see `reveille_access_rules_stale`"
    ));
    Ok(Exit::OK)
}

fn is_id(text: &str) -> bool {
    text.len() == ID && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Returns an unknown id for an error. A text of another form may be a token or a key, pasted by
/// mistake: it is not repeated.
fn shown(text: &str) -> String {
    match is_id(text) {
        true => format!("`{text}`"),
        false => "(a text that is no id: an id has ten letters and digits)".to_owned(),
    }
}
