//! `leash`: clears a flag.

use reveille::FlagName;

use super::{exit::Exit, flag::FlagRow, settings::Settings, target::TargetArgs};

/// Clear a durable flag
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille leash go-live")]
pub(super) struct Args {
    /// The flag
    flag: FlagName,
    #[command(flatten)]
    target: TargetArgs,
}

impl Args {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let target = self.target.resolve(settings);
        let flags = target.client()?.flags();
        let state = target.within(flags.leash(&self.flag)).await?;
        target.format.one(&FlagRow::from(&state))?;
        Ok(Exit::OK)
    }
}
