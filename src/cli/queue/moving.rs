//! `queue move`: messages from one queue into another.

use std::time::Duration;

use reveille::listener::{RedriveOptions, redrive};
use serde::Serialize;

use super::{notification::Stored, open_existing};
use crate::cli::{exit::Exit, output, settings::Settings, target::TargetArgs, usage};

#[derive(Debug, clap::Args)]
pub(super) struct Move {
    /// The queue that they leave
    #[arg(value_name = "FROM_URL")]
    from: String,
    /// The queue that they go to
    #[arg(value_name = "TO_URL")]
    to: String,
    /// How many at most [default: as many as there are]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = usage::positive::<u64>)]
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
    /// Whether the relay has acknowledged the notification; `null` where it was not to be told.
    notified: Option<bool>,
    listeners: Option<u32>,
}

impl Move {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let target = self.target.resolve(settings);
        // What is wrong with the relay's URL is said before anything is moved.
        let client = self.notify.then(|| target.client()).transpose()?;
        let (from, to) = (
            open_existing(&self.from).await?,
            open_existing(&self.to).await?,
        );
        let options = RedriveOptions {
            count: self.count,
            as_is: self.as_is,
        };
        let done = redrive(&*from, &*to, &options).await?;
        let stored = Stored {
            messages: done.moved,
            bytes: done.bytes,
        };
        let mut told = Moved {
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
            told.notified = Some(notified.is_ok());
            match notified {
                Ok(listeners) => told.listeners = Some(listeners),
                Err(error) => failure = Some(error),
            }
        }
        target.format.next(&told, told.line())?;
        let again = "there is nothing to move again";
        let not_told = |error| stored.not_told(to.address(), &target, &error, again);
        Ok(failure.map_or(Exit::OK, not_told))
    }
}

impl Moved {
    /// Returns what was done, for people.
    fn line(&self) -> String {
        let messages = output::count(self.moved, "message");
        let mut line = format!("moved {messages} from {} to {}", self.from, self.to);
        if let Some(listeners) = self.listeners {
            let listeners = output::count(u64::from(listeners), "listener");
            line.push_str(&format!(", and told {listeners}"));
        }
        if self.left > 0 {
            let left = output::count(self.left, "message");
            line.push_str(&format!(
                "\nleft {left} there, which cannot be read or are too long for the other queue"
            ));
        }
        line
    }
}
