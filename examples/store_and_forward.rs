//! Store and forward: two machines send each other messages in transactions, while one of them is
//! killed again and again. Each message arrives once, and in order.
//!
//! `cargo run --example store_and_forward`
//!
//! A machine is a process of this program with a directory of its own: a node that hosts the queues
//! of the directory, and an application that sends and receives. The tables of the application are
//! in the queue file, so that they change together with the queues. `tests/courier_kills.py` starts the
//! same machines, with a proxy between them.

use std::{
    error::Error, io::Read as _, net::TcpListener, path::Path, process::Stdio, time::Duration,
};

use reveille::{
    ListenerId, Node, NodeConfig, QueuesConfig, SubscribeOptions, WakeStream,
    courier::{Destination, QueueManager, QueueManagerConfig, Transaction, rusqlite::Connection},
    queue::WorkQueue as _,
};
use tokio::{process::Command, time::sleep};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const MESSAGES: i64 = 200;
const KILLS: usize = 5;
/// The messages of a killed process are back after the time-out of its transaction.
const TIMEOUT: Duration = Duration::from_secs(10);
const INSERT_SENT: &str = "INSERT INTO sent_orders (number) VALUES (?1)";
const INSERT_RECEIVED: &str = "INSERT INTO received_orders (number) VALUES (?1)";
const TABLES: &str = "CREATE TABLE IF NOT EXISTS sent_orders (number INTEGER PRIMARY KEY);
     CREATE TABLE IF NOT EXISTS received_orders
         (place INTEGER PRIMARY KEY AUTOINCREMENT, number INTEGER)";

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [directory, own, other, messages] => {
            machine(Path::new(directory), own, other, messages.parse()?).await
        }
        _ => kill_machines().await,
    }
}

async fn create_queue_and_tables(queues: &QueueManager) -> Result<()> {
    queues.queue("inbox")?.create().await?;
    Ok(queues.connect()?.execute_batch(TABLES)?)
}

/// Runs one machine until its parent ends or kills it.
async fn machine(directory: &Path, own: &str, other: &str, messages: i64) -> Result<()> {
    let node = Node::start(NodeConfig {
        listen: own.parse()?,
        admin_listen: None,
        queues: Some(QueuesConfig {
            path: directory.join("queues.db"),
            ..QueuesConfig::default()
        }),
        ..NodeConfig::default()
    });
    let node = node.await?;
    let queues = node.queues().expect("configured above");
    create_queue_and_tables(queues).await?;
    let inbox = queues.queue("inbox")?;
    let options = SubscribeOptions::new(ListenerId::new("application")?, [inbox.address().clone()]);
    let wakes = node.relay().subscribe(options)?;
    // The end of stdin is the end of the parent.
    let (parent, ended) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || parent.send(std::io::stdin().read(&mut [0])));
    let to = queues.destination(&format!("reveille://{other}/inbox"))?;
    let work = send_all(queues, &to, messages);
    tokio::select! {
        done = async { tokio::try_join!(work, receive_all(queues, wakes)) } => done.map(drop),
        _ = ended => Ok(()),
    }
}

/// Sends the numbers after the last one of `sent_orders`. Each message is committed together with its row
/// there, so a machine that was killed goes on with the next number.
async fn send_all(queues: &QueueManager, to: &Destination, messages: i64) -> Result<()> {
    let mut tables = queues.connect()?;
    let last = "SELECT coalesce(max(number), 0) FROM sent_orders";
    let last: i64 = tables.query_row(last, (), |row| row.get(0))?;
    for number in last + 1..=messages {
        // Every fifth one is large.
        let width = if number % 5 == 0 { 20_000 } else { 0 };
        let body = format!("{number:<width$}");
        if number % 2 == 0 {
            // The application's own transaction sends.
            let transaction = tables.transaction()?;
            transaction.execute(INSERT_SENT, [number])?;
            queues.send_in(&transaction, to, body)?;
            transaction.commit()?;
            queues.committed();
        } else {
            // The transaction of the queue writes the application's row.
            let mut transaction = queues.begin_with(TIMEOUT)?;
            transaction.send(to, body)?;
            commit(transaction, INSERT_SENT, number).await?;
        }
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Moves each message of the inbox into `received_orders`, in one transaction.
async fn receive_all(queues: &QueueManager, mut wakes: impl WakeStream) -> Result<()> {
    while let Some(wake) = wakes.next().await {
        wake?;
        loop {
            let mut transaction = queues.begin_with(TIMEOUT)?;
            let Some(message) = transaction.receive("inbox").await? else {
                break;
            };
            let number: i64 = std::str::from_utf8(&message.body)?.trim_end().parse()?;
            commit(transaction, INSERT_RECEIVED, number).await?;
        }
    }
    Ok(())
}

/// Commits what the transaction has sent and received, together with a row of the application.
async fn commit(transaction: Transaction, insert: &'static str, number: i64) -> Result<()> {
    let insert = transaction.commit_with(move |tables| tables.execute(insert, [number]));
    Ok(insert.await.map(drop)?)
}

/// Starts two machines, kills one of them at random times, and compares what they have received.
async fn kill_machines() -> Result<()> {
    let directories = [tempfile::tempdir()?, tempfile::tempdir()?];
    for directory in &directories {
        let file = directory.path().join("queues.db");
        let queues = QueueManager::open(file, QueueManagerConfig::default()).await?;
        create_queue_and_tables(&queues).await?;
    }
    let bind = || TcpListener::bind("127.0.0.1:0");
    let free = [bind()?, bind()?];
    let addresses = [free[0].local_addr()?, free[1].local_addr()?];
    drop(free);
    let start = |number: usize| {
        let (own, other) = (addresses[number], addresses[1 - number]);
        Command::new(std::env::current_exe()?)
            .arg(directories[number].path())
            .args([own.to_string(), other.to_string(), MESSAGES.to_string()])
            .stdin(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
    };
    let mut machines = [start(0)?, start(1)?];
    for _ in 0..KILLS {
        sleep(Duration::from_millis(fastrand::u64(100..500))).await;
        let number = fastrand::usize(..2);
        machines[number].kill().await?;
        sleep(Duration::from_millis(fastrand::u64(..300))).await;
        machines[number] = start(number)?;
    }
    for (number, directory) in directories.iter().enumerate() {
        let received = all_received(directory.path()).await?;
        let all: Vec<_> = (1..=MESSAGES).collect();
        assert_eq!(received, all, "lost, doubled or out of order");
        println!("machine {number} received {MESSAGES} messages, each once and in order");
    }
    Ok(())
}

/// Waits until a machine has received as many messages as were sent to it; returns their numbers.
async fn all_received(directory: &Path) -> Result<Vec<i64>> {
    for _ in 0..600 {
        let numbers = received(directory)?;
        if numbers.len() as i64 >= MESSAGES {
            return Ok(numbers);
        }
        sleep(Duration::from_millis(100)).await;
    }
    Err("some messages have not arrived within a minute".into())
}

fn received(directory: &Path) -> Result<Vec<i64>> {
    let tables = Connection::open(directory.join("queues.db"))?;
    let mut select = tables.prepare("SELECT number FROM received_orders ORDER BY place")?;
    let numbers = select.query_map((), |row| row.get(0))?;
    Ok(numbers.collect::<std::result::Result<_, _>>()?)
}
