//! `leash`: clears a flag.

use reveille::FlagName;

use super::{
    exit::Exit,
    flag::FlagRow,
    output,
    settings::Settings,
    stored::{self, NOBODY_TOLD, Stored},
    target::TargetArgs,
};

/// Clear a durable flag
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille leash go-live
  reveille leash go-live --store az://flags")]
pub(super) struct Args {
    /// The flag
    flag: FlagName,
    /// Clear it in this store itself, and ask no relay: az://CONTAINER[/PREFIX], s3://, gs://,
    /// sqlite:PATH
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    #[command(flatten)]
    target: TargetArgs,
}

impl Args {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let target = self.target.resolve(settings);
        let state = match &self.store {
            None => {
                let flags = target.client()?.flags();
                let leashed = target.within(flags.leash(&self.flag)).await;
                leashed.map_err(stored::may_have_happened)?
            }
            Some(url) => {
                let store = Stored::open_existing(url, target.timeout).await?;
                store
                    .write(async |flags| flags.leash(&self.flag).await)
                    .await?
            }
        };
        target.format.one(&FlagRow::from(&state))?;
        if self.store.is_some() {
            output::note(NOBODY_TOLD);
        }
        Ok(Exit::OK)
    }
}
