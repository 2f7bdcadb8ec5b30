//! The limits of a Wake (R1: a Wake is bounded), and that no queue starves behind them.

use super::*;
use crate::types::Limits;

fn names(count: usize, width: usize) -> Vec<String> {
    let name = |i| format!("{i:0width$}");
    (0..count).map(name).collect()
}

fn settled_on(hub: &Arc<Hub>, names: &[String]) -> Arc<Subscription> {
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    settled(hub, &names)
}

/// Notifies all of them by a publisher of the given name.
fn notify_all(hub: &Hub, publisher: &str, names: &[String]) {
    let events: Vec<_> = names.iter().map(|name| notification(name)).collect();
    let accepted = hub.notify_all(&Arc::from(publisher), &events, Tick::default());
    accepted.expect("accepted");
}

#[test]
fn a_wake_holds_at_most_256_entries_and_the_rest_comes_in_the_next() {
    let (hub, names) = (hub(), names(600, 4));
    let subscription = settled_on(&hub, &names);
    notify_all(&hub, "", &names);
    let wakes: Vec<_> = std::iter::from_fn(|| take(&subscription, Tick::default())).collect();
    assert!(wakes.iter().all(|wake| wake.len() <= Limits::WAKE_ENTRIES));
    let told = entries(&wakes.concat());
    assert_eq!(told.len(), 600);
    assert!(told.windows(2).all(|two| two[0] < two[1]), "each once");
}

#[test]
fn a_wake_holds_at_most_32_kib() {
    let (hub, names) = (hub(), names(200, 128));
    let subscription = settled_on(&hub, &names);
    notify_all(&hub, &"p".repeat(128), &names);
    let wakes: Vec<_> = std::iter::from_fn(|| take(&subscription, Tick::default())).collect();
    assert!(wakes.len() > 1);
    for wake in &wakes {
        let bytes: usize = wake.iter().map(WorkDetected::encoded_at_most).sum();
        assert!(bytes <= Limits::WAKE_BYTES, "{bytes}");
    }
    assert_eq!(wakes.concat().len(), 200);
}

#[test]
fn many_patterns_are_caught_up_over_several_wakes() {
    let (hub, mut patterns) = (hub(), names(256, 100));
    patterns.iter_mut().for_each(|name| name.push('*'));
    let patterns: Vec<_> = patterns.iter().map(String::as_str).collect();
    let subscription = subscribe(&hub, &patterns);
    let wakes: Vec<_> = std::iter::from_fn(|| take(&subscription, Tick::default())).collect();
    assert!(wakes.iter().all(|wake| wake.len() <= Limits::WAKE_ENTRIES));
    let told = entries(&wakes.concat());
    assert!(wakes.len() > 1 && told.len() == 256);
    assert!(told.windows(2).all(|two| two[0] < two[1]), "each once");
}

/// Entries of these tests' queues that fit into one wake.
const FULL: usize = Limits::WAKE_BYTES / 160;

/// Keeps all queues busy. Each of them must be sent within the number of wakes that hold all of
/// them, plus one.
fn assert_no_queue_starves(count: usize) {
    let (hub, names) = (hub(), names(count, 5));
    let subscription = settled_on(&hub, &names);
    let mut told = std::collections::HashSet::new();
    for _ in 0..=count.div_ceil(FULL) {
        for batch in names.chunks(Limits::EVENTS) {
            notify_all(&hub, "", batch);
        }
        let wake = take(&subscription, Tick::default()).expect("owed");
        told.extend(wake.into_iter().map(|entry| entry.queue));
    }
    assert_eq!(told.len(), count);
}

#[test]
fn with_more_hot_queues_than_a_wake_holds_no_queue_starves() {
    assert_no_queue_starves(257);
    assert_no_queue_starves(1000);
}

#[test]
fn with_many_hot_queues_behind_each_mark_no_queue_starves() {
    // As many as a subscription may name, and then further ones by a pattern.
    assert_no_queue_starves(4096);
    let (hub, names) = (hub(), names(64 * 256 + 100, 5));
    let subscription = subscribe(&hub, &["*"]);
    for batch in names.chunks(Limits::EVENTS) {
        notify_all(&hub, "", batch);
    }
    let mut told = std::collections::HashSet::new();
    for _ in 0..=names.len().div_ceil(FULL) {
        // The first thousand are notified in every round.
        notify_all(&hub, "", &names[..1000]);
        let wake = take(&subscription, Tick::default()).expect("owed");
        told.extend(wake.into_iter().map(|entry| entry.queue));
    }
    assert_eq!(told.len(), names.len() + 1, "and the pattern's own");
}

#[test]
fn a_hot_queue_does_not_hide_a_seldom_notified_queue() {
    let (hub, names) = (hub(), names(1000, 4));
    let subscription = settled_on(&hub, &names);
    notify_all(&hub, "", &names[..1]);
    let rare = names[0].as_str();
    let heard = (0..5).any(|_| {
        notify_all(&hub, "", &names[1..]);
        let wake = take(&subscription, Tick::default()).expect("owed");
        wake.iter().any(|entry| entry.queue.queue_name() == rare)
    });
    assert!(heard);
}
