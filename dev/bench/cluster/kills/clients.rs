//! The clients of `kills`: a publisher at each relay, and the subscribers of all queues.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use reveille::{
    Client, ClientConfig, ConnectionState, ListenerId, Notification, Publisher, PublisherOptions,
    QueueAddress, Selector, SubscribeOptions, Subscription, WakeReason,
};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

use super::{super::super::wall_nanos::nanos, ledger::Ledger};

/// The ledger that all clients share.
#[derive(Debug, Clone)]
pub(super) struct SharedLedger(Arc<Mutex<Ledger>>);

/// The clients' tasks. They are aborted when this is dropped.
pub(super) struct Clients {
    publishers: JoinSet<Result<()>>,
    subscribers: JoinSet<Result<()>>,
    /// Ends the publishers.
    stop: CancellationToken,
}

/// A notification that is not acknowledged by then is not judged. It is shorter than the time after
/// which its queue is notified again.
const DEADLINE: Duration = Duration::from_secs(10);
/// Longest wait of a client before it connects again. The default is 10 s, and so is the age at which a
/// stream counts as stable: then a client whose relay is killed again and again would wait long.
const SHORT_WAIT: Duration = Duration::from_secs(1);

/// Queues that are notified in one call before the kills.
const ANNOUNCED: usize = 1_000;

impl SharedLedger {
    /// Creates the ledger of two subscribers for each relay, in the order of [`targets`].
    pub(super) fn new(queues: usize, relays: &[String], slack: Duration) -> Self {
        let subscribers = targets(relays).into_iter().map(|(name, _)| name).collect();
        let slack = u64::try_from(slack.as_nanos()).unwrap_or(u64::MAX);
        Self(Arc::new(Mutex::new(Ledger::new(
            queues,
            subscribers,
            slack,
        ))))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().expect("no panic under this lock")
    }
}

/// Returns the name and the URLs of each subscriber: one at each relay, and as many that go to another
/// relay when theirs is gone.
fn targets(relays: &[String]) -> Vec<(String, String)> {
    let fixed = relays.iter().zip(1..);
    let fixed = fixed.map(|(url, number)| (format!("subscriber of relay-{number}"), url.clone()));
    let moving =
        (1..=relays.len()).map(|number| (format!("moving subscriber {number}"), relays.join(",")));
    fixed.chain(moving).collect()
}

fn client(relays: &str) -> Result<Client> {
    let config = ClientConfig {
        reconnect_max: SHORT_WAIT,
        ..ClientConfig::default()
    };
    Ok(Client::with_config(relays, config)?)
}

impl Clients {
    /// Starts the subscribers, waits until they have streams, and starts the publishers.
    pub(super) async fn start(ledger: &SharedLedger, relays: &[String], rate: u64) -> Result<Self> {
        let mut clients = Self {
            publishers: JoinSet::new(),
            subscribers: JoinSet::new(),
            stop: CancellationToken::new(),
        };
        for (number, (name, target)) in targets(relays).into_iter().enumerate() {
            let id = ListenerId::new(&format!("bench-{number}"))?;
            let queues: Selector = "bench/k*".parse()?;
            let client = client(&target)?;
            let stream = client.subscribe(SubscribeOptions::new(id, [queues]))?;
            let mut link = stream.link();
            let ledger = ledger.clone();
            clients
                .subscribers
                .spawn(listen(stream, number, name, ledger));
            link.wait_for(|link| link.welcomes > 0).await?;
        }
        let queues = ledger.lock().queues();
        announce(&relays[0], queues).await?;
        for (number, relay) in relays.iter().enumerate() {
            let publisher = client(relay)?.publisher_with(PublisherOptions {
                name: format!("publisher-{}", number + 1),
                conflate: false,
                batch: 1,
                pipeline: 256,
                deadline: DEADLINE,
                ..PublisherOptions::default()
            });
            let share = (number, relays.len(), rate);
            let (ledger, stop) = (ledger.clone(), clients.stop.clone());
            clients
                .publishers
                .spawn(publish(publisher, share, ledger, stop));
        }
        Ok(clients)
    }

    /// Returns the error of a client that has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        for tasks in [&mut self.publishers, &mut self.subscribers] {
            if let Some(ended) = tasks.try_join_next() {
                ended??;
            }
        }
        Ok(())
    }

    /// Ends the publishers, and waits for their acknowledgements.
    pub(super) async fn stop_publishers(&mut self) -> Result<()> {
        self.stop.cancel();
        while let Some(ended) = self.publishers.join_next().await {
            ended??;
        }
        Ok(())
    }
}

/// Notifies each queue once, so that all relays know its name. A missed frame of an unknown queue is a
/// check of all that a pattern matches.
async fn announce(relay: &str, queues: usize) -> Result<()> {
    let publisher = client(relay)?.publisher("announcer");
    for first in (0..queues).step_by(ANNOUNCED) {
        let some = first..queues.min(first + ANNOUNCED);
        let all = some.map(|queue| Ok(Notification::new(address(queue)?)));
        publisher.notify_all(all.collect::<Result<_>>()?).await?;
    }
    Ok(())
}

fn address(queue: usize) -> Result<QueueAddress> {
    Ok(QueueAddress::new("bench", &format!("k{queue:06}"))?)
}

/// One publisher: sends its share of the notifications at the rate of all, each to the next queue.
async fn publish(
    publisher: Publisher,
    (number, publishers, rate): (usize, usize, u64),
    ledger: SharedLedger,
    stop: CancellationToken,
) -> Result<()> {
    let queues = ledger.lock().queues();
    let share = rate as f64 / publishers as f64;
    let began = Instant::now();
    let mut ticks = tokio::time::interval(Duration::from_millis(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let (mut waiting, mut count) = (JoinSet::new(), 0);
    while !stop.is_cancelled() {
        ticks.tick().await;
        let due = began.elapsed().as_secs_f64() * share;
        while (count as f64) < due {
            let queue = (count * publishers + number) % queues;
            let (publisher, ledger) = (publisher.clone(), ledger.clone());
            waiting.spawn(notify(publisher, number, queue, ledger));
            count += 1;
        }
        while waiting.try_join_next().transpose()?.transpose()?.is_some() {}
    }
    while let Some(done) = waiting.join_next().await {
        done??;
    }
    Ok(())
}

async fn notify(
    publisher: Publisher,
    number: usize,
    queue: usize,
    ledger: SharedLedger,
) -> Result<()> {
    let now = nanos(SystemTime::now());
    let address = address(queue)?;
    ledger.lock().sent(queue, number, now);
    let answer = publisher.notify(Notification {
        published_at: Some(UNIX_EPOCH + Duration::from_nanos(now)),
        ..Notification::new(address)
    });
    let answer = answer.await;
    let now = nanos(SystemTime::now());
    match answer {
        Ok(_) => ledger.lock().acknowledged(queue, now),
        Err(_) => ledger.lock().unanswered(queue),
    }
    Ok(())
}

/// One subscriber: notes each wake-up, and each change of its stream.
async fn listen(
    mut stream: Subscription,
    number: usize,
    name: String,
    ledger: SharedLedger,
) -> Result<()> {
    let mut link = stream.link();
    loop {
        tokio::select! {
            work = stream.next() => {
                let work = work.context("no more wake-ups")??;
                let now = nanos(SystemTime::now());
                let queue = work.queue.as_address();
                let queue = queue.and_then(|queue| queue.queue_name().strip_prefix('k')?.parse().ok());
                let published_at = work.published_at.map_or(0, nanos);
                match (work.reason, queue) {
                    (WakeReason::Notified, Some(queue)) => {
                        ledger.lock().notified(number, queue, published_at, now);
                    }
                    (WakeReason::Notified | WakeReason::CatchUp, queue) => {
                        ledger.lock().catch_up(number, queue, now);
                    }
                    _ => {}
                }
            }
            Ok(()) = link.changed() => {
                let state = *link.borrow_and_update();
                let text = match state.connection {
                    ConnectionState::Connected if state.degraded => "has a degraded stream",
                    ConnectionState::Connected => "has a stream",
                    _ => "has no stream",
                };
                ledger.lock().event(nanos(SystemTime::now()), format!("{name} {text}"));
            }
        }
    }
}
