//! The end of flags with an expiry, on a store that answers at once.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
};

use super::{
    super::{Flags, FlagsConfig, StoreFlags, document::blob_name},
    at, forever, lasting, listener, name, settable_clock, setup,
    stepped::{Failing, SteppedStore},
    take_states, unleash, watch,
};
use crate::{base::sync::lock, types::GlobalFlag};

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

/// The allowance for clocks is five seconds.
#[tokio::test]
async fn a_reader_of_the_store_takes_an_expired_flag_that_stays_as_not_set() {
    let store = SteppedStore::at_once().without_conditional_delete();
    let flags = Flags::new(Arc::new(store.clone()), FlagsConfig::default());
    unleash(&flags, "go", &lasting(10), 0).await;
    flags.expire(at(10)).await.expect("expire");
    assert!(store.peek(&blob_name(&name("go"))).is_some());
    let (now, wall) = settable_clock();
    let read = StoreFlags::with_wall(Arc::new(store), wall);
    for (second, set) in [(14, true), (16, false)] {
        *lock(&now) = at(second);
        let flag = read.global(name("go"));
        assert_eq!(flag.is_set().await.expect("is_set"), set);
        assert_eq!(read.get(&name("go")).await.expect("get").set, set);
        let listed = read.list("").await.expect("list");
        assert_eq!(listed.len(), usize::from(set));
    }
}

#[tokio::test]
async fn a_watcher_that_came_after_an_expiry_is_not_released_when_the_store_is_back() {
    let (store, flags) = setup();
    let early = watch(&flags, "go").await;
    let set = unleash(&flags, "go", &lasting(10), 0).await;
    store.fail(Failing::Everything);
    flags.expire(at(11)).await.expect_err("an outage");
    let late = flags.watch(&name("go"), listener("late"), false, at(12));
    late.sync(at(12)).await.expect_err("an outage");
    let in_time = flags.watch(&name("go"), listener("in-time"), false, at(9));
    in_time.sync(at(12)).await.expect_err("an outage");
    store.fail(Failing::Nothing);
    flags.expire(at(13)).await.expect("expire");
    for watch in [&early, &in_time] {
        let told = take_states(watch);
        assert_eq!(told.first(), Some(&set));
        assert!(told.last().is_some_and(|state| !state.set));
    }
    late.sync(at(13)).await.expect("sync");
    let told = take_states(&late);
    assert!(told.len() == 1 && !told[0].set, "{told:?}");
    let again = unleash(&flags, "go", &lasting(10), 14).await;
    assert_eq!(take_states(&late), [again]);
}

/// No watcher has read the flag when its end is written.
#[tokio::test]
async fn a_first_watcher_is_told_the_expired_set_only_if_it_came_before_the_expiry() {
    for (came, told) in [(9, vec![true, false]), (12, vec![false])] {
        let (store, flags) = setup();
        unleash(&flags, "go", &lasting(10), 0).await;
        store.fail(Failing::Everything);
        let first = flags.watch(&name("go"), listener("first"), false, at(came));
        first.sync(at(came)).await.expect_err("an outage");
        store.fail(Failing::Nothing);
        flags.expire(at(13)).await.expect("expire");
        let states = take_states(&first);
        let sets: Vec<_> = states.iter().map(|state| state.set).collect();
        assert_eq!(sets, told, "{came}");
    }
}

#[tokio::test]
async fn an_expiry_that_is_set_during_the_first_search_stays_known() {
    let store = SteppedStore::at_once().slow_copy();
    let flags = Flags::new(Arc::new(store), FlagsConfig::default());
    let go = name("go");
    let mut context = Context::from_waker(Waker::noop());
    let (for_good, ends) = (forever(), lasting(10));
    let mut set = pin!(flags.unleash(&go, &for_good, at(0)));
    while set.as_mut().poll(&mut context).is_pending() {}
    let mut search = pin!(flags.recover(at(0)));
    // It has listed the flag, and read it.
    for _ in 0..2 {
        assert!(search.as_mut().poll(&mut context).is_pending());
    }
    let mut again = pin!(flags.unleash(&go, &ends, at(1)));
    while again.as_mut().poll(&mut context).is_pending() {}
    assert_eq!(flags.next_expiry(), Some(at(11)));
    while search.as_mut().poll(&mut context).is_pending() {}
    assert_eq!(flags.next_expiry(), Some(at(11)));
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
