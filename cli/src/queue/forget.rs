//! `queue forget`: forgets the queue file of another machine that is gone for good.

use serde::Serialize;

use super::place::{OutputArgs, PlaceArgs};
use crate::{exit::Exit, output, settings::Settings};

pub(super) const AFTER_HELP: &str = "\
Example:
  reveille queue forget queues berlin:7610

A machine that gets a new queue file is refused while messages to its former file are not settled, \
because only that file knows which of them it has. Bring the file back if you can. This command \
makes dead letters of the messages that only the former file has, without their bodies. Messages \
that it may have are sent to the new file, and would arrive twice if the former file came back.";

#[derive(Debug, clap::Args)]
pub(super) struct Forget {
    #[command(flatten)]
    place: PlaceArgs,
    /// The next machine, as `queue status` shows it
    #[arg(value_name = "HOST:PORT")]
    machine: String,
    #[command(flatten)]
    output: OutputArgs,
}

/// The result.
#[derive(Debug, Serialize)]
struct ForgottenRow {
    machine: String,
    given_up: u64,
    sent_again: u64,
}

impl Forget {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let manager = self.place.open(settings).await?;
        let forgotten = manager.forget_machine(&self.machine).await?;
        let row = ForgottenRow {
            machine: self.machine,
            given_up: forgotten.given_up,
            sent_again: forgotten.uncertain,
        };
        self.output.format(settings).next(&row, row.line())?;
        Ok(Exit::OK)
    }
}

impl ForgottenRow {
    /// Returns the result as a line for people.
    fn line(&self) -> String {
        let given_up = output::count(self.given_up, "message");
        let sent_again = output::count(self.sent_again, "message");
        format!(
            "forgot the queue file of {}: gave up {given_up}; {sent_again} may be sent twice",
            self.machine
        )
    }
}
