//! `notify`: tells the relay that queues have work.

use std::{collections::BTreeSet, time::Duration};

use reveille::{Accepted, Error, ErrorKind, Limits, Notification, QueueAddress, duration};
use serde_json::{Value, json};

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
        let notifying = publisher.notify_each(notifications);
        let results = target.acknowledged(&publisher, notifying).await?;
        let results: Vec<_> = self.queues.iter().zip(results).collect();
        let accepted =
            |(queue, result): &(_, reveille::Result<_>)| Some((*queue, *result.as_ref().ok()?));
        let accepted: Vec<(&QueueAddress, Accepted)> =
            results.iter().filter_map(accepted).collect();
        let row = |(queue, accepted): &(&QueueAddress, Accepted)| -> Value {
            json!({
                "queue": queue.to_string(),
                "sequence": accepted.sequence,
                "listeners": accepted.listeners,
            })
        };
        let rows: Vec<_> = accepted.iter().map(row).collect();
        let mut errors = results
            .into_iter()
            .filter_map(|(queue, result)| Some((queue, result.err()?)));
        let first = errors.next();
        if first.is_none() || !rows.is_empty() {
            target.format.rows("queue sequence listeners", &rows)?;
        }
        hint(&accepted);
        for (queue, error) in errors {
            let error = refusal(error);
            output::note(format_args!("error: {queue}: {error}"));
        }
        match first {
            Some((queue, error)) => Err(anyhow::Error::from(refusal(error)).context(queue.clone())),
            None => Ok(Exit::OK),
        }
    }
}

/// Prints one hint about all queues without a listener.
fn hint(accepted: &[(&QueueAddress, Accepted)]) {
    let without = accepted
        .iter()
        .filter(|(_, accepted)| accepted.listeners == 0);
    let without: BTreeSet<_> = without.map(|(queue, _)| queue.to_string()).collect();
    let Some(queue) = without.first() else { return };
    let others = match without.len() as u64 - 1 {
        0 => String::new(),
        others => format!(" and {}", output::count(others, "other queue")),
    };
    output::note(format_args!(
        "hint: no listener is connected yet for {queue}{others}"
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

fn delay(text: &str) -> Result<Duration, String> {
    let span = duration::parse(text).map_err(|error| error.to_string())?;
    if span > Limits::DELAY {
        return Err("must be at most 14d".to_owned());
    }
    Ok(span)
}
