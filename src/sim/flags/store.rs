//! A slow store that fails on purpose and records its whole history.
//!
//! Each call pauses up to twice before its effect and up to twice after it, so that the scheduler
//! can run other steps between. It fails without an effect, or after it. The rules for writes by
//! any writer are checked here, at the moment of the effect.

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;

use crate::{
    base::sync::lock,
    coordination::flag::{Flags, FlagsConfig},
    error::{Error, ErrorKind, Result},
    store::{Blob, BlobContent, BlobName, BlobStore, ETag, MemoryStore, Page, PageOptions},
    types::{FlagName, FlagState},
};

/// The store of one run; clones share it.
#[derive(Debug, Clone)]
pub(in crate::sim) struct ShakyStore {
    memory: MemoryStore,
    flag: FlagName,
    /// Reads the memory as a flag, without pauses and failures.
    reader: Flags,
    wall: Arc<AtomicU64>,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug)]
struct Shared {
    rng: fastrand::Rng,
    /// One call in this many fails; 0: none.
    failing: u8,
    /// The most pauses before an effect, and after it.
    pauses: u8,
    /// Whether the present step is an expiry's: only an expiry must not remove a valid flag.
    expiring: bool,
    /// The flag after each write, as it is in the store: oldest first.
    history: Vec<Option<FlagState>>,
    violation: Option<String>,
}

impl ShakyStore {
    pub(in crate::sim) fn new(flag: &FlagName, mut rng: fastrand::Rng) -> Self {
        // An arbitrary day: only differences matter.
        let wall = Arc::new(AtomicU64::new(1_700_000_000_000_000));
        let clock = Arc::clone(&wall);
        let memory = MemoryStore::with_wall(move || time(&clock));
        let failing = if rng.bool() { 0 } else { rng.u8(4..16) };
        let shared = Shared {
            rng,
            failing,
            pauses: 2,
            expiring: false,
            history: Vec::new(),
            violation: None,
        };
        Self {
            flag: flag.clone(),
            reader: Flags::new(Arc::new(memory.clone()), FlagsConfig::default()),
            memory,
            wall,
            shared: Arc::new(Mutex::new(shared)),
        }
    }

    pub(in crate::sim) fn wall(&self) -> SystemTime {
        time(&self.wall)
    }

    pub(in crate::sim) fn advance(&self, span: Duration) {
        let micros = u64::try_from(span.as_micros()).expect("a short span");
        self.wall.fetch_add(micros, Ordering::Relaxed);
    }

    pub(in crate::sim) fn stop_failing(&self) {
        lock(&self.shared).failing = 0;
    }

    /// Lets each call pause up to this many times before its effect, and after it.
    #[cfg(feature = "nats")]
    pub(in crate::sim) fn slow_down(&self, pauses: u8) {
        lock(&self.shared).pauses = pauses;
    }

    /// Sets whether the next step is an expiry's.
    pub(in crate::sim) fn set_expiring(&self, expiring: bool) {
        lock(&self.shared).expiring = expiring;
    }

    pub(in crate::sim) fn violation(&self) -> Option<String> {
        lock(&self.shared).violation.clone()
    }

    /// Returns the flag as every reader must see it now.
    pub(in crate::sim) fn present(&self) -> Option<FlagState> {
        self.peek(self.wall())
    }

    /// Returns whether the store held exactly this state at some time.
    pub(in crate::sim) fn ever_held(&self, state: &FlagState) -> bool {
        let shared = lock(&self.shared);
        shared.history.iter().flatten().any(|held| held == state)
    }

    /// Searches the writes for the state, `None` in them for "not set": the first one from a number
    /// on, and the newest one.
    #[cfg(feature = "nats")]
    pub(in crate::sim) fn find(
        &self,
        state: &FlagState,
        from: usize,
    ) -> (Option<usize>, Option<usize>) {
        let shared = lock(&self.shared);
        let history = &shared.history;
        let is = |held: &Option<FlagState>| match held {
            Some(held) => held == state,
            None => !state.set,
        };
        let first = history.iter().skip(from).position(is);
        let newest = history.iter().rposition(is);
        (first.map(|index| from + index), newest)
    }

    pub(in crate::sim) fn writes(&self) -> usize {
        lock(&self.shared).history.len()
    }

    /// Returns when a generation was first in the store, on the count of its writes.
    pub(in crate::sim) fn first_held(&self, generation: u64) -> Option<usize> {
        let shared = lock(&self.shared);
        let mut history = shared.history.iter();
        history.position(|held| {
            held.as_ref()
                .is_some_and(|held| held.generation == generation)
        })
    }

    /// Returns the newest write that left a generation in the store, on the count of its writes.
    pub(in crate::sim) fn last_held(&self, generation: u64) -> Option<usize> {
        let shared = lock(&self.shared);
        let mut held = shared.history.iter().map(Option::as_ref);
        held.rposition(|held| held.is_some_and(|held| held.generation == generation))
    }

    /// Sets or clears the flag by hand, without reveille.
    pub(in crate::sim) fn meddle(&self, set: bool) {
        let blob = BlobName::new(&format!("flags/{}", self.flag)).expect("a name");
        let before = self.held();
        if set {
            // An existing flag stays.
            drop(now(self.memory.create(&blob, "by hand".into())));
        } else {
            drop(now(self.memory.delete(&blob, None)));
        }
        self.note(before);
    }

    /// Returns the stored flag, expired or not.
    fn held(&self) -> Option<FlagState> {
        self.peek(UNIX_EPOCH)
    }

    fn peek(&self, wall: SystemTime) -> Option<FlagState> {
        let state = now(self.reader.get(&self.flag, wall)).expect("memory does not fail");
        Some(state).filter(|state| state.set)
    }

    /// Checks and records the result of a write.
    fn note(&self, before: Option<FlagState>) {
        let after = self.held();
        if before == after {
            return;
        }
        let wall = self.wall();
        let lasts = |state: &FlagState| state.expires_at.is_none_or(|end| end > wall);
        let again = after.as_ref().filter(|after| {
            let kept = before.as_ref().map(|before| before.generation);
            kept != Some(after.generation) && self.first_held(after.generation).is_some()
        });
        let mut shared = lock(&self.shared);
        let violation = if let Some(again) = again {
            Some(format!(
                "generations: one is given out twice: {{{again:?}}}"
            ))
        } else {
            let removed = before.filter(|before| after.is_none() && lasts(before));
            let removed = removed.filter(|_| shared.expiring);
            removed.map(|removed| {
                format!("R22: an expiry removes a flag that has not expired: {{{removed:?}}}")
            })
        };
        if shared.violation.is_none() {
            shared.violation = violation;
        }
        shared.history.push(after);
    }

    async fn call<T>(&self, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        self.rest().await;
        if self.fails() {
            return Err(Error::new(
                ErrorKind::Timeout,
                "on purpose, and did nothing",
            ));
        }
        let before = self.held();
        let outcome = effect.await;
        self.note(before);
        self.rest().await;
        if self.fails() {
            return Err(Error::new(ErrorKind::Timeout, "on purpose, and was done"));
        }
        outcome
    }

    fn fails(&self) -> bool {
        let mut shared = lock(&self.shared);
        let one_in = shared.failing;
        one_in > 0 && shared.rng.u8(..one_in) == 0
    }

    async fn rest(&self) {
        let mut rests = {
            let mut shared = lock(&self.shared);
            let pauses = shared.pauses;
            shared.rng.u8(..=pauses)
        };
        std::future::poll_fn(|context| {
            if rests == 0 {
                return Poll::Ready(());
            }
            rests -= 1;
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

#[async_trait]
impl BlobStore for ShakyStore {
    async fn get(&self, name: &BlobName) -> Result<Option<Blob>> {
        self.call(self.memory.get(name)).await
    }

    async fn create(&self, name: &BlobName, content: BlobContent) -> Result<ETag> {
        self.call(self.memory.create(name, content)).await
    }

    async fn update(&self, name: &BlobName, content: BlobContent, etag: &ETag) -> Result<ETag> {
        self.call(self.memory.update(name, content, etag)).await
    }

    async fn delete(&self, name: &BlobName, etag: Option<&ETag>) -> Result<bool> {
        self.call(self.memory.delete(name, etag)).await
    }

    async fn list(&self, prefix: &str, page: &PageOptions) -> Result<Page> {
        self.call(self.memory.list(prefix, page)).await
    }
}

impl fmt::Display for ShakyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("shaky:")
    }
}

fn time(wall: &AtomicU64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(wall.load(Ordering::Relaxed))
}

/// Returns the output of a future that never waits.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => panic!("memory does not wait"),
    }
}
