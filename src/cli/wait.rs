//! `wait`: parks until a flag is set, then runs a command.

use std::{ffi::OsString, process::Stdio, time::Duration};

use reveille::{Error, ErrorKind, FlagName, FlagState, FlagWatch as _, FlagWatcher, ListenerId};
use tokio::process::Command;

use super::{
    exit::{Exit, Failed},
    flag::FlagRow,
    output,
    settings::Settings,
    signals,
    target::{Target, TargetArgs},
};

/// Wait until a flag is set, then run a command
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille wait go-live -- ./worker --threads 4
  reveille wait go-live --timeout 10m && echo released

A flag that is set already is not waited for. Ends with the code of the command (128 + N where
signal N ended it), without one with 0; with 6 where the flag is not set within --timeout.")]
pub(super) struct Args {
    /// The flag
    flag: FlagName,
    /// Who waits, for `unleash --expect` [default: wait- and random characters]
    #[arg(long, env = "REVEILLE_LISTENER_ID", value_name = "NAME")]
    listener_id: Option<String>,
    #[command(flatten)]
    target: TargetArgs,
    /// What to run then
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// An acknowledgement that has not arrived by so long after the command's end is given up: it never
/// holds up whoever waits for us.
const ACK_AFTER_END: Duration = Duration::from_secs(1);

impl Args {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        signals::log_to_stderr(signals::CLIENT_LOG);
        let mut interrupts = signals::Interrupts::listen()?;
        let target = self.target.resolve_waiting(settings);
        let client = target.client()?;
        let mut watcher = client.watch_flag(self.flag.clone(), self.listener_id()?);
        let released = tokio::select! {
            released = park(&mut watcher, &self.flag, &target) => released?,
            signal = interrupts.next() => return Ok(signal.exit()),
        };
        let acknowledge = acknowledge(&mut watcher, released.generation);
        tokio::pin!(acknowledge);
        let exit = {
            let finish = self.finish(&released, &target, &mut interrupts);
            tokio::pin!(finish);
            // The command runs from the first; the acknowledgement goes beside it.
            tokio::select! {
                biased;
                exit = &mut finish => {
                    let _ = tokio::time::timeout(ACK_AFTER_END, acknowledge).await;
                    exit
                }
                () = &mut acknowledge => finish.await,
            }
        };
        exit
    }

    fn listener_id(&self) -> reveille::Result<ListenerId> {
        match &self.listener_id {
            Some(id) => ListenerId::new(id),
            None => ListenerId::unique("wait"),
        }
    }

    /// Runs the command, or says that the flag is set where there is none.
    async fn finish(
        &self,
        released: &FlagState,
        target: &Target,
        interrupts: &mut signals::Interrupts,
    ) -> anyhow::Result<Exit> {
        let row = FlagRow::from(released);
        let Some((program, arguments)) = self.command.split_first() else {
            target.format.next(&row, row.line())?;
            return Ok(Exit::OK);
        };
        output::note(row.line());
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::inherit())
            .spawn()
            .map_err(|error| {
                let program = program.to_string_lossy();
                Failed(format!("`{program}` cannot be run: {error}"))
            })?;
        loop {
            tokio::select! {
                status = child.wait() => return Ok(Exit::of_command(status?)),
                signal = interrupts.next() => signal.forward(&child),
            }
        }
    }
}

/// Waits until the flag is set. The watch is registered before the flag is read, so none is missed.
async fn park(
    watcher: &mut FlagWatcher,
    flag: &FlagName,
    target: &Target,
) -> reveille::Result<FlagState> {
    let set = async {
        while let Some(state) = watcher.next().await {
            let state = state?;
            if state.set {
                return Ok(state);
            }
        }
        Err(Error::new(ErrorKind::Closed, "the watch was closed"))
    };
    let Some(timeout) = target.timeout else {
        return set.await;
    };
    match tokio::time::timeout(timeout, set).await {
        Ok(released) => released,
        Err(_) => {
            let span = reveille::duration::Span(timeout);
            let message = format!("flag `{flag}` was not set within {span}");
            Err(Error::new(ErrorKind::Timeout, message))
        }
    }
}

/// Tells the relay, until it has heard it.
async fn acknowledge(watcher: &mut FlagWatcher, generation: u64) {
    while let Err(error) = watcher.ack(generation).await {
        tracing::debug!(%error, "not acknowledged");
        if !error.is_retryable() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
