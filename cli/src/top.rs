//! `top`: the figures of a relay, live in a terminal, as a stream, or once.

mod screen;
mod view;

use std::{
    convert::Infallible,
    io::{self, IsTerminal as _},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers},
};
use reveille::{Client, Error, ErrorKind, ListenerQuery, QueueQuery, Stats, StatsWatch, duration};
use tokio::time::sleep;

use self::view::View;
use super::{
    exit::{Exit, Usage},
    output::Format,
    target::{Target, TargetArgs},
};

/// Watch a relay: what is wrong, how many listeners sleep, and which queues have work
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille top
  reveille top --once -o json

The first line is a verdict: the worst of what is wrong now. NOTIFIED and WOKEN are per second. ASLEEP \
listeners run no dequeue task, POLLING ones get no wake-ups. WAKE is the time of a wake-up from the \
accepted notification to the stream.

Keys: l lists the listeners and the agents with their workers, or the queues again, o another order of \
the queues, q ends.

-o json prints the figures, an object a line, at each interval. The caller needs the action `admin`.")]
pub(super) struct Args {
    /// How often the figures are read, 250ms to 1m
    #[arg(long, value_name = "D", default_value = "1s", value_parser = duration::parse)]
    interval: Duration,
    /// Print the figures of one interval, and end
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    target: TargetArgs,
}

/// Gives the terminal back, also where a signal ends the verb.
struct Restored;

/// How often the screen is drawn and keys are read.
const KEYS_EVERY: Duration = Duration::from_millis(50);
/// The pause before a lost stream is opened again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The shortest pause between two lists.
const LIST_EVERY: Duration = Duration::from_secs(1);
/// Queues or listeners that a screen can show.
const ROWS: u32 = 100;

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let target = self.target.resolve();
        let client = target.client()?;
        let shows_screen = target.format == Format::Table && !self.once;
        if shows_screen && !io::stdout().is_terminal() {
            let rule = "standard output is no terminal: state --once or -o json";
            return Err(Usage(rule.to_owned()).into());
        }
        let mut stream = None;
        // The first failure is stated as that of each verb; later ones on the screen.
        let first = self.next(&target, &client, &mut stream).await?;
        let mut view = View::new(first);
        if shows_screen {
            self.show(&target, &client, stream, view).await?;
            return Ok(Exit::OK);
        }
        loop {
            view.take(self.next(&target, &client, &mut stream).await?);
            let figures = view.figures();
            if self.once {
                target.format.object(&figures, || screen::text(&view))?;
                return Ok(Exit::OK);
            }
            target.format.next(&figures, "")?;
        }
    }

    /// Reads the next figures; opens the stream where there is none. The time-out is that of each reading,
    /// which comes after an interval.
    async fn next(
        &self,
        target: &Target,
        client: &Client,
        stream: &mut Option<StatsWatch>,
    ) -> reveille::Result<Stats> {
        let mut open = match stream.take() {
            Some(open) => open,
            None => target.within(client.watch_stats(self.interval)).await?,
        };
        let ended = || Error::new(ErrorKind::Unavailable, "the relay has ended the stream");
        let limit = target.timeout.unwrap_or(Duration::MAX);
        let stats = tokio::time::timeout(self.interval.saturating_add(limit), open.next())
            .await
            .map_err(|_| target.no_answer())?
            .ok_or_else(ended)??;
        *stream = Some(open);
        Ok(stats)
    }

    /// Shows the figures until a key ends it.
    async fn show(
        &self,
        target: &Target,
        client: &Client,
        stream: Option<StatsWatch>,
        view: View,
    ) -> anyhow::Result<()> {
        let view = Mutex::new(view);
        let mut terminal = ratatui::try_init().context("the terminal cannot be used")?;
        let _restored = Restored;
        // Keys are read also while the relay does not answer.
        tokio::select! {
            ended = draw(&mut terminal, &view) => ended,
            never = self.read_figures(target, client, stream, &view) => match never {},
            never = self.read_lists(client, &view) => match never {},
        }
    }

    async fn read_figures(
        &self,
        target: &Target,
        client: &Client,
        mut stream: Option<StatsWatch>,
        view: &Mutex<View>,
    ) -> Infallible {
        loop {
            match self.next(target, client, &mut stream).await {
                Ok(stats) => lock(view).take(stats),
                Err(error) => {
                    lock(view).lost = Some(error.to_string());
                    sleep(AGAIN_AFTER).await;
                }
            }
        }
    }

    /// Reads the list that the screen shows, also at once for a key. A failure keeps the former one.
    async fn read_lists(&self, client: &Client, view: &Mutex<View>) -> Infallible {
        loop {
            lock(view).is_other_list = false;
            let lists_listeners = lock(view).lists_listeners;
            if lists_listeners {
                let query = ListenerQuery {
                    count: ROWS,
                    ..ListenerQuery::default()
                };
                if let Ok(listed) = client.listeners_where(&query).await {
                    lock(view).listeners = listed.entries;
                }
            } else {
                let query = QueueQuery {
                    order: lock(view).order().0,
                    count: ROWS,
                    ..QueueQuery::default()
                };
                if let Ok(listed) = client.queues_where(&query).await {
                    lock(view).take_queues(listed.entries);
                }
            }
            let next = Instant::now() + self.interval.max(LIST_EVERY);
            while Instant::now() < next && !lock(view).is_other_list {
                sleep(KEYS_EVERY).await;
            }
        }
    }
}

/// Draws the screen, and obeys the keys until one ends it.
async fn draw(terminal: &mut DefaultTerminal, view: &Mutex<View>) -> anyhow::Result<()> {
    loop {
        terminal.draw(|frame| screen::draw(frame, &lock(view)))?;
        sleep(KEYS_EVERY).await;
        while event::poll(Duration::ZERO)? {
            match event::read()? {
                Event::Key(key) if ends(key) => return Ok(()),
                Event::Key(key) => lock(view).obey(key.code),
                _ => {}
            }
        }
    }
}

fn lock(view: &Mutex<View>) -> MutexGuard<'_, View> {
    view.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Restored {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

fn ends(key: KeyEvent) -> bool {
    let is_interrupt =
        key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    is_interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
}
