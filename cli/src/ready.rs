//! `ready`: waits until the relay answers.

use std::time::Duration;

use super::{exit::Exit, settings::Settings, target::WaitingArgs};

/// Wait until the relay answers
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille ready --timeout 30s && ./start-workers

Without --timeout it waits for ever. Ends with 3 if the relay does not answer within --timeout.")]
pub(super) struct Args {
    #[command(flatten)]
    target: WaitingArgs,
}

impl Args {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let target = self.target.resolve(settings);
        let client = target.client()?;
        let ready = client.ready(target.timeout.unwrap_or(Duration::MAX));
        target.acknowledged(&client, ready).await?;
        Ok(Exit::OK)
    }
}
