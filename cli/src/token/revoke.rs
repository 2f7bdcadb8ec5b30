//! `token revoke`: removes tokens from the token file.

use std::{
    collections::HashSet,
    time::{Duration, SystemTime},
};

use reveille::{Error, ErrorKind, auth::TokenFile};

use super::{TokenFileArgs, list::TokenRow, unavailable_as_failed};
use crate::{
    auth::blocking,
    exit::Exit,
    output::{self, Format},
    settings::Settings,
};

/// Revoke tokens by their ids
///
/// All known ids are revoked, also if others are unknown: then the exit code is 5. A running relay
/// reads the changed file within 10 s by itself, also while another file of access is broken. It then
/// refuses the token, and ends its streams within 60 s; its audit log has a line `token`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille token revoke abcdefgh23 --tokens tokens.toml
  reveille token revoke abcdefgh23 bcdefghi34 --auth auth.toml -o json

`reveille token list` prints the ids. The id of a token is also in its text: rvl_ID_...")]
pub(super) struct Revoke {
    /// The ids of `reveille token list`
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    #[command(flatten)]
    file: TokenFileArgs,
    /// The output format [default: table]
    #[arg(short, long, env = "REVEILLE_OUTPUT", value_name = "FORMAT")]
    output: Option<Format>,
}

/// The outcome of several revocations.
#[derive(Debug, Default)]
struct Revoked {
    rows: Vec<TokenRow>,
    /// For each unknown id, its text for an error.
    unknown: Vec<String>,
    /// The error that ended the work.
    failed: Option<Error>,
}

/// A relay reads its files this often.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(10);
/// Length of an id.
const ID: usize = 10;

impl Revoke {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let format = self.output.or(settings.output).unwrap_or_default();
        let file = self.file.resolve(settings).await?;
        let path = file.path().display().to_string();
        let mut ids = self.ids;
        let mut seen = HashSet::new();
        ids.retain(|id| seen.insert(id.clone()));
        let revoked = blocking(move || Ok(Revoked::all(&file, &ids, SystemTime::now()))).await?;
        revoked.print(format)?;
        if let Some(error) = revoked.failed {
            return Err(unavailable_as_failed(error));
        }
        if revoked.unknown.is_empty() {
            let by = output::time(SystemTime::now() + FOLLOWED_WITHIN);
            output::note(format_args!(
                "a relay that reads `{path}` refuses it from {by} on at the latest, and ends its streams \
                 within 60 s: see `reveille_access_rules_stale` and the line `token` of its audit log"
            ));
            return Ok(Exit::OK);
        }
        let unknown = revoked.unknown.join(", ");
        let message = format!("token file `{path}` has no id {unknown}");
        Err(Error::new(ErrorKind::NotFound, message).into())
    }
}

impl Revoked {
    fn all(file: &TokenFile, ids: &[String], now: SystemTime) -> Self {
        let mut revoked = Self::default();
        for id in ids {
            // A missing file has no ids. The library would leave a lock file beside it.
            if !is_id(id) || !file.path().exists() {
                revoked.unknown.push(shown(id));
                continue;
            }
            match file.revoke(id) {
                Ok(record) => revoked.rows.push(TokenRow::new(&record, now)),
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    revoked.unknown.push(shown(id));
                }
                Err(error) => {
                    revoked.failed = Some(error);
                    break;
                }
            }
        }
        revoked
    }

    fn print(&self, format: Format) -> std::io::Result<()> {
        if format != Format::Table {
            return format.list(&self.rows);
        }
        let lines = self
            .rows
            .iter()
            .map(|row| format!("revoked {}\n", row.line()));
        output::text(&lines.collect::<String>())
    }
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
