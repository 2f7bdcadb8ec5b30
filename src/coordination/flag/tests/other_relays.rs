//! C14: flags that are written through other relays.

use std::{
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Waker},
    time::SystemTime,
};

use super::{
    super::{
        AskAcks, Flags, FlagsConfig, WatchGuard,
        document::{blob_name, ended_name},
    },
    at, forever, lasting, listener, name, setup,
    stepped::{Failing, SteppedStore},
    take_states, unleash, watch,
};
use crate::{
    store::BlobStore,
    types::{FlagState, cluster::LifeId},
    wire::link::{AcknowledgementsRequest, AcknowledgementsResponse},
};

/// Returns the acknowledgements of the flag `go` that a relay knows.
fn acks_of(relay: &Flags, generation: u64) -> AcknowledgementsResponse {
    let query = AcknowledgementsRequest {
        flag: "go".to_owned(),
        generation,
        after: None,
        max_keys: 10,
    };
    relay.acks_of(&query, 10).expect("a name")
}

/// A relay on the same store.
fn other(store: &SteppedStore) -> Flags {
    Flags::new(Arc::new(store.clone()), FlagsConfig::default())
}

/// A relay is told that another one has written a flag.
async fn pass_on(from: &Flags, to: &Flags, wall: SystemTime) {
    from.written().await;
    to.refresh_soon();
    to.refresh_requested().await;
    to.refresh(wall).await.expect("a list and reads");
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
    there.leash(&name("go"), at(10)).await.expect("leash");
    pass_on(&there, &here, at(60)).await;
    assert_eq!(sets(&take_states(&waiting)), [true, false]);
}

#[tokio::test]
async fn a_set_is_told_however_far_the_clocks_differ() {
    for (here_at, there_at) in [(30, 10), (10, 3_000), (3_000, 10)] {
        let (store, here) = setup();
        let there = other(&store);
        let parked = here.watch(&name("go"), listener("parked"), false, at(0));
        parked.sync(at(here_at)).await.expect("sync");
        assert_eq!(sets(&take_states(&parked)), [false]);
        unleash(&there, "go", &forever(), there_at).await;
        pass_on(&there, &here, at(here_at + 1)).await;
        assert_eq!(sets(&take_states(&parked)), [true]);
    }
}

/// A seed of the cluster found it: the set that was cleared by hand had the greater number.
#[tokio::test]
async fn a_set_is_told_after_one_that_was_cleared_by_hand() {
    let (store, here) = setup();
    let (ahead, behind) = (other(&store), other(&store));
    let waiting = watch(&here, "go").await;
    unleash(&ahead, "go", &forever(), 3_000).await;
    pass_on(&ahead, &here, at(20)).await;
    assert_eq!(sets(&take_states(&waiting)), [true]);
    let by_hand = store.delete(&blob_name(&name("go")), None).await;
    by_hand.expect("deleted");
    here.refresh(at(21)).await.expect("refresh");
    assert_eq!(sets(&take_states(&waiting)), [false]);
    unleash(&behind, "go", &forever(), 10).await;
    behind.leash(&name("go"), at(10)).await.expect("leash");
    pass_on(&behind, &here, at(30)).await;
    assert_eq!(sets(&take_states(&waiting)), [true, false]);
}

/// A seed of the cluster found it: no relay has read the flag between the clearing by hand and the set.
#[tokio::test]
async fn a_set_is_told_although_a_clearing_by_hand_was_not_seen_and_its_generation_is_less() {
    let (store, here) = setup();
    let behind = other(&store);
    let waiting = watch(&here, "go").await;
    let first = unleash(&here, "go", &forever(), 35).await;
    take_states(&waiting);
    let by_hand = store.delete(&blob_name(&name("go")), None).await;
    by_hand.expect("deleted");
    let set = unleash(&behind, "go", &forever(), 0).await;
    assert!(set.generation < first.generation);
    behind.leash(&name("go"), at(1)).await.expect("leash");
    pass_on(&behind, &here, at(36)).await;
    let told = take_states(&waiting);
    assert_eq!(sets(&told), [true, false]);
    assert_eq!(told[0], set);
}

/// The first of two sets ends between the two requests of a read.
#[tokio::test]
async fn a_set_that_was_over_before_the_present_one_is_not_told_after_it() {
    let (store, there) = setup();
    let slow = Flags::new(Arc::new(store.slow_copy()), FlagsConfig::default());
    let parked = slow.watch(&name("go"), listener("parked"), false, at(0));
    let mut sync = pin!(parked.sync(at(0)));
    // It has read which set is over, and not yet the flag.
    assert!(waits(sync.as_mut()));
    unleash(&there, "go", &forever(), 1).await;
    there.leash(&name("go"), at(2)).await.expect("leash");
    let present = unleash(&there, "go", &forever(), 3).await;
    while waits(sync.as_mut()) {}
    assert_eq!(take_states(&parked), [present]);
    let mut refresh = pin!(slow.refresh(at(4)));
    while waits(refresh.as_mut()) {}
    assert_eq!(take_states(&parked), []);
}

/// A relay that was frozen while it cleared a flag. A seed of the cluster found it.
#[tokio::test]
async fn a_clearing_that_stood_still_brings_back_no_older_set() {
    let (store, here) = setup();
    let frozen = Flags::new(Arc::new(store.slow_copy()), FlagsConfig::default());
    unleash(&here, "go", &forever(), 10).await;
    let go = name("go");
    let mut context = Context::from_waker(Waker::noop());
    let mut clearing = pin!(frozen.leash(&go, at(11)));
    // It has read the set that it ends.
    for _ in 0..2 {
        assert!(clearing.as_mut().poll(&mut context).is_pending());
    }
    here.leash(&go, at(12)).await.expect("leash");
    unleash(&here, "go", &forever(), 13).await;
    here.leash(&go, at(14)).await.expect("leash");
    let newest = store.peek(&ended_name(&go)).map(|blob| blob.content);
    while clearing.as_mut().poll(&mut context).is_pending() {}
    let ended = store.peek(&ended_name(&go)).map(|blob| blob.content);
    assert_eq!(ended, newest);
}

#[tokio::test]
async fn a_watcher_that_registers_while_a_slow_set_is_written_is_told() {
    let (fast, _) = setup();
    let slow = fast.slow_copy();
    let (here, there) = (
        Flags::new(Arc::new(fast), FlagsConfig::default()),
        other(&slow),
    );
    let mut context = Context::from_waker(Waker::noop());
    let (go, options) = (name("go"), forever());
    let mut set = pin!(there.unleash(&go, &options, at(0)));
    assert!(set.as_mut().poll(&mut context).is_pending());
    // A minute later the flag is not in the store yet.
    let parked = here.watch(&name("go"), listener("parked"), false, at(0));
    parked.sync(at(60)).await.expect("sync");
    assert_eq!(sets(&take_states(&parked)), [false]);
    while set.as_mut().poll(&mut context).is_pending() {}
    pass_on(&there, &here, at(61)).await;
    assert_eq!(sets(&take_states(&parked)), [true]);
}

#[tokio::test]
async fn a_set_and_its_clearing_are_told_although_the_frames_were_lost() {
    let (store, here) = setup();
    let there = other(&store);
    let parked = watch(&here, "go").await;
    take_states(&parked);
    unleash(&there, "go", &forever(), 10).await;
    there.written().await;
    there.leash(&name("go"), at(11)).await.expect("leash");
    // The second frame arrives.
    pass_on(&there, &here, at(12)).await;
    assert_eq!(sets(&take_states(&parked)), [true, false]);

    let set = unleash(&there, "go", &lasting(5), 20).await;
    there.expire(at(25)).await.expect("expire");
    there.written().await;
    assert!(store.peek(&blob_name(&name("go"))).is_none());
    // No frame arrives. The refresh finds the trace of the set.
    here.refresh(at(30)).await.expect("refresh");
    let told = take_states(&parked);
    assert_eq!(sets(&told), [true, false]);
    assert_eq!(told[0], set);
    here.refresh(at(40)).await.expect("refresh");
    assert_eq!(take_states(&parked), []);
}

#[tokio::test]
async fn a_watcher_that_came_after_a_set_and_its_end_is_not_released_by_late_frames() {
    let (store, here) = setup();
    let there = other(&store);
    let early = watch(&here, "go").await;
    take_states(&early);
    unleash(&there, "go", &forever(), 10).await;
    there.leash(&name("go"), at(11)).await.expect("leash");
    // The frames wait for the end of an outage. A node registers, and parks.
    let late = here.watch(&name("go"), listener("late"), false, at(0));
    late.sync(at(11)).await.expect("sync");
    assert_eq!(sets(&take_states(&late)), [false]);
    assert_eq!(sets(&take_states(&early)), [true, false]);
    pass_on(&there, &here, at(12)).await;
    assert_eq!(take_states(&late), []);
    assert_eq!(take_states(&early), []);
}

#[tokio::test]
async fn a_set_that_is_over_is_no_first_state_of_a_watcher_that_came_after_it() {
    let (store, here) = setup();
    let there = other(&store);
    unleash(&there, "go", &forever(), 10).await;
    there.leash(&name("go"), at(10)).await.expect("leash");
    let late = here.watch(&name("go"), listener("late"), false, at(0));
    // The refresh comes before the watcher's read.
    pass_on(&there, &here, at(30)).await;
    late.sync(at(30)).await.expect("sync");
    here.refresh(at(31)).await.expect("refresh");
    assert_eq!(sets(&take_states(&late)), [false]);
}

/// Whether a future waits.
fn waits(future: Pin<&mut impl Future>) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    future.poll(&mut context).is_pending()
}

/// A flag is set and cleared while a watcher's first read is under way, or after that read has failed in
/// its middle. Returns what the watcher is told.
async fn ends_at_the_first_read(fails: bool) -> Vec<bool> {
    let (store, there) = setup();
    let store = store.slow_copy();
    let slow = Flags::new(Arc::new(store.clone()), FlagsConfig::default());
    let parked = slow.watch(&name("go"), listener("parked"), false, at(0));
    let mut sync = Box::pin(parked.sync(at(0)));
    // It has read which set is over, and not yet the flag.
    assert!(waits(sync.as_mut()));
    if fails {
        store.fail(Failing::Everything);
        sync.await.expect_err("the read of the flag fails");
        store.fail(Failing::Nothing);
        sync = Box::pin(parked.sync(at(0)));
    }
    unleash(&there, "go", &forever(), 0).await;
    there.leash(&name("go"), at(0)).await.expect("leash");
    while waits(sync.as_mut()) {}
    let mut refresh = pin!(slow.refresh(at(1)));
    while waits(refresh.as_mut()) {}
    sets(&take_states(&parked))
}

#[tokio::test]
async fn a_set_that_ends_before_a_watchers_state_is_known_is_told_to_it() {
    assert_eq!(ends_at_the_first_read(false).await, [true, false]);
}

#[tokio::test]
async fn a_set_that_ends_after_a_first_read_that_failed_is_told() {
    assert_eq!(ends_at_the_first_read(true).await, [true, false]);
}

/// A relay was about to end a flag that had expired, while another one extended it.
#[tokio::test]
async fn an_extended_set_that_ends_at_a_first_read_is_told_although_its_end_was_written_before() {
    let (store, there) = setup();
    let slow = Flags::new(Arc::new(store.slow_copy()), FlagsConfig::default());
    let go = name("go");
    unleash(&there, "go", &lasting(10), 0).await;
    slow.recover(at(1)).await.expect("recover");
    let mut expiry = pin!(slow.expire(at(10)));
    while store.peek(&ended_name(&go)).is_none() {
        assert!(waits(expiry.as_mut()), "it writes the end first");
    }
    unleash(&there, "go", &lasting(60), 9).await;
    while waits(expiry.as_mut()) {}
    assert!(store.peek(&blob_name(&go)).is_some(), "the extension wins");

    let late = Flags::new(Arc::new(store.slow_copy()), FlagsConfig::default());
    let parked = late.watch(&go, listener("parked"), false, at(0));
    let mut sync = pin!(parked.sync(at(11)));
    // It has read which set is over, and not yet the flag.
    assert!(waits(sync.as_mut()));
    there.leash(&go, at(12)).await.expect("leash");
    while waits(sync.as_mut()) {}
    let mut refresh = pin!(late.refresh(at(13)));
    while waits(refresh.as_mut()) {}
    assert_eq!(sets(&take_states(&parked)), [true, false]);
}

/// The relay that cleared it dies before it tells the others, so nothing requests another refresh.
#[tokio::test]
async fn a_set_that_ends_during_a_refresh_is_told_by_it() {
    for steps in 0..8 {
        let (store, there) = setup();
        let slow = other(&store.slow_copy());
        let parked = watch(&slow, "go").await;
        assert_eq!(sets(&take_states(&parked)), [false]);
        unleash(&there, "go", &forever(), 1).await;
        let mut refresh = pin!(slow.refresh(at(1)));
        let goes_on = (0..steps).all(|_| waits(refresh.as_mut()));
        there.leash(&name("go"), at(1)).await.expect("leash");
        if goes_on {
            refresh.await.expect("refresh");
        }
        let told = sets(&take_states(&parked));
        assert_eq!(told.first(), Some(&true), "{steps}: {told:?}");
    }
}

/// Its end is written first. The refresh has read before the set that there is no flag.
#[tokio::test]
async fn a_set_is_not_told_as_over_while_its_clearing_is_under_way() {
    let (store, there) = setup();
    let (slow, ending) = (other(&store.slow_copy()), other(&store.slow_copy()));
    let go = name("go");
    let parked = watch(&slow, "go").await;
    unleash(&there, "go", &forever(), 1).await;
    there.leash(&go, at(1)).await.expect("leash");
    let mut refresh = pin!(slow.refresh(at(1)));
    // The list, the newest end, and the flag.
    assert!((0..3).all(|_| waits(refresh.as_mut())));
    take_states(&parked);
    unleash(&there, "go", &forever(), 2).await;
    let mut leash = pin!(ending.leash(&go, at(2)));
    let ended = store.peek(&ended_name(&go));
    while store.peek(&ended_name(&go)) == ended {
        assert!(waits(leash.as_mut()), "it writes the end first");
    }
    refresh.await.expect("refresh");
    assert_eq!(sets(&take_states(&parked)), [true]);
    leash.await.expect("leash");
    slow.refresh(at(3)).await.expect("refresh");
    assert_eq!(sets(&take_states(&parked)), [false]);
}

/// Another relay ends it at each step after the first read of a watcher that came in time.
#[tokio::test]
async fn an_expired_set_that_another_relay_ends_at_the_same_time_is_told_to_a_new_watcher() {
    for steps in 1..8 {
        let (store, there) = setup();
        let slow = other(&store.slow_copy());
        unleash(&there, "go", &lasting(10), 0).await;
        let early = watch(&slow, "go").await;
        let in_time = slow.watch(&name("go"), listener("in-time"), false, at(9));
        let mut expiry = pin!(slow.expire(at(10)));
        let goes_on = (0..steps).all(|_| waits(expiry.as_mut()));
        there.expire(at(10)).await.expect("expire");
        if goes_on {
            expiry.await.expect("expire");
        }
        in_time.sync(at(10)).await.expect("sync");
        for watch in [&early, &in_time] {
            assert_eq!(sets(&take_states(watch)), [true, false], "{steps}");
        }
    }
}

#[tokio::test]
async fn a_set_after_one_by_hand_is_told_although_its_generation_is_less() {
    let (store, here) = setup();
    let there = other(&store);
    let by_hand = store.create(&blob_name(&name("go")), "x".into()).await;
    by_hand.expect("create");
    let waiting = watch(&here, "go").await;
    let by_hand = take_states(&waiting).pop().expect("a state");
    assert!(by_hand.generation >= FlagState::HASHES);
    there.leash(&name("go"), at(4)).await.expect("leash");
    pass_on(&there, &here, at(5)).await;
    assert_eq!(sets(&take_states(&waiting)), [false]);
    let set = unleash(&there, "go", &forever(), 10).await;
    assert!(set.generation < by_hand.generation);
    there.leash(&name("go"), at(10)).await.expect("leash");
    pass_on(&there, &here, at(11)).await;
    assert_eq!(sets(&take_states(&waiting)), [true, false]);
}

#[tokio::test]
async fn only_writes_with_an_effect_are_announced_and_only_changed_flags_are_read() {
    let (store, here) = setup();
    let there = other(&store);
    let mut context = Context::from_waker(Waker::noop());
    there.leash(&name("nothing"), at(0)).await.expect("leash");
    assert!(pin!(there.written()).poll(&mut context).is_pending());
    let watch = watch(&here, "flag-7").await;
    take_states(&watch);
    for number in 0..20 {
        unleash(&there, &format!("flag-{number}"), &forever(), 0).await;
    }
    store.take_calls();
    pass_on(&there, &here, at(1)).await;
    assert_eq!(store.take_calls(), (2, 1), "both blobs of the watched flag");
    assert_eq!(sets(&take_states(&watch)), [true]);
}

#[tokio::test]
async fn a_generation_is_greater_than_those_that_are_over() {
    let (store, here) = setup();
    let there = other(&store);
    let ahead = unleash(&there, "go", &forever(), 3_000).await;
    there.leash(&name("go"), at(3_000)).await.expect("leash");
    let behind = unleash(&here, "go", &forever(), 0).await;
    assert!(behind.generation > ahead.generation);
}

#[tokio::test]
async fn sets_that_were_over_long_ago_are_forgotten() {
    let (store, here) = setup();
    let there = other(&store);
    let _watch = watch(&here, "go").await;
    for flag in ["old", "go", "new"] {
        unleash(&there, flag, &forever(), 0).await;
        if flag == "new" {
            store.set_time(at(8 * 24 * 3600));
        }
        there.leash(&name(flag), at(0)).await.expect("leash");
    }
    here.refresh(at(0)).await.expect("refresh");
    let kept = |flag| store.peek(&ended_name(&name(flag))).is_some();
    assert!(!kept("old"));
    assert!(kept("go") && kept("new"), "watched, and new");
}

/// A blind deletion could remove the trace of a fresh set.
#[tokio::test]
async fn without_conditional_delete_no_set_is_forgotten() {
    let store = SteppedStore::at_once().without_conditional_delete();
    let (here, there) = (other(&store), other(&store));
    let _watch = watch(&here, "go").await;
    for (flag, day) in [("old", 0), ("new", 8)] {
        store.set_time(at(day * 24 * 3600));
        unleash(&there, flag, &forever(), 0).await;
        there.leash(&name(flag), at(0)).await.expect("leash");
    }
    here.refresh(at(0)).await.expect("refresh");
    assert!(store.peek(&ended_name(&name("old"))).is_some());
}

#[tokio::test]
async fn a_refresh_tells_watchers_and_forgets_old_sets() {
    let (store, there) = setup();
    let here = Flags::new(Arc::new(store.slow_copy()), FlagsConfig::default());
    let parked = watch(&here, "go").await;
    take_states(&parked);
    unleash(&there, "old", &forever(), 0).await;
    there.leash(&name("old"), at(0)).await.expect("leash");
    store.set_time(at(8 * 24 * 3600));
    unleash(&there, "go", &forever(), 1).await;
    here.refresh(at(1))
        .await
        .expect("a list, reads, a deletion");
    assert_eq!(sets(&take_states(&parked)), [true]);
    assert!(store.peek(&ended_name(&name("old"))).is_none());
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
    let known = acks_of(&here, set.generation);
    assert_eq!((known.acknowledged, known.watchers), (1, 0));
}

/// A relay that knows acknowledgements. Before it answers a query for keys, an observer of the relay
/// that asks leaves.
struct OtherRelay {
    flags: Flags,
    leaving: std::sync::Mutex<Option<WatchGuard>>,
}

#[async_trait::async_trait]
impl AskAcks for OtherRelay {
    async fn ask_all(
        &self,
        query: AcknowledgementsRequest,
    ) -> Vec<(LifeId, AcknowledgementsResponse)> {
        let known = self.flags.acks_of(&query, 0).expect("a name");
        vec![(LifeId(7), known)]
    }

    async fn ask(
        &self,
        _: LifeId,
        query: AcknowledgementsRequest,
    ) -> Option<AcknowledgementsResponse> {
        drop(self.leaving.lock().expect("one thread").take());
        self.flags.acks_of(&query, 10).ok()
    }
}

/// Seed 10056 of the cluster: the acknowledgements had been read for an entry that was forgotten.
#[tokio::test]
async fn an_observer_that_comes_back_at_once_counts_what_other_relays_have() {
    let (store, here) = setup();
    let there = other(&store);
    let set = unleash(&there, "go", &forever(), 0).await;
    there
        .ack_any(&name("go"), set.generation, &listener("node"), at(1))
        .await
        .expect("counted");
    let observe = async || {
        let observer = here.watch_within_limit(&name("go"), listener("ops"), true, at(0));
        let observer = observer.expect("there is room");
        observer.sync(at(1)).await.expect("read");
        observer
    };
    let others = OtherRelay {
        flags: there,
        leaving: std::sync::Mutex::new(Some(observe().await)),
    };
    here.add_remote_acks(&others, 10).await;
    assert_eq!(here.watchers(), 0);
    let _observer = observe().await;
    here.add_remote_acks(&others, 10).await;
    let known = acks_of(&here, set.generation);
    assert_eq!(known.acknowledged, 1);
}
