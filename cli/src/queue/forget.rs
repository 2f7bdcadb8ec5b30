//! `queue forget`: forgets the queue file of another machine that is gone for good, or whose a
//! sender's file is.

use reveille::courier::MessageId;
use serde::Serialize;

use super::place::{OutputArgs, PlaceArgs};
use crate::{exit::Exit, output, settings::Settings};

pub(super) const AFTER_HELP: &str = "\
Example:
  reveille queue forget queues berlin:7610
  reveille queue forget queues --sender 9f3c1a5e77d04b1c8a2e6f0d4b5c6a7e

A machine that gets a new queue file is refused while messages to its former file are not settled, \
because only that file knows which of them it has. Bring the file back if you can. This command \
makes dead letters of the messages that only the former file has, without their bodies. Messages \
that it may have are sent to the new file, and would arrive twice if the former file came back.

With access control, a sender's queue file belongs to the principal that showed it first. --sender \
lets another principal show it, after a machine was given another name.";

#[derive(Debug, clap::Args)]
pub(super) struct Forget {
    #[command(flatten)]
    place: PlaceArgs,
    /// The next machine, as `queue status` shows it
    #[arg(value_name = "HOST:PORT", required_unless_present = "sender")]
    machine: Option<String>,
    /// The queue file of a sender, as its refusal names it
    #[arg(long, value_name = "FILE_ID", conflicts_with = "machine")]
    sender: Option<MessageId>,
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

#[derive(Debug, Serialize)]
struct SenderRow {
    sender: String,
    known: bool,
}

impl Forget {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let manager = self.place.open(settings).await?;
        let format = self.output.format(settings);
        if let Some(sender) = self.sender {
            let known = manager.forget_sender(sender).await?;
            let row = SenderRow {
                sender: sender.to_string(),
                known,
            };
            let line = match known {
                true => format!("forgot whose queue file {sender} is"),
                false => format!("there is no sender {sender}"),
            };
            format.next(&row, line)?;
            return Ok(if known { Exit::OK } else { Exit::NOT_FOUND });
        }
        let machine = self.machine.unwrap_or_default();
        let forgotten = manager.forget_machine(&machine).await?;
        let row = ForgottenRow {
            machine,
            given_up: forgotten.given_up,
            sent_again: forgotten.uncertain,
        };
        format.next(&row, row.line())?;
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
