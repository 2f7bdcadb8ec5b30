//! C14: flags that are written through other relays.

use std::{sync::Arc, time::SystemTime};

use super::{
    super::{
        AckKey, Flags, FlagsConfig, document::blob_name, registry::WriteOutcome, writes::WriteGuard,
    },
    at, forever, listener, name, setup,
    stepped::SteppedStore,
    take_states, unleash, watch,
};
use crate::{
    base::clock::micros,
    store::BlobStore,
    types::{
        FlagState,
        cluster::{FlagHint, FlagSet},
    },
};

/// A relay on the same store, which announces its writes.
fn other(store: &SteppedStore) -> Flags {
    let flags = Flags::new(Arc::new(store.clone()), FlagsConfig::default());
    flags.hints();
    flags
}

/// Gives the hints of one relay to another.
async fn pass_on(from: &Flags, to: &Flags, wall: SystemTime) {
    let hints = from.hints().take().await;
    to.apply_hints(hints, wall).await.expect("a read");
}

fn sets(states: &[FlagState]) -> Vec<bool> {
    states.iter().map(|state| state.set).collect()
}

#[tokio::test]
async fn a_watcher_that_was_there_is_told_a_set_of_another_relay_that_is_over() {
    let (store, here) = setup();
    let there = other(&store);
    let waiting = watch(&here, "go").await;
    assert_eq!(sets(&take_states(&waiting)), [false]);
    unleash(&there, "go", &forever(), 10).await;
    there.leash(&name("go")).await.expect("leash");
    pass_on(&there, &here, at(60)).await;
    assert_eq!(sets(&take_states(&waiting)), [true, false]);
}

#[tokio::test]
async fn a_watcher_that_came_after_a_set_and_its_end_is_not_released_by_a_late_hint() {
    let (store, here) = setup();
    let there = other(&store);
    let early = watch(&here, "go").await;
    take_states(&early);
    unleash(&there, "go", &forever(), 10).await;
    there.leash(&name("go")).await.expect("leash");
    // The frame waits for the end of an outage. A node registers, and parks.
    let late = here.watch(&name("go"), listener("late"), false);
    late.sync(at(30)).await.expect("sync");
    assert_eq!(sets(&take_states(&late)), [false]);
    pass_on(&there, &here, at(60)).await;
    assert!(!sets(&take_states(&late)).contains(&true));
    assert_eq!(sets(&take_states(&early)), [true, false]);
}

#[tokio::test]
async fn a_late_hint_is_no_first_state_of_a_watcher_that_came_after_it() {
    let (store, here) = setup();
    let there = other(&store);
    let over = unleash(&there, "go", &forever(), 10).await;
    there.leash(&name("go")).await.expect("leash");
    let late = here.watch(&name("go"), listener("late"), false);
    late.sync(at(30)).await.expect("sync");
    // The hint counts before its read of the store ends.
    let go = name("go");
    let heard = WriteGuard::begin(&here.inner, &go);
    let told = heard.end(WriteOutcome::Heard(over)).wake_watchers();
    told.await;
    assert_eq!(take_states(&late), []);
    pass_on(&there, &here, at(60)).await;
    assert_eq!(sets(&take_states(&late)), [false]);
}

#[tokio::test]
async fn a_set_after_one_by_hand_is_newer_although_its_generation_is_less() {
    let (store, here) = setup();
    let there = other(&store);
    let by_hand = store.create(&blob_name(&name("go")), "x".into()).await;
    by_hand.expect("create");
    let waiting = watch(&here, "go").await;
    let by_hand = take_states(&waiting).pop().expect("a state");
    assert!(by_hand.generation >= FlagState::HASHES);
    there.leash(&name("go")).await.expect("leash");
    pass_on(&there, &here, at(5)).await;
    assert_eq!(sets(&take_states(&waiting)), [false]);
    let set = unleash(&there, "go", &forever(), 10).await;
    assert!(set.generation < by_hand.generation);
    there.leash(&name("go")).await.expect("leash");
    pass_on(&there, &here, at(11)).await;
    assert_eq!(sets(&take_states(&waiting)), [true, false]);
}

#[test]
fn hints_of_one_flag_keep_its_newest_set() {
    let set = |generation, second| {
        let state = FlagState {
            set: true,
            set_at: Some(at(second)),
            ..FlagState::unset(name("go"), generation)
        };
        FlagHint {
            name: name("go"),
            newest_set: Some(FlagSet::of(&state)),
            set_now: true,
        }
    };
    let cleared = FlagHint {
        name: name("go"),
        newest_set: None,
        set_now: false,
    };
    let mut hint = set(FlagState::HASHES + 7, 1);
    hint.merge(cleared.clone());
    assert_eq!(
        (hint.generation(), hint.set_now),
        (FlagState::HASHES + 7, false)
    );
    let later = micros(at(2));
    hint.merge(set(later, 2));
    assert_eq!((hint.generation(), hint.set_now), (later, true));
    hint.merge(cleared);
    assert_eq!((hint.generation(), hint.set_now), (later, false));
}

#[tokio::test]
async fn a_generation_is_greater_than_those_of_other_relays_that_were_heard() {
    let (store, here) = setup();
    let there = other(&store);
    let ahead = unleash(&there, "go", &forever(), 3).await;
    there.leash(&name("go")).await.expect("leash");
    // No stream watches the flag here.
    pass_on(&there, &here, at(0)).await;
    let behind = unleash(&here, "go", &forever(), 0).await;
    assert!(behind.generation > ahead.generation);
}

#[tokio::test]
async fn an_acknowledgement_of_a_set_that_this_relay_does_not_know_is_counted() {
    let (store, here) = setup();
    let there = other(&store);
    let set = unleash(&there, "go", &forever(), 0).await;
    // Nothing watches the flag here: the node's relay has ended, and it goes on without a watch.
    let ack = |generation| {
        let here = here.clone();
        async move {
            here.ack_any(&name("go"), generation, &listener("node"), at(1))
                .await
        }
    };
    ack(set.generation).await.expect("counted");
    ack(set.generation - 1)
        .await
        .expect("late, and not counted");
    let known = here.acks_of(&name("go"), set.generation, None::<AckKey>, 10);
    assert_eq!((known.acknowledged, known.watchers), (1, 0));
    assert!(here.observed().is_empty());
}

impl FlagHint {
    fn generation(&self) -> u64 {
        self.newest_set.as_ref().map_or(0, |set| set.generation)
    }
}
