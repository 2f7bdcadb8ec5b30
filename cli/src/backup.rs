//! `store backup`: copies the SQLite file of a store or of queues, while programs use it.

use std::path::PathBuf;

use clap::Subcommand;
use reveille::store;
use serde_json::json;

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

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let Verb::Backup(backup) = self.verb;
        let from = match backup.from.strip_prefix("sqlite:") {
            Some(rest) => rest.split('?').next().unwrap_or_default(),
            None => &backup.from,
        };
        store::backup(from.as_ref(), &backup.to).await?;
        let (to, bytes) = (backup.to.display(), std::fs::metadata(&backup.to)?.len());
        let row = json!({ "from": from, "to": to.to_string(), "bytes": bytes });
        let line = format!("copied {from} to {to} ({bytes} bytes)");
        backup.output.format.next(&row, line)?;
        Ok(Exit::OK)
    }
}
