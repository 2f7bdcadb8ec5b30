//! `leash`: clears a flag.

use reveille::{FlagName, LeashOptions};

use super::{
    direct_store::{self, DirectStore, NO_RELAY_TOLD},
    exit::Exit,
    flag::FlagRow,
    output,
    target::TargetArgs,
    values,
};

/// Clear a durable flag
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille leash go-live --reason 'the next batch'
  reveille leash go-live --store az://flags")]
pub(super) struct Args {
    /// The flag
    flag: FlagName,
    /// The reason, for the relay's log
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    reason: String,
    /// The person or program that clears the flag, for the relay's log [default: the user's name]
    #[arg(long, env = "REVEILLE_SET_BY", value_name = "NAME")]
    set_by: Option<String>,
    /// Clear the flag directly in this store, without a relay: az://CONTAINER[/PREFIX], s3://,
    /// gs://, sqlite:PATH
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    #[command(flatten)]
    target: TargetArgs,
}

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let target = self.target.resolve();
        let leashed = match &self.store {
            None => {
                let flags = target.client()?.flags();
                let options = LeashOptions {
                    cleared_by: self.set_by.clone().unwrap_or_else(values::user),
                    reason: self.reason.clone(),
                };
                target.within(flags.leash_with(&self.flag, &options)).await
            }
            Some(url) => {
                let store = DirectStore::open_existing(url, target.timeout).await?;
                store.within(store.flags.leash(&self.flag)).await
            }
        };
        let state = leashed.map_err(direct_store::may_have_happened)?;
        target.format.one(&FlagRow::from(&state))?;
        if self.store.is_some() {
            output::note(NO_RELAY_TOLD);
        }
        Ok(Exit::OK)
    }
}
