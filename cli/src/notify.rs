//! `notify`: tells the relay that queues have work.

use std::{collections::BTreeSet, time::Duration};

use reveille::{Error, ErrorKind, Limits, Notification, QueueAddress};
use serde_json::json;

use super::{
    exit::Exit,
    output,
    target::{PUBLISHER, TargetArgs},
    values,
};

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
    #[arg(long, value_name = "NAME", default_value = PUBLISHER)]
    publisher: String,
    #[command(flatten)]
    target: TargetArgs,
}

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let target = self.target.resolve();
        let publisher = target.publisher(&self.publisher)?;
        let notification = |queue: &QueueAddress| Notification {
            payload_size: self.payload_size,
            messages: self.messages,
            delay: self.delay,
            ..Notification::new(queue.clone())
        };
        let notifications = self.queues.iter().map(notification).collect();
        let notifying = async {
            let results = publisher.notify_each(notifications).await?;
            // All are late: the relay's absence is the cause.
            let is_late = |error: &Error| error.kind() == ErrorKind::Timeout;
            let mut late = results
                .iter()
                .map(|one| one.as_ref().err().filter(|one| is_late(one)));
            match late.next() {
                Some(Some(first)) if late.all(|one| one.is_some()) => Err(first.clone()),
                _ => Ok(results),
            }
        };
        let results = target.acknowledged(&publisher, notifying).await?;
        let (mut rows, mut without, mut failure) = (Vec::new(), BTreeSet::new(), None);
        for (queue, result) in self.queues.iter().zip(results) {
            match result {
                Ok(accepted) => {
                    if accepted.listeners == 0 {
                        without.insert(queue.to_string());
                    }
                    rows.push(json!({
                        "queue": queue.to_string(),
                        "sequence": accepted.sequence,
                        "listeners": accepted.listeners,
                    }));
                }
                Err(error) if failure.is_none() => {
                    failure = Some(anyhow::Error::from(error).context(queue.clone()));
                }
                Err(error) => output::note(format_args!("error: {queue}: {error}")),
            }
        }
        if !rows.is_empty() {
            target.format.rows("queue sequence listeners", &rows)?;
        }
        if let Some(queue) = without.first() {
            let others = match without.len() as u64 - 1 {
                0 => String::new(),
                others => format!(" and {}", output::count(others, "other queue")),
            };
            output::note(format_args!(
                "hint: no listener is connected yet for {queue}{others}"
            ));
        }
        failure.map_or(Ok(Exit::OK), Err)
    }
}

fn delay(text: &str) -> Result<Duration, String> {
    values::duration(text, |delay| delay <= Limits::DELAY, "must be at most 14d")
}
