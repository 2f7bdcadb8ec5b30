//! Messages, handled by running the command; and what ends the verb by itself.

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
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
use tokio_util::sync::CancellationToken;

use super::{
    command::{Program, Ran},
    input::Input,
    voice::Voice,
};

/// Handles messages.
#[derive(Debug)]
pub(super) struct Worker {
    program: Program,
    quota: Option<Quota>,
    ending: Ending,
    /// A command was ended because the listener ends, before it had come to its own end.
    cut_off: AtomicBool,
    voice: Arc<Voice>,
}

/// Why the verb ends by itself.
#[derive(Debug)]
pub(super) enum End {
    /// --count was reached.
    Counted,
    /// The command cannot be run at all.
    Unable(String),
}

/// Ends the verb.
#[derive(Debug, Clone)]
pub(super) struct Ending {
    causes: mpsc::Sender<End>,
    /// No command is started any more.
    stopped: CancellationToken,
    emptied: Arc<AtomicBool>,
}

/// Messages that may still be handled.
#[derive(Debug)]
struct Quota {
    count: u64,
    handled: AtomicU64,
    left: Semaphore,
}

impl Ending {
    /// Returns it, and where its cause is heard.
    pub(super) fn new() -> (Self, mpsc::Receiver<End>) {
        let (causes, ends) = mpsc::channel(1);
        let ending = Self {
            causes,
            stopped: CancellationToken::new(),
            emptied: Arc::default(),
        };
        (ending, ends)
    }

    fn end(&self, end: End) {
        // Only the first cause counts.
        let _ = self.causes.try_send(end);
        self.stopped.cancel();
    }

    /// The queue was found empty. What is at hand is handled all the same.
    pub(super) fn emptied(&self) {
        self.emptied.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_emptied(&self) -> bool {
        self.emptied.load(Ordering::Relaxed)
    }
}

impl Worker {
    pub(super) fn new(
        program: Program,
        count: Option<u64>,
        ending: Ending,
        voice: Arc<Voice>,
    ) -> Self {
        Self {
            program,
            quota: count.map(Quota::new),
            ending,
            cut_off: AtomicBool::new(false),
            voice,
        }
    }

    /// Handles one message.
    pub(super) async fn handle(&self, delivery: Delivery) -> HandlerResult {
        let input = Input::of_one(&delivery);
        self.perform(&[delivery], input).await
    }

    /// Handles the messages of a get by one run.
    pub(super) async fn handle_batch(&self, batch: Vec<Delivery>) -> HandlerResult {
        let input = Input::of_batch(&batch)?;
        self.perform(&batch, input).await
    }

    /// Starts no command any more.
    pub(super) fn stop(&self) {
        self.ending.stopped.cancel();
    }

    /// Returns how many commands run.
    pub(super) fn running(&self) -> usize {
        self.program.running()
    }

    /// Kills the commands that run; returns how many.
    pub(super) fn kill(&self) -> usize {
        self.program.kill()
    }

    /// Returns whether a command was ended before it had come to its end.
    pub(super) fn has_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Relaxed)
    }

    async fn perform(&self, batch: &[Delivery], input: Input) -> HandlerResult {
        // A batch goes on for those of its messages that are still ours.
        let lost = async {
            join_all(batch.iter().map(Delivery::lost)).await;
        };
        tokio::pin!(lost);
        let turn = async {
            match &self.quota {
                Some(quota) => quota.take(batch.len()).await,
                None => None,
            }
        };
        let turn = tokio::select! {
            biased;
            () = self.ending.stopped.cancelled() => return untried(),
            () = &mut lost => return untried(),
            turn = turn => turn,
        };
        for delivery in batch {
            self.voice.attempt(&delivery.message);
        }
        match self.program.run(input, &mut lost).await {
            Ok(ran) => self.judge(&ran)?,
            Err(error) => return self.unable(&error),
        }
        if let (Some(quota), Some(turn)) = (&self.quota, turn)
            && quota.spend(turn)
        {
            self.ending.end(End::Counted);
        }
        Ok(())
    }

    fn judge(&self, ran: &Ran) -> HandlerResult {
        if ran.status.success() {
            return Ok(());
        }
        if ran.told {
            // Before the end of the listener its message was lost, and is another listener's.
            if self.ending.stopped.is_cancelled() {
                self.cut_off.store(true, Ordering::Relaxed);
            }
            return Err(format!("the command was ended: {}", ran.status).into());
        }
        Err(format!("the command failed: {}", ran.status).into())
    }

    /// The command was not started. What holds for every message ends the verb, and is no message's
    /// failure; a system that is short of something is tried again later.
    fn unable(&self, error: &io::Error) -> HandlerResult {
        let never = matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
        );
        let text = format!("the command cannot be run: {error}");
        if never || error.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error()) {
            self.ending.end(End::Unable(text));
            return untried();
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

    /// Waits until at least one more message may be handled, and takes up to `messages`; given back
    /// where it is dropped.
    async fn take(&self, messages: usize) -> Option<SemaphorePermit<'_>> {
        let mut turn = self.left.acquire().await.ok()?;
        for _ in 1..messages {
            match self.left.try_acquire() {
                Ok(more) => turn.merge(more),
                // The rest of a batch is beyond the count, and handled with it.
                Err(_) => break,
            }
        }
        Some(turn)
    }

    /// Those were handled; returns whether they were the last.
    fn spend(&self, turn: SemaphorePermit<'_>) -> bool {
        let handled = turn.num_permits() as u64;
        turn.forget();
        self.handled.fetch_add(handled, Ordering::Relaxed) + handled >= self.count
    }
}

/// Others may have it at once.
fn untried() -> HandlerResult {
    Err(Postponed::by(Duration::ZERO).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_more_than_the_count_are_handled_at_a_time_and_a_failure_gives_its_turn_back() {
        let quota = Arc::new(Quota::new(2));
        let (one, two) = (quota.take(1).await, quota.take(1).await);
        assert!(futures_util::poll!(Box::pin(quota.take(1))).is_pending());
        drop(one);
        let again = quota.take(3).await.expect("given back");
        assert_eq!(again.num_permits(), 1);
        assert!(!quota.spend(again));
        assert!(quota.spend(two.expect("taken")));
    }
}
