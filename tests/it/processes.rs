//! One SQLite queue, and six processes that put into it at the same time.
//!
//! The processes are this test binary: each runs [`a_process_of_sixteen_putters`], which does
//! nothing unless it is told to.

use std::{
    env,
    path::Path,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use reveille::queue::{self, NewMessage};
use tokio::{process::Command, task::JoinSet};

const PROCESSES: usize = 6;
const PUTTERS: usize = 16;
/// The variable that names the queue to a process.
const QUEUE: &str = "REVEILLE_TEST_PUT_INTO";
const SPAN: Duration = Duration::from_secs(2);

/// What one process did.
#[derive(Debug)]
struct Share {
    puts: u64,
    slowest: Duration,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_process_of_sixteen_putters() {
    let Ok(url) = env::var(QUEUE) else { return };
    let queue = queue::open(&url).await.expect("a queue");
    let (puts, slowest) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let until = Instant::now() + SPAN;
    let mut putters = JoinSet::new();
    for _ in 0..PUTTERS {
        let (queue, puts, slowest) = (Arc::clone(&queue), Arc::clone(&puts), Arc::clone(&slowest));
        putters.spawn(async move {
            while Instant::now() < until {
                let began = Instant::now();
                let put = queue.put(vec![NewMessage::new("work")]).await;
                put.expect("put");
                let micros = u64::try_from(began.elapsed().as_micros()).expect("short");
                slowest.fetch_max(micros, Ordering::Relaxed);
                puts.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    putters.join_all().await;
    let (puts, slowest) = (
        puts.load(Ordering::Relaxed),
        slowest.load(Ordering::Relaxed),
    );
    println!("\nshare {puts} {slowest}");
}

async fn share(url: &str) -> Share {
    let program = env::current_exe().expect("its own path");
    let child = Command::new(program)
        .args([
            "processes::a_process_of_sixteen_putters",
            "--exact",
            "--nocapture",
        ])
        .env(QUEUE, url)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(SPAN * 12, child).await;
    let output = output.expect("it ends").expect("it starts");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let mut shares = stdout
        .lines()
        .filter_map(|line| line.strip_prefix("share "));
    let (puts, slowest) = shares
        .next()
        .and_then(|share| share.split_once(' '))
        .unwrap_or_else(|| panic!("{stdout}{}", String::from_utf8_lossy(&output.stderr)));
    Share {
        puts: puts.parse().expect("a number"),
        slowest: Duration::from_micros(slowest.parse().expect("a number")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn six_processes_put_into_one_file_by_turns() {
    // In memory where that is possible: what is measured is the lock, not the disk.
    let memory = Path::new("/dev/shm");
    let directory = match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    };
    let directory = directory.expect("a directory");
    let url = format!("sqlite:{}/jobs.db?queue=jobs", directory.path().display());
    let (queue, _) = queue::create(&url).await.expect("create");
    let shares = (0..PROCESSES).map(|_| share(&url));
    let shares = futures_util::future::join_all(shares).await;
    println!("{shares:#?}");
    let puts = shares.iter().map(|share| share.puts);
    let (least, most) = (puts.clone().min(), puts.clone().max());
    let (least, most) = (least.expect("six"), most.expect("six"));
    let slowest = shares.iter().map(|share| share.slowest).max();
    assert_eq!(queue.depth().await.expect("depth"), puts.sum::<u64>());
    // Some 30 ms where nothing else runs.
    let (slowest, limit) = (slowest.expect("six"), Duration::from_secs(1));
    assert!(slowest < limit, "{slowest:?}: {shares:?}");
    assert!(least * 3 > most, "unequal: {shares:?}");
}
