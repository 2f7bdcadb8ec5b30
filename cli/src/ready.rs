//! `ready`: another name of `health --wait`.

use super::{exit::Exit, health, settings::Settings, target::WaitingArgs};

/// Wait until the relay serves, as `health --wait`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille ready --timeout 30s && ./start-workers

Without --timeout it waits for ever. Ends with 3 if the relay does not answer within --timeout, and with \
1 if it answers and is not ready.")]
pub(super) struct Args {
    #[command(flatten)]
    target: WaitingArgs,
}

impl Args {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        health::wait(&self.target.resolve(settings)).await
    }
}
