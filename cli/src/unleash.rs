//! `unleash` and `leash`: set and clear a flag. `unleash --expect` waits for the acknowledgements of
//! listeners.

use std::time::Duration;

use reveille::{
    Client, FlagEvent, FlagName, FlagState, FlagWatcher, FlagWatcherInfo, LeashOptions, Limits,
    ListenerId, UnleashOptions, flag::StoreFlags,
};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout, timeout_at};

use super::{
    exit::{Exit, Failed},
    flag::{self, FLAG_WATCH_ID, FlagsArgs},
    output,
    target::note_unanswered,
    values,
};

/// Set a durable flag, and release all nodes that wait for it
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille unleash go-live --reason 'the migration is done'
  reveille unleash go-live --ttl 1h --expect 40 --timeout 30s
  reveille unleash go-live --store az://flags

A flag that is already set keeps its end and its reason unless --ttl, --no-ttl or --reason changes \
them. With --expect the exit code is 0 once N listeners have acknowledged, and 6 if they did not within \
--timeout (10s). With exit code 3 the flag may be set: repeat the command.")]
pub(super) struct Args {
    /// The flag
    flag: FlagName,
    /// The flag ends by itself after this duration; a node that polls it may miss less than 5s [default:
    /// never; a flag that is already set keeps its end]
    #[arg(long, value_name = "D", value_parser = ttl)]
    ttl: Option<Duration>,
    /// The flag does not end by itself; removes the --ttl of a flag that is already set
    #[arg(long, conflicts_with = "ttl")]
    no_ttl: bool,
    #[command(flatten)]
    origin: Origin,
    /// Wait until N listeners have acknowledged
    #[arg(long, value_name = "N", value_parser = values::positive::<u32>, conflicts_with = "store")]
    expect: Option<u32>,
    #[command(flatten)]
    flags: FlagsArgs,
}

/// Clear a durable flag
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille leash go-live --reason 'the next batch'
  reveille leash go-live --store az://flags")]
pub(super) struct LeashArgs {
    /// The flag
    flag: FlagName,
    #[command(flatten)]
    origin: Origin,
    #[command(flatten)]
    flags: FlagsArgs,
}

/// Why and by whom a flag is changed.
#[derive(Debug, clap::Args)]
struct Origin {
    /// The reason, for the relay's log and the readers of a set flag
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// The person or program that changes the flag [default: the user's name]
    #[arg(long, env = "REVEILLE_SET_BY", value_name = "NAME")]
    set_by: Option<String>,
}

const COLUMNS: &str = "flag acknowledged expected watchers expires_at reason generation";
/// Maximum number of names in a text; JSON has all.
const SHOWN: usize = 20;
/// Time for the list of missing listeners: --timeout is over by then, but the relay has answered
/// all calls before.
const MISSING_TIMEOUT: Duration = Duration::from_secs(1);

impl Origin {
    fn set_by(&self) -> String {
        let user = || std::env::var("USER").unwrap_or_default();
        self.set_by.clone().unwrap_or_else(user)
    }
}

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        if let Some(expected) = self.expect {
            return Box::pin(self.run_expecting(expected)).await;
        }
        let options = self.options();
        let of_relay = async |client: &Client| {
            let unleashed = client.flags().unleash(&self.flag, &options).await?;
            Ok((unleashed.flag, Some(unleashed.watchers)))
        };
        let of_store =
            async |flags: StoreFlags| Ok((flags.unleash(&self.flag, &options).await?, None));
        let (state, watchers) = self.flags.call(true, of_relay, of_store).await?;
        let row = row(&state, watchers, &Value::Null);
        self.flags.format().row(COLUMNS, &row)?;
        Ok(Exit::OK)
    }

    fn options(&self) -> UnleashOptions {
        UnleashOptions {
            ttl: self.ttl.or_else(|| self.no_ttl.then_some(Duration::ZERO)),
            set_by: self.origin.set_by(),
            reason: self.origin.reason.clone().unwrap_or_default(),
        }
    }

    async fn run_expecting(&self, expected: u32) -> anyhow::Result<Exit> {
        let target = self.flags.target.resolve();
        let client = target.client()?;
        let until = Instant::now() + target.timeout.unwrap_or_default();
        let starting = async {
            // Fails at once if the relay is unreachable; a watch alone would retry for ever.
            client.flags().get(&self.flag).await?;
            let watcher = watch_acks(&client, &self.flag).await?;
            let unleashed = client.flags().unleash(&self.flag, &self.options()).await?;
            Ok((watcher, unleashed))
        };
        let (mut watcher, unleashed) = target.within(starting).await?;
        let mut acknowledged = 0;
        let generation = unleashed.flag.generation;
        let counting = count(&mut watcher, expected, generation, &mut acknowledged);
        let met = match timeout_at(until, counting).await {
            Ok(counted) => counted.map(|()| true)?,
            Err(_) => false,
        };
        let missing = match met {
            true => None,
            false => self.missing(&client).await,
        };
        let acks =
            json!({ "expected": expected, "acknowledged": acknowledged, "missing": missing });
        let row = row(&unleashed.flag, Some(unleashed.watchers), &acks);
        target.format.row(COLUMNS, &row)?;
        if met {
            return Ok(Exit::OK);
        }
        let missing = missing.unwrap_or_default();
        output::note(format_args!(
            "unmet: the flag is set, but {acknowledged} of {expected} listeners have acknowledged; \
             missing: {}",
            sentence(&missing, (expected - acknowledged) as usize)
        ));
        Ok(Exit::TIMED_OUT)
    }

    /// Lists the nodes that have not acknowledged; `None` if the relay does not answer in time.
    async fn missing(&self, client: &Client) -> Option<Vec<String>> {
        let flags = client.flags();
        let listing = timeout(MISSING_TIMEOUT, flags.watchers(&self.flag));
        let watchers = listing.await.ok()?.ok()?;
        note_unanswered(&watchers.unanswered);
        let is_missing = |watcher: &FlagWatcherInfo| {
            !watcher.acknowledged && !watcher.listener_id.starts_with(FLAG_WATCH_ID)
        };
        let missing = watchers.entries.into_iter().filter(is_missing);
        Some(missing.map(|watcher| watcher.listener_id).collect())
    }
}

/// Starts a watch of acknowledgements, and returns once the relay has registered it.
async fn watch_acks(client: &Client, flag: &FlagName) -> reveille::Result<FlagWatcher> {
    let id = ListenerId::unique("unleash")?;
    let mut watcher = client.watch_flag(flag.clone(), id).with_acks();
    while let Some(event) = watcher.next_event().await {
        if let FlagEvent::State(_) = event? {
            break;
        }
    }
    Ok(watcher)
}

/// Waits until `expected` listeners have acknowledged the flag's `generation`.
async fn count(
    watcher: &mut FlagWatcher,
    expected: u32,
    generation: u64,
    counted: &mut u32,
) -> anyhow::Result<()> {
    while let Some(event) = watcher.next_event().await {
        match event? {
            FlagEvent::Acks {
                generation: of,
                acknowledged,
                ..
            } if of == generation => *counted = acknowledged.max(*counted),
            _ => {}
        }
        if *counted >= expected {
            return Ok(());
        }
    }
    Err(Failed("the relay ended the watch of the flag".to_owned()).into())
}

/// Returns the missing listeners as a part of a sentence: their names, and how many others there are,
/// which do not watch now.
fn sentence(missing: &[String], count: usize) -> String {
    let mut parts = missing[..missing.len().min(SHOWN)].to_vec();
    match count.max(missing.len()) - parts.len() {
        0 => {}
        others if missing.len() > SHOWN => parts.push(format!("and {others} more")),
        others => parts.push(format!("{others} that do not watch now")),
    }
    parts.join(", ")
}

impl LeashArgs {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let options = LeashOptions {
            cleared_by: self.origin.set_by(),
            reason: self.origin.reason.clone().unwrap_or_default(),
        };
        let of_relay =
            async |client: &Client| client.flags().leash_with(&self.flag, &options).await;
        let of_store = async |flags: StoreFlags| flags.leash(&self.flag).await;
        let state = self.flags.call(false, of_relay, of_store).await?;
        self.flags.format().row(flag::COLUMNS, &flag::row(&state))?;
        Ok(Exit::OK)
    }
}

/// Returns the flag's state and the acknowledgements. Fields that do not apply are null.
fn row(state: &FlagState, watchers: Option<u32>, acks: &Value) -> Value {
    let mut row = flag::row(state);
    row["watchers"] = json!(watchers);
    for field in ["expected", "acknowledged", "missing"] {
        row[field] = acks[field].clone();
    }
    row
}

fn ttl(text: &str) -> Result<Duration, String> {
    let is_valid = |ttl: Duration| !ttl.is_zero() && ttl <= Limits::TTL;
    values::duration(text, is_valid, "must be more than 0 and at most 3650d")
}
