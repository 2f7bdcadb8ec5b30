//! `store backup`: copies the SQLite file of a store or of queues, while programs use it.

use std::path::PathBuf;

use clap::Subcommand;
use reveille::store;
use serde::Serialize;

use super::{exit::Exit, output::OutputArgs};

/// Copy the SQLite file of a store or of queues
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille store backup /var/lib/reveille/reveille.db /backup/reveille.db")]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Copy a file, while programs use it
    ///
    /// The copy has all that was committed when the command began, and needs no other file beside
    /// it. To use a copy: end all programs that use the file, remove FILE-wal and FILE-shm, put the
    /// copy in its place, and start them again.
    #[command(after_help = "\
Example:
  reveille store backup /var/lib/reveille/reveille.db /backup/reveille.db
  reveille store backup sqlite:berlin/queues.db /backup/berlin.db")]
    Backup(Backup),
}

#[derive(Debug, clap::Args)]
struct Backup {
    /// The file, or its URL `sqlite:PATH`
    #[arg(value_name = "FROM")]
    from: String,
    /// The copy, which must not exist
    #[arg(value_name = "TO")]
    to: PathBuf,
    #[command(flatten)]
    output: OutputArgs,
}

/// A copy as a row.
#[derive(Debug, Serialize)]
struct Copied {
    from: String,
    to: String,
    bytes: u64,
}

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let Verb::Backup(backup) = self.verb;
        let from = match backup.from.strip_prefix("sqlite:") {
            Some(rest) => rest.split('?').next().unwrap_or_default(),
            None => &backup.from,
        };
        store::backup(from.as_ref(), &backup.to).await?;
        let row = Copied {
            from: from.to_owned(),
            to: backup.to.display().to_string(),
            bytes: std::fs::metadata(&backup.to)?.len(),
        };
        let line = format!("copied {} to {} ({} bytes)", row.from, row.to, row.bytes);
        let format = backup.output.format;
        format.next(&row, line)?;
        Ok(Exit::OK)
    }
}
