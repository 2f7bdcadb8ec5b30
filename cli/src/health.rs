//! `health`: whether the relay serves, by the standard gRPC health check.

use std::time::Duration;

use reveille::{Client, Error, ErrorKind, duration};
use serde::Serialize;

use super::{
    causes::Causes,
    exit::{Exit, Failed},
    foreign_server,
    output::Row,
    target::{self, Target, TargetArgs},
};

/// Check whether the relay serves, or wait until it does
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille health --relay http://127.0.0.1:7600
  reveille health --wait=30s && ./start-workers

The relay serves while it is ready for clients, as `/readyz` of its admin port states it: not while it \
drains, is at a limit, or is cut off from its cluster. No credential is needed.

Ends with 0 if the relay serves, 1 if it currently does not, 3 if it cannot be reached. With --wait it \
ends so when the time is over.")]
pub(super) struct Args {
    /// Wait until the relay serves, at most this long [default: --timeout, or else for ever]
    #[arg(long, value_name = "D", num_args = 0..=1, require_equals = true, value_parser = duration::parse)]
    wait: Option<Option<Duration>>,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Serialize)]
struct HealthRow {
    relay: String,
    serving: bool,
    reason: Option<String>,
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
        let row = HealthRow {
            relay: client.url().to_owned(),
            serving: reason.is_none(),
            reason,
        };
        target.format.one(&row)?;
        Ok(if row.serving { Exit::OK } else { Exit::FAILURE })
    }
}

/// Waits until the relay serves, and prints why it does not.
async fn wait(target: &Target) -> anyhow::Result<Exit> {
    let client = target.client()?;
    let mut newest = None;
    let waiting = until_ready(&client, &mut newest);
    match target.timeout {
        None => waiting.await?,
        Some(timeout) => match tokio::time::timeout(timeout, waiting).await {
            Ok(ready) => ready?,
            Err(_) => return Err(timed_out(target, timeout, newest)),
        },
    }
    Ok(Exit::OK)
}

fn timed_out(
    target: &Target,
    timeout: Duration,
    newest: Option<reveille::Result<String>>,
) -> anyhow::Error {
    match newest {
        Some(Ok(reason)) => {
            let span = duration::Span(timeout);
            Failed(format!("not ready within {span}: {reason}")).into()
        }
        Some(Err(error)) => error.into(),
        None => target.no_answer().into(),
    }
}

/// `newest` is why the newest check did not find the relay ready.
async fn until_ready(
    client: &Client,
    newest: &mut Option<reveille::Result<String>>,
) -> reveille::Result<()> {
    let (mut causes, mut foreign) = (Causes::default(), None);
    let warn_at = tokio::time::Instant::now() + target::WARN_AFTER;
    loop {
        let warns = tokio::time::Instant::now() >= warn_at;
        let cause = match client.not_ready().await {
            Ok(None) => return Ok(()),
            Ok(Some(reason)) => {
                let text = format!("not ready: {reason}");
                *newest = Some(Ok(reason));
                text
            }
            Err(error) if is_final(&error) => return Err(error),
            Err(error) => {
                if warns && foreign.is_none() {
                    // Once: the probe of a relay is an incident in its log.
                    foreign = Some(foreign_server::identify(client.url(), PAUSE * 3).await);
                }
                let error = foreign.clone().flatten().unwrap_or(error);
                let text = error.to_string();
                *newest = Some(Err(unavailable(error)));
                text
            }
        };
        if warns {
            causes.note(&cause);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The settings are wrong, or a server answers there that is no relay.
fn is_final(error: &Error) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Exhausted | ErrorKind::Busy
    )
}

/// A relay that does not answer in time may as well be unreachable.
fn unavailable(error: Error) -> Error {
    let message = error.message().to_owned();
    Error::new(ErrorKind::Unavailable, message).with_source(error)
}

impl Row for HealthRow {
    const COLUMNS: &'static [&'static str] = &["relay", "serving", "reason"];
}
