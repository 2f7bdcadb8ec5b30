//! `health`: whether the relay serves, by the standard gRPC health check.

use std::time::Duration;

use reveille::duration;
use serde_json::json;
use tokio::time::Instant;

use super::{
    exit::{Exit, Failed},
    output,
    target::{self, Causes, Target, TargetArgs},
};

/// Check whether the relay serves, or wait until it does
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille health --relay http://127.0.0.1:7600
  reveille health --wait=30s && ./start-workers

The relay does not serve while it drains, is at a limit, or is cut off from its cluster. No credential \
is needed.

Ends with 0 if the relay serves, 1 if it currently does not, 3 if it cannot be reached. With --wait it \
ends so when the time is over.")]
pub(super) struct Args {
    /// Wait until the relay serves, at most this long [default: --timeout, or else for ever]
    #[arg(long, value_name = "D", num_args = 0..=1, require_equals = true, value_parser = duration::parse)]
    wait: Option<Option<Duration>>,
    #[command(flatten)]
    target: TargetArgs,
}

/// Pause between two checks.
const PAUSE: Duration = Duration::from_millis(200);

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        if let Some(limit) = self.wait {
            let limit = limit.or_else(|| self.target.timeout.map(Into::into));
            return wait(&self.target.relay.resolve(limit)).await;
        }
        let target = self.target.resolve();
        let client = target.client()?;
        let reason = target.within(client.not_ready()).await?;
        let serving = reason.is_none();
        let row = json!({ "relay": client.url(), "serving": serving, "reason": reason });
        target.format.row("relay serving reason", &row)?;
        Ok(if serving { Exit::OK } else { Exit::FAILURE })
    }
}

/// Waits until the relay serves, and prints why it does not.
async fn wait(target: &Target) -> anyhow::Result<Exit> {
    let client = target.client()?;
    let (began, mut causes) = (Instant::now(), Causes::default());
    loop {
        let error: anyhow::Error = match target.within(client.not_ready()).await {
            Ok(None) => return Ok(Exit::OK),
            Ok(Some(reason)) => Failed(format!("not ready: {reason}")).into(),
            // The settings are wrong, or a server answers there that is no relay.
            Err(error) if !error.is_retryable() => return Err(error.into()),
            Err(error) => error.into(),
        };
        let waited = began.elapsed();
        if target.timeout.is_some_and(|limit| waited + PAUSE > limit) {
            return Err(error);
        }
        if waited > target::WARN_AFTER {
            causes.note(&output::one_line(&error));
        }
        tokio::time::sleep(PAUSE).await;
    }
}
