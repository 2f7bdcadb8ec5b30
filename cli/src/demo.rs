//! `reveille demo`: the billing case on one machine, over a relay on a free loopback port.
//!
//! Two fleets are parked on a flag, and released. One is woken, the other polls. The woken fleet has no
//! dequeue task while it is idle. A batch of transactions is split, put, rated and added up to the cent,
//! first by one fleet and then by the other, and a table compares the costs. With the console, the woken
//! fleet then works on until Ctrl-C. Relay, fleets and queues are in this process and in a temporary
//! directory.

mod billing;
mod figures;
mod fleet;

use std::{
    path::Path,
    time::{Duration, Instant},
};

use clap::Args;
use reveille::{Client, FlagName, ListenerId, Node, NodeConfig, UnleashOptions, duration::Span};
use serde::Serialize;
use tokio::sync::Barrier;

use self::{
    billing::{ITEMS, TRANSACTIONS, batch, sum},
    figures::{Figures, FleetFigures, money},
    fleet::{Fleet, released},
};
use super::{
    exit::Exit,
    output::{self, OutputArgs},
};

/// Run a billing example on one machine, with a fleet that is woken and one that polls
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  reveille demo\n  reveille demo --console")]
pub(crate) struct DemoArgs {
    /// Number of listeners of each of the two fleets
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u8).range(1..=25))]
    listeners: u8,
    /// Show the relay's console, and go on with one batch after another until Ctrl-C
    #[arg(long)]
    console: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// How a fleet finds work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Way {
    /// The relay wakes the listeners.
    Woken,
    /// The listeners poll their queue once a second.
    Polling,
}

/// The flag that all listeners are parked on.
const FLAG: &str = "demo-start";
/// How long fleets are measured while idle.
const IDLE: Duration = Duration::from_secs(5);
/// The pause between two batches of a demo that goes on.
const PAUSE: Duration = Duration::from_secs(4);
const SHUTDOWN_GRACE: Duration = Duration::from_millis(500);

/// Prints steps, with the time since the start of the demo.
struct Steps(Instant);

/// Runs the demo; with the console until it is interrupted.
pub(crate) async fn run(args: DemoArgs) -> anyhow::Result<Exit> {
    let steps = Steps(Instant::now());
    let home = tempfile::Builder::new()
        .prefix("reveille-demo-")
        .tempdir()?;
    let node = start_relay(home.path(), args.console).await?;
    let relay = node.url();
    steps.done(format_args!("a relay serves on {relay}"));
    if let Some(console) = node.console_url() {
        steps.done(format_args!("its console is at {console}"));
    }
    let (woken, polling) = start_fleets(args.listeners.into(), &relay, home.path(), &steps).await?;
    let (idle_woken, idle_polling) = tokio::join!(woken.idle(IDLE), polling.idle(IDLE));
    steps.done(format_args!(
        "idle for {}: the woken fleet has {} dequeue tasks and made {} storage transactions, the \
         polling fleet made {}",
        Span(IDLE),
        idle_woken.tasks,
        idle_woken.transactions,
        idle_polling.transactions
    ));

    let batch = batch();
    let cents = sum(&batch);
    steps.done(format_args!(
        "{TRANSACTIONS} transactions are split into {ITEMS} work items"
    ));
    let mut fleets = Vec::new();
    for (fleet, idle) in [(&woken, idle_woken), (&polling, idle_polling)] {
        let outcome = fleet.work(&batch).await?;
        let way = fleet.way.name();
        steps.done(format_args!("{way}: {}, as computed", money(cents)));
        if let Some(after) = outcome.at_zero {
            let after = Span(after);
            steps.done(format_args!(
                "it was back at 0 dequeue tasks {after} after the last put"
            ));
        }
        fleets.push(FleetFigures::new(fleet.way, idle, outcome));
    }
    let figures = Figures {
        transactions: TRANSACTIONS,
        work_items: ITEMS,
        cents,
        fleets,
    };
    let format = args.output.format;
    format.object(&figures, || figures.table())?;
    if args.console {
        loop {
            tokio::time::sleep(PAUSE).await;
            woken.work(&batch).await?;
            steps.done(format_args!("a further batch: {}", money(cents)));
        }
    }
    tokio::join!(woken.stop(), polling.stop());
    node.shutdown(SHUTDOWN_GRACE).await;
    Ok(Exit::OK)
}

async fn start_relay(home: &Path, console: bool) -> anyhow::Result<Node> {
    let any_port = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let config = NodeConfig {
        listen: any_port,
        admin_listen: console.then_some(any_port),
        store: format!("sqlite:{}", home.join("flags.db").display()),
        ..NodeConfig::default()
    };
    Ok(Node::start(config).await?)
}

/// Parks both fleets on the flag, releases them, and waits until they are idle.
async fn start_fleets(
    size: usize,
    relay: &str,
    home: &Path,
    steps: &Steps,
) -> anyhow::Result<(Fleet, Fleet)> {
    let (client, flag) = (Client::new(relay)?, FlagName::new(FLAG)?);
    let parked = Barrier::new(2 * size + 1);
    let unleash = async {
        parked.wait().await;
        steps.done(format_args!(
            "two fleets of {size} each are parked on a flag"
        ));
        let options = UnleashOptions {
            set_by: "demo".to_owned(),
            reason: "the start of the demo".to_owned(),
            ..UnleashOptions::default()
        };
        anyhow::Ok(client.flags().unleash(&flag, &options).await?)
    };
    let ((woken, after_woken), (polling, after_polling), _) = tokio::try_join!(
        Fleet::start(Way::Woken, size, relay, home, &parked),
        Fleet::start(Way::Polling, size, relay, home, &parked),
        unleash,
    )?;
    steps.done(format_args!(
        "unleash released all within {}",
        Span(after_woken.max(after_polling))
    ));
    let began = Instant::now();
    released(&mut client.watch_flag(flag, ListenerId::new("late")?)).await?;
    steps.done(format_args!(
        "a node that starts now is released as well, {} after its start",
        Span(began.elapsed())
    ));
    tokio::try_join!(woken.wait_idle(), polling.wait_idle())?;
    Ok((woken, polling))
}

impl Steps {
    fn done(&self, step: std::fmt::Arguments<'_>) {
        output::note(format_args!(
            "[{:>5.1}s] {step}",
            self.0.elapsed().as_secs_f64()
        ));
    }
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Woken => "woken",
            Self::Polling => "polling",
        }
    }
}
