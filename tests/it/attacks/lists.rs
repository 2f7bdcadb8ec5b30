//! Lists that are requested and not read.

use std::time::Duration;

use reveille::{Client, ListenerId, Selector, SubscribeOptions};

use super::{
    harness::Trial,
    peer::{Peer, Unfinished},
    target::{Scheme, Target, plain_and_tls},
};
use crate::{
    binary::Binary,
    support::{until, woken},
};

const LIST: &str = "/reveille.v1.Admin/ListListeners";

/// Subscribes with many long names; returns the streams, which must stay open.
pub(super) async fn crowd(
    target: &Target,
    listeners: usize,
    names: usize,
) -> Vec<reveille::Subscription> {
    let mut held = Vec::new();
    for listener in 0..listeners {
        // A separate client each: unread streams would fill a shared connection.
        let client = target.client();
        let name = |at: usize| -> Selector {
            let text = format!("{}/{listener}-{at}-{}", "a".repeat(100), "q".repeat(90));
            text.parse().expect("a selector")
        };
        let id = ListenerId::new(&format!("listener-{listener}")).expect("a name");
        let selectors: Vec<_> = (0..names).map(name).collect();
        let options = SubscribeOptions::new(id, selectors);
        let mut wakes = client.subscribe(options).expect("options");
        woken(&mut wakes).await;
        held.push(wakes);
    }
    held
}

plain_and_tls!(unread_answers_take_bounded_memory);

async fn unread_answers_take_bounded_memory(scheme: Scheme) {
    let mut trial = Trial::start(scheme, &[]).await;
    let held = crowd(&trial.target(), 12, 4000).await;
    let target = trial.target();
    let attack = async move {
        // With a window of one byte the relay starts to send and cannot continue.
        let peer = Peer::connect(&target, 1).await;
        let answers = peer.call_often(400, LIST, || Unfinished::whole(&[])).await;
        // Kept unread, while the good pair goes on.
        tokio::time::sleep(Duration::from_millis(500)).await;
        answers.len()
    };
    let (answers, damage) = trial.under(attack).await;
    assert_eq!(answers, 400);
    damage.is_within(96 * 1024);
    drop(held);
}

#[tokio::test]
async fn every_listener_is_listed_once_on_pages_of_bounded_size() {
    let relay = Binary::serve().await;
    let held = crowd(&Target::plain(&relay), 40, 1200).await;
    let client = Client::new(&relay.url()).expect("a URL");
    // The relay admits a stream in steps of 1,024 queues, and its first wake-up may come between two.
    let mut listed = Vec::new();
    until("all queues are admitted", async || {
        listed = client.listeners().await.expect("all pages").entries;
        listed.iter().all(|listener| listener.queues == 1200)
    })
    .await;
    listed.sort_by(|a, b| a.listener_id.cmp(&b.listener_id));
    listed.dedup_by(|a, b| a.listener_id == b.listener_id);
    assert_eq!(listed.len(), 40);
    for listener in &listed {
        let bytes: usize = listener.selectors.iter().map(String::len).sum();
        assert!((32 * 1024..=64 * 1024).contains(&bytes), "{bytes} bytes");
    }
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_lists_lock_no_operator_out() {
    let relay = Binary::serve().await;
    let held = crowd(&Target::plain(&relay), 4, 400).await;
    let target = Target::plain(&relay);
    let flags = "/reveille.v1.Flags/ListFlags";
    let queues = "/reveille.v1.Admin/ListQueues";
    // Large lists, more on one connection than the limit of all; and short ones of many.
    let greedy = Peer::connect(&target, 1).await;
    let mut unread = Vec::new();
    unread.extend(
        greedy
            .call_often(20, queues, || Unfinished::whole(&[]))
            .await,
    );
    for _ in 0..20 {
        let peer = Peer::connect(&target, 1).await;
        unread.extend(peer.call_often(2, flags, || Unfinished::whole(&[])).await);
    }
    let client = Client::new(&relay.url()).expect("a URL");
    assert_eq!(client.queues().await.expect("a list").len(), 1_600);
    assert_eq!(client.listeners().await.expect("a list").len(), 4);
    assert!(client.flags().list("").await.expect("a list").is_empty());
    drop((unread, held));
}
