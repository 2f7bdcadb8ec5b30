//! `drain`: ends a relay in order.

use std::time::Duration;

use reveille::{Client, duration};
use serde_json::json;

use super::{
    exit::{Exit, Usage},
    target::TargetArgs,
};

/// End a relay in order, as SIGTERM does
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille drain --relay http://relay-1:7600
  reveille drain --relay http://relay-1:7600 --within 30s

The answer comes when the drain has begun. A further drain with an earlier end brings the end forward. \
Drain one relay of a cluster at a time. The caller needs the action `admin`.")]
pub(super) struct Args {
    /// Time over which the relay's streams end; 0 is at once [default: the relay's --drain]
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    within: Option<Duration>,
    #[command(flatten)]
    target: TargetArgs,
}

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let target = self.target.resolve();
        if target.relay.contains(',') {
            // Any of them would end.
            let rule = "--relay: lists several relays; state the one to drain";
            return Err(Usage(rule.to_owned()).into());
        }
        let client: Client = target.client()?;
        target.within(client.drain(self.within)).await?;
        let row = json!({ "relay": target.relay, "draining": true });
        target.format.row("relay draining", &row)?;
        Ok(Exit::OK)
    }
}
