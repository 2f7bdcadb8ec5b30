//! `flag get`, `flag list`, `flag watch`: reads flags.

use std::time::SystemTime;

use clap::Subcommand;
use reveille::{Client, FlagEvent, FlagName, FlagState, FlagWatcher, Listed, ListenerId};
use serde::Serialize;

use super::{
    direct_store::DirectStore,
    exit::Exit,
    output::{self, Row},
    target::{self, Target, TargetArgs, WaitingArgs},
    watchers::{self, FLAG_WATCH_ID, Waiter},
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

Shows which listeners wait for the flag and for how long. Only a relay knows them, a store does not. \
If the flag is not set, the exit code is 0, with --check 5.")]
    Get {
        /// The flag
        flag: FlagName,
        /// End with 5 if the flag is not set
        #[arg(long)]
        check: bool,
        /// Read the flag directly in this store, without a relay: az://CONTAINER[/PREFIX], s3://,
        /// gs://, sqlite:PATH
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
        /// Only flags whose names begin with this
        #[arg(default_value = "", hide_default_value = true)]
        prefix: String,
        /// Read the flags directly in this store, without a relay: az://CONTAINER[/PREFIX], s3://,
        /// gs://, sqlite:PATH
        #[arg(long, value_name = "URL")]
        store: Option<String>,
        #[command(flatten)]
        target: TargetArgs,
    },
    /// Print a flag's state and each change, until interrupted
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

/// A flag's state as a row.
#[derive(Debug, Serialize)]
pub(super) struct FlagRow {
    pub(super) flag: String,
    set: bool,
    pub(super) generation: u64,
    set_by: String,
    reason: String,
    #[serde(serialize_with = "output::serialize_time")]
    set_at: Option<SystemTime>,
    #[serde(serialize_with = "output::serialize_time")]
    expires_at: Option<SystemTime>,
}

/// A flag's state, and the listeners that wait for it.
#[derive(Debug, Serialize)]
struct WaitedFlag {
    #[serde(flatten)]
    flag: FlagRow,
    /// `null` if they are not known.
    waiting: Option<Vec<Waiter>>,
}

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        match self.verb {
            Verb::Get {
                flag,
                check,
                store,
                target,
            } => {
                let target = target.resolve();
                let (state, waiting) = match store {
                    None => get(&flag, &target).await?,
                    Some(url) => {
                        let store = DirectStore::open_existing(&url, target.timeout).await?;
                        let state = store.within(store.flags.get(&flag)).await?;
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
                let call =
                    async |client: &Client| client.flags().list(&prefix).await.map(Listed::from);
                let row = |state| FlagRow::from(&state);
                target.list(call, row).await
            }
            Verb::List {
                prefix,
                store: Some(url),
                target,
            } => {
                let target = target.resolve();
                let store = DirectStore::open_existing(&url, target.timeout).await?;
                let listed = store.within(store.flags.list(&prefix)).await?;
                let rows: Vec<_> = listed.iter().map(FlagRow::from).collect();
                target.format.list(&rows)?;
                Ok(Exit::OK)
            }
            Verb::Watch { flag, target } => {
                let target = target.resolve();
                let client = target.client()?;
                let watcher = client.watch_flag(flag, ListenerId::unique(FLAG_WATCH_ID)?);
                let link = watcher.link();
                let watching = watch(&client, watcher, &target);
                match target.timeout {
                    None => watching.await,
                    Some(timeout) => match tokio::time::timeout(timeout, watching).await {
                        Ok(ended) => ended,
                        Err(_) => {
                            output::note(target.timed_out_waiting(&link.borrow()));
                            Ok(Exit::TIMED_OUT)
                        }
                    },
                }
            }
        }
    }
}

/// Gets a flag's state and the listeners that watch it from the relay.
async fn get(flag: &FlagName, target: &Target) -> anyhow::Result<(FlagState, Option<Vec<Waiter>>)> {
    let client = target.client()?;
    let reading = async {
        let state = client.flags().get(flag).await?;
        let watchers = client.flags().watchers(Some(flag)).await?;
        reveille::Result::Ok((state, watchers))
    };
    let (state, watchers) = target.within(reading).await?;
    let waiting = watchers.into_iter().map(Waiter::from).collect();
    Ok((state, Some(waiting)))
}

async fn watch(client: &Client, mut watcher: FlagWatcher, target: &Target) -> anyhow::Result<Exit> {
    target::noting_causes(client, watcher.link(), async {
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
    /// Returns the state as a sentence.
    pub(super) fn line(&self) -> String {
        if !self.set {
            return format!("{} is not set", self.flag);
        }
        let mut line = format!("{} is set", self.flag);
        // A store that is read directly has no generation.
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
    const COLUMNS: &'static [&'static str] = &[
        "flag",
        "set",
        "generation",
        "set_by",
        "set_at",
        "expires_at",
        "reason",
    ];
    const DROPPED_FIRST: &'static [&'static str] = &["generation", "expires_at", "set_by"];
}

impl Row for WaitedFlag {
    const COLUMNS: &'static [&'static str] = &[
        "flag",
        "set",
        "generation",
        "set_by",
        "set_at",
        "expires_at",
        "reason",
        "waiting",
    ];
    const DROPPED_FIRST: &'static [&'static str] = &["generation", "expires_at", "set_by"];

    fn cell(&self, column: &str) -> Option<String> {
        (column == "waiting").then(|| watchers::cell(self.waiting.as_deref()))
    }
}
