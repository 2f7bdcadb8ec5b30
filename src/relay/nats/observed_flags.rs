//! C14: while acknowledgements are counted here, those that other relays have are added.

use std::{collections::HashMap, time::Duration};

use tokio::time::{MissedTickBehavior, interval};

use crate::{
    coordination::flag::{AckKey, Flags},
    relay::runtime::{Relay, SilentRelays},
    types::{FlagName, cluster::LifeId},
    wire::link::{AcknowledgementsRequest, peer_reply::Answer, peer_request::Call},
};

/// A relay asks twice a second.
const EVERY: Duration = Duration::from_millis(500);
const WITHIN: Duration = Duration::from_secs(1);
/// Keys of one reply: 56 KiB.
const PAGE: u32 = 7_000;

/// The acknowledgements that a relay had at the last request, of one flag and generation.
type Counted = HashMap<(LifeId, FlagName), (u64, u32)>;

/// Adds the acknowledgements and the watchers of the other relays to the flags whose
/// acknowledgements are counted here.
pub(super) async fn add_acknowledgements(relay: Relay, flags: Flags) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut counted = Counted::new();
    loop {
        ticks.tick().await;
        let observed = flags.observed();
        counted
            .retain(|(_, name), (generation, _)| observed.contains(&(name.clone(), *generation)));
        for (name, generation) in observed {
            add_of(&relay, &flags, &name, generation, &mut counted).await;
        }
    }
}

/// Adds the acknowledgements of one flag.
async fn add_of(
    relay: &Relay,
    flags: &Flags,
    name: &FlagName,
    generation: u64,
    counted: &mut Counted,
) {
    let call = request(name, generation, None, 0);
    let mut silent = SilentRelays::default();
    let all = relay.ask_all(call, WITHIN, &mut silent).await;
    let mut watchers = 0_u32;
    for (peer, answer) in all {
        let Answer::Acknowledgements(numbers) = answer else {
            continue;
        };
        watchers = watchers.saturating_add(numbers.watchers);
        let known = (generation, numbers.acknowledged);
        let key = (peer.life, name.clone());
        if numbers.acknowledged == 0 || counted.get(&key) == Some(&known) {
            continue;
        }
        if add_pages(relay, flags, name, generation, peer.life).await {
            counted.insert(key, known);
        }
    }
    flags.set_remote_watchers(name, watchers);
}

/// Adds all acknowledgements of one relay. Returns whether all pages were read.
async fn add_pages(
    relay: &Relay,
    flags: &Flags,
    name: &FlagName,
    generation: u64,
    life: LifeId,
) -> bool {
    let mut after = None;
    loop {
        let call = request(name, generation, after, PAGE);
        let Some(Answer::Acknowledgements(page)) = relay.ask(life, call, WITHIN).await else {
            return false;
        };
        let keys: Vec<AckKey> = page.keys.iter().copied().map(AckKey).collect();
        flags.add_acks(name, generation, &keys);
        match page.keys.last() {
            Some(last) if Some(*last) > after && page.keys.len() >= PAGE as usize => {
                after = Some(*last);
            }
            _ => return true,
        }
    }
}

fn request(name: &FlagName, generation: u64, after: Option<u64>, max_keys: u32) -> Call {
    Call::Acknowledgements(AcknowledgementsRequest {
        flag: name.to_string(),
        generation,
        after,
        max_keys,
    })
}
