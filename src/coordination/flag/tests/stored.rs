//! Flags and their store: refused writes, repeated writes, and use without a relay.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{
    super::{Flags, FlagsConfig, StoreFlag, StoreFlags, document::blob_name},
    at, forever, lasting, listener, name, settable_clock, setup,
    stepped::Failing,
    take_states, unleash, unleash_counted,
};
use crate::{
    base::sync::lock,
    error::ErrorKind,
    store::{
        BlobStore, MemoryStore,
        tests::faulty::{Faults, FaultyStore},
    },
    types::{FlagState, GlobalFlag, UnleashOptions},
};

#[tokio::test]
async fn a_refused_write_changes_nothing() {
    let (store, flags) = setup();
    unleash(&flags, "go", &forever(), 0).await;
    store.fail(Failing::WritesDenied);
    for error in [
        flags.unleash(&name("go"), &forever(), at(0)).await.err(),
        flags.leash(&name("go"), at(0)).await.err(),
    ] {
        let error = error.expect("refused");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().contains("was not "), "{error}");
        assert!(!error.message().contains("may"), "{error}");
    }
}

#[tokio::test]
async fn a_repeated_write_that_conflicts_with_itself_is_recognised() {
    let (store, flags) = setup();
    store.fail(Failing::WritesTwice);
    let early = flags.watch(&name("go"), listener("early"), false, at(0));
    let (set, watchers) = unleash_counted(&flags, "go", &forever(), 0).await;
    assert_eq!(watchers, 1);
    assert_eq!(take_states(&early), std::slice::from_ref(&set));

    let because = UnleashOptions {
        reason: "once more".to_owned(),
        ..forever()
    };
    let again = flags.unleash(&name("go"), &because, at(1)).await;
    let (again, _) = again.expect("it was written");
    assert_eq!(again.generation, set.generation);
    assert_eq!(again.reason, "once more");
    assert_eq!(take_states(&early), [again]);
}

#[tokio::test]
async fn the_flags_of_a_store_are_those_of_a_relay_on_it() {
    let (now, clock) = settable_clock();
    let store: Arc<dyn BlobStore> = Arc::new(MemoryStore::with_wall(clock.clone()));
    let relay = Flags::new(Arc::clone(&store), FlagsConfig::default());
    let flags = StoreFlags::with_wall(Arc::clone(&store), clock);
    let go = name("go");
    assert_eq!(
        flags.get(&go).await.expect("get"),
        FlagState::unset(go.clone(), 0)
    );

    let set = flags.unleash(&go, &lasting(10)).await.expect("unleash");
    assert_eq!(relay.get(&go, at(0)).await.expect("get"), set);
    assert_eq!(flags.get(&go).await.expect("get"), set);
    assert!(flags.global(go.clone()).is_set().await.expect("read"));
    store
        .create(&blob_name(&name("by-hand")), "anything".into())
        .await
        .expect("create");
    let names = |listed: Vec<FlagState>| -> Vec<String> {
        listed.iter().map(|state| state.name.to_string()).collect()
    };
    assert_eq!(
        names(flags.list("").await.expect("list")),
        ["by-hand", "go"]
    );
    assert_eq!(names(flags.list("g").await.expect("list")), ["go"]);
    let error = flags.list("../x").await.expect_err("no prefix");
    assert_eq!(error.kind(), ErrorKind::Invalid);

    // It has expired by the store's clock, with five seconds' allowance.
    for (seconds, over) in [(14, false), (15, true)] {
        *lock(&now) = at(seconds);
        assert_eq!(
            flags.get(&go).await.expect("get").set,
            !over,
            "after {seconds} s"
        );
        let listed = names(flags.list("g").await.expect("list"));
        assert_eq!(listed.is_empty(), over, "after {seconds} s");
    }
    let anew = flags.unleash(&go, &forever()).await.expect("unleash");
    assert_ne!(anew.generation, set.generation);
    assert!(!flags.leash(&go).await.expect("leash").set);
    assert!(!flags.get(&go).await.expect("get").set);
}

#[tokio::test(start_paused = true)]
async fn a_write_reports_a_true_outcome_whichever_request_the_store_loses() {
    let faults = Faults {
        before: 15,
        after: 15,
        delay: Duration::from_millis(20),
    };
    let (mut done, mut refused, mut open) = (0, 0, 0);
    for seed in 0..40 {
        let faulty = Arc::new(FaultyStore::new(Arc::new(MemoryStore::new()), faults, seed));
        let sound = StoreFlags::new(faulty.inner());
        let relay = Flags::new(
            Arc::clone(&faulty) as Arc<dyn BlobStore>,
            FlagsConfig::default(),
        );
        let go = name("go");
        for number in 0..20 {
            let before = sound.get(&go).await.expect("it never fails");
            let because = UnleashOptions {
                reason: number.to_string(),
                ..forever()
            };
            let outcome = match number % 3 {
                2 => relay.leash(&go, at(0)).await,
                _ => relay.unleash(&go, &because, at(number)).await,
            };
            let outcome = outcome.map(|(state, _)| state);
            let after = sound.get(&go).await.expect("it never fails");
            match outcome {
                Ok(told) => {
                    assert_eq!((told.set, told.reason), (after.set, after.reason), "{seed}");
                    done += 1;
                }
                Err(error) if error.message().contains("may or may not") => open += 1,
                Err(error) => {
                    let message = error.message();
                    assert!(
                        message.contains("was not set") || message.contains("was not cleared"),
                        "{seed}: {error}"
                    );
                    assert_eq!(before, after, "{seed}: {error}");
                    refused += 1;
                }
            }
            if let Ok(set) = StoreFlag::new(Arc::clone(&faulty) as _, go.clone())
                .is_set()
                .await
            {
                assert_eq!(
                    set,
                    sound.get(&go).await.expect("it never fails").set,
                    "{seed}"
                );
            }
        }
    }
    assert!(
        done > 100 && refused > 100 && open > 50,
        "{done}, {refused}, {open}"
    );
}

/// A set for good keeps the generation of a flag with an expiry, and removes the expiry.
#[tokio::test]
async fn a_flag_that_is_set_for_good_has_no_expiry() {
    let store: Arc<dyn BlobStore> = Arc::new(MemoryStore::new());
    let flags = StoreFlags::new(Arc::clone(&store));
    let for_a_while = UnleashOptions {
        ttl: Some(Duration::from_secs(3600)),
        ..forever()
    };
    let before = flags.unleash(&name("go"), &for_a_while).await.expect("set");
    flags
        .global(name("go"))
        .set(true)
        .await
        .expect("set for good");
    let after = flags.get(&name("go")).await.expect("read");
    assert_eq!(
        (after.generation, after.expires_at),
        (before.generation, None)
    );
}

#[tokio::test(start_paused = true)]
async fn a_list_and_a_refresh_read_many_flags_at_a_time() {
    let inner: Arc<dyn BlobStore> = Arc::new(MemoryStore::new());
    let elsewhere = StoreFlags::new(Arc::clone(&inner));
    let names: Vec<_> = (0..320)
        .map(|number| name(&format!("flag-{number:03}")))
        .collect();
    for flag in &names {
        elsewhere.unleash(flag, &lasting(3600)).await.expect("set");
    }
    // A read takes 50 ms on average; one after the other would take 16 s.
    let slow = || {
        let faults = Faults {
            delay: Duration::from_millis(50),
            ..Faults::default()
        };
        Arc::new(FaultyStore::new(Arc::clone(&inner), faults, 1)) as Arc<dyn BlobStore>
    };
    let limit = Duration::from_secs(3);
    let began = tokio::time::Instant::now();
    let listed = StoreFlags::new(slow()).list("").await.expect("a list");
    assert!(listed.iter().map(|flag| &flag.name).eq(&names), "in order");
    assert!(began.elapsed() < limit, "{:?}", began.elapsed());

    let relay = Flags::new(slow(), FlagsConfig::default());
    let began = tokio::time::Instant::now();
    let now = SystemTime::now();
    let (listed, next) = relay.list("", 1000, "", now).await.expect("a page");
    assert!(listed.iter().map(|flag| &flag.name).eq(&names) && next.is_none());
    assert!(began.elapsed() < limit, "{:?}", began.elapsed());

    let began = tokio::time::Instant::now();
    relay.recover(now).await.expect("recovered");
    assert!(began.elapsed() < limit, "{:?}", began.elapsed());

    let watches: Vec<_> = names
        .iter()
        .map(|flag| relay.watch(flag, listener("w"), false, at(0)))
        .collect();
    let began = tokio::time::Instant::now();
    assert!(relay.refresh(now).await.expect("refreshed"));
    assert!(began.elapsed() < limit, "{:?}", began.elapsed());
    drop(watches);
}

#[tokio::test]
async fn a_store_flag_is_the_same_flag_as_the_relays() {
    let (now, clock) = settable_clock();
    let store: Arc<dyn BlobStore> = Arc::new(MemoryStore::with_wall(clock.clone()));
    let flags = Flags::new(Arc::clone(&store), FlagsConfig::default());
    let flag = StoreFlags::with_wall(Arc::clone(&store), clock).global(name("go"));
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

    unleash(&flags, "go", &lasting(10), 0).await;
    for (seconds, set) in [(10, true), (14, true), (15, false)] {
        *lock(&now) = at(seconds);
        assert_eq!(flag.is_set().await.expect("read"), set, "after {seconds} s");
    }
    flag.set(true).await.expect("set anew");
    assert!(flag.is_set().await.expect("read"));
}
