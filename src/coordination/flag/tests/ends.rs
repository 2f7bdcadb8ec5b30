//! The end of flags with an expiry, on a store that answers at once.

use std::sync::Arc;

use super::{
    super::{Flags, FlagsConfig, document::blob_name},
    at, forever, lasting, name, setup,
    stepped::SteppedStore,
    take_states, unleash, watch,
};

#[tokio::test]
async fn an_expired_flag_ends_and_its_watchers_are_notified() {
    let (store, flags) = setup();
    let watch = watch(&flags, "go").await;
    unleash(&flags, "go", &lasting(10), 0).await;
    unleash(&flags, "unwatched", &lasting(5), 0).await;
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
    unleash(&flags, "go", &lasting(10), 0).await;
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
    let first = unleash(&flags, "go", &lasting(10), 0).await;
    take_states(&watch);
    flags.expire(at(10)).await.expect("expire");
    assert_eq!(take_states(&watch).len(), 1);
    assert!(store.peek(&blob_name(&name("go"))).is_some());
    assert!(!flags.get(&name("go"), at(10)).await.expect("get").set);
    flags.refresh(at(11)).await.expect("refresh");
    assert_eq!(flags.next_expiry(), None, "nothing is left to do");
    let again = unleash(&flags, "go", &forever(), 11).await;
    assert_ne!(first.generation, again.generation);
}

#[tokio::test]
async fn a_flag_of_an_earlier_relay_process_still_ends() {
    let (store, flags) = setup();
    unleash(&flags, "go", &lasting(10), 0).await;
    unleash(&flags, "stays", &forever(), 0).await;
    let flags = Flags::new(Arc::new(store.clone()), FlagsConfig::default());
    assert_eq!(flags.next_expiry(), None);
    flags.recover(at(1)).await.expect("recover");
    assert_eq!(flags.next_expiry(), Some(at(10)));
    flags.expire(at(12)).await.expect("expire");
    assert!(store.peek(&blob_name(&name("go"))).is_none());
    assert!(store.peek(&blob_name(&name("stays"))).is_some());
}
