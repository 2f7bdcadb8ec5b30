//! `ready`: waits until the relay answers.

use std::time::Duration;

use super::{exit::Exit, settings::Settings, target::TargetArgs};

/// Wait until the relay answers
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille ready --timeout 30s && ./start-workers

Waits for ever without --timeout; ends with 3 where the relay has not answered by then.")]
pub(super) struct Args {
    #[command(flatten)]
    target: TargetArgs,
}

impl Args {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let target = self.target.resolve_waiting(settings);
        let client = target.client()?;
        client
            .ready(target.timeout.unwrap_or(Duration::MAX))
            .await?;
        Ok(Exit::OK)
    }
}
