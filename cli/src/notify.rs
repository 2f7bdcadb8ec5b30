//! `notify`: tells the relay that queues have work.

use std::{collections::BTreeSet, time::Duration};

use reveille::{Client, Error, ErrorKind, Limits, Notification, QueueAddress};
use serde_json::json;
use strsim::osa_distance;
use tokio::time::timeout;

use super::{exit::Exit, output, target::TargetArgs, values};

/// Notify the listeners of a queue that there is work
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille notify acct/orders
  reveille notify acct/orders acct/invoices --messages 20 --payload-size 4096 --delay 30s

Put the messages into the queue first, then notify. A queue without listeners is not an error. A queue \
that the relay refuses does not affect the others.")]
pub(super) struct Args {
    /// The queues that have work
    #[arg(required = true, value_name = "ACCOUNT/QUEUE")]
    queues: Vec<QueueAddress>,
    /// Total size of the new messages, in a unit of your choice, such as bytes
    #[arg(long, value_name = "N", value_parser = values::number::<u64>, default_value_t = 0)]
    payload_size: u64,
    /// Number of new messages
    #[arg(long, value_name = "N", value_parser = values::number::<u64>, default_value_t = 1)]
    messages: u64,
    /// Wake listeners after this delay, at most 14d
    #[arg(long, value_name = "D", value_parser = delay, default_value = "0s")]
    delay: Duration,
    /// The publisher's name, which wake-ups show
    #[arg(long, value_name = "NAME", default_value = "reveille-cli")]
    publisher: String,
    #[command(flatten)]
    target: TargetArgs,
}

/// Time for the search for a similar name.
const SEARCH: Duration = Duration::from_secs(1);
/// More letters that are changed, added, left out or exchanged are no misspelling.
const NEAR: usize = 3;

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let target = self.target.resolve();
        let client = target.client()?;
        let publisher = target.publisher(&client, &self.publisher);
        let notification = |queue: &QueueAddress| Notification {
            payload_size: self.payload_size,
            messages: self.messages,
            delay: self.delay,
            ..Notification::new(queue.clone())
        };
        let notifications = self.queues.iter().map(notification).collect();
        let notifying = publisher.notify_each(notifications);
        let results = target.acknowledged(&client, &publisher, notifying).await?;
        let (mut rows, mut errors, mut without) = (Vec::new(), Vec::new(), BTreeSet::new());
        for (queue, result) in self.queues.iter().zip(results) {
            match result {
                Ok(accepted) => {
                    rows.push(json!({
                        "queue": queue.to_string(),
                        "sequence": accepted.sequence,
                        "listeners": accepted.listeners,
                    }));
                    if accepted.listeners == 0 {
                        without.insert(queue.to_string());
                    }
                }
                Err(error) => errors.push((queue, refusal(error))),
            }
        }
        if !rows.is_empty() {
            target.format.rows("queue sequence listeners", &rows)?;
        }
        hint(&without, &client).await;
        let mut errors = errors.into_iter();
        let first = errors.next();
        for (queue, error) in errors {
            output::note(format_args!("error: {queue}: {error}"));
        }
        match first {
            Some((queue, error)) => Err(anyhow::Error::from(error).context(queue.clone())),
            None => Ok(Exit::OK),
        }
    }
}

/// Prints one hint about all queues without a listener.
async fn hint(without: &BTreeSet<String>, client: &Client) {
    let Some(queue) = without.first() else { return };
    let others = match without.len() as u64 - 1 {
        0 => String::new(),
        others => format!(" and {}", output::count(others, "other queue")),
    };
    let near = near_hint(client, queue).await;
    output::note(format_args!(
        "hint: no listener is connected yet for {queue}{others}{near}"
    ));
}

/// Says what to do for want of room: the process ends, so its publisher does not notify again.
fn refusal(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Exhausted => {
            let text = format!("{error}; it was not notified; run it again");
            Error::new(ErrorKind::Exhausted, text)
        }
        _ => error,
    }
}

/// Returns the end of a sentence about a queue without listeners: the listened queue with a similar
/// name. Empty without one, or if the caller may list none.
pub(super) async fn near_hint(client: &Client, queue: &str) -> String {
    let near = timeout(SEARCH, nearest_listened(client, queue)).await;
    let near = near.ok().flatten();
    near.map_or_else(String::new, |near| {
        format!("; there are listeners for {near}")
    })
}

/// Returns the listened queue whose name is nearest, if the caller may list any.
async fn nearest_listened(client: &Client, queue: &str) -> Option<String> {
    let listed = client.queues().await.ok()?.into_iter();
    let listened = listed.filter(|one| one.listeners > 0);
    let names = listened.map(|one| format!("{}/{}", one.storage_account, one.queue_name));
    let (distance, name) = names.map(|name| (osa_distance(queue, &name), name)).min()?;
    (distance <= NEAR).then_some(name)
}

fn delay(text: &str) -> Result<Duration, String> {
    values::duration(text, |delay| delay <= Limits::DELAY, "must be at most 14d")
}
