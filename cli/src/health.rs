//! `health`: the standard gRPC health check.

use serde::Serialize;

use super::{exit::Exit, output::Row, settings::Settings, target::TargetArgs};

/// Check whether the relay serves
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille health --relay http://127.0.0.1:7600

Ends with 0 if the relay serves, 1 if it currently does not, 3 if it cannot be reached.")]
pub(super) struct Args {
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Serialize)]
struct HealthRow {
    relay: String,
    serving: bool,
}

impl Args {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let target = self.target.resolve(settings);
        let client = target.client()?;
        let serving = target.within(client.health()).await?;
        let row = HealthRow {
            relay: client.url().to_owned(),
            serving,
        };
        target.format.one(&row)?;
        Ok(if serving { Exit::OK } else { Exit::FAILURE })
    }
}

impl Row for HealthRow {
    const HEADERS: &'static [&'static str] = &["RELAY", "SERVING"];

    fn cells(&self) -> Vec<String> {
        let serving = if self.serving { "yes" } else { "no" };
        vec![self.relay.clone(), serving.to_owned()]
    }
}
