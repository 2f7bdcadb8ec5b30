//! `top`: the figures of a relay, live in a terminal, or once.

mod json;
mod screen;
mod view;

use std::time::Duration;

use anyhow::Context as _;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use reveille::{Client, ListenerQuery, QueueOrder, QueueQuery, Stats, duration};
use tokio::time::{Instant, sleep_until};

use self::view::View;
use super::{
    exit::{Exit, Usage},
    settings::Settings,
    target::{Target, TargetArgs},
};

/// Watch a relay: what is wrong, how many listeners sleep, and which queues have work
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille top
  reveille top --interval 5s --relay http://relay-1:7600
  reveille top --once -o json

The first line is a verdict: the worst of what is wrong now. NOTIFIED and WOKEN are per second. ASLEEP \
listeners run no dequeue task, POLLING ones get no wake-ups. WAKE is the time of a wake-up from the \
accepted notification to the stream. BACKLOG of a queue is the newest depth that a listener read, and \
the messages notified since.

Keys: l lists the listeners and the agents with their workers, or the queues again, o another order of \
the queues, space stops and goes on, q ends. The figures are those of all \
relays of a cluster that answer. The caller needs the action `admin`.")]
pub(super) struct Args {
    /// How often the figures are read, 250ms to 1m
    #[arg(long, value_name = "D", default_value = "1s", allow_hyphen_values = true, value_parser = duration::parse)]
    interval: Duration,
    /// Print the figures of one interval, and end
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    target: TargetArgs,
}

/// How often keys are read.
const KEYS_EVERY: Duration = Duration::from_millis(50);
/// The pause before a lost stream is opened again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Queues or listeners that a screen can show.
const ROWS: u32 = 100;

impl Args {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let target = self.target.resolve(settings);
        let client = target.client()?;
        if self.once {
            let (before, now) = two(&client, &target, self.interval).await?;
            let figures = json::figures(&before, &now);
            let text = || screen::text(&View::of(&before, now.clone()));
            target.format.object(&figures, text)?;
            return Ok(Exit::OK);
        }
        if !std::io::IsTerminal::is_terminal(&std::io::stdout()) {
            let rule = "standard output is no terminal: state --once, also with -o json";
            return Err(Usage(rule.to_owned()).into());
        }
        // The first failure is stated as that of each verb; later ones on the screen.
        let stats = target.within(client.watch_stats(self.interval)).await?;
        let mut terminal = ratatui::try_init().context("the terminal cannot be used")?;
        let _restored = Restored;
        let mut view = View::new(&target.relay);
        watch(
            &client,
            &target,
            self.interval,
            stats,
            &mut terminal,
            &mut view,
        )
        .await?;
        Ok(Exit::OK)
    }
}

/// Gives the terminal back, also where a signal ends the verb.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Reads the figures at both ends of an interval. The time-out is that of each reading.
async fn two(
    client: &Client,
    target: &Target,
    interval: Duration,
) -> reveille::Result<(Stats, Stats)> {
    let next = async |stats: &mut reveille::StatsWatch| {
        let ended = || reveille::Error::new(reveille::ErrorKind::Unavailable, "the relay ends");
        stats.next().await.ok_or_else(ended)?
    };
    let first = async {
        let mut stats = client.watch_stats(interval).await?;
        let before = next(&mut stats).await?;
        Ok((stats, before))
    };
    let (mut stats, before) = target.within(first).await?;
    let mut second = std::pin::pin!(next(&mut stats));
    let now = match tokio::time::timeout(interval, &mut second).await {
        Ok(now) => now?,
        Err(_) => target.within(second).await?,
    };
    Ok((before, now))
}

/// Shows the figures until a key ends it.
async fn watch(
    client: &Client,
    target: &Target,
    interval: Duration,
    stats: reveille::StatsWatch,
    terminal: &mut ratatui::DefaultTerminal,
    view: &mut View,
) -> anyhow::Result<()> {
    let mut stream = Some(stats);
    if let Ok(history) = client.history(false).await {
        view.begin_with(&history);
    }
    let mut list_at = Instant::now();
    loop {
        terminal.draw(|frame| screen::draw(frame, view))?;
        let keys_at = Instant::now() + KEYS_EVERY;
        tokio::select! {
            next = next(&mut stream) => match next {
                Some(Ok(stats)) => view.take(stats),
                Some(Err(error)) => {
                    view.lose(&error.to_string());
                    stream = None;
                }
                None => {
                    view.lose("the relay has ended the stream");
                    stream = None;
                }
            },
            () = sleep_until(keys_at) => {}
        }
        if stream.is_none() && view.lost_for() >= AGAIN_AFTER {
            match target.within(client.watch_stats(interval)).await {
                Ok(stats) => stream = Some(stats),
                Err(error) => view.lose(&format!("{error:#}")),
            }
        }
        while event::poll(Duration::ZERO)? {
            match event::read()? {
                Event::Key(key) if ends(key) => return Ok(()),
                Event::Key(key) if key.code == KeyCode::Char('o') => {
                    view.order_next();
                    list_at = Instant::now();
                }
                Event::Key(key) if key.code == KeyCode::Char('l') => {
                    view.toggle_list();
                    list_at = Instant::now();
                }
                Event::Key(key) if key.code == KeyCode::Char(' ') => view.toggle_stop(),
                _ => {}
            }
        }
        if stream.is_some() && Instant::now() >= list_at && !view.is_stopped() {
            list_at = Instant::now() + interval.max(Duration::from_secs(1));
            read_list(client, view).await;
        }
    }
}

/// Reads the list that the screen shows. A failure keeps the former one.
async fn read_list(client: &Client, view: &mut View) {
    if view.lists_listeners() {
        let query = ListenerQuery {
            count: ROWS,
            ..ListenerQuery::default()
        };
        if let Ok(listed) = client.listeners_where(&query).await {
            view.take_listeners(listed.entries);
        }
        return;
    }
    let query = QueueQuery {
        order: view.order(),
        count: ROWS,
        ..QueueQuery::default()
    };
    if let Ok(listed) = client.queues_where(&query).await {
        view.take_queues(listed.entries);
    }
}

async fn next(stream: &mut Option<reveille::StatsWatch>) -> Option<reveille::Result<Stats>> {
    match stream {
        Some(stream) => stream.next().await,
        None => std::future::pending().await,
    }
}

fn ends(key: KeyEvent) -> bool {
    let is_interrupt =
        key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    is_interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
}

/// The orders of the queues, and their names.
const ORDERS: [(QueueOrder, &str); 4] = [
    (QueueOrder::Backlog, "backlog"),
    (QueueOrder::Rate, "rate"),
    (QueueOrder::Idle, "idle"),
    (QueueOrder::Listeners, "fewest listeners"),
];
