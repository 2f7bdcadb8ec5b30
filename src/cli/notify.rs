//! `notify`: says that there is work.

use std::time::Duration;

use reveille::{Accepted, Client, Limits, Notification, PublisherOptions, QueueAddress, duration};
use serde::Serialize;

use super::{
    exit::Exit,
    output::{self, Row},
    settings::Settings,
    target::{Target, TargetArgs},
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
    #[arg(long, value_name = "N", default_value_t = 0)]
    payload_size: u64,
    /// How many messages were put
    #[arg(long, value_name = "N", default_value_t = 1)]
    messages: u64,
    /// Wake listeners only after this long, at most 14d
    #[arg(long, value_name = "D", value_parser = delay, default_value = "0s")]
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

/// Silence after which the user is told that the relay is tried again and again.
const PATIENCE: Duration = Duration::from_millis(700);

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
        tokio::pin!(notifying);
        let accepted = tokio::select! {
            answer = &mut notifying => answer,
            () = tokio::time::sleep(PATIENCE) => {
                if let Err(error) = client.ready(Duration::ZERO).await {
                    output::note(format_args!("{error}; still trying"));
                }
                notifying.await
            }
        };
        let accepted = match accepted {
            Ok(accepted) => accepted,
            Err(error) => return Err(explain(error, &client).await.into()),
        };
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

    /// Tells what to do about a queue that nobody listens to.
    fn hint(&self, rows: &[Notified], target: &Target) {
        for row in rows.iter().filter(|row| row.listeners == 0) {
            output::note(format_args!(
                "hint: nobody listens to {queue} yet; `reveille listeners --relay {relay}` shows who \
                 listens to what, `reveille subscribe {queue} --relay {relay}` listens",
                queue = row.queue,
                relay = target.relay,
            ));
        }
    }
}

impl Row for Notified {
    const HEADERS: &'static [&'static str] = &["QUEUE", "SEQUENCE", "LISTENERS"];

    fn cells(&self) -> Vec<String> {
        let (sequence, listeners) = (self.sequence.to_string(), self.listeners.to_string());
        vec![self.queue.clone(), sequence, listeners]
    }
}

/// Says why no acknowledgement came: a relay that cannot be reached is more than a late one.
async fn explain(error: reveille::Error, client: &Client) -> reveille::Error {
    if error.kind() != reveille::ErrorKind::Timeout {
        return error;
    }
    client.ready(Duration::ZERO).await.err().unwrap_or(error)
}

fn delay(text: &str) -> Result<Duration, String> {
    let span = duration::parse(text).map_err(|error| error.to_string())?;
    if span > Limits::DELAY {
        return Err("must be at most 14d".to_owned());
    }
    Ok(span)
}
