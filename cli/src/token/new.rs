//! `token new`: a new token.

use std::{
    fs::File,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use reveille::auth::{NewToken, Principal, TokenFile};
use serde::Serialize;

use super::{TokenFileArgs, unavailable_as_failed};
use crate::{
    auth::{blocking, principal},
    exit::{Exit, Failed, Usage},
    output::{self, Format},
    settings::Settings,
    usage,
};

/// Create a token, and print it once
///
/// Prints the token alone to stdout, or writes it to the file of --out, which only its owner can read.
/// The token file keeps only a digest, so the token cannot be
/// printed again. A missing token file is created, with mode 0600. A running relay reads the changed
/// file within 10 s by itself.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille token new billing --tokens tokens.toml --out billing.token
  reveille token new worker-1 --auth auth.toml --expires 30d --note 'rack 7'
  reveille notify acct/orders --token-file billing.token

A client reads the token from --token-file or REVEILLE_TOKEN.")]
pub(super) struct New {
    /// The principal of callers with this token: the name that the rules use
    #[arg(value_parser = principal)]
    principal: Principal,
    /// Refuse the token after this long [default: never; it is valid until it is revoked]
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = usage::pause)]
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
    /// The output format [default: table]
    #[arg(short, long, env = "REVEILLE_OUTPUT", value_name = "FORMAT")]
    output: Option<Format>,
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

/// The new file of a token. Removed unless it is kept.
struct OutFile {
    path: PathBuf,
    file: File,
    is_kept: bool,
}

impl New {
    pub(super) async fn run(mut self, settings: &Settings) -> anyhow::Result<Exit> {
        let format = self.output.or(settings.output).unwrap_or_default();
        let file = std::mem::take(&mut self.file).resolve(settings).await?;
        blocking(move || {
            let out = self.out.take().map(OutFile::create).transpose()?;
            let issued = self.issue(&file, SystemTime::now())?;
            issued.print(format, &file, out)
        })
        .await
    }

    fn issue(self, file: &TokenFile, now: SystemTime) -> anyhow::Result<Issued> {
        let expires = self.expires.map(|span| expiry(now, span)).transpose()?;
        let new = NewToken {
            principal: self.principal,
            expires,
            note: self.note,
        };
        let token = file.add(&new, now).map_err(unavailable_as_failed)?;
        Ok(Issued {
            id: token.id().to_owned(),
            principal: new.principal.name().to_owned(),
            expires_at: expires,
            token: Some(token.reveal().to_owned()),
        })
    }
}

impl Issued {
    /// Prints the token. The only copy of its text is lost if that fails, so it is revoked.
    fn print(
        mut self,
        format: Format,
        file: &TokenFile,
        mut out: Option<OutFile>,
    ) -> anyhow::Result<Exit> {
        let token = match out {
            Some(_) => self.token.take().unwrap_or_default(),
            None => self.token.clone().unwrap_or_default(),
        };
        let id = &self.id;
        let shown = match &mut out {
            Some(out) if format == Format::Table => out.keep(&token),
            Some(out) => out
                .keep(&token)
                .and_then(|()| format.object(&self, String::new)),
            None => format.object(&self, || token.clone()),
        };
        if let Err(error) = shown {
            let outcome = match file.revoke(id) {
                Ok(_) => "was revoked again".to_owned(),
                Err(error) => format!("must be revoked, which failed: {error}"),
            };
            if let Some(out) = &mut out {
                out.is_kept = false;
            }
            let message = format!("token {id} could not be printed and {outcome}: {error}");
            return Err(Failed(message).into());
        }
        let expires = match self.expires_at {
            Some(at) => format!("expires at {}", output::time(at)),
            None => "does not expire".to_owned(),
        };
        let text = match &out {
            Some(out) => format!("its text is in `{}`", out.path.display()),
            None => "its text is shown only this once".to_owned(),
        };
        output::note(format_args!(
            "token {id} for {} is in `{}` and {expires}; {text}",
            self.principal,
            file.path().display()
        ));
        Ok(Exit::OK)
    }
}

impl OutFile {
    fn create(path: PathBuf) -> Result<Self, Failed> {
        let mut options = File::options();
        options.write(true).create_new(true).mode(0o600);
        match options.open(&path) {
            Ok(file) => Ok(Self {
                path,
                file,
                is_kept: false,
            }),
            Err(error) => {
                let path = path.display();
                Err(Failed(format!("--out `{path}` cannot be made: {error}")))
            }
        }
    }

    fn keep(&mut self, token: &str) -> io::Result<()> {
        self.file.write_all(format!("{token}\n").as_bytes())?;
        self.file.sync_all()?;
        self.is_kept = true;
        Ok(())
    }
}

impl Drop for OutFile {
    fn drop(&mut self) {
        if !self.is_kept {
            // The error that counts is the first one.
            let _ = std::fs::remove_file(&self.path);
        }
    }
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
