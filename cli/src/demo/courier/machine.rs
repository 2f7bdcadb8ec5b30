//! One machine of `demo courier`: its host, and an application that sends and receives.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::Args;
use reveille::{
    ListenerId, Node, NodeConfig, QueuesConfig, SubscribeOptions, WakeStream,
    courier::{Destination, QueueManager, rusqlite},
    queue::WorkQueue as _,
};

use super::ledger::{Ledger, queue_file};
use crate::demo::protocol::{parent_ended, print_line};

/// The arguments of a machine's process.
#[derive(Debug, Args)]
pub(in crate::demo) struct MachineArgs {
    #[arg(long)]
    home: PathBuf,
    #[arg(long)]
    listen: SocketAddr,
    #[arg(long)]
    peer: SocketAddr,
    #[arg(long)]
    messages: u32,
    /// The pause between two sends, so that messages flow while machines are killed.
    #[arg(long, value_parser = reveille::duration::parse, default_value = "2ms")]
    pause: Duration,
    /// The time-out of each transaction: the messages of a killed process are back after it.
    #[arg(long, value_parser = reveille::duration::parse, default_value = "60s")]
    transaction_timeout: Duration,
}

/// The queue of each machine.
const INBOX: &str = "inbox";

/// Runs the machine until its parent ends or kills it.
pub(in crate::demo) async fn run(args: MachineArgs) -> anyhow::Result<()> {
    let config = NodeConfig {
        listen: args.listen,
        admin_listen: None,
        queues: Some(QueuesConfig {
            path: queue_file(&args.home),
            ..QueuesConfig::default()
        }),
        ..NodeConfig::default()
    };
    let node = Node::start(config).await?;
    let manager = node.queues().expect("configured above").clone();
    let inbox = manager.queue(INBOX)?;
    inbox.create().await?;
    let listener = ListenerId::new("application")?;
    let wakes = SubscribeOptions::new(listener, [inbox.address().clone()]);
    let wakes = node.relay().subscribe(wakes)?;
    let destination: Destination = format!("reveille://{}/{INBOX}", args.peer).parse()?;
    let sent = Ledger::open(&args.home)?;
    print_line("serves")?;
    let work = async {
        tokio::try_join!(
            send_all(&manager, &destination, sent, &args),
            receive_all(&manager, wakes, &args),
        )
    };
    tokio::select! {
        ended = work => { ended?; }
        () = parent_ended() => {}
    }
    node.shutdown(Duration::from_millis(500)).await;
    Ok(())
}

/// Sends the numbers that the ledger does not have yet. The ledger's row and the message commit
/// together.
async fn send_all(
    manager: &QueueManager,
    destination: &Destination,
    mut ledger: Ledger,
    args: &MachineArgs,
) -> anyhow::Result<()> {
    for number in ledger.last_sent()? + 1..=u64::from(args.messages) {
        send(manager, destination, &mut ledger, number, args).await?;
        tokio::time::sleep(args.pause).await;
    }
    Ok(())
}

/// Odd numbers are sent in a transaction of the queue with the ledger's row in its commit, even ones in
/// a transaction of the ledger.
async fn send(
    manager: &QueueManager,
    destination: &Destination,
    ledger: &mut Ledger,
    number: u64,
    args: &MachineArgs,
) -> anyhow::Result<()> {
    let insert = "INSERT INTO demo_sent (number) VALUES (?1)";
    let row = [number.cast_signed()];
    if !number.is_multiple_of(2) {
        let mut transaction = manager.begin_with(args.transaction_timeout)?;
        transaction.send(destination, body(number)).await?;
        let commit = transaction.commit_with(move |ledger| ledger.execute(insert, row));
        commit.await?;
        return Ok(());
    }
    let transaction = ledger.connection().transaction()?;
    transaction.execute(insert, row)?;
    manager.send_in(&transaction, destination, body(number))?;
    transaction.commit()?;
    manager.committed();
    Ok(())
}

/// Returns the text of a number. Some are large.
fn body(number: u64) -> String {
    match number.is_multiple_of(5) {
        true => format!("{number:<20000}"),
        false => number.to_string(),
    }
}

/// Writes each message of the inbox into the ledger; the message's removal and the ledger's row
/// commit together.
async fn receive_all(
    manager: &QueueManager,
    mut wakes: impl WakeStream,
    args: &MachineArgs,
) -> anyhow::Result<()> {
    while let Some(wake) = wakes.next().await {
        wake?;
        while receive(manager, args).await? {}
    }
    Ok(())
}

/// Receives one message; returns `false` if there is none.
async fn receive(manager: &QueueManager, args: &MachineArgs) -> anyhow::Result<bool> {
    let mut transaction = manager.begin_with(args.transaction_timeout)?;
    let Some(message) = transaction.receive(INBOX).await? else {
        return Ok(false);
    };
    let number: i64 = std::str::from_utf8(&message.body)?.trim_end().parse()?;
    let insert = move |transaction: &rusqlite::Transaction<'_>| {
        let sql = "INSERT INTO demo_received (number) VALUES (?1)";
        transaction.execute(sql, [number]).map(drop)
    };
    transaction.commit_with(insert).await?;
    Ok(true)
}
