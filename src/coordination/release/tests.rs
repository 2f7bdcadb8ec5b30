//! Parked nodes on a paused clock, with a scripted watch and a switchable flag.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};

use super::Release;
use crate::{
    error::{Error, ErrorKind, Result},
    types::{FlagName, FlagState, FlagWatch, GlobalFlag},
};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

fn name() -> FlagName {
    FlagName::new("go").expect("a name")
}

fn set(generation: u64) -> FlagState {
    FlagState {
        set: true,
        ..unset(generation)
    }
}

fn unset(generation: u64) -> FlagState {
    FlagState::unset(name(), generation)
}

/// A watch with scripted states.
#[derive(Debug)]
struct Script {
    states: mpsc::Receiver<Result<FlagState>>,
    acked: mpsc::Sender<u64>,
    /// Number of acknowledgements that fail first.
    deaf: u32,
}

struct Stage {
    tell: mpsc::Sender<Result<FlagState>>,
    acks: mpsc::Receiver<u64>,
}

fn script(deaf: u32) -> (Stage, Script) {
    let (tell, states) = mpsc::channel(16);
    let (acked, acks) = mpsc::channel(16);
    let script = Script {
        states,
        acked,
        deaf,
    };
    (Stage { tell, acks }, script)
}

impl Stage {
    async fn tell(&self, state: FlagState) {
        self.tell
            .send(Ok(state))
            .await
            .expect("the release listens");
    }
}

#[async_trait]
impl FlagWatch for Script {
    async fn next(&mut self) -> Option<Result<FlagState>> {
        self.states.recv().await
    }

    async fn ack(&mut self, generation: u64) -> Result<()> {
        if self.deaf > 0 {
            self.deaf -= 1;
            return Err(Error::new(ErrorKind::Unavailable, "no stream just now"));
        }
        self.acked
            .send(generation)
            .await
            .expect("the test reads acknowledgements");
        Ok(())
    }
}

/// A flag that can be switched, counts its reads, and can fail.
#[derive(Debug, Clone, Default)]
struct Switch {
    on: Arc<AtomicBool>,
    reads: Arc<AtomicU32>,
    broken: Arc<std::sync::Mutex<Option<ErrorKind>>>,
}

#[async_trait]
impl GlobalFlag for Switch {
    async fn is_set(&self) -> Result<bool> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        match *self.broken.lock().expect("not poisoned") {
            Some(kind) => Err(Error::new(kind, "on purpose")),
            None => Ok(self.on.load(Ordering::Relaxed)),
        }
    }

    async fn set(&self, set: bool) -> Result<()> {
        self.on.store(set, Ordering::Relaxed);
        Ok(())
    }
}

impl Switch {
    fn break_with(&self, kind: Option<ErrorKind>) {
        *self.broken.lock().expect("not poisoned") = kind;
    }

    fn reads(&self) -> u32 {
        self.reads.load(Ordering::Relaxed)
    }
}

/// Asserts that a wait is not over after an hour.
async fn assert_waits<T: std::fmt::Debug>(wait: impl Future<Output = T>) {
    if let Ok(ended) = timeout(HOUR, wait).await {
        panic!("did not wait: {ended:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn polling_is_at_most_an_interval_late() {
    let switch = Switch::default();
    let mut release = Release::reading(name(), switch.clone(), Duration::ZERO);
    let began = Instant::now();
    let later = async {
        sleep(SECOND * 9).await;
        switch.set(true).await
    };
    let (released, _) = tokio::join!(release.wait(), later);
    released.expect("released");
    let waited = began.elapsed();
    assert!(waited <= SECOND * 9 + Release::INTERVAL, "{waited:?}");
    release.wait().await.expect("it is still set");
    assert_eq!(began.elapsed(), waited, "read at once");
}

#[tokio::test(start_paused = true)]
async fn nodes_that_park_together_do_not_read_together() {
    const NODES: u32 = 1000;
    let switch = Switch::default();
    let nodes = (0..NODES).map(|_| {
        let mut release = Release::reading(name(), switch.clone(), SECOND);
        tokio::spawn(async move { release.wait().await.map(drop) })
    });
    let nodes: Vec<_> = nodes.collect();
    sleep(Duration::from_millis(5)).await;
    let (mut most, mut before) = (0, switch.reads());
    assert!(before >= NODES, "each reads at once");
    for _ in 0..500 {
        sleep(Duration::from_millis(10)).await;
        let reads = switch.reads();
        most = most.max(reads - before);
        before = reads;
    }
    // Evenly spread, 10 ms would have 11 reads; without a spread, 1000.
    assert!(most < 60, "{most} reads in 10 ms");
    for node in nodes {
        node.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn polling_survives_an_outage_of_the_store_and_ends_on_a_refusal() {
    let switch = Switch::default();
    switch.break_with(Some(ErrorKind::Unavailable));
    let mut release = Release::reading(name(), switch.clone(), SECOND);
    assert_waits(release.wait()).await;
    switch.break_with(Some(ErrorKind::Denied));
    let error = release.wait().await.expect_err("final");
    assert_eq!(error.kind(), ErrorKind::Denied);
}

#[tokio::test(start_paused = true)]
async fn after_a_first_read_a_refusal_does_not_end_the_wait() {
    let switch = Switch::default();
    let mut release = Release::reading(name(), switch.clone(), SECOND);
    assert_waits(release.wait()).await;
    switch.set(true).await.expect("set");
    for refusal in [ErrorKind::Denied, ErrorKind::NotFound] {
        switch.break_with(Some(refusal));
        assert_waits(release.wait()).await;
    }
    switch.break_with(None);
    release.wait().await.expect("mended");
}

#[tokio::test(start_paused = true)]
async fn a_release_that_reads_alone_is_at_most_an_interval_late() {
    for (interval, late) in [
        (Duration::ZERO, Release::INTERVAL),
        (SECOND * 4, SECOND * 4),
    ] {
        let switch = Switch::default();
        let mut release = Release::reading(name(), switch.clone(), interval);
        let began = Instant::now();
        let later = async {
            sleep(late / 2).await;
            switch.set(true).await
        };
        let (state, _) = tokio::join!(release.wait(), later);
        let state = state.expect("released");
        assert!(state.set && state.generation == 0);
        assert!(began.elapsed() <= late / 2 + late, "{:?}", began.elapsed());
        release.acknowledge().await.expect("there is no relay");
    }
}

#[tokio::test(start_paused = true)]
async fn each_of_two_ways_continues_without_the_other() {
    // The store refuses. The watch releases the node.
    let (stage, watch) = script(0);
    let switch = Switch::default();
    switch.break_with(Some(ErrorKind::Denied));
    let mut release = Release::new(watch).with_flag(name(), switch.clone(), SECOND);
    assert_waits(release.wait()).await;
    stage.tell(set(7)).await;
    assert_eq!(release.wait().await.expect("released"), set(7));

    // The relay refuses. A read of the store releases the node.
    let (stage, watch) = script(0);
    let refusal = Err(Error::new(ErrorKind::Denied, "on purpose"));
    stage.tell.send(refusal).await.expect("the release listens");
    let switch = Switch::default();
    let mut release = Release::new(watch).with_flag(name(), switch.clone(), SECOND);
    assert_waits(release.wait()).await;
    switch.set(true).await.expect("set");
    assert!(release.wait().await.expect("released").set);

    // Both ways have failed, or the request is invalid.
    for (relay, store, last) in [
        (ErrorKind::Denied, ErrorKind::NotFound, ErrorKind::NotFound),
        (
            ErrorKind::Invalid,
            ErrorKind::Unavailable,
            ErrorKind::Invalid,
        ),
    ] {
        let (stage, watch) = script(0);
        let refusal = Err(Error::new(relay, "on purpose"));
        stage.tell.send(refusal).await.expect("the release listens");
        let switch = Switch::default();
        switch.break_with(Some(store));
        let mut release = Release::new(watch).with_flag(name(), switch, SECOND);
        let error = release.wait().await.expect_err("both ways have ended");
        assert_eq!(error.kind(), last);
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_sees_a_set_before_and_after_its_begin() {
    for before in [
        &[set(1)][..],
        &[unset(0), set(1)],
        &[unset(0), set(1), unset(1)],
    ] {
        let (stage, watch) = script(0);
        let mut release = Release::new(watch);
        for state in before {
            stage.tell(state.clone()).await;
        }
        assert_eq!(release.wait().await.expect("released"), set(1));
    }
    let (stage, watch) = script(0);
    let mut release = Release::new(watch);
    stage.tell(unset(0)).await;
    assert_waits(release.wait()).await;
    stage.tell(set(1)).await;
    assert_eq!(release.wait().await.expect("released"), set(1));
}

#[tokio::test(start_paused = true)]
async fn a_release_with_a_flag_needs_no_relay() {
    let (stage, watch) = script(0);
    let switch = Switch::default();
    let mut release = Release::new(watch).with_flag(name(), switch.clone(), Duration::ZERO);
    assert_waits(release.wait()).await;
    // The interval is 24 to 36 s for one wait, and each read comes up to a fifth of it early.
    assert!(
        (98..=190).contains(&switch.reads()),
        "{} reads an hour",
        switch.reads()
    );
    switch.set(true).await.expect("set");
    let state = release.wait().await.expect("released");
    assert!(state.set && state.generation == 0);

    // The watch is faster. If it ends, the flag's reads remain.
    switch.set(false).await.expect("clear");
    stage.tell(set(7)).await;
    assert_eq!(release.wait().await.expect("released"), set(7));
    drop(stage);
    assert_waits(release.wait()).await;
    switch.set(true).await.expect("set");
    assert!(release.wait().await.expect("released").set);
}

#[tokio::test(start_paused = true)]
async fn the_acknowledgement_delays_nothing_and_is_retried() {
    let (mut stage, watch) = script(3);
    let mut release = Release::new(watch);
    stage.tell(set(7)).await;
    let began = Instant::now();
    release.wait().await.expect("released");
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert!(stage.acks.try_recv().is_err(), "no acknowledgement yet");
    tokio::spawn(release.acknowledge());
    assert_eq!(stage.acks.recv().await, Some(7));

    let (stage, watch) = script(u32::MAX);
    let mut release = Release::new(watch);
    stage.tell(unset(6)).await;
    stage.tell(set(7)).await;
    release.wait().await.expect("released");
    let error = release.acknowledge().await.expect_err("given up");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(began.elapsed() < SECOND * 60);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_read_the_flag_acknowledges_once_it_knows_the_generation() {
    let (mut stage, watch) = script(0);
    let switch = Switch::default();
    switch.set(true).await.expect("set");
    let mut release = Release::new(watch).with_flag(name(), switch, Duration::ZERO);
    assert_eq!(release.wait().await.expect("released").generation, 0);
    tokio::spawn(release.acknowledge());
    sleep(SECOND).await;
    assert!(stage.acks.try_recv().is_err());
    stage.tell(set(9)).await;
    assert_eq!(stage.acks.recv().await, Some(9));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_wait_can_be_repeated() {
    let (stage, watch) = script(0);
    let mut release = Release::new(watch).with_flag(name(), Switch::default(), Duration::ZERO);
    for _ in 0..10 {
        assert!(timeout(SECOND, release.wait()).await.is_err());
    }
    stage.tell(set(1)).await;
    assert_eq!(release.wait().await.expect("released"), set(1));
}
