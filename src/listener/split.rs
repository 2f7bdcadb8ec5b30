//! One subscription of several queues, split into wake-ups for each of them.
//!
//! A task owns the subscription. It forwards each wake-up to the queues that it concerns. Link
//! changes and wake-ups share one channel per queue, so their order is kept: a sequence is never
//! attributed to a later stream, where it could cover work that no listener polled for.

use std::{future::ready, time::Duration};

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot, watch};

use crate::{
    base::task::Scope,
    error::{Error, ErrorKind, Result},
    types::{LinkState, QueueAddress, Report, ReportFuture, WakeStream, WorkDetected},
};

/// Wait before a refused subscription is tried again.
const RETRY_AFTER_REFUSAL: Duration = Duration::from_secs(60);

/// An event for one queue.
#[derive(Clone)]
enum QueueEvent {
    Link(LinkState),
    Work(WorkDetected),
    /// The relay refused the subscription; the flag says whether it is tried again.
    Refused(Error, bool),
}

/// A command of one queue.
enum QueueCommand {
    /// A report for the stream of this number; on another stream its sequence would be wrong.
    Report(u64, Report, oneshot::Sender<ReportFuture>),
    Pause(usize, bool),
}

/// The wake-ups of one queue.
#[derive(Debug)]
struct QueueWakes {
    number: usize,
    events: mpsc::UnboundedReceiver<QueueEvent>,
    commands: mpsc::UnboundedSender<QueueCommand>,
    link: watch::Sender<LinkState>,
    will_retry: bool,
}

/// The task that owns the subscription.
struct Splitter {
    wakes: Box<dyn WakeStream>,
    link: watch::Receiver<LinkState>,
    queues: Vec<Part>,
    commands: mpsc::UnboundedReceiver<QueueCommand>,
}

struct Part {
    address: QueueAddress,
    events: mpsc::UnboundedSender<QueueEvent>,
    paused: bool,
}

/// Splits wake-ups by queue; returns them in the order of the addresses. The forwarding task
/// belongs to `scope`.
pub(super) fn split(
    wakes: Box<dyn WakeStream>,
    addresses: Vec<QueueAddress>,
    scope: &Scope,
) -> Vec<Box<dyn WakeStream>> {
    let (commands, received) = mpsc::unbounded_channel();
    let (mut queues, mut parts) = (Vec::new(), Vec::<Box<dyn WakeStream>>::new());
    for (number, address) in addresses.into_iter().enumerate() {
        let (sender, events) = mpsc::unbounded_channel();
        queues.push(Part {
            address,
            events: sender,
            paused: false,
        });
        parts.push(Box::new(QueueWakes {
            number,
            events,
            commands: commands.clone(),
            link: watch::Sender::new(LinkState::default()),
            will_retry: true,
        }));
    }
    let mut link = wakes.link();
    link.mark_changed();
    let splitter = Splitter {
        wakes,
        link,
        queues,
        commands: received,
    };
    scope.spawn(splitter.run());
    parts
}

impl Splitter {
    /// Ends when the wake-ups end, or when no queue is left.
    async fn run(mut self) {
        loop {
            tokio::select! {
                biased;
                Ok(()) = self.link.changed() => self.send_link(),
                command = self.commands.recv() => match command {
                    Some(command) => self.execute(command),
                    None => return,
                },
                work = self.wakes.next() => {
                    // It may have come together with its stream's Welcome.
                    if self.link.has_changed().unwrap_or(false) {
                        self.send_link();
                    }
                    match work {
                        Some(Ok(work)) => {
                            let wanted = work.queue.clone();
                            self.send(&QueueEvent::Work(work), |address| wanted.matches(address));
                        }
                        Some(Err(refusal)) => {
                            let will_retry = self.wakes.ask_again(RETRY_AFTER_REFUSAL);
                            self.send(&QueueEvent::Refused(refusal, will_retry), |_| true);
                            if !will_retry {
                                return;
                            }
                        }
                        None => return,
                    }
                }
            }
        }
    }

    fn send_link(&mut self) {
        let link = self.link.borrow_and_update().clone();
        self.send(&QueueEvent::Link(link), |_| true);
    }

    fn send(&self, event: &QueueEvent, concerns: impl Fn(&QueueAddress) -> bool) {
        for queue in self.queues.iter().filter(|queue| concerns(&queue.address)) {
            // A queue whose listener has ended needs no event.
            let _ = queue.events.send(event.clone());
        }
    }

    fn execute(&mut self, command: QueueCommand) {
        match command {
            QueueCommand::Report(stream, report, sent) => {
                let reported = if self.link.borrow().welcomes == stream {
                    self.wakes.report(report)
                } else {
                    Box::pin(ready(Err(stream_has_ended())))
                };
                let _ = sent.send(reported);
            }
            QueueCommand::Pause(number, paused) => {
                self.queues[number].paused = paused;
                // All queues share the stream: it closes when all are paused.
                self.wakes
                    .pause(self.queues.iter().all(|queue| queue.paused));
            }
        }
    }
}

#[cold]
fn stream_has_ended() -> Error {
    let text = "no stream just now: report after the next welcome";
    Error::new(ErrorKind::Unavailable, text)
}

#[async_trait]
impl WakeStream for QueueWakes {
    async fn next(&mut self) -> Option<Result<WorkDetected>> {
        loop {
            match self.events.recv().await? {
                QueueEvent::Link(link) => {
                    self.link.send_replace(link);
                }
                QueueEvent::Work(work) => return Some(Ok(work)),
                QueueEvent::Refused(refusal, will_retry) => {
                    self.will_retry = will_retry;
                    return Some(Err(refusal));
                }
            }
        }
    }

    fn report(&mut self, report: Report) -> ReportFuture {
        let (sent, sending) = oneshot::channel();
        let stream = self.link.borrow().welcomes;
        let _ = self
            .commands
            .send(QueueCommand::Report(stream, report, sent));
        Box::pin(async move { sending.await.map_err(|_| stream_has_ended())?.await })
    }

    fn ask_again(&mut self, _after: Duration) -> bool {
        self.will_retry
    }

    fn pause(&mut self, paused: bool) {
        let _ = self.commands.send(QueueCommand::Pause(self.number, paused));
    }

    fn link(&self) -> watch::Receiver<LinkState> {
        self.link.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::types::{ConnectionState, ReportState};

    /// A subscription without wake-ups that records reports.
    #[derive(Debug)]
    struct SilentWakes {
        link: watch::Sender<LinkState>,
        reported: Arc<Mutex<Vec<u64>>>,
    }

    #[async_trait]
    impl WakeStream for SilentWakes {
        async fn next(&mut self) -> Option<Result<WorkDetected>> {
            std::future::pending().await
        }

        fn report(&mut self, report: Report) -> ReportFuture {
            self.reported
                .lock()
                .expect("no panic")
                .push(report.sequence);
            Box::pin(ready(Ok(())))
        }

        fn link(&self) -> watch::Receiver<LinkState> {
            self.link.subscribe()
        }
    }

    fn stream(welcomes: u64) -> LinkState {
        LinkState {
            connection: ConnectionState::Connected,
            welcomes,
            ..LinkState::default()
        }
    }

    /// Makes a queue process its pending events.
    async fn hear(wakes: &mut dyn WakeStream) {
        let events = tokio::time::timeout(Duration::from_millis(10), wakes.next()).await;
        assert!(events.is_err(), "there is no wake-up");
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_of_an_older_stream_is_not_sent_on_the_next_one() {
        let (link, scope) = (watch::Sender::new(stream(1)), Scope::new());
        let reported = Arc::default();
        let silent = SilentWakes {
            link: link.clone(),
            reported: Arc::clone(&reported),
        };
        let address: QueueAddress = "local/orders".parse().expect("an address");
        let mut parts = split(Box::new(silent), vec![address.clone()], &scope);
        let report = |sequence| Report {
            state: ReportState::Drained,
            sequence,
            ..Report::new(address.clone())
        };
        hear(&mut *parts[0]).await;
        parts[0].report(report(4)).await.expect("of this stream");
        link.send_replace(stream(2));
        let error = parts[0]
            .report(report(5))
            .await
            .expect_err("of the last one");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        hear(&mut *parts[0]).await;
        parts[0].report(report(6)).await.expect("of this stream");
        assert_eq!(*reported.lock().expect("no panic"), [4, 6]);
        scope.shutdown().await;
    }
}
