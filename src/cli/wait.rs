//! `wait`: parks until a flag is set, then runs a command.

use std::{ffi::OsString, process::Stdio, time::Duration};

use reveille::{Error, ErrorKind, FlagName, FlagState, ListenerId, release::Release};
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
        let watch = client.watch_flag(self.flag.clone(), self.listener_id()?);
        let mut release = Release::new(watch);
        let released = tokio::select! {
            released = park(&mut release, &self.flag, &target) => released?,
            signal = interrupts.next() => return Ok(signal.exit()),
        };
        let acknowledge = release.acknowledge();
        tokio::pin!(acknowledge);
        let finish = self.finish(&released, &target, &mut interrupts);
        tokio::pin!(finish);
        // The command is started first; the acknowledgement goes beside it.
        tokio::select! {
            biased;
            exit = &mut finish => {
                let late = tokio::time::timeout(ACK_AFTER_END, acknowledge).await;
                tell(late.unwrap_or(Ok(())));
                exit
            }
            acknowledged = &mut acknowledge => {
                tell(acknowledged);
                finish.await
            }
        }
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

/// Waits until the flag is set, for as long as is given.
async fn park(
    release: &mut Release,
    flag: &FlagName,
    target: &Target,
) -> reveille::Result<FlagState> {
    let Some(timeout) = target.timeout else {
        return release.wait().await;
    };
    match tokio::time::timeout(timeout, release.wait()).await {
        Ok(released) => released,
        Err(_) => {
            let span = reveille::duration::Span(timeout);
            let message = format!("flag `{flag}` was not set within {span}");
            Err(Error::new(ErrorKind::Timeout, message))
        }
    }
}

/// Tells of an acknowledgement that did not arrive; the node is released all the same.
fn tell(acknowledged: reveille::Result<()>) {
    if let Err(error) = acknowledged {
        output::note(format_args!("not acknowledged: {error}"));
    }
}
