//! Handles messages by running the command, judges its end, and ends `listen` without a signal.

use std::{
    os::unix::process::ExitStatusExt as _,
    process::ExitStatus,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use reveille::listener::{Delivery, HandlerError, HandlerResult, Postponed, Rejected};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
use tokio_util::sync::CancellationToken;

use super::{
    command::{Input, Program},
    event_log::EventLog,
};
use crate::{
    child::{self, Ended},
    output,
};

/// Why `listen` ends without a signal.
#[derive(Debug)]
pub(super) enum StopReason {
    /// --count was reached.
    Counted,
    /// Nobody reads the output any more.
    Unread,
    /// The system cannot run the command at all.
    Unable(String),
}

/// Stops the worker and ends `listen`.
#[derive(Debug, Clone)]
pub(super) struct StopHandle {
    sender: mpsc::Sender<StopReason>,
    /// Once cancelled, no further command starts.
    pub(super) stopped: CancellationToken,
    emptied: Arc<AtomicBool>,
}

/// The listener's handler.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) program: Program,
    pub(super) quota: Option<Quota>,
    /// The delay of a message that its command puts back.
    pub(super) postpone: Duration,
    pub(super) stop_handle: StopHandle,
    /// At least one command was ended early because the listener ends.
    pub(super) cut_off: AtomicBool,
    /// The longest time in which a command that cannot be run is tried again for one message: a run that
    /// takes longer counts as a failed attempt.
    pub(super) patience: Duration,
    /// At least one message was put back without an attempt.
    pub(super) put_back: AtomicBool,
    pub(super) events: Arc<EventLog>,
}

/// The exit code of a command that cannot use the message's data (EX_DATAERR in sysexits.h).
const REJECTED: i32 = 65;
/// The exit code of a command that cannot handle the message now (EX_TEMPFAIL in sysexits.h).
const POSTPONED: i32 = 75;
/// The exit codes of a shell that cannot run a program, and that finds none.
const NOT_RUN: i32 = 126;
const NOT_FOUND: i32 = 127;

/// The pauses after a command that could not be run, in seconds: about a minute in all.
const PAUSES: [u64; 6] = [1, 2, 4, 8, 16, 32];
/// The delay of the message after that.
const LAST_PAUSE: Duration = Duration::from_secs(60);
/// The longest time between the ends of two processes that are ended together.
const SAME_TIME: Duration = Duration::from_secs(1);

/// The number of messages that --count still allows.
#[derive(Debug)]
pub(super) struct Quota {
    count: u64,
    handled: AtomicU64,
    left: Semaphore,
}

impl Worker {
    /// Handles one message.
    pub(super) async fn handle(&self, delivery: Delivery) -> HandlerResult {
        let input = Input::of_one(&delivery);
        self.perform(&[delivery], input).await
    }

    /// Handles the messages of one get by one run.
    pub(super) async fn handle_batch(&self, batch: Vec<Delivery>) -> HandlerResult {
        let input = Input::of_batch(&batch)?;
        self.perform(&batch, input).await
    }

    async fn perform(&self, batch: &[Delivery], input: Input) -> HandlerResult {
        // A batch continues while at least one of its messages is not lost.
        let lost = async {
            join_all(batch.iter().map(Delivery::lost)).await;
        };
        tokio::pin!(lost);
        let permit = async {
            match &self.quota {
                Some(quota) => quota.acquire(batch.len()).await,
                None => None,
            }
        };
        let permit = tokio::select! {
            biased;
            () = self.stop_handle.stopped.cancelled() => return postponed(),
            () = &mut lost => return postponed(),
            permit = permit => permit,
        };
        for delivery in batch {
            self.events.log_redelivery(&delivery.message);
        }
        let (mut pauses, mut paused) = (PAUSES.iter(), Duration::ZERO);
        loop {
            let why = match self.program.run(&input, &mut lost).await {
                Ok(ran) => match self.judge(&ran).await {
                    End::Handled(result) => break result?,
                    End::NotRun(why) => why,
                },
                Err(error) if child::is_permanent(&error) => {
                    let text = format!("the command cannot be run: {error}");
                    self.stop_handle.end(StopReason::Unable(text));
                    return postponed();
                }
                Err(error) => format!("the command cannot be run: {error}"),
            };
            // The place of the message stays taken, so that no other one is got for the same failure.
            let pause = pauses.next().copied().map(Duration::from_secs);
            let Some(pause) = pause.filter(|pause| paused + *pause <= self.patience) else {
                self.events.log_not_run(batch, &why, LAST_PAUSE);
                self.put_back.store(true, Ordering::Relaxed);
                return Err(Postponed::by(LAST_PAUSE).into());
            };
            paused += pause;
            self.events.log_not_run(batch, &why, pause);
            tokio::select! {
                () = self.stop_handle.stopped.cancelled() => return postponed(),
                () = &mut lost => return postponed(),
                () = tokio::time::sleep(pause) => {}
            }
        }
        if let (Some(quota), Some(permit)) = (&self.quota, permit)
            && quota.commit(permit)
        {
            self.stop_handle.end(StopReason::Counted);
        }
        Ok(())
    }

    async fn judge(&self, ran: &Ended) -> End {
        let failed = |what: &str| HandlerError::from(format!("the command {what}: {}", ran.status));
        if ran.status.success() {
            return End::Handled(Ok(()));
        }
        if ran.terminated {
            // If the listener is not ending, the message was lost to another listener.
            if self.stop_handle.stopped.is_cancelled() {
                self.cut_off.store(true, Ordering::Relaxed);
            }
            return End::Handled(Err(failed("was ended")));
        }
        let result = match ran.status.code() {
            Some(REJECTED) => Err(Rejected::because(failed("rejected it")).into()),
            Some(POSTPONED) => {
                self.put_back.store(true, Ordering::Relaxed);
                Err(Postponed::by(self.postpone).into())
            }
            Some(NOT_RUN | NOT_FOUND) => {
                return End::NotRun(failed("could not run a program").to_string());
            }
            _ if died_of_sigterm(ran.status) && self.ends_now().await => {
                self.cut_off.store(true, Ordering::Relaxed);
                postponed()
            }
            // A command that writes dies of SIGPIPE, or fails.
            _ if output::is_unread() => {
                self.stop_handle.end(StopReason::Unread);
                postponed()
            }
            _ => Err(failed("failed")),
        };
        End::Handled(result)
    }

    /// Returns whether the listener was asked to end, or is within a moment: a service manager sends
    /// SIGTERM to all processes of a service in turn.
    async fn ends_now(&self) -> bool {
        let stopped = self.stop_handle.stopped.cancelled();
        tokio::time::timeout(SAME_TIME, stopped).await.is_ok()
    }
}

impl StopHandle {
    /// Returns the handle, and the receiver of the reason.
    pub(super) fn new() -> (Self, mpsc::Receiver<StopReason>) {
        let (sender, reasons) = mpsc::channel(1);
        let handle = Self {
            sender,
            stopped: CancellationToken::new(),
            emptied: Arc::default(),
        };
        (handle, reasons)
    }

    pub(super) fn end(&self, reason: StopReason) {
        // Only the first reason counts.
        let _ = self.sender.try_send(reason);
        self.stopped.cancel();
    }

    /// Records that the queue was found empty. Messages that were got before are still handled.
    pub(super) fn set_emptied(&self) {
        self.emptied.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_emptied(&self) -> bool {
        self.emptied.load(Ordering::Relaxed)
    }
}

/// What the end of a run means.
enum End {
    Handled(HandlerResult),
    /// No program could be run.
    NotRun(String),
}

/// Also a shell whose command died of it.
fn died_of_sigterm(status: ExitStatus) -> bool {
    const TERM: i32 = rustix::process::Signal::TERM.as_raw();
    status.signal() == Some(TERM) || status.code() == Some(128 + TERM)
}

impl Quota {
    pub(super) fn new(count: u64) -> Self {
        let left = usize::try_from(count).unwrap_or(usize::MAX);
        Self {
            count,
            handled: AtomicU64::new(0),
            left: Semaphore::new(left.min(Semaphore::MAX_PERMITS)),
        }
    }

    /// Waits until at least one more message may be handled, and acquires permits for up to
    /// `messages`. A dropped permit returns to the quota.
    async fn acquire(&self, messages: usize) -> Option<SemaphorePermit<'_>> {
        let mut permit = self.left.acquire().await.ok()?;
        for _ in 1..messages {
            match self.left.try_acquire() {
                Ok(more) => permit.merge(more),
                // The rest of a batch exceeds the count, and is handled with it.
                Err(_) => break,
            }
        }
        Some(permit)
    }

    /// Counts the permit's messages as handled; returns whether the count is reached.
    fn commit(&self, permit: SemaphorePermit<'_>) -> bool {
        let handled = permit.num_permits() as u64;
        permit.forget();
        self.handled.fetch_add(handled, Ordering::Relaxed) + handled >= self.count
    }
}

/// Makes the message visible to other listeners at once, without a failed attempt.
fn postponed() -> HandlerResult {
    Err(Postponed::by(Duration::ZERO).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_more_than_the_count_are_handled_at_a_time_and_a_failure_returns_its_permit() {
        let quota = Arc::new(Quota::new(2));
        let (one, two) = (quota.acquire(1).await, quota.acquire(1).await);
        assert!(futures_util::poll!(Box::pin(quota.acquire(1))).is_pending());
        drop(one);
        let again = quota.acquire(3).await.expect("a returned permit");
        assert_eq!(again.num_permits(), 1);
        assert!(!quota.commit(again));
        assert!(quota.commit(two.expect("a permit")));
    }
}
