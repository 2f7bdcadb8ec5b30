//! `unleash`: sets a flag, and waits for the fleet to have heard it where that is asked for.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use reveille::{
    Client, ConnectionState, FlagEvent, FlagName, FlagState, FlagWatcher, Limits, ListenerId,
    UnleashOptions, Unleashed, duration, flag::StoreFlags,
};
use serde::Serialize;
use tokio_stream::Stream as _;

use super::{
    exit::{Exit, Failed},
    flag::FlagRow,
    output::{self, Row},
    settings::Settings,
    stored::{self, NOBODY_TOLD, Stored},
    target::{Target, TargetArgs},
    usage,
    watchers::{self, Missing},
};

/// Set a durable flag, and release everybody who waits for it
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille unleash go-live --reason 'the migration is done'
  reveille unleash go-live --ttl 1h --expect 40 --timeout 30s
  reveille unleash go-live --store az://flags

A flag that is set already keeps its end and its reason where --ttl, --no-ttl and --reason are left \
out; that is said. With --expect the exit code is 0 once so many listeners have acknowledged, and 6 \
where they have not before --timeout (10s), or where the relay restarted meanwhile and it cannot be \
known; the listeners that are missing are named where the relay knows them.")]
pub(super) struct Args {
    /// The flag
    flag: FlagName,
    /// The flag ends by itself after this duration [default: it does not, or as it is set already]
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = ttl)]
    ttl: Option<Duration>,
    /// The flag does not end by itself, also where it is set already with a --ttl
    #[arg(long, conflicts_with = "ttl")]
    no_ttl: bool,
    /// Why
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    reason: String,
    /// Who [default: the user's name]
    #[arg(long, env = "REVEILLE_SET_BY", value_name = "NAME")]
    set_by: Option<String>,
    /// Set it in this store itself, and ask no relay: az://CONTAINER[/PREFIX], s3://, gs://,
    /// sqlite:PATH
    #[arg(long, value_name = "URL", conflicts_with = "expect")]
    store: Option<String>,
    /// Wait until so many listeners have acknowledged
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = usage::positive::<u32>)]
    expect: Option<u32>,
    #[command(flatten)]
    target: TargetArgs,
}

/// A flag as it is set, and who was told; what does not apply is `null`.
#[derive(Debug, Serialize)]
struct Told {
    #[serde(flatten)]
    row: FlagRow,
    #[serde(skip)]
    generation: u64,
    /// `null` where a store was written and no relay asked.
    watchers: Option<u32>,
    expected: Option<u32>,
    acknowledged: Option<u32>,
    barrier: Option<Barrier>,
    /// The listeners that have not acknowledged, where the barrier is unmet.
    missing: Option<Vec<Missing>>,
}

/// What came of `--expect`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Barrier {
    Met,
    Unmet,
    /// The watch broke: the relay may have restarted, and it keeps acknowledgements in memory.
    Unknown,
}

/// Counts acknowledgements, on a watch that stands before the flag is set.
struct Tally {
    watcher: FlagWatcher,
    interrupted: bool,
    acknowledged: u32,
}

/// Twice the interval at which pollers read the flag.
const POLLED: Duration = Duration::from_secs(5);
/// The relay has answered all before; the time that was given is over already.
const NAMED_WITHIN: Duration = Duration::from_secs(1);

impl Args {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let target = self.target.resolve(settings);
        if let Some(ttl) = self.ttl.filter(|ttl| *ttl < POLLED) {
            let ttl = duration::Span(ttl);
            output::note(format_args!(
                "warning: --ttl {ttl} is below 5s: whoever polls the flag every 2.5s may miss it"
            ));
        }
        if let Some(url) = &self.store {
            return self.in_store(url, &target).await;
        }
        let client = target.client()?;
        match self.expect {
            None => {
                let unleashed = self.unleash(&client, &target).await?;
                target.format.one(&told(&unleashed))?;
                self.note_kept(&unleashed.flag);
                Ok(Exit::OK)
            }
            Some(expected) => self.and_expect(expected, &client, &target).await,
        }
    }

    async fn unleash(&self, client: &Client, target: &Target) -> reveille::Result<Unleashed> {
        let (flags, options) = (client.flags(), self.options());
        let unleashed = target.within(flags.unleash(&self.flag, &options)).await;
        unleashed.map_err(stored::may_have_happened)
    }

    async fn in_store(&self, url: &str, target: &Target) -> anyhow::Result<Exit> {
        let (store, options) = (Stored::open(url, target.timeout).await?, self.options());
        let write = async |flags: &StoreFlags| flags.unleash(&self.flag, &options).await;
        let state = store.write(write).await?;
        target.format.one(&Told::new(&state, None))?;
        self.note_kept(&state);
        output::note(NOBODY_TOLD);
        Ok(Exit::OK)
    }

    fn options(&self) -> UnleashOptions {
        UnleashOptions {
            ttl: self.ttl.or_else(|| self.no_ttl.then_some(Duration::ZERO)),
            set_by: self.set_by.clone().unwrap_or_else(usage::user),
            reason: self.reason.clone(),
        }
    }

    /// Says what a flag that was set already has kept.
    fn note_kept(&self, state: &FlagState) {
        let stated = self.ttl.is_some() || self.no_ttl;
        if let Some(end) = state.expires_at.filter(|_| !stated) {
            let (flag, end) = (&self.flag, output::time(end));
            output::note(format_args!(
                "{flag} was set already and keeps its end, {end}: --no-ttl takes that off"
            ));
        }
        if self.reason.is_empty() && !state.reason.is_empty() {
            let (flag, reason) = (&self.flag, &state.reason);
            output::note(format_args!(
                "{flag} was set already and keeps its reason: {reason}"
            ));
        }
    }

    async fn and_expect(
        &self,
        expected: u32,
        client: &Client,
        target: &Target,
    ) -> anyhow::Result<Exit> {
        let until = tokio::time::Instant::now() + target.timeout.unwrap_or_default();
        let beginning = async {
            // Nobody to ask is told at once; a watch alone would try for ever.
            target.within(client.flags().get(&self.flag)).await?;
            let tally = Tally::start(client, &self.flag).await?;
            reveille::Result::Ok((tally, self.unleash(client, target).await?))
        };
        let begun = tokio::time::timeout_at(until, beginning).await;
        let late = |_| Err(stored::may_have_happened(target.no_answer()));
        let (mut tally, unleashed) = begun.unwrap_or_else(late)?;
        let generation = unleashed.flag.generation;
        let counting = tally.reach(expected, generation);
        let met = match tokio::time::timeout_at(until, counting).await {
            Ok(reached) => reached.map(|()| true)?,
            Err(_) => false,
        };
        let barrier = match (met, tally.interrupted) {
            (true, _) => Barrier::Met,
            (false, true) => Barrier::Unknown,
            (false, false) => Barrier::Unmet,
        };
        let unmet = barrier == Barrier::Unmet;
        let told = Told {
            expected: Some(expected),
            acknowledged: Some(tally.acknowledged),
            barrier: Some(barrier),
            missing: if unmet {
                self.missing(client).await
            } else {
                None
            },
            ..told(&unleashed)
        };
        target.format.one(&told)?;
        self.note_kept(&unleashed.flag);
        Ok(conclude(barrier, &told))
    }
}

impl Args {
    /// Asks the relay which listeners have not acknowledged; `None` where it does not tell in time.
    async fn missing(&self, client: &Client) -> Option<Vec<Missing>> {
        let flags = client.flags();
        let asking = flags.watchers(Some(&self.flag), true);
        let watchers = tokio::time::timeout(NAMED_WITHIN, asking).await.ok()?;
        watchers.ok().map(Missing::of)
    }
}

impl Tally {
    /// Watches, and returns when the relay has registered the watch.
    async fn start(client: &Client, flag: &FlagName) -> reveille::Result<Self> {
        let watcher = client
            .watch_flag(flag.clone(), ListenerId::unique("unleash")?)
            .with_acks();
        let mut tally = Self {
            watcher,
            interrupted: false,
            acknowledged: 0,
        };
        while let Some(event) = tally.next().await {
            if let FlagEvent::State(_) = event? {
                break;
            }
        }
        tally.interrupted = false;
        Ok(tally)
    }

    /// Waits until `expected` listeners have acknowledged.
    async fn reach(&mut self, expected: u32, of: u64) -> anyhow::Result<()> {
        while let Some(event) = self.next().await {
            if let FlagEvent::Acks {
                generation,
                acknowledged,
                ..
            } = event?
                && generation == of
            {
                self.acknowledged = self.acknowledged.max(acknowledged);
            }
            if self.acknowledged >= expected {
                return Ok(());
            }
        }
        Err(Failed("the relay ended the watch of the flag".to_owned()).into())
    }

    /// Waits for the next event, and remembers where the stream broke meanwhile.
    async fn next(&mut self) -> Option<reveille::Result<FlagEvent>> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<reveille::Result<FlagEvent>>> {
        let event = Pin::new(&mut self.watcher).poll_next(cx);
        self.interrupted |= self.watcher.state() != ConnectionState::Connected;
        event
    }
}

impl Row for Told {
    const HEADERS: &'static [&'static str] = &["FLAG", "GENERATION", "WATCHERS", "ACKNOWLEDGED"];

    fn cells(&self) -> Vec<String> {
        let acknowledged = match (self.acknowledged, self.expected) {
            (Some(acknowledged), Some(expected)) => format!("{acknowledged} of {expected}"),
            _ => "-".to_owned(),
        };
        let watchers = self
            .watchers
            .map_or_else(|| "-".to_owned(), |count| count.to_string());
        let generation = self.generation.to_string();
        vec![
            self.row.flag().to_owned(),
            generation,
            watchers,
            acknowledged,
        ]
    }
}

impl Told {
    fn new(flag: &FlagState, watchers: Option<u32>) -> Self {
        Self {
            row: FlagRow::from(flag),
            generation: flag.generation,
            watchers,
            expected: None,
            acknowledged: None,
            barrier: None,
            missing: None,
        }
    }
}

fn told(unleashed: &Unleashed) -> Told {
    Told::new(&unleashed.flag, Some(unleashed.watchers))
}

fn conclude(barrier: Barrier, told: &Told) -> Exit {
    let (acknowledged, expected) = (
        told.acknowledged.unwrap_or_default(),
        told.expected.unwrap_or_default(),
    );
    match barrier {
        Barrier::Met => return Exit::OK,
        Barrier::Unmet => {
            let missing = told.missing.as_deref().map_or_else(String::new, |missing| {
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
