//! Flags on tokio's paused clock: expiry and refresh.

use std::{
    future::poll_fn,
    sync::Arc,
    task::Poll,
    time::{Duration, SystemTime},
};

use tokio::time::{Instant, sleep, timeout};

use super::{
    super::{Flags, FlagsConfig, WallClock, WatchGuard, document::blob_name, start},
    at, forever, lasting, listener, name,
    stepped::{Failing, SteppedStore},
    unleash,
};
use crate::{
    base::task::Scope,
    store::BlobStore as _,
    types::{FlagEvent, FlagState, UnleashOptions},
};

const HOUR: Duration = Duration::from_secs(3600);

struct World {
    store: SteppedStore,
    flags: Flags,
    wall: WallClock,
    scope: Scope,
}

/// A wall clock that advances with tokio's clock.
fn setup() -> World {
    setup_with(Duration::from_secs(10))
}

fn setup_with(refresh: Duration) -> World {
    let began = Instant::now();
    let wall: WallClock = Arc::new(move || at(0) + began.elapsed());
    let store = SteppedStore::at_once();
    let flags = Flags::new(Arc::new(store.clone()), FlagsConfig::default());
    let scope = Scope::new();
    start(&flags, refresh, &wall, &scope);
    World {
        store,
        flags,
        wall,
        scope,
    }
}

impl World {
    fn now(&self) -> SystemTime {
        (self.wall)()
    }

    async fn unleash(&self, options: &UnleashOptions) {
        let unleashed = self.flags.unleash(&name("go"), options, self.now()).await;
        unleashed.expect("unleash");
    }

    fn watch(&self) -> Watch {
        let guard = self
            .flags
            .watch(&name("go"), listener("w"), false, self.now());
        Watch {
            guard,
            wall: Arc::clone(&self.wall),
        }
    }
}

/// A watcher that reads the store until it answers.
struct Watch {
    guard: WatchGuard,
    wall: WallClock,
}

impl Watch {
    async fn next(&mut self) -> FlagState {
        let syncing = async {
            while self.guard.sync((self.wall)()).await.is_err() {
                sleep(Duration::from_secs(1)).await;
            }
            std::future::pending().await
        };
        tokio::select! {
            biased;
            state = self.state() => state,
            state = syncing => state,
        }
    }

    async fn state(&self) -> FlagState {
        poll_fn(|context| {
            loop {
                match self.guard.next_event(context.waker()) {
                    Some(FlagEvent::State(state)) => return Poll::Ready(state),
                    Some(_) => {}
                    None => return Poll::Pending,
                }
            }
        })
        .await
    }
}

async fn next(watch: &mut Watch) -> FlagState {
    timeout(HOUR, watch.next()).await.expect("in time")
}

#[tokio::test(start_paused = true)]
async fn a_flag_ends_at_its_expiry() {
    let world = setup();
    let mut watch = world.watch();
    assert!(!next(&mut watch).await.set);
    sleep(Duration::from_secs(3)).await;
    world.unleash(&lasting(25)).await;
    assert!(next(&mut watch).await.set);
    assert!(!next(&mut watch).await.set);
    let late = world
        .now()
        .duration_since(at(28))
        .expect("not before its time");
    assert!(late <= Duration::from_millis(2), "{late:?}");
    // A flag with an earlier expiry ends first.
    world.unleash(&lasting(1000)).await;
    world.unleash(&lasting(1)).await;
    let began = Instant::now();
    while next(&mut watch).await.set {}
    assert!(began.elapsed() < Duration::from_secs(2));
    world.scope.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn another_writers_change_is_found_within_a_refresh_interval() {
    let world = setup();
    let mut watch = world.watch();
    assert!(!next(&mut watch).await.set);
    let elsewhere = Flags::new(Arc::new(world.store.clone()), FlagsConfig::default());
    unleash(&elsewhere, "go", &forever(), 0).await;
    let began = Instant::now();
    assert!(next(&mut watch).await.set);
    assert!(began.elapsed() <= Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn without_an_interval_a_requested_refresh_that_fails_is_repeated_at_growing_pauses() {
    let world = setup_with(Duration::ZERO);
    let mut watch = world.watch();
    assert!(!next(&mut watch).await.set);
    let elsewhere = Flags::new(Arc::new(world.store.clone()), FlagsConfig::default());
    unleash(&elsewhere, "go", &forever(), 0).await;
    world.store.fail(Failing::Everything);
    world.store.take_calls();
    world.flags.refresh_soon();
    sleep(Duration::from_secs(300)).await;
    let (_, lists) = world.store.take_calls();
    assert!((5..60).contains(&lists), "{lists} lists in 5 minutes");
    world.store.fail(Failing::Nothing);
    let began = Instant::now();
    assert!(next(&mut watch).await.set);
    assert!(began.elapsed() <= Duration::from_secs(31));
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_store_delays_nothing_for_ever() {
    let world = setup();
    sleep(Duration::from_millis(1)).await;
    world.unleash(&lasting(5)).await;
    world.store.fail(Failing::Everything);
    let mut watch = world.watch();
    let nothing = timeout(Duration::from_secs(60), watch.next()).await;
    assert!(nothing.is_err(), "no state is known or sent");
    world.store.fail(Failing::Nothing);
    assert!(!next(&mut watch).await.set, "the flag has expired");
    sleep(Duration::from_secs(60)).await;
    assert!(
        world.store.peek(&blob_name(&name("go"))).is_none(),
        "removed when the store was back"
    );
}

#[tokio::test(start_paused = true)]
async fn an_unleash_is_sent_at_once_even_while_the_store_cannot_be_read() {
    let world = setup();
    let mut watch = world.watch();
    world.store.fail(Failing::Everything);
    assert!(timeout(Duration::from_secs(1), watch.next()).await.is_err());
    world.store.fail(Failing::Nothing);
    world.unleash(&forever()).await;
    let began = Instant::now();
    let set = next(&mut watch).await;
    assert!(set.set && began.elapsed() < Duration::from_millis(1));
    watch.guard.ack(set.generation).expect("ack");
}

#[tokio::test(start_paused = true)]
async fn a_recovered_store_is_read_within_an_interval() {
    let world = setup();
    let mut watch = world.watch();
    assert!(!next(&mut watch).await.set);
    world.store.fail(Failing::Everything);
    // Long enough for the longest wait between attempts.
    sleep(HOUR).await;
    world.store.fail(Failing::Nothing);
    let another = Flags::new(Arc::new(world.store.clone()), FlagsConfig::default());
    let set = another.unleash(&name("go"), &forever(), world.now()).await;
    set.expect("unleash");
    let began = Instant::now();
    assert!(next(&mut watch).await.set);
    assert!(
        began.elapsed() <= Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
    world.scope.shutdown().await;
}

fn logged() -> (crate::log::Log, tracing::subscriber::DefaultGuard) {
    let log = crate::log::Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone());
    let guard = crate::log::log_to(subscriber.finish());
    (log, guard)
}

#[tokio::test(start_paused = true)]
async fn an_outage_ends_although_another_writer_cleared_the_flag_during_it() {
    let (log, _guard) = logged();
    let world = setup();
    sleep(Duration::from_millis(1)).await;
    world.unleash(&lasting(20)).await;
    let mut watch = world.watch();
    assert!(next(&mut watch).await.set);
    world.store.fail(Failing::Everything);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(log.count("could not be ended; retrying"), 1);
    assert_eq!(log.count("could not be read; retrying"), 1);
    world.store.fail(Failing::Nothing);
    // Another writer clears the flag. The refresh finds it, and then no flag is watched.
    let blob = blob_name(&name("go"));
    let gone = world.store.delete(&blob, None).await;
    gone.expect("it was there");
    assert!(!next(&mut watch).await.set);
    drop(watch);
    sleep(HOUR).await;
    assert_eq!(log.count("the store answers again"), 1);
    world.scope.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_an_outage_is_logged_once_and_only_after_an_answer() {
    let (log, _guard) = logged();
    let world = setup();
    sleep(Duration::from_millis(1)).await;
    world.unleash(&forever()).await;
    let mut watch = world.watch();
    assert!(next(&mut watch).await.set);
    world.store.fail(Failing::Everything);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(log.count("could not be read; retrying"), 1);
    // Without watchers no request is sent, which shows nothing about the store.
    drop(watch);
    sleep(HOUR).await;
    assert_eq!(log.count("the store answers again"), 0);
    world.store.fail(Failing::Nothing);
    let mut watch = world.watch();
    assert!(next(&mut watch).await.set);
    sleep(HOUR).await;
    assert_eq!(log.count("the store answers again"), 1);
    world.scope.shutdown().await;
}
