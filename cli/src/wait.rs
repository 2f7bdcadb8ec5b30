//! `wait`: parks until a flag is set, then runs a command.

use std::{ffi::OsString, time::Duration};

use reveille::{Client, FlagName, FlagState, LinkState, duration, release::Release};
use tokio::sync::watch;

use super::{
    child::Foreground,
    direct_store::PolledFlag,
    exit::{Exit, Failed},
    flag::FlagRow,
    log, output, program, signals,
    target::{self, IdArgs, Target, WaitingArgs},
};

/// Wait until a flag is set, then run a command
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille wait go-live -- ./worker --threads 4
  reveille wait go-live --timeout 10m && echo released
  reveille wait go-live --store az://flags -- ./worker

If the flag is already set, the command starts at once. With --store alone no relay is needed: the \
flag is read every --interval, and a flag with a --ttl below two intervals may be missed. With both \
--relay (or REVEILLE_RELAY) and --store, the first of them to report the flag releases this node, and a \
failure of one does not stop the other.

Ends with the exit code of the command (128 + N if signal N ended it), with 0 if there is no command, \
with 6 if the flag is not set within --timeout, and with 3 if the relay was not reached within it.")]
pub(super) struct Args {
    /// The flag
    flag: FlagName,
    #[command(flatten)]
    id: IdArgs,
    /// Read the flag directly in this store: az://CONTAINER[/PREFIX], s3://, gs://, sqlite:PATH
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// How often the store is read [default: 2.5s; 30s with a relay]
    #[arg(long, value_name = "D", value_parser = interval, requires = "store")]
    interval: Option<Duration>,
    #[command(flatten)]
    target: WaitingArgs,
    /// The command to run then
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Time-out for the acknowledgement after the command's end: it must not delay the caller of this
/// process.
const ACK_AFTER_END: Duration = Duration::from_secs(1);

/// A node reads a store at most this often.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

/// The client of a relay, and the state of its watch.
type Watched = (Client, watch::Receiver<LinkState>);

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        log::to_stderr(log::WAIT_LOG);
        let mut interrupts = signals::Interrupts::listen()?;
        let target = self.target.resolve();
        let (mut release, relay) = self.release(&target, self.target.names_relay())?;
        let parked = park(&mut release, &self.flag, &target);
        let waiting = async {
            match &relay {
                Some((client, link)) if self.store.is_none() => {
                    target.reaching(client, link.clone(), parked).await
                }
                Some((client, link)) => target::noting_causes(client, link.clone(), parked).await,
                None => parked.await,
            }
        };
        let released = tokio::select! {
            released = waiting => released?,
            signal = interrupts.next() => return Ok(signal.exit()),
        };
        let acknowledge = release.acknowledge();
        tokio::pin!(acknowledge);
        let finish = self.finish(&released, &target, &mut interrupts);
        tokio::pin!(finish);
        // The command starts first; the acknowledgement runs concurrently.
        tokio::select! {
            biased;
            exit = &mut finish => {
                let late = tokio::time::timeout(ACK_AFTER_END, acknowledge).await;
                note_failure(late.unwrap_or(Ok(())));
                exit
            }
            acknowledged = &mut acknowledge => {
                note_failure(acknowledged);
                finish.await
            }
        }
    }

    /// Returns the release to wait for; if a relay is used, with its client and the state of the watch.
    fn release(
        &self,
        target: &Target,
        names_relay: bool,
    ) -> anyhow::Result<(Release, Option<Watched>)> {
        let interval = self.interval.unwrap_or_default();
        let parked = |url| PolledFlag::new(url, self.flag.clone(), !names_relay);
        let parked = self.store.as_deref().map(parked).transpose()?;
        if !names_relay && let Some(parked) = parked {
            let release = Release::reading(self.flag.clone(), parked, interval);
            return Ok((release, None));
        }
        let client = target.client()?;
        let watch = client.watch_flag(self.flag.clone(), self.id.resolve("wait")?);
        let link = watch.link();
        let release = match parked {
            None => Release::new(watch),
            Some(parked) => Release::new(watch).with_flag(self.flag.clone(), parked, interval),
        };
        Ok((release, Some((client, link))))
    }

    /// Runs the command. Without a command, prints that the flag is set.
    async fn finish(
        &self,
        released: &FlagState,
        target: &Target,
        interrupts: &mut signals::Interrupts,
    ) -> anyhow::Result<Exit> {
        let row = FlagRow::from(released);
        let Some(program) = self.command.first() else {
            target.format.next(&row, row.line())?;
            return Ok(Exit::OK);
        };
        output::note(row.line());
        let mut command = Foreground::start(&self.command).map_err(|error| {
            let program = program.to_string_lossy();
            Failed(format!("`{program}` cannot be run: {error}"))
        })?;
        loop {
            tokio::select! {
                status = command.wait() => return Ok(Exit::of_command(status?)),
                signal = interrupts.next() => command.forward(signal),
            }
        }
    }
}

/// Parses an interval. Refuses 0, which would poll without a pause.
fn interval(text: &str) -> Result<Duration, String> {
    let span = duration::parse(text).map_err(|error| error.to_string())?;
    match span < MIN_INTERVAL {
        true => Err("must be at least 10ms".to_owned()),
        false => Ok(span),
    }
}

/// Waits until the flag is set, within --timeout.
async fn park(
    release: &mut Release,
    flag: &FlagName,
    target: &Target,
) -> reveille::Result<FlagState> {
    let late = format!("flag `{flag}` was not set");
    program::within(target.timeout, late, release.wait()).await
}

/// Prints if the acknowledgement failed. The node is released in any case.
fn note_failure(acknowledged: reveille::Result<()>) {
    if let Err(error) = acknowledged {
        output::note(format_args!("not acknowledged: {error}"));
    }
}
