//! `reveille demo`: a fleet that is woken and one that polls, on one machine, over a relay on a free
//! loopback port.
//!
//! Both are measured while they are idle. Then each handles the same batch of transactions, and a table
//! compares the costs. With the console, the woken fleet works on until Ctrl-C. Relay, fleets and queues
//! are in this process and in a temporary directory.

mod figures;
mod fleet;

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use clap::Args;
use reveille::{Node, NodeConfig, duration::Span};
use serde::Serialize;
use serde_json::json;

use self::{
    figures::FleetFigures,
    fleet::{Fleet, ITEMS, TRANSACTIONS},
};
use super::{
    exit::Exit,
    output::{self, OutputArgs},
};

/// Compare a fleet that is woken with one that polls, on one machine
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

/// How long fleets are measured while idle.
const IDLE: Duration = Duration::from_secs(5);
/// The pause between two batches of a demo that goes on.
const PAUSE: Duration = Duration::from_secs(4);
const SHUTDOWN_GRACE: Duration = Duration::from_millis(500);

/// Runs the demo; with the console until it is interrupted.
pub(crate) async fn run(args: DemoArgs) -> anyhow::Result<Exit> {
    let began = Instant::now();
    let done = |step: std::fmt::Arguments<'_>| {
        output::note(format_args!(
            "[{:>5.1}s] {step}",
            began.elapsed().as_secs_f64()
        ));
    };
    let home = tempfile::Builder::new()
        .prefix("reveille-demo-")
        .tempdir()?;
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    let node = Node::start(NodeConfig {
        listen: any_port,
        admin_listen: args.console.then_some(any_port),
        store: format!("sqlite:{}", home.path().join("flags.db").display()),
        ..NodeConfig::default()
    })
    .await?;
    let relay = node.url();
    done(format_args!("a relay serves on {relay}"));
    if let Some(console) = node.console_url() {
        done(format_args!("its console is at {console}"));
    }
    let size = args.listeners.into();
    let (woken, polling) = tokio::try_join!(
        Fleet::start(Way::Woken, size, &relay, home.path()),
        Fleet::start(Way::Polling, size, &relay, home.path()),
    )?;
    tokio::try_join!(woken.wait_idle(), polling.wait_idle())?;
    done(format_args!("two fleets of {size} each are idle"));
    let (idle_woken, idle_polling) = tokio::join!(woken.idle(IDLE), polling.idle(IDLE));
    done(format_args!(
        "idle for {}: the woken fleet made {idle_woken} storage transactions, the polling fleet \
         made {idle_polling}",
        Span(IDLE)
    ));
    let mut fleets = Vec::new();
    for (fleet, idle) in [(&woken, idle_woken), (&polling, idle_polling)] {
        let outcome = fleet.work().await?;
        done(format_args!(
            "the {} fleet has handled {TRANSACTIONS} transactions in {ITEMS} messages",
            fleet.way.name()
        ));
        if let Some(after) = outcome.at_zero {
            let after = Span(after);
            done(format_args!(
                "it was back at 0 dequeue tasks {after} after the last put"
            ));
        }
        fleets.push(FleetFigures::new(fleet.way, idle, outcome));
    }
    let figures = json!({ "transactions": TRANSACTIONS, "work_items": ITEMS, "fleets": fleets });
    let format = args.output.format;
    format.object(&figures, || figures::table(&fleets))?;
    if args.console {
        loop {
            tokio::time::sleep(PAUSE).await;
            woken.work().await?;
            done(format_args!("a further batch was handled"));
        }
    }
    tokio::join!(woken.stop(), polling.stop());
    node.shutdown(SHUTDOWN_GRACE).await;
    Ok(Exit::OK)
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Woken => "woken",
            Self::Polling => "polling",
        }
    }
}
