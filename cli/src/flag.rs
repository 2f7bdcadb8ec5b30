//! `flag get`, `flag list`, `flag watch`: reads flags. [`FlagsArgs`] reaches the flags of a relay or of a
//! store, for all verbs of flags.

use clap::Subcommand;
use reveille::{
    Client, ErrorKind, FlagEvent, FlagName, FlagState, FlagWatcherInfo, ListenerId,
    flag::StoreFlags, store,
};
use serde_json::{Value, json};

use super::{
    exit::Exit,
    output::{self, Format, time},
    program,
    target::{TargetArgs, WaitingArgs, note_unanswered},
    values,
};

/// Read durable flags
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example:
  reveille flag get go-live --check && echo set
  reveille flag list
  reveille flag watch go-live -o jsonl")]
pub(super) enum Verb {
    /// Read one flag
    #[command(after_help = "\
Example:
  reveille flag get go-live
  reveille flag get go-live --check && echo set
  reveille flag get go-live --store az://flags

Only a relay knows which listeners wait. If the flag is not set, the exit code is 0, with --check 5.")]
    Get {
        /// The flag
        flag: FlagName,
        /// End with 5 if the flag is not set
        #[arg(long)]
        check: bool,
        #[command(flatten)]
        flags: FlagsArgs,
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
        #[command(flatten)]
        flags: FlagsArgs,
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

/// The flags of a relay, or of a store.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct FlagsArgs {
    /// Use the flags of this store directly, and notify no relay: az://CONTAINER[/PREFIX], s3://, gs://,
    /// sqlite:PATH
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    #[command(flatten)]
    pub(super) target: TargetArgs,
}

pub(super) const COLUMNS: &str = "flag set reason set_at expires_at set_by generation";
const WAITING: &str = "listener_id connected_for_ms acknowledged";
/// Prefix of the listener ids of `flag watch`. A person who watches a flag is not a missing node.
pub(super) const FLAG_WATCH_ID: &str = "flag-watch";

impl Verb {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        match self {
            Self::Get { flag, check, flags } => {
                let of_relay = async |client: &Client| {
                    let state = client.flags().get(&flag).await?;
                    let watchers = client.flags().watchers(&flag).await?;
                    note_unanswered(&watchers.unanswered);
                    Ok((state, Some(watchers.entries)))
                };
                let of_store = async |flags: StoreFlags| Ok((flags.get(&flag).await?, None));
                let (state, watchers) = flags.call(false, of_relay, of_store).await?;
                let mut row = row(&state);
                let table = output::table_of(COLUMNS, std::slice::from_ref(&row));
                let waiting = watchers.map(|all| all.iter().map(watcher_row).collect::<Vec<_>>());
                row["waiting"] = json!(waiting);
                let text = || match waiting.filter(|all| !all.is_empty()) {
                    Some(all) => format!("{table}\n\n{}", output::table_of(WAITING, &all)),
                    None => table,
                };
                flags.format().object(&row, text)?;
                let missing = check && !state.set;
                Ok(if missing { Exit::NOT_FOUND } else { Exit::OK })
            }
            Self::List { prefix, flags } => {
                let of_relay = async |client: &Client| client.flags().list(&prefix).await;
                let of_store = async |flags: StoreFlags| flags.list(&prefix).await;
                let listed = flags.call(false, of_relay, of_store).await?;
                let rows: Vec<_> = listed.iter().map(row).collect();
                flags.format().rows(COLUMNS, &rows)?;
                Ok(Exit::OK)
            }
            Self::Watch { flag, target } => {
                let target = target.resolve();
                let id = ListenerId::unique("flag-watch")?;
                let mut watcher = target.client()?.watch_flag(flag, id);
                let link = watcher.link();
                let events = async {
                    while let Some(event) = watcher.next_event().await {
                        if let FlagEvent::State(state) = event? {
                            target.format.next(&row(&state), line(&state))?;
                        }
                    }
                    Ok(Exit::FAILURE)
                };
                target.following(link, events).await
            }
        }
    }
}

impl FlagsArgs {
    pub(super) fn format(&self) -> Format {
        self.target.relay.output.format
    }

    /// Calls the relay or the store within --timeout. `creates`: a store's missing file is created.
    pub(super) async fn call<T>(
        &self,
        creates: bool,
        of_relay: impl AsyncFnOnce(&Client) -> reveille::Result<T>,
        of_store: impl AsyncFnOnce(StoreFlags) -> reveille::Result<T>,
    ) -> anyhow::Result<T> {
        let target = self.target.resolve();
        let Some(url) = &self.store else {
            let client = target.client()?;
            return Ok(target.within(of_relay(&client)).await?);
        };
        values::refuse_memory("--store: a store", "sqlite:PATH", url)?;
        let calling = async {
            let opened = match creates {
                true => store::open(url).await,
                false => store::open_existing(url).await,
            };
            anyhow::Ok(of_store(StoreFlags::new(opened?)).await?)
        };
        // As for a store that cannot be reached: the cause is the same.
        let late = (ErrorKind::Unavailable, format!("store {url}: no answer"));
        program::within(target.timeout, late, calling).await
    }
}

/// Returns the state as a sentence.
pub(super) fn line(state: &FlagState) -> String {
    if !state.set {
        return format!("{} is not set", state.name);
    }
    let mut line = format!("{} is set", state.name);
    // A store that is read directly has no generation.
    if state.generation != 0 {
        line.push_str(&format!(", generation {}", state.generation));
    }
    if !state.set_by.is_empty() {
        line.push_str(&format!(", by {}", state.set_by));
    }
    if !state.reason.is_empty() {
        line.push_str(&format!(": {}", state.reason));
    }
    line
}

fn watcher_row(watcher: &FlagWatcherInfo) -> Value {
    json!({
        "listener_id": watcher.listener_id,
        "streams": watcher.streams,
        "connected_for_ms": output::wire_millis(watcher.since),
        "acknowledged": watcher.acknowledged,
    })
}

pub(super) fn row(state: &FlagState) -> Value {
    json!({
        "flag": state.name.to_string(),
        "set": state.set,
        "generation": state.generation,
        "set_by": state.set_by,
        "reason": state.reason,
        "set_at": state.set_at.map(time),
        "expires_at": state.expires_at.map(time),
    })
}
