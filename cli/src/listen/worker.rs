//! Handles messages by running the command, and judges its end.

use std::{
    ffi::OsString,
    io,
    pin::pin,
    process::Stdio,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use reveille::listener::{Delivery, HandlerError, HandlerResult, Postponed, Rejected};
use tokio::{io::AsyncWriteExt as _, sync::Semaphore};
use tokio_util::sync::CancellationToken;

use crate::{
    child::{self, Ended, KILL_AFTER, Process},
    output,
    signals::Signal,
};

/// Why `listen` ends.
#[derive(Debug, Clone)]
pub(super) enum EndCause {
    /// --count was reached.
    Counted,
    /// Nobody reads the output any more.
    Unread,
    /// The system cannot run the command at all.
    Unable(String),
    Emptied,
    Signal(Signal),
}

/// The listener's handler.
#[derive(Debug)]
pub(super) struct Worker {
    command: Vec<OsString>,
    quota: Option<Quota>,
    /// The delay of a message that its command puts back.
    postpone: Duration,
    /// The pause after a command that could not be run.
    pause: Duration,
    /// Once cancelled, no further command starts.
    pub(super) stopped: CancellationToken,
    /// Why the worker has stopped by itself.
    cause: OnceLock<EndCause>,
    /// At least one command was ended early because the listener ends.
    pub(super) cut_off: AtomicBool,
    /// At least one message was put back without an attempt.
    pub(super) put_back: AtomicBool,
}

/// The successful runs that --count still allows.
#[derive(Debug)]
struct Quota {
    count: u64,
    succeeded: AtomicU64,
    left: Semaphore,
}

/// The exit code of a command that cannot use the message's data (EX_DATAERR in sysexits.h).
const REJECTED: i32 = 65;
/// The exit code of a command that cannot handle the message now (EX_TEMPFAIL in sysexits.h).
const POSTPONED: i32 = 75;
/// The exit codes of a shell that cannot run a program, and that finds none.
const NOT_RUN: i32 = 126;
const NOT_FOUND: i32 = 127;
/// The pause after a command that could not be run: a deployment may replace its program.
const PAUSE: Duration = Duration::from_secs(5);
/// The longest time between the ends of two processes that are ended together.
const SAME_TIME: Duration = Duration::from_secs(1);

impl Worker {
    pub(super) fn new(
        command: Vec<OsString>,
        count: Option<u64>,
        postpone: Duration,
        max_handling_time: Duration,
    ) -> Self {
        Self {
            command,
            quota: count.map(|count| Quota {
                count,
                succeeded: AtomicU64::new(0),
                left: Semaphore::new(
                    usize::try_from(count).map_or(Semaphore::MAX_PERMITS, |most| {
                        most.min(Semaphore::MAX_PERMITS)
                    }),
                ),
            }),
            postpone,
            // A longer pause would count as a failed attempt.
            pause: PAUSE.min(max_handling_time / 2),
            stopped: CancellationToken::new(),
            cause: OnceLock::new(),
            cut_off: AtomicBool::new(false),
            put_back: AtomicBool::new(false),
        }
    }

    /// Waits until the worker stops by itself.
    pub(super) async fn ended(&self) -> EndCause {
        self.stopped.cancelled().await;
        self.cause.get().expect("it is set before").clone()
    }

    fn end(&self, cause: EndCause) {
        // Only the first cause counts.
        let _ = self.cause.set(cause);
        self.stopped.cancel();
    }

    /// Handles one message.
    pub(super) async fn handle(&self, delivery: Delivery) -> HandlerResult {
        let message = &delivery.message;
        let id = message.id.to_string();
        let mut lost = pin!(delivery.lost());
        let permit = async {
            match &self.quota {
                Some(quota) => quota.left.acquire().await.ok(),
                None => None,
            }
        };
        let permit = tokio::select! {
            biased;
            () = self.stopped.cancelled() => return put_back(Duration::ZERO),
            () = &mut lost => return put_back(Duration::ZERO),
            permit = permit => permit,
        };
        if message.dequeue_count > 1 {
            tracing::info!(id, attempt = message.dequeue_count, "redelivered");
        }
        let environment = [
            ("MESSAGE_ID", id.clone()),
            ("MESSAGE_DEQUEUE_COUNT", message.dequeue_count.to_string()),
            ("MESSAGE_QUEUE", delivery.queue.to_string()),
            ("MESSAGE_INSERTED_AT", output::time(message.inserted_at)),
        ];
        let why = match self.run(environment, &message.body, &mut lost).await {
            Err(error) if child::is_permanent(&error) => {
                let text = format!("the command cannot be run: {error}");
                self.end(EndCause::Unable(text));
                return put_back(Duration::ZERO);
            }
            Err(error) => format!("the command cannot be run: {error}"),
            Ok(ended) if ended.could_not_run() => {
                format!("the command could not run a program: {}", ended.status)
            }
            Ok(ended) => {
                self.judge(&ended).await?;
                if let (Some(quota), Some(permit)) = (&self.quota, permit) {
                    permit.forget();
                    if quota.succeeded.fetch_add(1, Ordering::Relaxed) + 1 == quota.count {
                        self.end(EndCause::Counted);
                    }
                }
                return Ok(());
            }
        };
        tracing::warn!(id, error = why, "no program was run; no attempt is counted");
        self.put_back.store(true, Ordering::Relaxed);
        // The place of the message stays taken, so that no other one is got for the same failure.
        tokio::select! {
            () = self.stopped.cancelled() => put_back(Duration::ZERO),
            () = &mut lost => put_back(Duration::ZERO),
            () = tokio::time::sleep(self.pause) => put_back(self.pause),
        }
    }

    /// Runs the command to its end. Sends it SIGTERM when `lost` resolves.
    ///
    /// # Errors
    /// The command could not be started.
    async fn run(
        &self,
        environment: impl IntoIterator<Item = (&'static str, String)>,
        body: &[u8],
        lost: impl Future<Output = ()>,
    ) -> io::Result<Ended> {
        let stdout = Stdio::inherit();
        let mut process = Process::start(&self.command, environment, Stdio::piped(), stdout)?;
        let stdin = process.stdin();
        // A command need not read its input, which is closed behind the body.
        let feed = async {
            if let Some(mut stdin) = stdin {
                let _ = stdin.write_all(body).await;
            }
        };
        let mut run = pin!(process.run_until(lost, KILL_AFTER));
        tokio::select! {
            biased;
            ended = &mut run => ended,
            () = feed => run.await,
        }
    }

    async fn judge(&self, ended: &Ended) -> HandlerResult {
        let failed =
            |what: &str| HandlerError::from(format!("the command {what}: {}", ended.status));
        match ended.status.code() {
            Some(0) => Ok(()),
            _ if ended.terminated => {
                // If the listener is not ending, the message was lost to another listener.
                if self.stopped.is_cancelled() {
                    self.cut_off.store(true, Ordering::Relaxed);
                }
                Err(failed("was ended"))
            }
            Some(REJECTED) => Err(Rejected::because(failed("rejected it")).into()),
            Some(POSTPONED) => {
                self.put_back.store(true, Ordering::Relaxed);
                put_back(self.postpone)
            }
            _ if ended.died_of_sigterm() && self.ends_now().await => {
                self.cut_off.store(true, Ordering::Relaxed);
                put_back(Duration::ZERO)
            }
            // A command that writes dies of SIGPIPE, or fails.
            _ if output::is_unread() => {
                self.end(EndCause::Unread);
                put_back(Duration::ZERO)
            }
            _ => Err(failed("failed")),
        }
    }

    /// Returns whether the listener was asked to end, or is within a moment: a service manager sends
    /// SIGTERM to all processes of a service in turn.
    async fn ends_now(&self) -> bool {
        let stopped = self.stopped.cancelled();
        tokio::time::timeout(SAME_TIME, stopped).await.is_ok()
    }
}

impl Ended {
    /// Returns whether a shell could not run the program.
    fn could_not_run(&self) -> bool {
        !self.terminated && matches!(self.status.code(), Some(NOT_RUN | NOT_FOUND))
    }
}

/// Puts the message back without a failed attempt, hidden for this delay.
fn put_back(delay: Duration) -> HandlerResult {
    Err(Postponed::by(delay).into())
}

#[cfg(test)]
mod tests {
    use std::{future::pending, os::unix::process::ExitStatusExt as _, path::Path, time::Duration};

    use super::*;

    fn worker(script: &str) -> Worker {
        let command = ["sh", "-c", script].map(OsString::from).to_vec();
        Worker::new(command, None, Duration::ZERO, Duration::from_secs(60))
    }

    async fn run(worker: &Worker, body: &str, lost: impl Future<Output = ()>) -> Ended {
        let environment = [("MESSAGE_ID", "7".to_owned())];
        let ran = worker.run(environment, body.as_bytes(), lost).await;
        ran.expect("run")
    }

    async fn exists(path: &Path) {
        while !path.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn a_run_has_its_message_and_its_environment() {
        let worker = worker("test \"$MESSAGE_ID $(cat)\" = '7 hello'");
        let ran = run(&worker, "hello", pending()).await;
        assert!(ran.status.success() && !ran.terminated);
    }

    #[tokio::test]
    async fn a_command_that_does_not_read_its_input_is_no_failure() {
        let body = "x".repeat(1 << 20);
        let ran = run(&worker("exit 3"), &body, pending()).await;
        assert_eq!(ran.status.code(), Some(3));
    }

    #[tokio::test]
    async fn a_command_whose_message_is_lost_gets_sigterm_and_so_do_its_children() {
        let directory = tempfile::tempdir().expect("a directory");
        let mark = directory.path().join("child");
        let script = format!(
            "sh -c 'trap \"touch {0}; exit\" TERM; touch {0}.up; while :; do sleep 0.05; done' & wait; wait",
            mark.display()
        );
        let up = mark.with_extension("up");
        let ran = run(&worker(&script), "", exists(&up)).await;
        assert!(ran.terminated);
        assert_eq!(ran.status.signal(), Some(15));
        exists(&mark).await;
    }

    #[tokio::test]
    async fn a_command_that_ignores_sigterm_is_killed() {
        let directory = tempfile::tempdir().expect("a directory");
        let up = directory.path().join("up");
        let script = format!(
            "trap '' TERM; touch {}; while :; do sleep 0.05; done",
            up.display()
        );
        let ran = run(&worker(&script), "", exists(&up)).await;
        assert_eq!((ran.terminated, ran.status.signal()), (true, Some(9)));
    }

    #[tokio::test]
    async fn a_run_that_is_dropped_is_killed() {
        let directory = tempfile::tempdir().expect("a directory");
        let (up, mark) = (directory.path().join("up"), directory.path().join("mark"));
        let script = format!(
            "touch {}; sleep 0.5; touch {}",
            up.display(),
            mark.display()
        );
        let worker = worker(&script);
        tokio::select! {
            _ = run(&worker, "", pending()) => panic!("it sleeps"),
            () = exists(&up) => {}
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!mark.exists());
    }
}
