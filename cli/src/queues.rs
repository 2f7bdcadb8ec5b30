//! `queues`: the queues that the relay has in memory.

use reveille::{Client, QueueInfo, QueueOrder, QueueQuery};
use serde_json::{Value, json};

use super::{exit::Exit, output::wire_millis, target::TargetArgs};

/// List the queues that the relay has in memory
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille queues
  reveille queues --filter invoices --order backlog

Columns: BACKLOG is the number of messages that are not known to be handled: those of the newest depth, \
and those notified since; it is IN DOUBT until a listener has reported. DEPTH is the number of messages \
that a listener read last, DEPTH AGE ago. IDLE FOR is the time since the last notification or timed \
wake-up, SEQUENCE their number, TIMERS those that wait. NOTIFICATIONS, MESSAGES and PAYLOAD SIZE add up \
what publishers stated.

--order: `rate` has the most notifications in half a second first, and takes that long; `backlog` the \
largest one, `idle` the longest without a notification, `listeners` the fewest. These orders show the \
first 100 queues.")]
pub(super) struct Args {
    /// Only queues whose ACCOUNT/NAME contains this text
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// The order of the list [default: name]
    #[arg(long, value_name = "ORDER")]
    order: Option<Order>,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Order {
    Name = QueueOrder::Unspecified as isize,
    Rate = QueueOrder::Rate as isize,
    Backlog = QueueOrder::Backlog as isize,
    Idle = QueueOrder::Idle as isize,
    Listeners = QueueOrder::Listeners as isize,
}

const COLUMNS: &str = "queue backlog listeners depth idle_for_ms messages notifications in_doubt depth_age_ms timers payload_size sequence";

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let query = QueueQuery {
            filter: self.filter.unwrap_or_default(),
            order_by: self.order.map_or(0, |order| order as i32),
            ..QueueQuery::default()
        };
        let call = async |client: &Client| client.queues_where(&query).await;
        self.target.list(call, COLUMNS, row).await
    }
}

/// Returns a queue's row.
pub(super) fn row(queue: &QueueInfo) -> Value {
    json!({
        "queue": format!("{}/{}", queue.storage_account, queue.queue_name),
        "sequence": queue.sequence,
        "notifications": queue.notifications,
        "payload_size": queue.payload_size,
        "messages": queue.messages,
        "listeners": queue.listeners,
        "timers": queue.timers,
        "idle_for_ms": wire_millis(queue.idle_for),
        "depth": queue.current_queue_depth,
        "depth_age_ms": wire_millis(queue.depth_age),
        "backlog": queue.backlog,
        "in_doubt": queue.in_doubt,
        "busy": queue.busy,
    })
}
