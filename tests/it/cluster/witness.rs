//! A subscriber that keeps the times of its wake-ups, and a publisher that keeps those of its
//! confirmations.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use reveille::{Client, Notification, WakeReason};
use tokio::task::JoinSet;

use crate::support::{listening, queue, until};

/// A subscription of several queues, with all of its wake-ups.
pub(super) struct Witness {
    seen: Arc<Mutex<Vec<Seen>>>,
    _reader: JoinSet<()>,
}

/// A wake-up.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    queue: String,
    pub(super) reason: WakeReason,
    pub(super) at: Instant,
}

/// A notification that a relay has confirmed.
#[derive(Debug)]
pub(super) struct Confirmed {
    pub(super) queue: String,
    /// Before the first try.
    pub(super) began: Instant,
    pub(super) confirmed: Instant,
}

/// What a machine that compiles at the same time adds to a bound of docs/cluster.md.
pub(super) const SLACK: Duration = Duration::from_secs(2);

/// Returns the names of this many queues.
pub(super) fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count)
        .map(|number| format!("acct/{prefix}-{number}"))
        .collect()
}

impl Witness {
    /// Subscribes at a relay, and waits for the first wake-up of each queue.
    pub(super) async fn of(url: &str, id: &str, queues: &[String]) -> Self {
        let client = Client::new(url).expect("a URL");
        let texts: Vec<_> = queues.iter().map(String::as_str).collect();
        let mut wakes = client.subscribe(listening(id, &texts)).expect("options");
        let seen = Arc::<Mutex<Vec<Seen>>>::default();
        let mut reader = JoinSet::new();
        let kept = Arc::clone(&seen);
        reader.spawn(async move {
            while let Some(Ok(work)) = wakes.next().await {
                let work = Seen {
                    queue: format!("acct/{}", work.queue.queue_name()),
                    reason: work.reason,
                    at: Instant::now(),
                };
                kept.lock().expect("no test panics with it").push(work);
            }
        });
        let witness = Self {
            seen,
            _reader: reader,
        };
        for name in queues {
            until(name, async || {
                witness.seen().iter().any(|s| s.queue == *name)
            })
            .await;
        }
        witness
    }

    /// Returns the first wake-up of a queue since this time.
    pub(super) async fn told(&self, queue: &str, since: Instant) -> Seen {
        let mut found = None;
        until(queue, async || {
            let seen = self.seen();
            found = seen
                .iter()
                .find(|s| s.queue == queue && s.at >= since)
                .cloned();
            found.is_some()
        })
        .await;
        found.expect("found")
    }

    /// Returns whether a queue had a wake-up since this time.
    pub(super) fn was_told(&self, queue: &str, since: Instant) -> bool {
        let seen = self.seen();
        seen.iter().any(|s| s.queue == queue && s.at >= since)
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("no test panics with it").clone()
    }
}

/// Notifies each queue once, with pauses, and repeats each until a relay has confirmed it.
pub(super) async fn publish(
    client: Client,
    queues: Vec<String>,
    pause: Duration,
) -> Vec<Confirmed> {
    let publisher = client.publisher("tests");
    let mut all = Vec::new();
    for name in queues {
        let began = Instant::now();
        while publisher
            .notify(Notification::new(queue(&name)))
            .await
            .is_err()
        {}
        all.push(Confirmed {
            queue: name,
            began,
            confirmed: Instant::now(),
        });
        tokio::time::sleep(pause).await;
    }
    all
}

/// Checks that a witness was told of each notification within `bound` after its confirmation, or
/// after `healed` where that is later.
pub(super) async fn all_are_told(
    witness: &Witness,
    all: &[Confirmed],
    healed: Instant,
    bound: Duration,
) {
    for one in all {
        let told = witness.told(&one.queue, one.began).await;
        let late = told.at.saturating_duration_since(one.confirmed.max(healed));
        assert!(
            late <= bound + SLACK,
            "{one:?} told {late:?} late: {told:?}"
        );
    }
}
