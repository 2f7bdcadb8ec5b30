//! `token list`: the tokens of a file, without their texts and digests.

use std::time::SystemTime;

use reveille::auth::TokenRecord;
use serde::Serialize;

use super::{TokenFileArgs, unavailable_as_failed};
use crate::{
    auth::blocking,
    exit::Exit,
    output::{self, Format, Row},
    settings::Settings,
};

/// List tokens
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille token list --tokens tokens.toml
  reveille token list --auth auth.toml -o json

The list has no secret. The relay refuses expired tokens; `token revoke` removes them from the file.")]
pub(super) struct List {
    #[command(flatten)]
    file: TokenFileArgs,
    /// The output format [default: table]
    #[arg(short, long, env = "REVEILLE_OUTPUT", value_name = "FORMAT")]
    output: Option<Format>,
}

/// A record of the token file.
#[derive(Debug, Serialize)]
pub(super) struct TokenRow {
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
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let file = self.file.resolve(settings).await?;
        let path = file.path().to_owned();
        let list = move || file.list().map_err(unavailable_as_failed);
        let records = blocking(list).await?;
        let now = SystemTime::now();
        let rows: Vec<_> = records.iter().map(|one| TokenRow::new(one, now)).collect();
        let format = self.output.or(settings.output).unwrap_or_default();
        format.list(&rows)?;
        if rows.is_empty() && !path.exists() {
            let path = path.display();
            output::note(format_args!(
                "token file `{path}` does not exist: `reveille token new` creates it"
            ));
        }
        Ok(Exit::OK)
    }
}

impl TokenRow {
    pub(super) fn new(record: &TokenRecord, now: SystemTime) -> Self {
        Self {
            id: record.id.clone(),
            principal: record.principal.clone(),
            created_at: Some(record.created),
            expires_at: record.expires,
            expired: record.expires.is_some_and(|expires| expires <= now),
            note: record.note.clone(),
        }
    }

    /// Returns the record as a part of a sentence.
    pub(super) fn line(&self) -> String {
        let mut line = format!("{}, token for {}", self.id, self.principal);
        if !self.note.is_empty() {
            line.push_str(&format!(": {}", self.note));
        }
        line
    }
}

impl Row for TokenRow {
    const HEADERS: &'static [&'static str] =
        &["ID", "PRINCIPAL", "CREATED AT", "EXPIRES AT", "NOTE"];
    const DROPPED_FIRST: &'static [&'static str] = &["NOTE", "CREATED AT"];

    fn cells(&self) -> Vec<String> {
        let time = |at: Option<SystemTime>| at.map_or_else(|| "-".to_owned(), output::time);
        let mut expires = time(self.expires_at);
        if self.expired {
            expires.push_str(" (expired)");
        }
        let note = if self.note.is_empty() {
            "-"
        } else {
            &self.note
        };
        vec![
            self.id.clone(),
            self.principal.clone(),
            time(self.created_at),
            expires,
            note.to_owned(),
        ]
    }
}
