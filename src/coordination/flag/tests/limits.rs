//! The cost of many flags, names, acknowledgements and observers.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use super::{
    super::{Flags, FlagsConfig, WallClock, WatchGuard, document::blob_name, start},
    at, forever, lasting, listener, name,
    stepped::SteppedStore,
    take_all, take_states, unleash, unleash_counted, with,
};
use crate::{
    base::{sync::lock, task::Scope},
    error::ErrorKind,
    store::BlobStore,
    types::FlagEvent,
};

/// Counts its wakes.
#[derive(Debug, Default)]
struct Counter(AtomicUsize);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn a_watch_beyond_the_limit_is_refused_and_the_others_go_on() {
    let (_, flags) = with(FlagsConfig {
        max_watched_flags: 2,
        ..FlagsConfig::default()
    });
    let watch = |flag: &str| flags.watch_within_limit(&name(flag), listener("w"), false, at(0));
    let (one, two) = (watch("one").expect("room"), watch("two").expect("room"));
    let error = watch("three").expect_err("one too many");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    let message = error.to_string();
    assert!(
        message.contains("the limit is 2 watched flags"),
        "{message}"
    );
    drop(watch("one").expect("watched already"));
    let registry = format!("{:?}", *lock(&flags.inner.registry));
    assert!(!registry.contains("three"), "{registry}");

    one.sync(at(0)).await.expect("sync");
    let (set, watchers) = unleash_counted(&flags, "one", &forever(), 0).await;
    assert_eq!(watchers, 1);
    assert_eq!(take_states(&one).last(), Some(&set));
    // An unwatched name frees its room at once.
    drop(two);
    drop(watch("three").expect("room again"));
}

#[tokio::test]
async fn a_set_flag_beyond_the_limit_is_refused_and_the_others_go_on() {
    let config = FlagsConfig {
        max_flags: 2,
        ..FlagsConfig::default()
    };
    let (store, flags) = with(config);
    let try_unleash =
        async |flag: &str, time| flags.unleash(&name(flag), &forever(), at(time)).await;
    try_unleash("one", 0).await.expect("room");
    let (two, _) = try_unleash("two", 0).await.expect("room");
    let error = try_unleash("three", 0).await.expect_err("one too many");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    let message = error.to_string();
    assert!(message.contains("the limit is 2 set flags"), "{message}");
    assert!(store.peek(&blob_name(&name("three"))).is_none());
    let (again, _) = try_unleash("two", 5).await.expect("set already");
    assert_eq!(again.generation, two.generation);

    flags.leash(&name("one"), at(0)).await.expect("leash");
    try_unleash("three", 0).await.expect("room again");
    // Another program clears a flag. The next refresh finds it, although no flag is watched.
    try_unleash("four", 0).await.expect_err("one too many");
    store
        .delete(&blob_name(&name("three")), None)
        .await
        .expect("delete");
    flags.refresh(at(1)).await.expect("refresh");
    unleash(&flags, "four", &lasting(5), 1).await;
    flags.expire(at(10)).await.expect("expire");
    try_unleash("five", 10).await.expect("room again");

    // A new relay process finds the store's flags.
    let next = Flags::new(Arc::new(store.clone()), config);
    next.recover(at(11)).await.expect("recover");
    let error = next.unleash(&name("six"), &forever(), at(11)).await;
    assert_eq!(error.expect_err("full").kind(), ErrorKind::Exhausted);
}

#[tokio::test]
async fn all_expired_flags_are_removed_also_when_many_are_not_watched() {
    let (store, flags) = with(FlagsConfig::default());
    for index in 0..2_000 {
        let flag = name(&format!("flag-{index}"));
        flags
            .unleash(&flag, &lasting(1), at(0))
            .await
            .expect("unleash");
    }
    flags.expire(at(2)).await.expect("expire");
    for index in 0..2_000 {
        let blob = blob_name(&name(&format!("flag-{index}")));
        assert!(store.peek(&blob).is_none(), "{blob}");
    }
    let registry = format!("{:?}", *lock(&flags.inner.registry));
    assert!(
        registry.contains("entries: {}, idle: [], expiries: {}"),
        "{registry}"
    );
}

#[tokio::test]
async fn many_watched_flags_are_refreshed_by_one_list_of_the_store() {
    const NAMES: usize = 2_500;
    let (store, flags) = with(FlagsConfig::default());
    let elsewhere = Flags::new(Arc::new(store.clone()), FlagsConfig::default());
    let set = async |flag: usize| {
        let flag = name(&format!("flag-{flag}"));
        elsewhere.unleash(&flag, &forever(), at(0)).await
    };
    for flag in 0..1_200 {
        set(flag).await.expect("unleash");
    }
    let mut watches = Vec::new();
    for flag in 0..NAMES {
        let watch = flags.watch(&name(&format!("flag-{flag}")), listener("w"), false, at(0));
        watch.sync(at(0)).await.expect("sync");
        assert_eq!(take_states(&watch).len(), 1);
        watches.push(watch);
    }
    store.take_calls();
    flags.refresh(at(10)).await.expect("refresh");
    assert_eq!(store.take_calls(), (0, 2), "two pages, and no read");

    elsewhere
        .leash(&name("flag-7"), at(0))
        .await
        .expect("leash");
    set(2_000).await.expect("unleash");
    store.take_calls();
    flags.refresh(at(20)).await.expect("refresh");
    let reads = "both blobs of two flags, and again the newest end of the unset one";
    assert_eq!(store.take_calls(), (5, 2), "{reads}");
    let told: Vec<_> = watches.iter().flat_map(take_states).collect();
    let told: Vec<_> = told.iter().map(|s| (s.name.as_str(), s.set)).collect();
    assert_eq!(told, [("flag-7", false), ("flag-2000", true)]);
}

/// Polls a future to its end. No other actor runs.
fn finish<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
    }
}

#[test]
fn a_list_older_than_a_local_write_or_a_newer_read_changes_nothing() {
    for read in [false, true] {
        let store = SteppedStore::with_few_steps();
        let config = FlagsConfig::default();
        let flags = Flags::new(Arc::new(store.clone()), config);
        let watch = flags.watch(&name("go"), listener("w"), false, at(0));
        finish(watch.sync(at(0))).expect("sync");
        assert!(!take_states(&watch)[0].set);

        // The list has read the unset flag, but its answer has not arrived.
        let mut refresh = pin!(flags.refresh(at(1)));
        let mut context = Context::from_waker(Waker::noop());
        assert!(refresh.as_mut().poll(&mut context).is_pending());
        let late = if read {
            let elsewhere = Flags::new(Arc::new(store.clone()), config);
            finish(elsewhere.unleash(&name("go"), &forever(), at(1))).expect("unleash");
            let late = flags.watch(&name("go"), listener("late"), false, at(0));
            finish(late.sync(at(1))).expect("sync");
            Some(late)
        } else {
            finish(flags.unleash(&name("go"), &forever(), at(1))).expect("unleash");
            None
        };
        finish(refresh).expect("refresh");
        let told = take_states(&watch);
        assert!(told.iter().all(|state| state.set), "{read}: {told:?}");
        assert_eq!(told.len(), 1);
        if let Some(late) = late {
            assert!(take_states(&late).iter().all(|state| state.set));
        }
    }
}

#[tokio::test]
async fn acknowledgements_of_all_flags_are_bounded_and_idle_flags_make_room() {
    let (_, flags) = with(FlagsConfig {
        max_acks: 80,
        ..FlagsConfig::default()
    });
    let set = async |flag: &str| {
        let watch = flags.watch(&name(flag), listener("w"), true, at(0));
        watch.sync(at(0)).await.expect("sync");
        let unleashed = flags.unleash(&name(flag), &forever(), at(0)).await;
        (watch, unleashed.expect("unleash").0.generation)
    };
    let ((one, first), (two, second)) = (set("one").await, set("two").await);
    let ack = |flag: &str, generation: u64, number: usize| {
        flags.ack(&name(flag), generation, &listener(&number.to_string()))
    };
    let counted = (0..50).filter(|number| ack("one", first, *number).is_ok());
    assert_eq!(counted.count(), 50);
    assert!(ack("one", first, 0).expect("counted already, and no error"));
    let late = ack("one", first + 1, 7_000);
    assert!(!late.expect("another generation, and no error"));
    let counted = (0..1_000).filter(|number| ack("two", second, *number).is_ok());
    assert_eq!(counted.count(), 30, "of all flags together");
    let error = ack("two", second, 7_000).expect_err("no room");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(error.to_string().contains("the limit is 80 of"), "{error}");
    flags.publish_acks();
    let acks = |generation, acknowledged| {
        Some(FlagEvent::Acks {
            generation,
            acknowledged,
            watchers: 0,
        })
    };
    let told = [take_all(&one).pop(), take_all(&two).pop()];
    assert_eq!(told, [acks(first, 50), acks(second, 30)], "never too many");
    // A flag without a watcher is forgotten for one that is watched.
    drop(one);
    ack("two", second, 7_000).expect("room");
}

#[tokio::test]
async fn a_flag_neither_watched_nor_set_is_forgotten_with_its_acknowledgements() {
    let (_, flags) = with(FlagsConfig::default());
    let watch = flags.watch(&name("go"), listener("w"), false, at(0));
    watch.sync(at(0)).await.expect("sync");
    let set = unleash(&flags, "go", &forever(), 0).await;
    watch.ack(set.generation).expect("ack");
    flags.leash(&name("go"), at(0)).await.expect("leash");
    drop(watch);
    let registry = format!("{:?}", *lock(&flags.inner.registry));
    assert!(registry.contains("entries: {}, idle: []"), "{registry}");
}

/// Observers that have received all events and wait.
async fn observers(flags: &Flags, count: usize) -> (u64, Vec<WatchGuard>, Arc<Counter>) {
    let (mut watches, counter) = (Vec::new(), Arc::new(Counter::default()));
    for _ in 0..count {
        let watch = flags.watch(&name("go"), listener("cli"), true, at(0));
        watch.sync(at(0)).await.expect("sync");
        watches.push(watch);
    }
    let set = unleash(flags, "go", &forever(), 0).await;
    flags.publish_acks();
    let waker = Waker::from(Arc::clone(&counter));
    for watch in &watches {
        while watch.next_event(&waker).is_some() {}
    }
    (set.generation, watches, counter)
}

#[tokio::test]
async fn many_acknowledgements_wake_ten_thousand_observers_only_once() {
    let (_, flags) = with(FlagsConfig::default());
    let (generation, watches, counter) = observers(&flags, 10_000).await;
    for number in 0..1_000 {
        let listener = listener(&number.to_string());
        flags
            .ack(&name("go"), generation, &listener)
            .expect("counted");
    }
    assert_eq!(counter.0.load(Ordering::Relaxed), 0);
    flags.publish_acks();
    assert_eq!(counter.0.load(Ordering::Relaxed), 10_000);
    let newest = FlagEvent::Acks {
        generation,
        acknowledged: 1_000,
        watchers: 0,
    };
    for watch in &watches {
        assert_eq!(take_all(watch), std::slice::from_ref(&newest));
    }
    flags.publish_acks();
    assert_eq!(counter.0.load(Ordering::Relaxed), 10_000, "nothing is new");
}

/// Starts the background tasks without a refresh.
fn started(flags: &Flags) -> Scope {
    let scope = Scope::new();
    let wall: WallClock = Arc::new(|| at(0));
    start(flags, Duration::ZERO, &wall, &scope);
    scope
}

#[tokio::test(start_paused = true)]
async fn an_observer_receives_at_most_twenty_counts_a_second_and_the_last_one() {
    let (_, flags) = with(FlagsConfig::default());
    let scope = started(&flags);
    let (generation, watches, _) = observers(&flags, 1).await;
    let observer = async {
        let mut told = 0;
        std::future::poll_fn(|context| {
            while let Some(event) = watches[0].next_event(context.waker()) {
                told += 1;
                if matches!(
                    event,
                    FlagEvent::Acks {
                        acknowledged: 1_000,
                        ..
                    }
                ) {
                    return Poll::Ready(told);
                }
            }
            Poll::Pending
        })
        .await
    };
    let acks = async {
        for number in 0..1_000 {
            let listener = listener(&number.to_string());
            flags
                .ack(&name("go"), generation, &listener)
                .expect("counted");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let (told, ()) = tokio::join!(observer, acks);
    assert!((10..=22).contains(&told), "{told}");
    scope.shutdown().await;
}
