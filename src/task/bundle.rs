//! One task for a connection and all that runs on it.
//!
//! hyper spawns a task for each stream of a connection. Each message then passes from one task to
//! the other, and HTTP/2 wakes a stream while it is polled, for which tokio wakes another thread to
//! come and take it over. Polled by one task, they pass messages without asking a scheduler, and an
//! idle stream costs no task of its own. The price: a connection's streams share one core.

use std::{
    any::Any,
    fmt,
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use atomic_waker::AtomicWaker;
use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use tokio::task::coop::{has_budget_remaining, poll_proceed};

/// Takes the futures that are to be run beside the one that [`Bundle::run`] runs.
#[derive(Clone, Default)]
pub(crate) struct Bundle {
    shared: Arc<Shared>,
}

struct Shared {
    /// What was added since the last turn; `None` once the bundle has ended.
    added: Mutex<Option<Vec<Part>>>,
    state: AtomicU8,
    task: AtomicWaker,
}

/// Has the parts polled, or the main future.
struct Wakes<const WHAT: u8>(Arc<Shared>);

type Part = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Ends the bundle. A part may hold the bundle itself, as hyper's streams do: what was added and
/// never polled would keep itself alive for ever.
struct Ending(Arc<Shared>);

/// Turns that a bundle takes before other tasks have theirs.
const TURNS: u32 = 8;
/// The parts are to be polled.
const PARTS: u8 = 1;
/// The main future is to be polled.
const MAIN: u8 = 2;
/// The task polls, and looks at the two bits above before it rests: a wake need not wake the task.
const POLLING: u8 = 4;

impl Bundle {
    /// Has `part` run until it ends or the bundle does. One that panics ends alone; one that is
    /// added after the bundle's end is dropped.
    pub(crate) fn add(&self, part: impl Future<Output = ()> + Send + 'static) {
        let part = AssertUnwindSafe(part).catch_unwind().map(|ended| {
            if let Err(panic) = ended {
                tracing::error!(panic = words(&*panic), "a stream panicked");
            }
        });
        if self.shared.push(Box::pin(part)) {
            self.shared.wake(PARTS);
        }
    }

    /// Runs `main` to its end, and beside it what was added; all of that is dropped then.
    ///
    /// # Cancel safety
    /// Dropping it drops all of them, also where it was never polled.
    pub(crate) fn run<T>(self, main: impl Future<Output = T>) -> impl Future<Output = T> {
        // Made before the future is polled, and dropped after all that is in it.
        let ending = Ending(Arc::clone(&self.shared));
        async move {
            let _ending = ending;
            self.drive(main).await
        }
    }

    async fn drive<T>(self, main: impl Future<Output = T>) -> T {
        let mut main = std::pin::pin!(main);
        let mut parts = FuturesUnordered::new();
        let parts_waker = Waker::from(Arc::new(Wakes::<PARTS>(Arc::clone(&self.shared))));
        let main_waker = Waker::from(Arc::new(Wakes::<MAIN>(Arc::clone(&self.shared))));
        let mut main_first = false;
        std::future::poll_fn(|cx| {
            self.shared.task.register(cx.waker());
            if std::mem::take(&mut main_first) {
                self.shared.begin_main();
                let mut context = Context::from_waker(&main_waker);
                if let Poll::Ready(output) = main.as_mut().poll(&mut context) {
                    return Poll::Ready(output);
                }
                if !has_budget_remaining() {
                    return next_turn(cx);
                }
            }
            for turn in 0..TURNS {
                if self.shared.begin_turn() & PARTS != 0 || turn == 0 {
                    self.shared.take_added(&mut parts);
                    let mut context = Context::from_waker(&parts_waker);
                    while let Poll::Ready(Some(())) = parts.poll_next_unpin(&mut context) {}
                }
                if !has_budget_remaining() {
                    // The parts have spent it, and would spend the next one as well.
                    main_first = true;
                    return next_turn(cx);
                }
                // What the parts woke it for is done in this turn: most often they have made a frame
                // that it is to write.
                self.shared.begin_main();
                let mut context = Context::from_waker(&main_waker);
                if let Poll::Ready(output) = main.as_mut().poll(&mut context) {
                    return Poll::Ready(output);
                }
                if self.shared.rest() {
                    return Poll::Pending;
                }
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }
}

/// Has the task polled again when others have had their turn.
fn next_turn<T>(cx: &mut Context<'_>) -> Poll<T> {
    // Without a budget this is Pending, and has the task woken late.
    if poll_proceed(cx).is_ready() {
        cx.waker().wake_by_ref();
    }
    Poll::Pending
}

impl Shared {
    fn added(&self) -> MutexGuard<'_, Option<Vec<Part>>> {
        self.added.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether it will be run. Otherwise it is dropped, and not under the lock.
    fn push(&self, part: Part) -> bool {
        match &mut *self.added() {
            Some(added) => added.push(part),
            None => return false,
        }
        true
    }

    /// Takes what was added since the last turn.
    fn take_added(&self, parts: &mut FuturesUnordered<Part>) {
        let mut added = self.added();
        parts.extend(added.iter_mut().flat_map(|added| added.drain(..)));
    }

    /// Returns what is to be polled. Read as well as written: what was done before a wake must be
    /// seen by this turn.
    fn begin_turn(&self) -> u8 {
        self.state.swap(POLLING, Ordering::AcqRel)
    }

    /// The main future is about to be polled.
    fn begin_main(&self) {
        self.state.fetch_and(!MAIN, Ordering::AcqRel);
    }

    /// Ends the polling, unless there is more to poll since the turn began.
    fn rest(&self) -> bool {
        let (idle, seq) = (0, Ordering::SeqCst);
        self.state.compare_exchange(POLLING, idle, seq, seq).is_ok()
    }

    fn wake(&self, what: u8) {
        if self.state.fetch_or(what, Ordering::AcqRel) == 0 {
            self.task.wake();
        }
    }
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            added: Mutex::new(Some(Vec::new())),
            state: AtomicU8::new(0),
            task: AtomicWaker::new(),
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        // Dropped out of the lock: a part's end may add another.
        let added = self.0.added().take();
        drop(added);
    }
}

impl<const WHAT: u8> Wake for Wakes<WHAT> {
    fn wake(self: Arc<Self>) {
        self.0.wake(WHAT);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wake(WHAT);
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Bundle {
    fn execute(&self, stream: F) {
        self.add(stream);
    }
}

impl fmt::Debug for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bundle").finish_non_exhaustive()
    }
}

/// Returns what a panic said.
fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without words")
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn it_ends_with_its_main_future_and_drops_the_others() {
        let bundle = Bundle::default();
        let (held, mut dropped) = mpsc::channel::<()>(1);
        bundle.add(async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        assert_eq!(bundle.run(async { 7 }).await, 7);
        assert_eq!(dropped.recv().await, None);
    }

    /// A part that holds its own bundle, as hyper's streams do.
    fn circular(bundle: &Bundle) -> impl Future<Output = ()> + Send + 'static {
        let bundle = bundle.clone();
        async move {
            std::future::pending::<()>().await;
            drop(bundle);
        }
    }

    #[tokio::test]
    async fn what_is_added_too_late_is_dropped_with_the_bundle() {
        let bundle = Bundle::default();
        let last = bundle.clone();
        bundle
            .clone()
            .run(async move { last.add(circular(&last)) })
            .await;
        bundle.add(circular(&bundle));
        assert_eq!(
            Arc::strong_count(&bundle.shared),
            1,
            "nothing holds it any more"
        );
    }

    #[test]
    fn a_bundle_that_is_never_polled_drops_its_parts_as_well() {
        let bundle = Bundle::default();
        let run = bundle.clone().run(std::future::pending::<()>());
        bundle.add(circular(&bundle));
        drop(run);
        assert_eq!(Arc::strong_count(&bundle.shared), 1);
    }

    #[tokio::test]
    async fn a_part_that_panics_ends_alone() {
        let bundle = Bundle::default();
        let (said, mut heard) = mpsc::channel(1);
        bundle.add(async { panic!("as it should") });
        bundle.add({
            let bundle = bundle.clone();
            // Added while the bundle is polled, by one of its parts.
            async move { bundle.add(async move { said.send(7).await.expect("heard") }) }
        });
        assert_eq!(bundle.run(async { heard.recv().await }).await, Some(7));
    }

    /// Parts that hand a token round, over threads that wake each other at every moment: one wake
    /// that is lost, and it stands still.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn no_wake_is_lost_between_bundles() {
        const ROUNDS: usize = 20_000;
        let (first, mut inbox) = mpsc::channel::<usize>(1);
        let passed = Arc::new(AtomicUsize::new(0));
        let mut tasks = Vec::new();
        for _ in 0..4 {
            let bundle = Bundle::default();
            for _ in 0..3 {
                let (out, next) = mpsc::channel(1);
                let (mut input, passed) =
                    (std::mem::replace(&mut inbox, next), Arc::clone(&passed));
                bundle.add(async move {
                    while let Some(token) = input.recv().await {
                        passed.fetch_add(1, Ordering::Relaxed);
                        if out.send(token).await.is_err() {
                            return;
                        }
                    }
                });
            }
            tasks.push(tokio::spawn(bundle.run(std::future::pending::<()>())));
        }
        let round = async {
            for token in 0..ROUNDS {
                first.send(token).await.expect("they run");
                assert_eq!(inbox.recv().await, Some(token));
            }
        };
        let ended = tokio::time::timeout(Duration::from_secs(60), round).await;
        assert!(ended.is_ok(), "stuck after {passed:?} steps");
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[tokio::test]
    async fn a_part_that_always_wakes_itself_lets_other_tasks_run() {
        let bundle = Bundle::default();
        bundle.add(std::future::poll_fn(|cx| {
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
        let task = tokio::spawn(bundle.run(std::future::pending::<()>()));
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        task.abort();
    }

    /// Spends a unit in each poll that has one, and counts them.
    async fn spender(turns: Arc<AtomicUsize>, enough: usize) {
        std::future::poll_fn(|cx| {
            if let Poll::Ready(unit) = poll_proceed(cx) {
                unit.made_progress();
                if turns.fetch_add(1, Ordering::Relaxed) + 1 == enough {
                    return Poll::Ready(());
                }
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    #[tokio::test]
    async fn parts_that_spend_every_turn_leave_the_main_future_its_own() {
        const PARTS: usize = 1_000;
        let bundle = Bundle::default();
        let spent = Arc::<AtomicUsize>::default();
        for _ in 0..PARTS {
            bundle.add(spender(Arc::default(), 1));
            // As often as there is a turn for it.
            bundle.add(spender(Arc::clone(&spent), usize::MAX));
        }
        let served = Arc::<AtomicUsize>::default();
        let mut run = Box::pin(bundle.run(spender(Arc::clone(&served), usize::MAX)));
        let mut polls = 0;
        // Each poll of the outer future is a turn of the task.
        std::future::poll_fn(|cx| {
            assert!(run.as_mut().poll(cx).is_pending());
            polls += 1;
            let served = served.load(Ordering::Relaxed);
            assert!(polls < 2 || served > 0, "the main future starves");
            match polls < 20 {
                true => Poll::Pending,
                false => Poll::Ready(()),
            }
        })
        .await;
        assert!(spent.load(Ordering::Relaxed) > 0, "the parts starve");
    }
}
