//! `queue move`: moves messages from one queue to another.

use std::time::Duration;

use reveille::listener::{RedriveOptions, redrive};
use serde::Serialize;

use super::{
    notification::{StoredMessages, notified},
    open,
};
use crate::{exit::Exit, output, settings::Settings, target::TargetArgs, usage};

#[derive(Debug, clap::Args)]
pub(super) struct Move {
    /// The source queue
    #[arg(value_name = "FROM_URL")]
    from: String,
    /// The destination queue
    #[arg(value_name = "TO_URL")]
    to: String,
    /// Maximum number of messages [default: all]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = usage::positive::<u64>)]
    count: Option<u64>,
    /// Move poison messages with the error that a listener added, instead of the original messages
    #[arg(long)]
    as_is: bool,
    /// Notify the relay, so that listeners wake
    #[arg(long)]
    notify: bool,
    #[command(flatten)]
    target: TargetArgs,
}

/// The result of a move as a row.
#[derive(Debug, Serialize)]
struct MoveRow {
    from: String,
    to: String,
    moved: u64,
    left: u64,
    /// Whether the relay has acknowledged the notification; `null` without one.
    notified: Option<bool>,
    listeners: Option<u32>,
}

impl Move {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let target = self.target.resolve(settings);
        // A bad relay URL fails here, before any message is moved.
        let client = self.notify.then(|| target.client()).transpose()?;
        let (from, to) = (open(&self.from).await?, open(&self.to).await?);
        let options = RedriveOptions {
            count: self.count,
            as_is: self.as_is,
        };
        let done = redrive(&*from, &*to, &options).await?;
        let stored = StoredMessages {
            messages: done.moved,
            bytes: done.bytes,
        };
        let mut row = MoveRow {
            from: from.to_string(),
            to: to.to_string(),
            moved: done.moved,
            left: done.left,
            notified: None,
            listeners: None,
        };
        let mut failure = None;
        if let Some(client) = client.filter(|_| done.moved > 0) {
            let at_once = Duration::ZERO;
            let notified = stored.notify(to.address(), at_once, &client, &target).await;
            row.notified = Some(notified.is_ok());
            match notified {
                Ok(listeners) => row.listeners = Some(listeners),
                Err(error) => failure = Some(error),
            }
        }
        target.format.next(&row, row.line())?;
        let advice = "do not repeat the move";
        let not_notified = |error| stored.not_notified(to.address(), &target, &error, advice);
        Ok(failure.map_or(Exit::OK, not_notified))
    }
}

impl MoveRow {
    /// Returns the result as a line for people.
    fn line(&self) -> String {
        let messages = output::count(self.moved, "message");
        let mut line = format!("moved {messages} from {} to {}", self.from, self.to);
        line.push_str(&notified(self.listeners));
        if self.left > 0 {
            let left = output::count(self.left, "message");
            line.push_str(&format!(
                "\nleft {left} in {}: unreadable, or too long for {}",
                self.from, self.to
            ));
        }
        line
    }
}
