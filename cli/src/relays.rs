//! `relays`: the relays of a cluster.

use reveille::{Client, Listed, RelayInfo, RelayState};
use serde_json::{Value, json};

use super::{
    exit::Exit,
    output::{value_name, wire_millis},
    target::TargetArgs,
};

/// List the relays of the cluster and their state
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille relays

The first row is the relay that answers; the others are as it knows them. STATE is missing after 3.5s \
without a message, and left after a drain. DEGRADED relays let their listeners poll: they are or were cut \
off from the others. RESYNCS is how often missed messages of a relay made listeners of the answering one \
check queues.")]
pub(super) struct Args {
    #[command(flatten)]
    target: TargetArgs,
}

const COLUMNS: &str = "relay_id state streams silent_for_ms degraded version epoch queues resyncs";

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let call = async |client: &Client| {
            Ok(Listed {
                entries: client.relays().await?,
                unanswered: Vec::new(),
            })
        };
        self.target.list(call, COLUMNS, row).await
    }
}

fn row(relay: &RelayInfo) -> Value {
    let state = match relay.state() {
        RelayState::Self_ => "answering".to_owned(),
        state => value_name(state.as_str_name(), "RELAY_STATE_"),
    };
    json!({
        "relay_id": relay.relay_id,
        "epoch": relay.epoch,
        "version": relay.version,
        "state": state,
        "streams": relay.streams,
        "queues": relay.queues,
        "degraded": relay.degraded,
        "silent_for_ms": wire_millis(relay.silent_for),
        "resyncs": relay.resyncs,
    })
}
