//! The counts of acknowledgements and their limits.

use super::{
    super::{Flags, FlagsConfig, WatchGuard},
    at, forever, listener, name, setup, take_all, unleash, unleash_counted, watch, with,
};
use crate::{error::ErrorKind, types::FlagEvent};

/// Takes an observer's events after the background task has published the counts.
fn counted(flags: &Flags, watch: &WatchGuard) -> Vec<FlagEvent> {
    flags.publish_acks();
    take_all(watch)
}

#[tokio::test]
async fn acknowledgements_are_counted_once_per_listener_and_generation() {
    let (_, flags) = setup();
    let (one, two) = (watch(&flags, "go").await, watch(&flags, "go").await);
    let expecting = flags.watch(&name("go"), listener("cli"), true, at(0));
    expecting.sync(at(0)).await.expect("sync");
    let (set, told) = unleash_counted(&flags, "go", &forever(), 0).await;
    assert_eq!(told, 2, "an observer of acknowledgements is not counted");
    let acks = |acknowledged, watchers| FlagEvent::Acks {
        generation: set.generation,
        acknowledged,
        watchers,
    };
    assert_eq!(counted(&flags, &expecting).last(), Some(&acks(0, 2)));
    for (id, generation) in [("a", set.generation), ("a", set.generation), ("b", 7)] {
        flags
            .ack(&name("go"), generation, &listener(id))
            .expect("ack");
    }
    one.ack(set.generation).expect("ack");
    assert_eq!(
        counted(&flags, &expecting),
        [acks(2, 2)],
        "conflated into one"
    );
    drop(two);
    assert_eq!(counted(&flags, &expecting), [acks(2, 1)]);
    assert!(
        take_all(&one)
            .iter()
            .all(|event| matches!(event, FlagEvent::State(_)))
    );

    // Acknowledgements outlive the watchers, but not the generation.
    drop((one, expecting));
    let expecting = flags.watch(&name("go"), listener("cli"), true, at(0));
    expecting.sync(at(0)).await.expect("sync");
    assert_eq!(counted(&flags, &expecting).last(), Some(&acks(2, 0)));
    flags.leash(&name("go"), at(0)).await.expect("leash");
    let next = unleash(&flags, "go", &forever(), 0).await;
    let none = FlagEvent::Acks {
        generation: next.generation,
        acknowledged: 0,
        watchers: 0,
    };
    assert_eq!(counted(&flags, &expecting).last(), Some(&none));
}

#[tokio::test]
async fn acknowledgements_are_bounded() {
    let (_, flags) = with(FlagsConfig {
        max_acks: 100,
        ..FlagsConfig::default()
    });
    let watch = watch(&flags, "go").await;
    let set = unleash(&flags, "go", &forever(), 0).await;
    let ack = |number: u32| flags.ack(&name("go"), set.generation, &listener(&number.to_string()));
    assert!((0..100).all(|number| ack(number).expect("within the limit")));
    let error = ack(100).expect_err("one too many");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    // A new generation has new room.
    flags.leash(&name("go"), at(0)).await.expect("leash");
    let set = unleash(&flags, "go", &forever(), 0).await;
    flags.publish_acks();
    flags
        .ack(&name("go"), set.generation, &listener("a"))
        .expect("ack");
    drop(watch);
}
