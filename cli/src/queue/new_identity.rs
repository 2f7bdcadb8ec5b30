//! `queue new-identity`: makes a copy of a queue file another file.

use reveille::courier::{QueueManager, QueueManagerConfig};
use serde::Serialize;

use super::place::{OutputArgs, PlaceArgs};
use crate::{exit::Exit, output, settings::Settings};

pub(super) const AFTER_HELP: &str = "\
Example:
  reveille queue new-identity queues

Two machines with copies of one queue file replace each other's connections, and messages between them \
are refused as a loop of routes. Stop the host of the copy and the applications that use it, run this \
command on it, and start them again. A file that is restored or moved keeps its identity: do not run this command on it.

Messages that wait for other machines stay in both files; each arrives once. Messages that wait in the \
queues of the copy stay there too, and are handled on both machines: purge the queues of one of them. The \
copy forgets the messages that only the original may settle.";

#[derive(Debug, clap::Args)]
pub(super) struct NewIdentity {
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Serialize)]
struct RenewedRow {
    removed: u64,
}

impl NewIdentity {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        // Opens it first: hosting creates a file.
        let path = self.place.open(settings).await?.path().to_owned();
        let manager = QueueManager::host(path, QueueManagerConfig::default()).await?;
        let renewed = manager.new_identity().await?;
        let row = RenewedRow {
            removed: renewed.removed,
        };
        let removed = output::count(renewed.removed, "message");
        let line = format!("it has a new identity; {removed} of the original removed");
        self.output.format(settings).next(&row, line)?;
        Ok(Exit::OK)
    }
}
