//! `relays`: the relays of a cluster.

use reveille::{Client, Listed, RelayInfo};
use serde::{Serialize, Serializer};
use serde_json::json;

use super::{
    exit::Exit,
    output::{Row, millis},
    target::TargetArgs,
};

/// List the relays of the cluster and their state
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille relays
  reveille relays -o json

The first row is the relay that answers; the others are as it knows them. A relay without a cluster \
is the only row, and one that was not heard of yet has none.

Columns: EPOCH is the run of the relay. STATE is missing after 3.5s without a message, and left after a \
drain. STREAMS of listeners are open. DEGRADED relays let their listeners poll: they are or were cut off \
from the others. SILENT FOR is the time since the last message. RESYNCS is how often missed messages of a \
relay made listeners of the answering one check queues.")]
pub(super) struct Args {
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug)]
struct RelayRow(RelayInfo);

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let call = async |client: &Client| client.relays().await.map(Listed::from);
        self.target.list(call, RelayRow).await
    }
}

impl Serialize for RelayRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let relay = &self.0;
        serializer.collect_map([
            ("relay_id", json!(relay.relay_id)),
            ("epoch", json!(relay.epoch)),
            ("version", json!(relay.version)),
            ("state", json!(self.0.state.as_str())),
            ("streams", json!(relay.streams)),
            ("queues", json!(relay.queues)),
            ("degraded", json!(relay.degraded)),
            ("silent_for_ms", json!(relay.silent_for.map(millis))),
            ("resyncs", json!(relay.resyncs)),
        ])
    }
}

impl Row for RelayRow {
    const COLUMNS: &'static [&'static str] = &[
        "relay_id",
        "epoch",
        "version",
        "state",
        "streams",
        "queues",
        "degraded",
        "silent_for_ms",
        "resyncs",
    ];
    const DROPPED_FIRST: &'static [&'static str] =
        &["resyncs", "queues", "epoch", "version", "degraded"];
}
