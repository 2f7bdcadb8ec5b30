//! One task for a connection and all that runs on it.
//!
//! hyper spawns a task for each stream of a connection. Each message then passes from one task to
//! the other, and HTTP/2 wakes a stream while it is polled, for which tokio wakes another thread to
//! come and take it over: most of what a wake-up would take. Polled by one task, they pass
//! messages without asking a scheduler, and an idle stream costs no task of its own.

use std::{
    any::Any,
    fmt,
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use atomic_waker::AtomicWaker;
use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};

/// Takes the futures that are to be run beside the one that [`Bundle::run`] runs.
#[derive(Clone, Default)]
pub(crate) struct Bundle {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// What was added since the last turn.
    added: Mutex<Vec<Part>>,
    state: AtomicU8,
    task: AtomicWaker,
}

type Part = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Nothing to do: whoever wakes the bundle wakes its task.
const IDLE: u8 = 0;
/// The task polls: whoever wakes the bundle has it polled once more.
const POLLED: u8 = 1;
/// There is something to do, and the task knows or has been woken.
const WOKEN: u8 = 2;

impl Bundle {
    /// Has `part` run until it ends or the bundle does. One that panics ends alone.
    pub(crate) fn add(&self, part: impl Future<Output = ()> + Send + 'static) {
        let part = AssertUnwindSafe(part).catch_unwind().map(|ended| {
            if let Err(panic) = ended {
                tracing::error!(panic = words(&*panic), "a stream panicked");
            }
        });
        self.shared.added().push(Box::pin(part));
        self.shared.wake_by_ref();
    }

    /// Runs `main` to its end, and beside it what was added; all of that is dropped then.
    ///
    /// # Cancel safety
    /// Dropping it drops all of them.
    pub(crate) async fn run<T>(self, main: impl Future<Output = T>) -> T {
        let mut main = std::pin::pin!(main);
        let mut parts = FuturesUnordered::new();
        let waker = Waker::from(Arc::clone(&self.shared));
        std::future::poll_fn(|cx| {
            self.shared.task.register(cx.waker());
            let mut inner = Context::from_waker(&waker);
            loop {
                self.shared.state.store(POLLED, Ordering::SeqCst);
                parts.extend(self.shared.added().drain(..));
                while let Poll::Ready(Some(())) = parts.poll_next_unpin(&mut inner) {}
                if let Poll::Ready(output) = main.as_mut().poll(&mut inner) {
                    return Poll::Ready(output);
                }
                if self.shared.rest() {
                    return Poll::Pending;
                }
                // Out of budget, sockets say that they are not ready whatever they have: others
                // have their turn first.
                if !tokio::task::coop::has_budget_remaining() {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        })
        .await
    }
}

impl Shared {
    fn added(&self) -> std::sync::MutexGuard<'_, Vec<Part>> {
        self.added.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether nobody has woken the bundle since its turn began; it is idle then.
    fn rest(&self) -> bool {
        let rested = self
            .state
            .compare_exchange(POLLED, IDLE, Ordering::SeqCst, Ordering::SeqCst);
        rested.is_ok()
    }
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(WOKEN, Ordering::SeqCst) == IDLE {
            self.task.wake();
        }
    }
}

#[cfg(feature = "server")]
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
