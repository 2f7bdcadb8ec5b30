//! The events of watchers, on a store that answers at once.

use crate::types::Drain;
use std::{sync::Arc, task::Waker, time::Duration};

use super::{
    super::{Flags, FlagsConfig, WatchStream, document::ended_name},
    at, forever, listener, name, setup,
    stepped::Failing,
    take_all, take_states, unleash, unleash_counted, watch,
};
use crate::{
    base::{clock::Tick, sync::lock},
    store::BlobStore as _,
    types::{FlagEvent, FlagName, FlagState, GoodbyeReason, StreamAction, StreamLifecycle},
};

#[tokio::test]
async fn a_store_that_cannot_be_read_ends_no_watch() {
    let (store, flags) = setup();
    let watch = flags.watch(&name("go"), listener("node-1"), false, at(0));
    store.fail(Failing::Denied);
    let error = watch.sync(at(0)).await.expect_err("failed");
    assert!(
        error.is_retryable(),
        "the watcher survives until the store recovers: {error:?}"
    );
    store.fail(Failing::Nothing);
    watch.sync(at(0)).await.expect("mended");
    assert_eq!(take_states(&watch).len(), 1);
}

#[tokio::test]
async fn a_watcher_first_receives_the_present_state_and_then_each_change() {
    let (_, flags) = setup();
    let early = flags.watch(&name("go"), listener("w"), false, at(0));
    assert_eq!(take_all(&early), [], "nothing is known yet");
    early.sync(at(0)).await.expect("sync");
    assert_eq!(take_states(&early), [FlagState::unset(name("go"), 0)]);
    let (set, told) = unleash_counted(&flags, "go", &forever(), 0).await;
    assert_eq!(told, 1);
    let late_error = watch(&flags, "go").await;
    assert_eq!(take_states(&early), std::slice::from_ref(&set));
    assert_eq!(take_states(&late_error), std::slice::from_ref(&set));
    let (cleared, _) = flags.leash(&name("go"), at(0)).await.expect("leash");
    assert_eq!(cleared.generation, set.generation);
    for watch in [&early, &late_error] {
        assert_eq!(take_states(watch), std::slice::from_ref(&cleared));
        assert_eq!(take_all(watch), []);
    }
}

#[tokio::test]
async fn a_refresh_finds_another_writers_change_and_sends_it_once() {
    let (store, flags) = setup();
    let elsewhere = Flags::new(Arc::new(store), FlagsConfig::default());
    let watch = watch(&flags, "go").await;
    take_states(&watch);
    let set = unleash(&elsewhere, "go", &forever(), 0).await;
    assert_eq!(take_states(&watch), []);
    for _ in 0..2 {
        flags.refresh(at(0)).await.expect("refresh");
    }
    assert_eq!(take_states(&watch), [set]);
    elsewhere.leash(&name("go"), at(0)).await.expect("leash");
    for _ in 0..2 {
        flags.refresh(at(0)).await.expect("refresh");
    }
    assert_eq!(take_states(&watch).len(), 1);
}

#[tokio::test]
async fn a_stream_sends_heartbeats_only_into_silence_and_ends_with_goodbye() {
    let (_, flags) = setup();
    let second = Duration::from_secs(1);
    let mut rng = fastrand::Rng::with_seed(7);
    let lifecycle = StreamLifecycle::new(second * 5, second * 3600, Tick::default(), &mut rng);
    let watch = flags.watch(&name("go"), listener("w"), false, at(0));
    let mut feed = WatchStream::new(watch, lifecycle);
    let tick = |seconds: u32| Tick::default() + second * seconds;
    let next = |feed: &mut WatchStream, seconds| feed.next(tick(seconds), None, Waker::noop());
    // A heartbeat would mean that no event is pending.
    assert!(matches!(next(&mut feed, 6), StreamAction::Wait(at) if at > tick(60)));
    feed.watch().sync(at(0)).await.expect("sync");
    assert!(matches!(next(&mut feed, 6), StreamAction::Send(FlagEvent::State(s)) if !s.set));
    assert_eq!(next(&mut feed, 10), StreamAction::Wait(tick(11)));
    assert_eq!(
        next(&mut feed, 11),
        StreamAction::Send(FlagEvent::Heartbeat)
    );
    unleash(&flags, "go", &forever(), 0).await;
    assert!(matches!(next(&mut feed, 16), StreamAction::Send(FlagEvent::State(s)) if s.set));
    assert_eq!(next(&mut feed, 16), StreamAction::Wait(tick(21)));
    flags.leash(&name("go"), at(0)).await.expect("leash");
    let mut drain = || feed.next(tick(17), Some(Drain::at_once(tick(17))), Waker::noop());
    assert!(
        matches!(drain(), StreamAction::Send(FlagEvent::State(s)) if !s.set),
        "pending events come first"
    );
    let goodbye = drain();
    assert!(
        matches!(goodbye, StreamAction::Send(FlagEvent::Goodbye(g)) if g.reason == GoodbyeReason::Draining)
    );
    assert_eq!(drain(), StreamAction::End);
}

#[tokio::test]
async fn unwatched_flags_are_forgotten_unless_they_expire_or_have_acknowledgements() {
    let (_, flags) = setup();
    for index in 0..100 {
        let flag = FlagName::new(&format!("flag-{index}")).expect("a name");
        flags
            .unleash(&flag, &forever(), at(0))
            .await
            .expect("unleash");
        drop(watch(&flags, flag.as_str()).await);
        flags.leash(&flag, at(0)).await.expect("leash");
    }
    let registry = format!("{:?}", *lock(&flags.inner.registry));
    assert!(registry.contains("entries: {}, idle: []"), "{registry}");
}

#[tokio::test]
async fn a_set_that_the_store_has_forgotten_releases_no_new_watcher() {
    let (store, flags) = setup();
    let early = watch(&flags, "go").await;
    unleash(&flags, "go", &forever(), 0).await;
    flags.leash(&name("go"), at(1)).await.expect("leash");
    let sets = |states: Vec<FlagState>| states.iter().map(|state| state.set).collect::<Vec<_>>();
    assert_eq!(sets(take_states(&early)), [true, false]);
    let ended = ended_name(&name("go"));
    assert!(store.delete(&ended, None).await.expect("it was there"));
    let late = watch(&flags, "go").await;
    assert_eq!(sets(take_states(&late)), [false]);
    assert_eq!(take_states(&early), []);
    // A later set is told to both.
    unleash(&flags, "go", &forever(), 2).await;
    flags.leash(&name("go"), at(3)).await.expect("leash");
    assert_eq!(sets(take_states(&late)), [true, false]);
    assert_eq!(sets(take_states(&early)), [true, false]);
}
