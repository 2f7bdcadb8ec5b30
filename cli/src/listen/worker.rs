//! Handles messages by running the command, and ends `listen` after --count messages.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use reveille::listener::{Delivery, HandlerResult, Postponed};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{
    command::{Program, RunOutcome},
    event_log::EventLog,
    input::Input,
    stop::{StopHandle, StopReason},
};

/// The listener's handler.
#[derive(Debug)]
pub(super) struct Worker {
    program: Program,
    quota: Option<Quota>,
    stop_handle: StopHandle,
    /// At least one command was ended early because the listener ends.
    cut_off: AtomicBool,
    events: Arc<EventLog>,
}

/// The number of messages that --count still allows.
#[derive(Debug)]
struct Quota {
    count: u64,
    handled: AtomicU64,
    left: Semaphore,
}

impl Worker {
    pub(super) fn new(
        program: Program,
        count: Option<u64>,
        stop_handle: StopHandle,
        events: Arc<EventLog>,
    ) -> Self {
        Self {
            program,
            quota: count.map(Quota::new),
            stop_handle,
            cut_off: AtomicBool::new(false),
            events,
        }
    }

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

    /// Prevents further commands from starting.
    pub(super) fn stop(&self) {
        self.stop_handle.stopped.cancel();
    }

    /// Returns the number of running commands.
    pub(super) fn running(&self) -> usize {
        self.program.running()
    }

    /// Kills all running commands; returns their number.
    pub(super) fn kill(&self) -> usize {
        self.program.kill()
    }

    /// Returns whether a command was ended early because the listener ends.
    pub(super) fn has_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Relaxed)
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
        match self.program.run(input, &mut lost).await {
            Ok(ran) => self.check(&ran)?,
            Err(error) => return self.on_start_error(&error),
        }
        if let (Some(quota), Some(permit)) = (&self.quota, permit)
            && quota.commit(permit)
        {
            self.stop_handle.end(StopReason::Counted);
        }
        Ok(())
    }

    fn check(&self, ran: &RunOutcome) -> HandlerResult {
        if ran.status.success() {
            return Ok(());
        }
        if ran.terminated {
            // If the listener is not ending, the message was lost to another listener.
            if self.stop_handle.stopped.is_cancelled() {
                self.cut_off.store(true, Ordering::Relaxed);
            }
            return Err(format!("the command was ended: {}", ran.status).into());
        }
        Err(format!("the command failed: {}", ran.status).into())
    }

    /// Handles a command that could not be started. An error that holds for every message ends the
    /// verb and is no failed attempt. Other errors, such as a lack of memory, are retried later.
    fn on_start_error(&self, error: &io::Error) -> HandlerResult {
        let is_permanent = matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
        );
        let text = format!("the command cannot be run: {error}");
        if is_permanent || error.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error()) {
            self.stop_handle.end(StopReason::Unable(text));
            return postponed();
        }
        Err(text.into())
    }
}

impl Quota {
    fn new(count: u64) -> Self {
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
