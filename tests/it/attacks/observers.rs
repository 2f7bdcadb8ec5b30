//! Very many observers of one flag, and very many acknowledgements.

use std::sync::atomic::{AtomicUsize, Ordering};

use prost::Message as _;
use reveille::{FlagEvent, FlagName, ListenerId, UnleashOptions};

use super::{
    harness::Trial,
    peer::{Peer, Unfinished, status},
    target::Scheme,
};
use crate::support::within;

const WATCH: &str = "/reveille.v1.Flags/WatchFlag";
const ACK: &str = "/reveille.v1.Flags/AckFlag";
const OBSERVERS: usize = 10_000;
const ACKNOWLEDGEMENTS: usize = 5_000;
const AT_ONCE: usize = 100;

#[derive(Clone, PartialEq, prost::Message)]
struct WatchFlag {
    #[prost(string, tag = "1")]
    flag: String,
    #[prost(string, tag = "2")]
    listener_id: String,
    #[prost(bool, tag = "4")]
    acks: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct AckFlag {
    #[prost(string, tag = "1")]
    flag: String,
    #[prost(uint64, tag = "2")]
    generation: u64,
    #[prost(string, tag = "3")]
    listener_id: String,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledgements_under_ten_thousand_observers_delay_no_wake_up() {
    let mut trial = Trial::start(Scheme::Plain, &[]).await;
    let target = trial.target();
    let flag = FlagName::new("go").expect("a name");
    let mut observers = Vec::new();
    for _ in 0..OBSERVERS / 200 {
        let peer = Peer::connect(&target, 64 * 1024).await;
        let observe = WatchFlag {
            flag: flag.to_string(),
            listener_id: "observer".to_owned(),
            acks: true,
        };
        let observe = observe.encode_to_vec();
        for answer in peer
            .call_often(200, WATCH, || Unfinished::whole(&observe))
            .await
        {
            let answer = answer.expect("a stream");
            assert_eq!(status(&answer), None, "no error");
            observers.push(answer);
        }
    }
    let client = target.client();
    let id = ListenerId::new("counts").expect("a name");
    let mut counting = client.watch_flag(flag.clone(), id).with_acks();
    let options = UnleashOptions::default();
    let set = client
        .flags()
        .unleash(&flag, &options)
        .await
        .expect("no limit is reached");
    let attack = async move {
        let peer = Peer::connect(&target, 64 * 1024).await;
        for first in (0..ACKNOWLEDGEMENTS).step_by(AT_ONCE) {
            let number = AtomicUsize::new(first);
            let ack = || {
                let ack = AckFlag {
                    flag: flag.to_string(),
                    generation: set.flag.generation,
                    listener_id: number.fetch_add(1, Ordering::Relaxed).to_string(),
                };
                Unfinished::whole(&ack.encode_to_vec())
            };
            for answer in peer.call_often(AT_ONCE, ACK, ack).await {
                assert_eq!(status(&answer.expect("an answer")), None, "no error");
            }
        }
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(64 * 1024);
    let all = async {
        loop {
            let event = counting.next_event().await.expect("not closed");
            if let FlagEvent::Acks { acknowledged, .. } = event.expect("not refused")
                && acknowledged as usize == ACKNOWLEDGEMENTS
            {
                return;
            }
        }
    };
    within("the last count", all).await;
    drop(observers);
}
