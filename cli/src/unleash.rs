//! `unleash`: sets a flag. With `--expect` it waits for the acknowledgements of listeners.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use reveille::{
    Client, ConnectionState, FlagEvent, FlagName, FlagState, FlagWatcher, Limits, ListenerId,
    UnleashOptions, Unleashed, duration,
};
use serde::Serialize;
use tokio_stream::Stream as _;

use super::{
    direct_store::{self, DirectStore, NO_RELAY_TOLD},
    exit::{Exit, Failed},
    flag::FlagRow,
    output::{self, Row},
    target::{Target, TargetArgs, note_unanswered},
    values,
    watchers::{self, Missing},
};

/// Set a durable flag, and release all nodes that wait for it
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille unleash go-live --reason 'the migration is done'
  reveille unleash go-live --ttl 1h --expect 40 --timeout 30s
  reveille unleash go-live --store az://flags

A flag that is already set keeps its end and its reason unless --ttl, --no-ttl or --reason changes \
them; a note says so. With --expect the exit code is 0 once N listeners have acknowledged. It is 6 \
if they did not within --timeout (10s), or if the relay restarted and the number is unknown. The \
output names the missing listeners that the relay knows.")]
pub(super) struct Args {
    /// The flag
    flag: FlagName,
    /// The flag ends by itself after this duration [default: never; a flag that is already set
    /// keeps its end]
    #[arg(long, value_name = "D", value_parser = ttl)]
    ttl: Option<Duration>,
    /// The flag does not end by itself; removes the --ttl of a flag that is already set
    #[arg(long, conflicts_with = "ttl")]
    no_ttl: bool,
    /// The reason, shown to readers of the flag
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    reason: String,
    /// The person or program that sets the flag [default: the user's name]
    #[arg(long, env = "REVEILLE_SET_BY", value_name = "NAME")]
    set_by: Option<String>,
    /// Set the flag directly in this store, without a relay: az://CONTAINER[/PREFIX], s3://, gs://,
    /// sqlite:PATH
    #[arg(long, value_name = "URL", conflicts_with = "expect")]
    store: Option<String>,
    /// Wait until N listeners have acknowledged
    #[arg(long, value_name = "N", value_parser = values::positive::<u32>)]
    expect: Option<u32>,
    #[command(flatten)]
    target: TargetArgs,
}

/// The flag's state and the acknowledgements. Fields that do not apply are `null`.
#[derive(Debug, Serialize)]
struct UnleashRow {
    #[serde(flatten)]
    row: FlagRow,
    /// `null` if a store was written without a relay.
    watchers: Option<u32>,
    expected: Option<u32>,
    acknowledged: Option<u32>,
    barrier: Option<Barrier>,
    /// The listeners that have not acknowledged, if the barrier is unmet.
    missing: Option<Vec<Missing>>,
}

/// The outcome of `--expect`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Barrier {
    Met,
    Unmet,
    /// The watch broke: the relay may have restarted, and it keeps acknowledgements in memory.
    Unknown,
}

/// Counts acknowledgements, on a watch that is registered before the flag is set.
struct AckCounter {
    watcher: FlagWatcher,
    interrupted: bool,
    acknowledged: u32,
}

/// Twice the default interval at which nodes poll a flag.
const SAFE_TTL: Duration = Duration::from_secs(5);
/// Time for the list of missing listeners: --timeout is over by then, but the relay has answered
/// all calls before.
const MISSING_TIMEOUT: Duration = Duration::from_secs(1);

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let target = self.target.resolve();
        if let Some(ttl) = self.ttl.filter(|ttl| *ttl < SAFE_TTL) {
            let ttl = duration::Span(ttl);
            output::note(format_args!(
                "warning: --ttl {ttl} is below 5s: a node that polls the flag every 2.5s may miss it"
            ));
        }
        if let Some(url) = &self.store {
            return self.in_store(url, &target).await;
        }
        let client = target.client()?;
        if let Some(expected) = self.expect {
            return self.run_expecting(expected, &client, &target).await;
        }
        let Unleashed { flag, watchers, .. } = self.unleash(&client, &target).await?;
        target.format.one(&UnleashRow::new(&flag, Some(watchers)))?;
        self.note_kept(&flag);
        Ok(Exit::OK)
    }

    async fn unleash(&self, client: &Client, target: &Target) -> reveille::Result<Unleashed> {
        let (flags, options) = (client.flags(), self.options());
        let unleashed = target.within(flags.unleash(&self.flag, &options)).await;
        unleashed.map_err(direct_store::may_have_happened)
    }

    async fn in_store(&self, url: &str, target: &Target) -> anyhow::Result<Exit> {
        let store = DirectStore::open(url, target.timeout).await?;
        let options = self.options();
        let unleashed = store
            .within(store.flags.unleash(&self.flag, &options))
            .await;
        let state = unleashed.map_err(direct_store::may_have_happened)?;
        target.format.one(&UnleashRow::new(&state, None))?;
        self.note_kept(&state);
        output::note(NO_RELAY_TOLD);
        Ok(Exit::OK)
    }

    fn options(&self) -> UnleashOptions {
        UnleashOptions {
            ttl: self.ttl.or_else(|| self.no_ttl.then_some(Duration::ZERO)),
            set_by: self.set_by.clone().unwrap_or_else(values::user),
            reason: self.reason.clone(),
        }
    }

    /// Prints which properties an already set flag has kept.
    fn note_kept(&self, state: &FlagState) {
        let stated = self.ttl.is_some() || self.no_ttl;
        if let Some(end) = state.expires_at.filter(|_| !stated) {
            let (flag, end) = (&self.flag, output::time(end));
            output::note(format_args!(
                "{flag} was already set and keeps its end, {end}: --no-ttl removes it"
            ));
        }
        if self.reason.is_empty() && !state.reason.is_empty() {
            let (flag, reason) = (&self.flag, &state.reason);
            output::note(format_args!(
                "{flag} was already set and keeps its reason: {reason}"
            ));
        }
    }

    async fn run_expecting(
        &self,
        expected: u32,
        client: &Client,
        target: &Target,
    ) -> anyhow::Result<Exit> {
        let until = tokio::time::Instant::now() + target.timeout.unwrap_or_default();
        let starting = async {
            // Fails at once if the relay is unreachable; a watch alone would retry for ever.
            target.within(client.flags().get(&self.flag)).await?;
            let acks = AckCounter::start(client, &self.flag).await?;
            reveille::Result::Ok((acks, self.unleash(client, target).await?))
        };
        let started = tokio::time::timeout_at(until, starting).await;
        let late = |_| Err(direct_store::may_have_happened(target.no_answer()));
        let (mut acks, unleashed) = started.unwrap_or_else(late)?;
        let generation = unleashed.flag.generation;
        let counting = acks.wait_for(expected, generation);
        let met = match tokio::time::timeout_at(until, counting).await {
            Ok(reached) => reached.map(|()| true)?,
            Err(_) => false,
        };
        let barrier = match (met, acks.interrupted) {
            (true, _) => Barrier::Met,
            (false, true) => Barrier::Unknown,
            (false, false) => Barrier::Unmet,
        };
        let mut row = UnleashRow::new(&unleashed.flag, Some(unleashed.watchers));
        row.expected = Some(expected);
        row.acknowledged = Some(acks.acknowledged);
        row.barrier = Some(barrier);
        if barrier == Barrier::Unmet {
            row.missing = self.missing(client).await;
        }
        target.format.one(&row)?;
        self.note_kept(&unleashed.flag);
        Ok(exit_of(barrier, &row))
    }

    /// Lists the listeners that have not acknowledged; `None` if the relay does not answer in time.
    async fn missing(&self, client: &Client) -> Option<Vec<Missing>> {
        let flags = client.flags();
        let listing = flags.watchers(Some(&self.flag));
        let watchers = tokio::time::timeout(MISSING_TIMEOUT, listing)
            .await
            .ok()?
            .ok()?;
        note_unanswered(&watchers.unanswered);
        Some(Missing::of(watchers.entries))
    }
}

impl AckCounter {
    /// Starts a watch, and returns once the relay has registered it.
    async fn start(client: &Client, flag: &FlagName) -> reveille::Result<Self> {
        let watcher = client
            .watch_flag(flag.clone(), ListenerId::unique("unleash")?)
            .with_acks();
        let mut counter = Self {
            watcher,
            interrupted: false,
            acknowledged: 0,
        };
        while let Some(event) = counter.next().await {
            if let FlagEvent::State(_) = event? {
                break;
            }
        }
        counter.interrupted = false;
        Ok(counter)
    }

    /// Waits until `expected` listeners have acknowledged the flag's `generation`.
    async fn wait_for(&mut self, expected: u32, generation: u64) -> anyhow::Result<()> {
        while let Some(event) = self.next().await {
            if let FlagEvent::Acks {
                generation: acked,
                acknowledged,
                ..
            } = event?
                && acked == generation
            {
                self.acknowledged = self.acknowledged.max(acknowledged);
            }
            if self.acknowledged >= expected {
                return Ok(());
            }
        }
        Err(Failed("the relay ended the watch of the flag".to_owned()).into())
    }

    /// Waits for the next event, and records whether the stream broke.
    async fn next(&mut self) -> Option<reveille::Result<FlagEvent>> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<reveille::Result<FlagEvent>>> {
        let event = Pin::new(&mut self.watcher).poll_next(cx);
        self.interrupted |= self.watcher.state() != ConnectionState::Connected;
        event
    }
}

impl Row for UnleashRow {
    const COLUMNS: &'static [&'static str] =
        &["flag", "generation", "watchers", "acknowledged", "expected"];
}

impl UnleashRow {
    fn new(flag: &FlagState, watchers: Option<u32>) -> Self {
        Self {
            row: FlagRow::from(flag),
            watchers,
            expected: None,
            acknowledged: None,
            barrier: None,
            missing: None,
        }
    }
}

/// Returns the exit code, and prints why the barrier is not met.
fn exit_of(barrier: Barrier, row: &UnleashRow) -> Exit {
    let (acknowledged, expected) = (
        row.acknowledged.unwrap_or_default(),
        row.expected.unwrap_or_default(),
    );
    match barrier {
        Barrier::Met => return Exit::OK,
        Barrier::Unmet => {
            let missing = row.missing.as_deref().map_or_else(String::new, |missing| {
                let missing = watchers::sentence(missing, expected, acknowledged);
                format!("; missing: {missing}")
            });
            output::note(format_args!(
                "unmet: the flag is set, but {acknowledged} of {expected} listeners have \
                 acknowledged{missing}"
            ));
        }
        Barrier::Unknown => output::note(format_args!(
            "unknown: the flag is set, and {acknowledged} of {expected} listeners had acknowledged, \
             but the watch was interrupted: a relay that restarts forgets acknowledgements"
        )),
    }
    Exit::TIMED_OUT
}

fn ttl(text: &str) -> Result<Duration, String> {
    let span = duration::parse(text).map_err(|error| error.to_string())?;
    if span.is_zero() || span > Limits::TTL {
        return Err("must be more than 0 and at most 3650d".to_owned());
    }
    Ok(span)
}
