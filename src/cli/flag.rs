//! `flag get`, `flag list`, `flag watch`: what flags are set.

use std::time::SystemTime;

use clap::Subcommand;
use reveille::{Client, FlagEvent, FlagName, FlagState, ListenerId};
use serde::Serialize;

use super::{
    exit::Exit,
    output::{self, Row},
    settings::Settings,
    stored::Stored,
    target::{self, Target, TargetArgs, WaitingArgs},
    watchers::{self, ONLOOKER, Waiter},
};

/// Read durable flags
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille flag get go-live --check && echo set
  reveille flag list
  reveille flag watch go-live -o jsonl")]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Read one flag
    #[command(after_help = "\
Example:
  reveille flag get go-live
  reveille flag get go-live --check && echo set
  reveille flag get go-live --store az://flags

Shows who waits for the flag and for how long, which a relay knows and a store does not. A flag that \
is not set ends with 0, with --check 5.")]
    Get {
        /// The flag
        flag: FlagName,
        /// End with 5 where the flag is not set
        #[arg(long)]
        check: bool,
        /// Read it in this store itself, and ask no relay: az://CONTAINER[/PREFIX], s3://, gs://,
        /// sqlite:PATH
        #[arg(long, value_name = "URL")]
        store: Option<String>,
        #[command(flatten)]
        target: TargetArgs,
    },
    /// List the flags that are set
    #[command(after_help = "\
Example:
  reveille flag list
  reveille flag list go- -o json")]
    List {
        /// Only those whose names begin so
        #[arg(default_value = "", hide_default_value = true)]
        prefix: String,
        /// Read them in this store itself, and ask no relay: az://CONTAINER[/PREFIX], s3://, gs://,
        /// sqlite:PATH
        #[arg(long, value_name = "URL")]
        store: Option<String>,
        #[command(flatten)]
        target: TargetArgs,
    },
    /// Print a flag's state, and each change of it, until interrupted
    #[command(after_help = "\
Example:
  reveille flag watch go-live
  reveille flag watch go-live -o jsonl --timeout 1m")]
    Watch {
        /// The flag
        flag: FlagName,
        #[command(flatten)]
        target: WaitingArgs,
    },
}

/// A flag's state as it is shown.
#[derive(Debug, Serialize)]
pub(super) struct FlagRow {
    flag: String,
    set: bool,
    generation: u64,
    set_by: String,
    reason: String,
    #[serde(serialize_with = "output::serialize_time")]
    set_at: Option<SystemTime>,
    #[serde(serialize_with = "output::serialize_time")]
    expires_at: Option<SystemTime>,
}

/// A flag's state, and who waits for it.
#[derive(Debug, Serialize)]
struct WaitedFlag {
    #[serde(flatten)]
    flag: FlagRow,
    /// `null` where that is not known.
    waiting: Option<Vec<Waiter>>,
}

impl Args {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        match self.verb {
            Verb::Get {
                flag,
                check,
                store,
                target,
            } => {
                let target = target.resolve(settings);
                let (state, waiting) = match store {
                    None => get(&flag, &target).await?,
                    Some(url) => {
                        let store = Stored::open_existing(&url, target.timeout).await?;
                        let state = store.read(async |flags| flags.get(&flag).await).await?;
                        (state, None)
                    }
                };
                target.format.one(&WaitedFlag {
                    flag: FlagRow::from(&state),
                    waiting,
                })?;
                let missing = check && !state.set;
                Ok(if missing { Exit::NOT_FOUND } else { Exit::OK })
            }
            Verb::List {
                prefix,
                store: None,
                target,
            } => {
                let ask = async |client: &Client| client.flags().list(&prefix).await;
                let row = |state| FlagRow::from(&state);
                target.list(settings, ask, row).await
            }
            Verb::List {
                prefix,
                store: Some(url),
                target,
            } => {
                let target = target.resolve(settings);
                let store = Stored::open_existing(&url, target.timeout).await?;
                let listed = store.read(async |flags| flags.list(&prefix).await).await?;
                let rows: Vec<_> = listed.iter().map(FlagRow::from).collect();
                target.format.list(&rows)?;
                Ok(Exit::OK)
            }
            Verb::Watch { flag, target } => {
                let target = target.resolve(settings);
                let watching = watch(flag, &target);
                match target.timeout {
                    None => watching.await,
                    Some(timeout) => match tokio::time::timeout(timeout, watching).await {
                        Ok(ended) => ended,
                        Err(_) => {
                            output::note(target.timed_out_waiting());
                            Ok(Exit::TIMED_OUT)
                        }
                    },
                }
            }
        }
    }
}

/// Asks the relay for a flag's state, and for the listeners that watch it.
async fn get(flag: &FlagName, target: &Target) -> anyhow::Result<(FlagState, Option<Vec<Waiter>>)> {
    let client = target.client()?;
    let asking = async {
        let state = client.flags().get(flag).await?;
        let present = watchers::present(&client, Some(flag)).await?;
        reveille::Result::Ok((state, present))
    };
    let (state, present) = target.within(asking).await?;
    let waiting = present.map(|present| present.into_iter().map(Waiter::from).collect());
    Ok((state, waiting))
}

async fn watch(flag: FlagName, target: &Target) -> anyhow::Result<Exit> {
    let client = target.client()?;
    let mut watcher = client.watch_flag(flag, ListenerId::unique(ONLOOKER)?);
    target::patiently(&client, async {
        while let Some(event) = watcher.next_event().await {
            if let FlagEvent::State(state) = event? {
                let row = FlagRow::from(&state);
                target.format.next(&row, row.line())?;
            }
        }
        Ok(Exit::FAILURE)
    })
    .await
}

impl FlagRow {
    pub(super) fn flag(&self) -> &str {
        &self.flag
    }

    /// Returns the state as a sentence.
    pub(super) fn line(&self) -> String {
        if !self.set {
            return format!("{} is not set", self.flag);
        }
        let mut line = format!("{} is set", self.flag);
        // Who read the store itself did not ask.
        if self.generation != 0 {
            line.push_str(&format!(", generation {}", self.generation));
        }
        if !self.set_by.is_empty() {
            line.push_str(&format!(", by {}", self.set_by));
        }
        if !self.reason.is_empty() {
            line.push_str(&format!(": {}", self.reason));
        }
        line
    }
}

impl From<&FlagState> for FlagRow {
    fn from(state: &FlagState) -> Self {
        Self {
            flag: state.name.to_string(),
            set: state.set,
            generation: state.generation,
            set_by: state.set_by.clone(),
            reason: state.reason.clone(),
            set_at: state.set_at,
            expires_at: state.expires_at,
        }
    }
}

impl Row for FlagRow {
    const HEADERS: &'static [&'static str] = &[
        "FLAG",
        "SET",
        "GENERATION",
        "SET BY",
        "SET AT",
        "EXPIRES AT",
        "REASON",
    ];

    fn cells(&self) -> Vec<String> {
        let text = |text: &str| if text.is_empty() { "-" } else { text }.to_owned();
        let time = |at: Option<SystemTime>| at.map_or_else(|| "-".to_owned(), output::time);
        vec![
            self.flag.clone(),
            if self.set { "yes" } else { "no" }.to_owned(),
            self.generation.to_string(),
            text(&self.set_by),
            time(self.set_at),
            time(self.expires_at),
            text(&self.reason),
        ]
    }
}

impl Row for WaitedFlag {
    const HEADERS: &'static [&'static str] = &[
        "FLAG",
        "SET",
        "GENERATION",
        "SET BY",
        "SET AT",
        "EXPIRES AT",
        "REASON",
        "WAITING",
    ];

    fn cells(&self) -> Vec<String> {
        let mut cells = self.flag.cells();
        cells.push(watchers::cell(self.waiting.as_deref()));
        cells
    }
}
