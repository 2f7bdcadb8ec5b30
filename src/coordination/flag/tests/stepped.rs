//! A store whose calls run step by step, and all orders in which actors can take the steps.

use std::{
    fmt,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::SystemTime,
};

use async_trait::async_trait;

use crate::{
    base::sync::lock,
    error::{Error, ErrorKind, Result},
    store::{Blob, BlobContent, BlobName, BlobStore, ETag, MemoryStore, Page, PageOptions},
};

/// A memory store. Each call pauses once before its effect and once after it. Calls can be made to
/// fail.
#[derive(Debug, Clone)]
pub(super) struct SteppedStore {
    inner: MemoryStore,
    time: Arc<Mutex<SystemTime>>,
    failing: Arc<Mutex<Failing>>,
    conditional_delete: bool,
    rests: Rests,
    gets: Arc<AtomicUsize>,
    lists: Arc<AtomicUsize>,
}

/// When a call pauses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rests {
    Never,
    /// Between its effect and its answer. Three actors then have few enough orders.
    After,
    BeforeAndAfter,
}

/// Which calls fail.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failing {
    #[default]
    Nothing,
    /// Each call, before its effect.
    Everything,
    /// Each call, with a permanent error such as wrong file permissions.
    Denied,
    /// Each write, with a permanent error.
    WritesDenied,
    /// Each write, after its effect.
    WritesThatHappened,
    /// None, but each write is sent twice and the second answer is returned.
    WritesTwice,
}

impl SteppedStore {
    /// Makes a store that runs step by step, with [`explore`].
    pub(super) fn new() -> Self {
        let time = Arc::new(Mutex::new(super::at(0)));
        let shown = Arc::clone(&time);
        Self {
            inner: MemoryStore::with_wall(move || *lock(&shown)),
            time,
            failing: Arc::default(),
            conditional_delete: true,
            rests: Rests::BeforeAndAfter,
            gets: Arc::default(),
            lists: Arc::default(),
        }
    }

    /// Makes a store that answers at once.
    pub(super) fn at_once() -> Self {
        let mut store = Self::new();
        store.rests = Rests::Never;
        store
    }

    /// Makes a store whose calls pause only once.
    pub(super) fn with_few_steps() -> Self {
        let mut store = Self::new();
        store.rests = Rests::After;
        store
    }

    /// Returns the same store, with calls that pause.
    pub(super) fn slow_copy(&self) -> Self {
        Self {
            rests: Rests::After,
            ..self.clone()
        }
    }

    /// Sets the time of the store.
    pub(super) fn set_time(&self, time: SystemTime) {
        *lock(&self.time) = time;
    }

    pub(super) fn without_conditional_delete(mut self) -> Self {
        self.conditional_delete = false;
        self
    }

    /// Takes the number of reads and of lists.
    pub(super) fn take_calls(&self) -> (usize, usize) {
        let take = |calls: &AtomicUsize| calls.swap(0, Ordering::Relaxed);
        (take(&self.gets), take(&self.lists))
    }

    pub(super) fn fail(&self, failing: Failing) {
        *lock(&self.failing) = failing;
    }

    /// Reads a blob without a step, for checks.
    pub(super) fn peek(&self, name: &BlobName) -> Option<Blob> {
        let mut read = self.inner.get(name);
        match read.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(blob) => blob.expect("memory does not fail"),
            Poll::Pending => panic!("memory does not wait"),
        }
    }

    async fn call<T>(
        &self,
        writes: bool,
        effect: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let failed = || Error::new(ErrorKind::Timeout, "on purpose");
        if self.rests == Rests::BeforeAndAfter {
            pause().await;
        }
        match *lock(&self.failing) {
            Failing::Everything => return Err(failed()),
            Failing::Denied => return Err(Error::new(ErrorKind::Denied, "on purpose")),
            Failing::WritesDenied if writes => {
                return Err(Error::new(ErrorKind::Denied, "on purpose"));
            }
            _ => {}
        }
        let outcome = effect.await;
        if self.rests != Rests::Never {
            pause().await;
        }
        if writes && *lock(&self.failing) == Failing::WritesThatHappened {
            return Err(failed());
        }
        outcome
    }
}

/// Waits until the next poll.
async fn pause() {
    let mut rested = false;
    std::future::poll_fn(|context| {
        context.waker().wake_by_ref();
        match std::mem::replace(&mut rested, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
}

#[async_trait]
impl BlobStore for SteppedStore {
    async fn get(&self, name: &BlobName) -> Result<Option<Blob>> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        self.call(false, self.inner.get(name)).await
    }

    async fn create(&self, name: &BlobName, content: BlobContent) -> Result<ETag> {
        let effect = async {
            if *lock(&self.failing) == Failing::WritesTwice {
                self.inner.create(name, content.clone()).await?;
            }
            self.inner.create(name, content).await
        };
        self.call(true, effect).await
    }

    async fn update(&self, name: &BlobName, content: BlobContent, etag: &ETag) -> Result<ETag> {
        let effect = async {
            if *lock(&self.failing) == Failing::WritesTwice {
                self.inner.update(name, content.clone(), etag).await?;
            }
            self.inner.update(name, content, etag).await
        };
        self.call(true, effect).await
    }

    async fn delete(&self, name: &BlobName, etag: Option<&ETag>) -> Result<bool> {
        assert!(etag.is_none() || self.conditional_delete, "cannot do that");
        self.call(true, self.inner.delete(name, etag)).await
    }

    async fn list(&self, prefix: &str, page: &PageOptions) -> Result<Page> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        self.call(false, self.inner.list(prefix, page)).await
    }

    fn conditional_delete(&self) -> bool {
        self.conditional_delete
    }
}

impl fmt::Display for SteppedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stepped:")
    }
}

/// One of the concurrent actors.
pub(super) type Actor<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// The result of an exploration.
#[derive(Debug)]
pub(super) struct Explored {
    pub(super) orders: usize,
    /// The first violation, and the number of orders with one.
    pub(super) violation: Option<String>,
    pub(super) violations: usize,
}

/// Enumerates each combination of choices once, run by run.
#[derive(Debug, Default)]
pub(super) struct Chooser {
    taken: Vec<(usize, usize)>,
    next: usize,
}

impl Chooser {
    fn choose(&mut self, of: usize) -> usize {
        if self.next == self.taken.len() {
            self.taken.push((0, of));
        }
        let (choice, _) = self.taken[self.next];
        self.next += 1;
        choice
    }

    /// Moves to the next combination. Returns whether there is one.
    fn advance(&mut self) -> bool {
        self.next = 0;
        while let Some((choice, of)) = self.taken.pop() {
            if choice + 1 < of {
                self.taken.push((choice + 1, of));
                return true;
            }
        }
        false
    }

    /// Runs the actors to their ends, in this run's order.
    pub(super) fn run(&mut self, actors: Vec<Actor<'_>>) {
        let mut actors: Vec<_> = actors
            .into_iter()
            .map(|actor| (actor, Arc::new(Woken(AtomicBool::new(true)))))
            .collect();
        while !actors.is_empty() {
            let ready: Vec<usize> = (0..actors.len())
                .filter(|index| actors[*index].1.0.load(Ordering::Relaxed))
                .collect();
            assert!(!ready.is_empty(), "deadlock: every actor waits");
            let index = ready[self.choose(ready.len())];
            let (actor, woken) = &mut actors[index];
            woken.0.store(false, Ordering::Relaxed);
            let waker = Waker::from(Arc::clone(woken));
            if actor
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_ready()
            {
                drop(actors.remove(index));
            }
        }
    }
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs a scenario in every order of its actors.
pub(super) fn explore(scenario: impl Fn(&mut Chooser) -> Result<(), String>) -> Explored {
    let mut chooser = Chooser::default();
    let mut explored = Explored {
        orders: 0,
        violation: None,
        violations: 0,
    };
    loop {
        explored.orders += 1;
        if let Err(violation) = scenario(&mut chooser) {
            explored.violations += 1;
            explored.violation.get_or_insert(violation);
        }
        if !chooser.advance() {
            return explored;
        }
        assert!(explored.orders < 500_000, "a scenario too large to explore");
    }
}
