//! `notify`: says that there is work.

use std::time::Duration;

use reveille::{Accepted, Limits, Notification, PublisherOptions, QueueAddress, duration};
use serde::Serialize;

use super::{
    exit::Exit,
    output::{self, Row},
    settings::Settings,
    target::{Target, TargetArgs},
    usage,
};

/// Say that there is work in a queue
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille notify acct/orders
  reveille notify acct/orders acct/invoices --messages 20 --payload-size 4096 --delay 30s

Put the work in the queue first, then notify. Where nobody listens yet that is no failure.")]
pub(super) struct Args {
    /// The queues that have work
    #[arg(required = true, value_name = "ACCOUNT/QUEUE")]
    queues: Vec<QueueAddress>,
    /// Your own measure of what was put: bytes, say
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = usage::number::<u64>,
        default_value_t = 0
    )]
    payload_size: u64,
    /// How many messages were put
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = usage::number::<u64>,
        default_value_t = 1
    )]
    messages: u64,
    /// Wake listeners only after this long, at most 14d
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = delay, default_value = "0s")]
    delay: Duration,
    /// Who publishes; handed on with wake-ups
    #[arg(long, value_name = "NAME", default_value = "reveille-cli")]
    publisher: String,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Serialize)]
struct Notified {
    queue: String,
    sequence: u64,
    listeners: u32,
}

impl Args {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let target = self.target.resolve(settings);
        let client = target.client()?;
        let options = PublisherOptions {
            name: self.publisher.clone(),
            deadline: target.timeout.unwrap_or(Duration::MAX),
            ..PublisherOptions::default()
        };
        let publisher = client.publisher_with(options);
        let notifying = publisher.notify_all(self.notifications());
        let accepted = target.acknowledged(&client, notifying).await?;
        let rows = self.rows(&accepted);
        target.format.list(&rows)?;
        self.hint(&rows, &target);
        Ok(Exit::OK)
    }

    fn notifications(&self) -> Vec<Notification> {
        let notification = |queue: &QueueAddress| Notification {
            payload_size: self.payload_size,
            messages: self.messages,
            delay: self.delay,
            ..Notification::new(queue.clone())
        };
        self.queues.iter().map(notification).collect()
    }

    fn rows(&self, accepted: &[Accepted]) -> Vec<Notified> {
        let row = |(queue, accepted): (&QueueAddress, &Accepted)| Notified {
            queue: queue.to_string(),
            sequence: accepted.sequence,
            listeners: accepted.listeners,
        };
        self.queues.iter().zip(accepted).map(row).collect()
    }

    /// Tells what to do about queues without a listener: one hint, however many there are.
    fn hint(&self, rows: &[Notified], target: &Target) {
        let unheard = rows.iter().filter(|row| row.listeners == 0);
        let mut unheard: Vec<_> = unheard.map(|row| &row.queue).collect();
        let Some(queue) = unheard.first().copied() else {
            return;
        };
        unheard.sort_unstable();
        unheard.dedup();
        let relay = &target.relay;
        let others = match unheard.len() as u64 - 1 {
            0 => String::new(),
            others => format!(" and to {}", output::count(others, "other queue")),
        };
        output::note(format_args!(
            "hint: nobody listens to {queue}{others} yet; `reveille listeners --relay {relay}` shows \
             who listens to what, `reveille subscribe {queue} --relay {relay}` listens"
        ));
    }
}

impl Row for Notified {
    const HEADERS: &'static [&'static str] = &["QUEUE", "SEQUENCE", "LISTENERS"];

    fn cells(&self) -> Vec<String> {
        let (sequence, listeners) = (self.sequence.to_string(), self.listeners.to_string());
        vec![self.queue.clone(), sequence, listeners]
    }
}

fn delay(text: &str) -> Result<Duration, String> {
    let span = duration::parse(text).map_err(|error| error.to_string())?;
    if span > Limits::DELAY {
        return Err("must be at most 14d".to_owned());
    }
    Ok(span)
}
