//! `reveille demo courier`: two machines exchange messages in transactions while they are killed.
//!
//! Each machine is a directory and a process that hosts its queues and runs an application. Both
//! send numbered messages to the other one. The parent kills one of them again and again. At the end
//! it reads both queue files and both ledgers: each message must be there once, in order.

mod ledger;
pub(super) mod machine;

use std::{
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use self::ledger::{Ledger, Totals};
use super::{home::Home, progress::Progress};
use crate::{exit::Failed, output, subprocess::Subprocess};

/// Two machines exchange messages through transactional queues, while one is killed at random
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  reveille demo courier
  reveille demo courier --messages 5000 --kills 30 -o json")]
pub(super) struct CourierArgs {
    /// Number of messages in each direction
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    messages: u32,
    /// How often a machine is killed
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    kills: u32,
}

/// One machine, as the parent controls it.
struct Machine {
    name: &'static str,
    home: PathBuf,
    listen: SocketAddr,
    peer: SocketAddr,
    messages: u32,
    process: Option<Subprocess>,
}

/// The result for programs.
#[derive(Debug, Serialize)]
struct Figures {
    kills: u32,
    seconds: f64,
    directions: [Totals; 2],
}

const NAMES: [&str; 2] = ["a", "b"];
/// The mean time between two kills.
const BETWEEN_KILLS: Duration = Duration::from_millis(400);
/// Longest wait for a line of a machine's process.
const LINE_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time without a new message after the last kill.
const STALLED: Duration = Duration::from_secs(60);

/// Runs the demo.
pub(super) async fn run(args: CourierArgs, json: bool) -> anyhow::Result<()> {
    let progress = Progress::new();
    let home = Home::new()?;
    let mut machines = machines(home.path(), args.messages)?;
    for machine in &mut machines {
        machine.start().await?;
    }
    progress.done(&format!(
        "two machines host their queues on {} and {}",
        machines[0].listen, machines[1].listen
    ));
    let began = Instant::now();
    for kill in 1..=args.kills {
        progress.doing(&format!("kill {kill} of {}", args.kills));
        sleep(BETWEEN_KILLS.mul_f64(0.2 + 1.6 * fastrand::f64())).await;
        let machine = &mut machines[fastrand::usize(..2)];
        machine.kill().await;
        sleep(BETWEEN_KILLS.mul_f64(fastrand::f64())).await;
        machine.start().await?;
    }
    progress.done(&format!("a machine was killed {} times", args.kills));
    wait_until_received(&progress, &machines).await?;
    let seconds = began.elapsed().as_secs_f64();
    for machine in &mut machines {
        machine.stop().await;
    }
    let directions = totals(&machines)?;
    let exact = directions.iter().all(Totals::exact);
    let figures = Figures {
        kills: args.kills,
        seconds,
        directions,
    };
    figures.print(json)?;
    match exact {
        true => Ok(()),
        false => Err(Failed("messages were lost, doubled or out of order".to_owned()).into()),
    }
}

fn machines(home: &Path, messages: u32) -> anyhow::Result<[Machine; 2]> {
    // Both are bound at the same time, so that they differ.
    let ports = [
        TcpListener::bind("127.0.0.1:0")?,
        TcpListener::bind("127.0.0.1:0")?,
    ];
    let [a, b] = [ports[0].local_addr()?, ports[1].local_addr()?];
    let machine = |name: &'static str, listen, peer| Machine {
        name,
        home: home.join(name),
        listen,
        peer,
        messages,
        process: None,
    };
    let machines = [machine(NAMES[0], a, b), machine(NAMES[1], b, a)];
    for machine in &machines {
        std::fs::create_dir(&machine.home)?;
    }
    Ok(machines)
}

/// Waits until both ledgers have all messages.
async fn wait_until_received(progress: &Progress, machines: &[Machine; 2]) -> anyhow::Result<()> {
    let expected: u64 = machines
        .iter()
        .map(|machine| u64::from(machine.messages))
        .sum();
    let (mut last, mut since) = (0, Instant::now());
    loop {
        let mut received = 0;
        for machine in machines {
            received += Ledger::open(&machine.home)?.received()?;
        }
        progress.doing(&format!("{received} of {expected} messages received"));
        if received >= expected {
            progress.done(&format!("{received} messages were received"));
            return Ok(());
        }
        if received != last {
            (last, since) = (received, Instant::now());
        }
        if since.elapsed() > STALLED {
            let text = format!("only {received} of {expected} messages have arrived");
            return Err(Failed(text).into());
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Compares what each machine sent with what the other one received.
fn totals(machines: &[Machine; 2]) -> anyhow::Result<[Totals; 2]> {
    let [a, b] = machines;
    let of = |from: &Machine, to: &Machine| {
        let name = format!("{} to {}", from.name, to.name);
        Totals::compare(name, &Ledger::open(&from.home)?, &Ledger::open(&to.home)?)
    };
    Ok([of(a, b)?, of(b, a)?])
}

impl Machine {
    /// Starts the process, and waits until it serves.
    async fn start(&mut self) -> anyhow::Result<()> {
        let args = [
            "demo".into(),
            "courier-machine".into(),
            "--home".into(),
            self.home.clone().into_os_string(),
            "--listen".into(),
            self.listen.to_string().into(),
            "--peer".into(),
            self.peer.to_string().into(),
            "--messages".into(),
            self.messages.to_string().into(),
        ];
        let mut process = Subprocess::start(self.name, args, LINE_TIMEOUT)?;
        process.line().await?;
        self.process = Some(process);
        Ok(())
    }

    async fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill().await;
        }
    }

    async fn stop(&mut self) {
        if let Some(process) = self.process.take() {
            process.stop().await;
        }
    }
}

impl Figures {
    fn print(&self, json: bool) -> anyhow::Result<()> {
        if json {
            return Ok(output::text(&format!(
                "{}\n",
                serde_json::to_string_pretty(self)?
            ))?);
        }
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
        table.set_header([
            "",
            "committed",
            "received",
            "lost",
            "doubled",
            "out of order",
        ]);
        for totals in &self.directions {
            table.add_row(totals.cells());
        }
        let summary = format!("{table}\n{} kills, {:.1} s\n", self.kills, self.seconds);
        Ok(output::text(&summary)?)
    }
}
