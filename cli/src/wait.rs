//! `wait`: parks until a flag is set, then becomes the command.

use std::{ffi::OsString, os::unix::process::CommandExt as _, time::Duration};

use async_trait::async_trait;
use reveille::{Error, ErrorKind, FlagName, GlobalFlag, flag::StoreFlag, release::Release, store};
use tokio::sync::OnceCell;

use super::{
    child,
    exit::Exit,
    flag, output, program,
    target::{IdArgs, WaitingArgs},
    values,
};

/// Wait until a flag is set, then run a command
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille wait go-live -- ./worker --threads 4
  reveille wait go-live --timeout 10m && echo released
  reveille wait go-live --store az://flags -- ./worker

If the flag is already set, the command starts at once. It replaces this process. With --store alone no \
relay is needed. With both --relay (or REVEILLE_RELAY) and --store, the first of them to report the flag \
releases this node.

Without a command it ends with 0. It ends with 6 if the flag is not set within --timeout, and with 3 if \
the relay was not reached within it.")]
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

/// The flag of a store, which is opened by the first read that reaches it.
#[derive(Debug)]
struct UnopenedFlag {
    url: String,
    name: FlagName,
    flag: OnceCell<StoreFlag>,
}

/// The acknowledgement comes before the command, which it must not delay for longer.
const ACK_TIMEOUT: Duration = Duration::from_secs(1);
/// A node reads a store at most this often.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        if !self.command.is_empty() {
            child::check_exists(&self.command)?;
        }
        let target = self.target.resolve();
        let interval = self.interval.unwrap_or_default();
        if let Some(url) = &self.store {
            values::refuse_memory("--store: a store", "sqlite:PATH", url)?;
        }
        let stored = self.store.clone().map(|url| UnopenedFlag {
            url,
            name: self.flag.clone(),
            flag: OnceCell::new(),
        });
        let (mut release, relay) = match stored {
            Some(stored) if self.target.relay.relay.is_none() => {
                (Release::reading(self.flag.clone(), stored, interval), None)
            }
            stored => {
                let client = target.client()?;
                let watch = client.watch_flag(self.flag.clone(), self.id.resolve("wait")?);
                let link = watch.link();
                let release = match stored {
                    None => Release::new(watch),
                    Some(flag) => Release::new(watch).with_flag(self.flag.clone(), flag, interval),
                };
                (release, Some(link))
            }
        };
        let late = (
            ErrorKind::Timeout,
            format!("flag `{}` was not set", self.flag),
        );
        let parked = program::within(target.timeout, late, release.wait());
        let released = match relay {
            Some(link) => target.reaching(link, parked).await?,
            None => parked.await?,
        };
        if let Ok(Err(error)) = tokio::time::timeout(ACK_TIMEOUT, release.acknowledge()).await {
            output::note(format_args!("not acknowledged: {error}"));
        }
        let line = flag::line(&released);
        if self.command.is_empty() {
            target.format.next(&flag::row(&released), line)?;
            return Ok(Exit::OK);
        }
        output::note(line);
        let error = child::without_token(&self.command).exec();
        Err(child::cannot_run(&self.command, error).into())
    }
}

#[async_trait]
impl GlobalFlag for UnopenedFlag {
    async fn is_set(&self) -> reveille::Result<bool> {
        let opening = || async {
            let opened = store::open_existing(&self.url).await?;
            Ok::<_, Error>(StoreFlag::new(opened, self.name.clone()))
        };
        self.flag.get_or_try_init(opening).await?.is_set().await
    }

    async fn set(&self, _set: bool) -> reveille::Result<()> {
        let message = "a parked node sets no flag";
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}

/// Parses an interval. Refuses 0, which would poll without a pause.
fn interval(text: &str) -> Result<Duration, String> {
    let is_valid = |interval| interval >= MIN_INTERVAL;
    values::duration(text, is_valid, "must be at least 10ms")
}
