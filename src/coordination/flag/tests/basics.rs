//! Flags operation by operation, on a store that answers at once.

use std::{sync::Arc, task::Waker, time::Duration};

use bytes::Bytes;

use super::{
    super::{Event, Flags, FlagsConfig, StoreFlag, WatchStream, document::blob_name},
    at, forever, lasting, listener, name,
    stepped::{Failing, SteppedStore},
    take_all, take_states,
};
use crate::{
    base::clock::Tick,
    error::ErrorKind,
    store::{BlobStore, MemoryStore},
    types::{
        FlagEvent, FlagName, GlobalFlag, GoodbyeReason, StreamAction, StreamLifecycle,
        UnleashOptions,
    },
};

fn setup() -> (SteppedStore, Flags) {
    let store = SteppedStore::at_once();
    let flags = Flags::new(Arc::new(store.clone()), FlagsConfig::default());
    (store, flags)
}

async fn watch(flags: &Flags, flag: &str) -> super::super::WatchGuard {
    let watch = flags.watch(&name(flag), listener("w"), false);
    watch.sync(at(0)).await.expect("sync");
    watch
}

#[tokio::test]
async fn a_flag_is_set_read_and_cleared() {
    let (_, flags) = setup();
    let go = name("go");
    let state = flags.get(&go, at(0)).await.expect("get");
    assert!(!state.set && state.generation == 0);
    let options = UnleashOptions {
        set_by: "ops".into(),
        reason: "release 7".into(),
        ..lasting(60)
    };
    let (told, watchers) = flags.unleash(&go, &options, at(1)).await.expect("unleash");
    assert_eq!(watchers, 0);
    assert_eq!(
        (told.set_by.as_str(), told.reason.as_str()),
        ("ops", "release 7")
    );
    assert_eq!((told.set_at, told.expires_at), (Some(at(1)), Some(at(61))));
    assert_eq!(flags.get(&go, at(60)).await.expect("get"), told);
    assert!(
        !flags.get(&go, at(61)).await.expect("get").set,
        "the flag has expired"
    );
    let cleared = flags.leash(&go).await.expect("leash");
    assert!(!cleared.set);
    assert!(!flags.leash(&go).await.expect("again is no error").set);
    assert!(!flags.get(&go, at(1)).await.expect("get").set);
}

#[tokio::test]
async fn unleashing_a_set_flag_keeps_its_generation_and_refreshes_the_rest() {
    let (_, flags) = setup();
    let watch = watch(&flags, "go").await;
    let (first, watchers) = flags
        .unleash(&name("go"), &lasting(10), at(0))
        .await
        .expect("set");
    assert_eq!(watchers, 1);
    let (second, _) = flags
        .unleash(&name("go"), &lasting(10), at(5))
        .await
        .expect("set");
    assert_eq!(first.generation, second.generation);
    assert_eq!(second.expires_at, Some(at(15)));
    // A flag that has expired gets a new generation.
    let (third, _) = flags
        .unleash(&name("go"), &forever(), at(15))
        .await
        .expect("set");
    assert_ne!(third.generation, second.generation);
    assert_eq!(take_states(&watch).last(), Some(&third));
}

#[tokio::test]
async fn a_foreign_blob_sets_the_flag_and_keeps_its_generation_when_unleashed() {
    let (store, flags) = setup();
    let blob = blob_name(&name("go"));
    store
        .create(&blob, Bytes::from_static(b"yes").into())
        .await
        .expect("create");
    let found = flags.get(&name("go"), at(0)).await.expect("get");
    assert!(found.set && found.generation > 0);
    assert_eq!(flags.get(&name("go"), at(0)).await.expect("get"), found);
    let (told, _) = flags
        .unleash(&name("go"), &forever(), at(0))
        .await
        .expect("unleash");
    assert_eq!(told.generation, found.generation);
    assert_eq!(flags.get(&name("go"), at(0)).await.expect("get"), told);
    // Its hash does not advance the counter.
    flags.leash(&name("go")).await.expect("leash");
    let (own, _) = flags
        .unleash(&name("go"), &forever(), at(0))
        .await
        .expect("unleash");
    assert_eq!(own.generation, 1_700_000_000_000_000);
}

#[tokio::test]
async fn invalid_options_are_refused_before_the_write() {
    let (store, flags) = setup();
    let options = UnleashOptions {
        reason: "x".repeat(1025),
        ..forever()
    };
    let error = flags
        .unleash(&name("go"), &options, at(0))
        .await
        .expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(store.peek(&blob_name(&name("go"))).is_none());
    for (prefix, size, token) in [("a/b", 0, ""), ("", 1001, ""), ("", 0, "nonsense")] {
        let error = flags
            .list(prefix, size, token, at(0))
            .await
            .expect_err(prefix);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
}

#[tokio::test]
async fn a_failed_write_notifies_no_watcher_and_returns_an_error() {
    let (store, flags) = setup();
    let watch = watch(&flags, "go").await;
    take_states(&watch);
    for (failing, words) in [
        (
            Failing::Everything,
            "was not set, and no watcher was notified",
        ),
        (
            Failing::WritesThatHappened,
            "no watcher was notified: check with `flag get`",
        ),
    ] {
        store.fail(failing);
        let error = flags
            .unleash(&name("go"), &forever(), at(0))
            .await
            .expect_err("failed");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().contains(words), "{error}");
        assert!(error.message().contains("stepped:"), "{error}");
        assert_eq!(take_states(&watch), []);
    }
    let error = flags.leash(&name("go")).await.expect_err("failed");
    assert!(
        error.message().contains("may or may not be cleared"),
        "{error}"
    );
    store.fail(Failing::Everything);
    let error = flags.get(&name("go"), at(0)).await.expect_err("failed");
    assert_eq!(error.kind(), ErrorKind::Timeout);
}

#[tokio::test]
async fn a_store_that_cannot_be_read_ends_no_watch() {
    let (store, flags) = setup();
    let watch = flags.watch(&name("go"), listener("node-1"), false);
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
async fn flags_that_are_set_are_listed_in_pages() {
    let (store, flags) = setup();
    for flag in ["a", "b", "b.1", "c"] {
        flags
            .unleash(&name(flag), &forever(), at(0))
            .await
            .expect("unleash");
    }
    flags
        .unleash(&name("bb"), &lasting(5), at(0))
        .await
        .expect("unleash");
    let beside = "flags/b/not-a-flag".parse().expect("a name");
    store.create(&beside, "x".into()).await.expect("create");
    let (mut seen, mut token) = (Vec::new(), String::new());
    loop {
        let page = flags.list("", 2, &token, at(5)).await.expect("list");
        seen.extend(page.0.into_iter().map(|state| state.name.to_string()));
        let Some(next) = page.1 else { break };
        token = next;
    }
    assert_eq!(seen, ["a", "b", "b.1", "c"]);
    let (some, _) = flags.list("b", 0, "", at(0)).await.expect("list");
    assert_eq!(some.len(), 3);
}

#[tokio::test]
async fn a_watcher_first_receives_the_present_state_and_then_each_change() {
    let (_, flags) = setup();
    let early = flags.watch(&name("go"), listener("w"), false);
    assert_eq!(take_all(&early), [], "nothing is known yet");
    early.sync(at(0)).await.expect("sync");
    let (set, told) = flags
        .unleash(&name("go"), &forever(), at(0))
        .await
        .expect("unleash");
    assert_eq!(told, 1);
    let late_error = watch(&flags, "go").await;
    let states = take_states(&early);
    assert_eq!(
        states.len(),
        2,
        "the flag was not set at the registration: {states:?}"
    );
    assert!(!states[0].set);
    assert_eq!(states[1], set);
    assert_eq!(take_states(&late_error), std::slice::from_ref(&set));
    let cleared = flags.leash(&name("go")).await.expect("leash");
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
    let (set, _) = elsewhere
        .unleash(&name("go"), &forever(), at(0))
        .await
        .expect("unleash");
    assert_eq!(take_states(&watch), []);
    for _ in 0..2 {
        flags.refresh(at(0)).await.expect("refresh");
    }
    assert_eq!(take_states(&watch), [set]);
    elsewhere.leash(&name("go")).await.expect("leash");
    for _ in 0..2 {
        flags.refresh(at(0)).await.expect("refresh");
    }
    assert_eq!(take_states(&watch).len(), 1);
}

#[tokio::test]
async fn an_expired_flag_ends_and_its_watchers_are_notified() {
    let (store, flags) = setup();
    let watch = watch(&flags, "go").await;
    flags
        .unleash(&name("go"), &lasting(10), at(0))
        .await
        .expect("unleash");
    flags
        .unleash(&name("unwatched"), &lasting(5), at(0))
        .await
        .expect("unleash");
    assert_eq!(flags.next_expiry(), Some(at(5)));
    flags.expire(at(5)).await.expect("expire");
    assert!(store.peek(&blob_name(&name("unwatched"))).is_none());
    assert_eq!(flags.next_expiry(), Some(at(10)));
    take_states(&watch);
    flags.expire(at(9)).await.expect("nothing is due");
    assert_eq!(take_states(&watch), []);
    flags.expire(at(10)).await.expect("expire");
    assert_eq!(take_states(&watch).len(), 1);
    assert!(store.peek(&blob_name(&name("go"))).is_none());
    assert_eq!(flags.next_expiry(), None);
}

#[tokio::test]
async fn a_flag_that_is_read_as_expired_is_still_removed() {
    let (store, flags) = setup();
    let watch = watch(&flags, "go").await;
    flags
        .unleash(&name("go"), &lasting(10), at(0))
        .await
        .expect("unleash");
    flags.refresh(at(11)).await.expect("refresh");
    assert!(!take_states(&watch).last().expect("told").set);
    assert_eq!(flags.next_expiry(), Some(at(10)));
    flags.expire(at(11)).await.expect("expire");
    assert!(store.peek(&blob_name(&name("go"))).is_none());
    assert_eq!(take_states(&watch), []);
    assert_eq!(flags.next_expiry(), None);
}

#[tokio::test]
async fn without_conditional_delete_an_expired_flag_stays_and_reads_as_not_set() {
    let store = SteppedStore::at_once().without_conditional_delete();
    let flags = Flags::new(Arc::new(store.clone()), FlagsConfig::default());
    let watch = watch(&flags, "go").await;
    let (first, _) = flags
        .unleash(&name("go"), &lasting(10), at(0))
        .await
        .expect("unleash");
    take_states(&watch);
    flags.expire(at(10)).await.expect("expire");
    assert_eq!(take_states(&watch).len(), 1);
    assert!(store.peek(&blob_name(&name("go"))).is_some());
    assert!(!flags.get(&name("go"), at(10)).await.expect("get").set);
    flags.refresh(at(11)).await.expect("refresh");
    assert_eq!(flags.next_expiry(), None, "nothing is left to do");
    let (again, _) = flags
        .unleash(&name("go"), &forever(), at(11))
        .await
        .expect("unleash");
    assert_ne!(first.generation, again.generation);
}

#[tokio::test]
async fn a_flag_of_an_earlier_relay_process_still_ends() {
    let (store, flags) = setup();
    flags
        .unleash(&name("go"), &lasting(10), at(0))
        .await
        .expect("unleash");
    flags
        .unleash(&name("stays"), &forever(), at(0))
        .await
        .expect("unleash");
    let flags = Flags::new(Arc::new(store.clone()), FlagsConfig::default());
    assert_eq!(flags.next_expiry(), None);
    flags.recover(at(1)).await.expect("recover");
    assert_eq!(flags.next_expiry(), Some(at(10)));
    flags.expire(at(12)).await.expect("expire");
    assert!(store.peek(&blob_name(&name("go"))).is_none());
    assert!(store.peek(&blob_name(&name("stays"))).is_some());
}

/// Takes an observer's events after the background task has published the counts.
async fn counted(flags: &Flags, watch: &super::super::WatchGuard) -> Vec<FlagEvent> {
    flags.publish_acks(|_| true).await;
    take_all(watch)
}

#[tokio::test]
async fn acknowledgements_are_counted_once_per_listener_and_generation() {
    let (_, flags) = setup();
    let (one, two) = (watch(&flags, "go").await, watch(&flags, "go").await);
    let expecting = flags.watch(&name("go"), listener("cli"), true);
    expecting.sync(at(0)).await.expect("sync");
    let (set, told) = flags
        .unleash(&name("go"), &forever(), at(0))
        .await
        .expect("unleash");
    assert_eq!(told, 2, "an observer of acknowledgements is not counted");
    let acks = |acknowledged, watchers| FlagEvent::Acks {
        generation: set.generation,
        acknowledged,
        watchers,
    };
    assert_eq!(counted(&flags, &expecting).await.last(), Some(&acks(0, 2)));
    for (id, generation) in [("a", set.generation), ("a", set.generation), ("b", 7)] {
        flags
            .ack(&name("go"), generation, &listener(id))
            .expect("ack");
    }
    one.ack(set.generation).expect("ack");
    assert_eq!(
        counted(&flags, &expecting).await,
        [acks(2, 2)],
        "conflated into one"
    );
    drop(two);
    assert_eq!(counted(&flags, &expecting).await, [acks(2, 1)]);
    assert!(
        take_all(&one)
            .iter()
            .all(|event| matches!(event, FlagEvent::State(_)))
    );

    // Acknowledgements outlive the watchers, but not the generation.
    drop((one, expecting));
    let expecting = flags.watch(&name("go"), listener("cli"), true);
    expecting.sync(at(0)).await.expect("sync");
    assert_eq!(counted(&flags, &expecting).await.last(), Some(&acks(2, 0)));
    flags.leash(&name("go")).await.expect("leash");
    let (next, _) = flags
        .unleash(&name("go"), &forever(), at(0))
        .await
        .expect("unleash");
    let none = FlagEvent::Acks {
        generation: next.generation,
        acknowledged: 0,
        watchers: 0,
    };
    assert_eq!(counted(&flags, &expecting).await.last(), Some(&none));
}

#[tokio::test]
async fn a_stream_sends_heartbeats_only_into_silence_and_ends_with_goodbye() {
    let (_, flags) = setup();
    let second = Duration::from_secs(1);
    let mut rng = fastrand::Rng::with_seed(7);
    let lifecycle = StreamLifecycle::new(second * 5, second * 3600, Tick::default(), &mut rng);
    let watch = flags.watch(&name("go"), listener("w"), false);
    let mut feed = WatchStream::new(watch, lifecycle);
    let tick = |seconds: u32| Tick::default() + second * seconds;
    let next = |feed: &mut WatchStream, seconds| feed.next(tick(seconds), false, Waker::noop());
    // A heartbeat would mean that no event is pending.
    assert!(matches!(next(&mut feed, 6), StreamAction::Wait(at) if at > tick(60)));
    feed.watch().sync(at(0)).await.expect("sync");
    assert!(matches!(next(&mut feed, 6), StreamAction::Send(Event::State(s)) if !s.set));
    assert_eq!(next(&mut feed, 10), StreamAction::Wait(tick(11)));
    assert_eq!(next(&mut feed, 11), StreamAction::Send(Event::Heartbeat));
    flags
        .unleash(&name("go"), &forever(), at(0))
        .await
        .expect("unleash");
    assert!(matches!(next(&mut feed, 16), StreamAction::Send(Event::State(s)) if s.set));
    assert_eq!(next(&mut feed, 16), StreamAction::Wait(tick(21)));
    flags.leash(&name("go")).await.expect("leash");
    let mut drain = || feed.next(tick(17), true, Waker::noop());
    assert!(
        matches!(drain(), StreamAction::Send(Event::State(s)) if !s.set),
        "pending events come first"
    );
    let goodbye = drain();
    assert!(
        matches!(goodbye, StreamAction::Send(Event::Goodbye(g)) if g.reason == GoodbyeReason::Draining)
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
        flags.leash(&flag).await.expect("leash");
    }
    let registry = format!("{:?}", flags.inner.registry());
    assert!(registry.contains("entries: {}, idle: {}"), "{registry}");
}

#[tokio::test]
async fn a_store_flag_is_the_same_flag_as_the_relays() {
    let now = Arc::new(std::sync::Mutex::new(at(0)));
    let clock = {
        let now = Arc::clone(&now);
        move || *now.lock().expect("not poisoned")
    };
    let store: Arc<dyn BlobStore> = Arc::new(MemoryStore::with_wall(clock.clone()));
    let flags = Flags::new(Arc::clone(&store), FlagsConfig::default());
    let flag = StoreFlag::with_wall(Arc::clone(&store), name("go"), clock);
    assert!(!flag.is_set().await.expect("missing is false"));
    for _ in 0..2 {
        flag.set(true).await.expect("set");
        assert!(flag.is_set().await.expect("read"));
    }
    assert!(flags.get(&name("go"), at(0)).await.expect("get").set);
    for _ in 0..2 {
        flag.set(false).await.expect("clear");
        assert!(!flag.is_set().await.expect("read"));
    }
    store
        .create(&blob_name(&name("go")), "anything".into())
        .await
        .expect("create");
    assert!(
        flag.is_set().await.expect("read"),
        "the blob's existence means set"
    );

    flags
        .unleash(&name("go"), &lasting(10), at(0))
        .await
        .expect("unleash");
    for (seconds, set) in [(10, true), (14, true), (15, false)] {
        *now.lock().expect("not poisoned") = at(seconds);
        assert_eq!(flag.is_set().await.expect("read"), set, "after {seconds} s");
    }
    flag.set(true).await.expect("set anew");
    assert!(flag.is_set().await.expect("read"));
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn flags_in_one_file_outlive_their_relay_and_are_shared() {
    let directory = tempfile::tempdir().expect("a directory");
    let url = format!("sqlite:{}", directory.path().join("flags.db").display());
    let open = || async {
        let store = crate::store::open(&url).await.expect("open");
        Flags::new(store, FlagsConfig::default())
    };
    let one = open().await;
    let (set, _) = one
        .unleash(&name("go"), &lasting(60), at(0))
        .await
        .expect("unleash");
    drop(one);
    let (one, two) = (open().await, open().await);
    let watch = watch(&one, "go").await;
    assert_eq!(take_states(&watch), std::slice::from_ref(&set));
    let refresh = async |flags: &Flags| {
        for second in 1..20 {
            let (told, _) = flags
                .unleash(&name("go"), &lasting(60), at(second))
                .await
                .expect("set");
            assert_eq!(told.generation, set.generation);
        }
    };
    tokio::join!(refresh(&one), refresh(&two));
    two.leash(&name("go")).await.expect("leash");
    one.refresh(at(20)).await.expect("refresh");
    assert!(!take_states(&watch).last().expect("told").set);
}

#[tokio::test]
async fn acknowledgements_are_bounded() {
    let (_, flags) = setup();
    let watch = watch(&flags, "go").await;
    let (set, _) = flags
        .unleash(&name("go"), &forever(), at(0))
        .await
        .expect("unleash");
    let ack = |number: u32| flags.ack(&name("go"), set.generation, &listener(&number.to_string()));
    (0..100_000).for_each(|number| ack(number).expect("within the limit"));
    let error = ack(100_000).expect_err("one too many");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    // A new generation has new room.
    flags.leash(&name("go")).await.expect("leash");
    let (set, _) = flags
        .unleash(&name("go"), &forever(), at(0))
        .await
        .expect("unleash");
    flags
        .ack(&name("go"), set.generation, &listener("a"))
        .expect("ack");
    drop(watch);
}

#[tokio::test]
async fn a_state_is_encoded_once_for_all_its_watchers() {
    let (_, flags) = setup();
    let watches = [watch(&flags, "go").await, watch(&flags, "go").await];
    flags
        .unleash(&name("go"), &forever(), at(0))
        .await
        .expect("unleash");
    let mut encodings = 0;
    for watch in &watches {
        let mut last = None;
        while let Some(event) = watch.next_event(Waker::noop()) {
            last = Some(event);
        }
        let Some(Event::State(state)) = last else {
            panic!("the set is the last event");
        };
        let encoded = state.encoded(|state| {
            encodings += 1;
            state.set_by.clone().into()
        });
        assert_eq!(encoded, state.set_by.as_bytes());
    }
    assert_eq!(encodings, 1);
}
