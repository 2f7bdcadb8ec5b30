//! The table of `docs/polling.md`: the calls of a polling loop and of a listener to a queue,
//! counted by running both through the same hours.

use std::{env, fs};

use super::*;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/polling.md");
const BEGIN: &str = "<!-- transactions: written by the test -->\n";
const END: &str = "<!-- end of transactions -->";
/// The messages of an hour, with the row's label.
const HOURS: [(&str, usize); 3] = [
    ("nothing comes", 0),
    ("one message", 1),
    ("a batch of 1,000", 1_000),
];

/// How the queue is read.
#[derive(Debug, Clone, Copy)]
enum Reader {
    /// This many polling loops, as on the page.
    Loops(usize),
    /// A listener with the defaults.
    Listener,
}

/// The polling loop of the page.
async fn poll(queue: Arc<dyn WorkQueue>) -> crate::Result<()> {
    loop {
        let batch = queue.get(16, Duration::from_secs(30)).await?;
        if batch.is_empty() {
            seconds(1).await;
        }
        for message in batch {
            handle().await;
            queue.delete(&message.receipt).await?;
        }
    }
}

async fn handle() {
    millis(10).await;
}

/// Runs an hour with this many messages; returns the calls to the queue.
async fn hour(reader: Reader, messages: usize) -> QueueUsage {
    let bench = Bench::new();
    let mut loops = tokio::task::JoinSet::new();
    let listener = match reader {
        Reader::Listener => {
            let handler = async |_: Delivery| {
                handle().await;
                HandlerResult::Ok(())
            };
            let started = bench.pushed(config()).start(handler).await;
            Some(started.expect("started"))
        }
        Reader::Loops(count) => {
            for _ in 0..count {
                loops.spawn(poll(Arc::clone(&bench.queue) as Arc<dyn WorkQueue>));
            }
            None
        }
    };
    // A starting listener polls once; after that only the hour's messages cause calls.
    millis(5_500).await;
    let before = bench.usage();
    if messages > 0 {
        bench.put(&vec!["work"; messages]).await;
        bench.notify().await;
    }
    seconds(3600).await;
    assert_eq!(bench.depth().await, 0, "all of it was handled");
    drop(listener);
    bench.usage().since(&before)
}

fn thousands(number: u64) -> String {
    match (number / 1000, number % 1000) {
        (0, ones) => ones.to_string(),
        (thousands, ones) => format!("{thousands},{ones:03}"),
    }
}

async fn table() -> String {
    let mut table =
        "| an hour in which | one loop | ten loops | a listener | of these empty gets |\n\
                     |---|---|---|---|---|\n"
            .to_owned();
    for (what, messages) in HOURS {
        let one = hour(Reader::Loops(1), messages).await;
        let ten = hour(Reader::Loops(10), messages).await;
        let listener = hour(Reader::Listener, messages).await;
        let [one, ten, all, empty] = [
            one.total(),
            ten.total(),
            listener.total(),
            listener.empty_gets,
        ]
        .map(thousands);
        table += &format!("| {what} | {one} | {ten} | {all} | {empty} |\n");
    }
    table
}

#[tokio::test(start_paused = true)]
async fn the_page_on_polling_has_the_counted_figures() {
    let page = fs::read_to_string(PAGE).expect("the page is there");
    let (before, rest) = page.split_once(BEGIN).expect("the table has its place");
    let (_, after) = rest.split_once(END).expect("the table has its end");
    let fresh = format!("{before}{BEGIN}{}{END}{after}", table().await);
    if env::var_os("REVEILLE_BLESS").is_some() {
        fs::write(PAGE, fresh).expect("the page can be written");
    } else {
        assert_eq!(page, fresh, "write it anew with REVEILLE_BLESS=1");
    }
}

/// Counts the calls of fifty sleeping listeners to their queue for one message.
async fn fifty(config: &ListenerConfig, share: bool) -> u64 {
    let (bench, mut listeners) = (Bench::new(), Vec::new());
    for number in 0..50 {
        let id = ListenerId::new(&format!("worker-{number}")).expect("a name");
        let mut options = config.subscription(id, &*bench.queue);
        if !share {
            options.group = None;
        }
        let wakes = bench.relay.subscribe(options).expect("subscribed");
        let builder = bench.pulling().config(config.clone()).wakes(wakes);
        let handler = async |_: Delivery| HandlerResult::Ok(());
        listeners.push(builder.start(handler).await.expect("started"));
    }
    seconds(10).await;
    let before = bench.usage();
    for _ in 0..10 {
        bench.put(&["job"]).await;
        bench.notify().await;
        seconds(5).await;
    }
    assert_eq!(bench.depth().await, 0);
    let used = bench.usage().since(&before);
    (used.total() - used.puts) / 10
}

#[tokio::test(start_paused = true)]
async fn fifty_listeners_ask_no_more_of_a_queue_than_one() {
    let config = ListenerConfig {
        dequeue_batch_size: 1,
        ..config()
    };
    assert!(fifty(&config, true).await <= 4);
    assert!(fifty(&config, false).await >= 50, "each of them polls");
}
