//! `queue move`: messages from one queue into another.

use std::time::Duration;

use anyhow::Context as _;
use reveille::{
    Notification, PublisherOptions,
    listener::{RedriveOptions, redrive},
};
use serde::Serialize;

use super::super::{
    settings::Settings,
    target::{self, TargetArgs},
    usage,
};

#[derive(Debug, clap::Args)]
pub(super) struct Move {
    /// The queue that they leave
    #[arg(value_name = "FROM_URL")]
    from: String,
    /// The queue that they go to
    #[arg(value_name = "TO_URL")]
    to: String,
    /// How many at most [default: as many as there are]
    #[arg(long, value_name = "N", value_parser = usage::number::<u64>)]
    count: Option<u64>,
    /// Move what a listener put into a poison queue with its error, not as the message that it was
    #[arg(long)]
    as_is: bool,
    /// Tell the relay, so that listeners wake
    #[arg(long)]
    notify: bool,
    #[command(flatten)]
    target: TargetArgs,
}

/// What was moved.
#[derive(Debug, Serialize)]
struct Moved {
    from: String,
    to: String,
    moved: u64,
    left: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    listeners: Option<u32>,
}

impl Move {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<()> {
        let target = self.target.resolve(settings);
        let (from, to) = (super::open(&self.from).await?, super::open(&self.to).await?);
        let options = RedriveOptions {
            count: self.count,
            as_is: self.as_is,
        };
        let done = redrive(&*from, &*to, &options).await?;
        let mut told = Moved {
            from: from.address().to_string(),
            to: to.address().to_string(),
            moved: done.moved,
            left: done.left,
            listeners: None,
        };
        if self.notify && done.moved > 0 {
            let options = PublisherOptions {
                name: "reveille-cli".to_owned(),
                deadline: target.timeout.unwrap_or(Duration::MAX),
                ..PublisherOptions::default()
            };
            let client = target.client()?;
            let publisher = client.publisher_with(options);
            let notification = Notification {
                payload_size: done.bytes,
                messages: done.moved,
                ..Notification::new(to.address().clone())
            };
            let notified = target::patiently(&client, publisher.notify(notification)).await;
            let accepted = notified.with_context(|| {
                let (moved, to) = (done.moved, to.address());
                format!("moved {moved} messages, but nobody was told: `reveille notify {to}` does")
            })?;
            told.listeners = Some(accepted.listeners);
        }
        let mut line = format!(
            "moved {} messages from {} to {}",
            told.moved, told.from, told.to
        );
        if let Some(listeners) = told.listeners {
            line.push_str(&format!(", and told {listeners} listeners"));
        }
        if told.left > 0 {
            line.push_str(&format!(
                "\n{} messages stay: they are not whole, or cannot be read",
                told.left
            ));
        }
        target.format.next(&told, line)?;
        Ok(())
    }
}
