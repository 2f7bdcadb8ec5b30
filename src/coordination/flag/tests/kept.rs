//! Values of the first unleash that a second unleash keeps.

use std::{sync::Arc, time::Duration};

use super::{super::StoreFlags, at, forever, lasting, name, setup, unleash};
use crate::{
    store::MemoryStore,
    types::{GlobalFlag as _, UnleashOptions},
};

fn first() -> UnleashOptions {
    UnleashOptions {
        set_by: "ann".to_owned(),
        reason: "the night run".to_owned(),
        ..lasting(60)
    }
}

#[tokio::test]
async fn a_second_unleash_without_ttl_and_reason_keeps_those_of_the_first() {
    let (_, flags) = setup();
    let set = unleash(&flags, "go", &first(), 0).await;
    let again = UnleashOptions {
        set_by: "bob".to_owned(),
        ..forever()
    };
    let kept = unleash(&flags, "go", &again, 20).await;
    assert_eq!(kept.generation, set.generation);
    assert_eq!((kept.expires_at, kept.set_at), (Some(at(60)), Some(at(20))));
    assert_eq!(
        (kept.set_by.as_str(), kept.reason.as_str()),
        ("bob", "the night run")
    );
    assert_eq!(flags.get(&name("go"), at(59)).await.expect("get"), kept);
    assert!(!flags.get(&name("go"), at(60)).await.expect("get").set);
    // The flag has expired: the next unleash keeps none of its values.
    let next = unleash(&flags, "go", &forever(), 61).await;
    assert_ne!(next.generation, set.generation);
    assert_eq!((next.expires_at, next.reason.as_str()), (None, ""));
}

#[tokio::test]
async fn ttl_and_reason_of_a_second_unleash_replace_those_of_the_first() {
    let (_, flags) = setup();
    unleash(&flags, "go", &first(), 0).await;
    let longer = UnleashOptions {
        reason: "the day run".to_owned(),
        ..lasting(100)
    };
    let set = unleash(&flags, "go", &longer, 10).await;
    assert_eq!(
        (set.expires_at, set.reason.as_str()),
        (Some(at(110)), "the day run")
    );
    assert_eq!(set.set_by, "ann", "the options name no other author");
    let for_ever = UnleashOptions {
        ttl: Some(Duration::ZERO),
        ..forever()
    };
    let set = unleash(&flags, "go", &for_ever, 20).await;
    assert_eq!((set.expires_at, set.reason.as_str()), (None, "the day run"));
}

#[tokio::test]
async fn an_unleash_without_a_relay_keeps_the_expiry_that_readers_compute() {
    let store = Arc::new(MemoryStore::new());
    let flags = StoreFlags::new(Arc::clone(&store) as _);
    let go = name("go");
    let ends = UnleashOptions {
        ttl: Some(Duration::from_secs(60)),
        ..first()
    };
    let set = flags.unleash(&go, &ends).await.expect("set");
    let kept = flags.unleash(&go, &forever()).await.expect("set");
    let (end, kept_end) = (
        set.expires_at.expect("an end"),
        kept.expires_at.expect("kept"),
    );
    let later = kept_end.duration_since(end).expect("never sooner");
    assert!(later <= Duration::from_millis(1), "{later:?}");
    // A plain set has no expiry and no reason.
    flags.global(go.clone()).set(true).await.expect("set");
    let plain = flags.get(&go).await.expect("get");
    assert_eq!(
        (plain.expires_at, plain.reason.as_str()),
        (None, "the night run")
    );
}
