//! Flags operation by operation, on a store that answers at once.

use super::{
    super::{Flags, FlagsConfig, document::blob_name},
    at, forever, lasting, name, setup,
    stepped::Failing,
    take_states, unleash, unleash_counted, watch,
};
use crate::{error::ErrorKind, store::BlobStore, types::UnleashOptions};

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
    let (cleared, _) = flags.leash(&go, at(0)).await.expect("leash");
    assert!(!cleared.set);
    let (cleared, _) = flags.leash(&go, at(0)).await.expect("again is no error");
    assert!(!cleared.set);
    assert!(!flags.get(&go, at(1)).await.expect("get").set);
}

#[tokio::test]
async fn unleashing_a_set_flag_keeps_its_generation_and_refreshes_the_rest() {
    let (_, flags) = setup();
    let watch = watch(&flags, "go").await;
    let (first, watchers) = unleash_counted(&flags, "go", &lasting(10), 0).await;
    assert_eq!(watchers, 1);
    let second = unleash(&flags, "go", &lasting(10), 5).await;
    assert_eq!(first.generation, second.generation);
    assert_eq!(second.expires_at, Some(at(15)));
    // A flag that has expired gets a new generation.
    let third = unleash(&flags, "go", &forever(), 15).await;
    assert_ne!(third.generation, second.generation);
    assert_eq!(take_states(&watch).last(), Some(&third));
}

#[tokio::test]
async fn a_foreign_blob_sets_the_flag_and_keeps_its_generation_when_unleashed() {
    let (store, flags) = setup();
    let blob = blob_name(&name("go"));
    store.create(&blob, "yes".into()).await.expect("create");
    let found = flags.get(&name("go"), at(0)).await.expect("get");
    assert!(found.set && found.generation > 0);
    assert_eq!(flags.get(&name("go"), at(0)).await.expect("get"), found);
    let told = unleash(&flags, "go", &forever(), 0).await;
    assert_eq!(told.generation, found.generation);
    assert_eq!(flags.get(&name("go"), at(0)).await.expect("get"), told);
    // Its hash does not advance the counter: the time of its end does.
    flags.leash(&name("go"), at(0)).await.expect("leash");
    let own = unleash(&flags, "go", &forever(), 0).await;
    assert!(own.generation < 1_700_000_002_000_000, "{own:?}");
}

#[tokio::test]
async fn invalid_options_are_refused_before_the_write() {
    let (store, flags) = setup();
    let options = UnleashOptions {
        reason: "x".repeat(1025),
        ..forever()
    };
    let unleashed = flags.unleash(&name("go"), &options, at(0)).await;
    let error = unleashed.expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(store.peek(&blob_name(&name("go"))).is_none());
    for (prefix, size, token) in [("a/b", 0, ""), ("", 1001, ""), ("", 0, "nonsense")] {
        let listed = flags.list(prefix, size, token, at(0)).await;
        let error = listed.expect_err(prefix);
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
        let unleashed = flags.unleash(&name("go"), &forever(), at(0)).await;
        let error = unleashed.expect_err("failed");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().contains(words), "{error}");
        assert!(error.message().contains("stepped:"), "{error}");
        assert_eq!(take_states(&watch), []);
    }
    let error = flags.leash(&name("go"), at(0)).await.expect_err("failed");
    assert!(error.message().contains("was not cleared"), "{error}");
    // Now only the deletion has to be done.
    let error = flags.leash(&name("go"), at(0)).await.expect_err("failed");
    assert!(
        error.message().contains("may or may not be cleared"),
        "{error}"
    );
    store.fail(Failing::Everything);
    let error = flags.get(&name("go"), at(0)).await.expect_err("failed");
    assert_eq!(error.kind(), ErrorKind::Timeout);
}

#[tokio::test]
async fn flags_that_are_set_are_listed_in_pages() {
    let (store, flags) = setup();
    for flag in ["a", "b", "b.1", "c"] {
        unleash(&flags, flag, &forever(), 0).await;
    }
    unleash(&flags, "bb", &lasting(5), 0).await;
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
    let set = unleash(&one, "go", &lasting(60), 0).await;
    drop(one);
    let (one, two) = (open().await, open().await);
    let watch = watch(&one, "go").await;
    assert_eq!(take_states(&watch), std::slice::from_ref(&set));
    let refresh = async |flags: &Flags| {
        for second in 1..20 {
            let told = unleash(flags, "go", &lasting(60), second).await;
            assert_eq!(told.generation, set.generation);
        }
    };
    tokio::join!(refresh(&one), refresh(&two));
    two.leash(&name("go"), at(0)).await.expect("leash");
    one.refresh(at(20)).await.expect("refresh");
    assert!(!take_states(&watch).last().expect("told").set);
}
