//! `wait`: parks until a flag is set, then runs a command.

use std::{ffi::OsString, process::Stdio, time::Duration};

use reveille::{
    Client, Error, ErrorKind, FlagName, FlagState, ListenerId, duration, release::Release,
};
use tokio::process::Command;

use super::{
    exit::{Exit, Failed},
    flag::FlagRow,
    log, output,
    settings::Settings,
    signals,
    stored::Parked,
    target::{self, Target, WaitingArgs},
};

/// Wait until a flag is set, then run a command
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille wait go-live -- ./worker --threads 4
  reveille wait go-live --timeout 10m && echo released
  reveille wait go-live --store az://flags -- ./worker

A flag that is set already is not waited for. With --store alone no relay is needed: the flag is read \
every --interval, and a ttl below two of them may pass unseen. With --relay (or REVEILLE_RELAY) and \
--store whichever is first releases, and neither stops for the other one's failures. Ends with the code of the command (128 + N where \
signal N ended it), without one with 0; with 6 where the flag is not set within --timeout, and with 3 where the relay was not reached within it.")]
pub(super) struct Args {
    /// The flag
    flag: FlagName,
    /// Who waits, for `unleash --expect` [default: wait- and random characters]
    #[arg(
        long,
        alias = "listener-id",
        env = "REVEILLE_LISTENER_ID",
        value_name = "NAME"
    )]
    id: Option<String>,
    /// Read the flag in this store itself: az://CONTAINER[/PREFIX], s3://, gs://, sqlite:PATH
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// How often the store is read [default: 2.5s; beside a relay 30s]
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = interval, requires = "store")]
    interval: Option<Duration>,
    #[command(flatten)]
    target: WaitingArgs,
    /// What to run then
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// An acknowledgement that has not arrived by so long after the command's end is given up: it never
/// holds up whoever waits for us.
const ACK_AFTER_END: Duration = Duration::from_secs(1);

/// Stores are not read more often by one node.
const SHORTEST: Duration = Duration::from_millis(10);

impl Args {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        log::to_stderr(log::WAIT_LOG);
        let mut interrupts = signals::Interrupts::listen()?;
        let target = self.target.resolve(settings);
        let (mut release, relay) = self.release(&target, self.target.names_one(settings))?;
        let parked = park(&mut release, &self.flag, &target);
        let waiting = async {
            match &relay {
                Some(client) if self.store.is_none() => target.reaching(client, parked).await,
                Some(client) => target::patiently(client, parked).await,
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

    /// Returns how the node is released, and the relay where one has a part in it.
    fn release(&self, target: &Target, named: bool) -> anyhow::Result<(Release, Option<Client>)> {
        let interval = self.interval.unwrap_or_default();
        let parked = |url| Parked::new(url, self.flag.clone(), !named);
        let parked = self.store.as_deref().map(parked).transpose()?;
        if let Some(parked) = parked.as_ref().filter(|_| !named) {
            let release = Release::reading(self.flag.clone(), parked.clone(), interval);
            return Ok((release, None));
        }
        let client = target.client()?;
        let watch = client.watch_flag(self.flag.clone(), self.listener_id()?);
        let release = match parked {
            None => Release::new(watch),
            Some(parked) => Release::new(watch).with_flag(self.flag.clone(), parked, interval),
        };
        Ok((release, Some(client)))
    }

    fn listener_id(&self) -> reveille::Result<ListenerId> {
        match &self.id {
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

/// Reads an interval: never a loop without a pause.
fn interval(text: &str) -> Result<Duration, String> {
    let span = duration::parse(text).map_err(|error| error.to_string())?;
    match span < SHORTEST {
        true => Err("must be at least 10ms".to_owned()),
        false => Ok(span),
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
            let span = duration::Span(timeout);
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
