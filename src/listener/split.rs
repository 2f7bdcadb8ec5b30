//! One subscription of several queues, split into wake-ups for each of them.
//!
//! A task owns the subscription. What it brings goes to the queues it is about, and each queue hears of
//! the link in line with its wake-ups: a sequence is never taken for one of a later stream, where it
//! might cover work that nobody looked for.

use std::{collections::HashMap, future::ready, time::Duration};

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot, watch};

use crate::{
    error::{Error, ErrorKind, Result},
    task::Scope,
    words::{LinkState, QueueAddress, Report, Reported, Wakes, WorkDetected},
};

/// A subscription that was refused asks again after this.
const REFUSED: Duration = Duration::from_secs(60);

/// What a queue hears.
enum Heard {
    Link(LinkState),
    Work(WorkDetected),
    /// The relay refuses the subscription; the second says whether it is asked again.
    Refused(Error, bool),
}

/// What a queue says.
enum Said {
    /// On the stream of this number: on another one it would speak of what it has not heard.
    Report(u64, Report, oneshot::Sender<Reported>),
    Pause(usize, bool),
}

/// The wake-ups of one queue.
#[derive(Debug)]
struct QueueWakes {
    number: usize,
    heard: mpsc::UnboundedReceiver<Heard>,
    said: mpsc::UnboundedSender<Said>,
    link: watch::Sender<LinkState>,
    asks_again: bool,
}

/// The task's side.
struct Splitter {
    wakes: Box<dyn Wakes>,
    link: watch::Receiver<LinkState>,
    by_address: HashMap<QueueAddress, Vec<usize>>,
    addresses: Vec<QueueAddress>,
    queues: Vec<mpsc::UnboundedSender<Heard>>,
    said: mpsc::UnboundedReceiver<Said>,
    paused: Vec<bool>,
}

/// Splits wake-ups; those of a queue are returned in the order of the addresses. The task that does
/// it belongs to `scope`.
pub(super) fn split(
    wakes: Box<dyn Wakes>,
    addresses: Vec<QueueAddress>,
    scope: &Scope,
) -> Vec<Box<dyn Wakes>> {
    let (say, said) = mpsc::unbounded_channel();
    let mut by_address = HashMap::<_, Vec<_>>::new();
    let (mut queues, mut parts) = (Vec::new(), Vec::<Box<dyn Wakes>>::new());
    for (number, address) in addresses.iter().enumerate() {
        by_address.entry(address.clone()).or_default().push(number);
        let (tell, heard) = mpsc::unbounded_channel();
        queues.push(tell);
        parts.push(Box::new(QueueWakes {
            number,
            heard,
            said: say.clone(),
            link: watch::Sender::new(LinkState::default()),
            asks_again: true,
        }));
    }
    let mut link = wakes.link();
    link.mark_changed();
    let splitter = Splitter {
        wakes,
        link,
        by_address,
        paused: vec![false; addresses.len()],
        addresses,
        queues,
        said,
    };
    scope.spawn(splitter.run());
    parts
}

impl Splitter {
    /// Ends when the relay tells nothing any more, or no queue is left.
    async fn run(mut self) {
        loop {
            tokio::select! {
                biased;
                Ok(()) = self.link.changed() => self.tell_link(),
                said = self.said.recv() => match said {
                    Some(said) => self.take(said),
                    None => return,
                },
                work = self.wakes.next() => {
                    // It may have come with its stream's welcome.
                    if self.link.has_changed().unwrap_or(false) {
                        self.tell_link();
                    }
                    match work {
                        Some(Ok(work)) => self.tell_work(&work),
                        Some(Err(refusal)) => {
                            if !self.refused(&refusal) {
                                return;
                            }
                        }
                        None => return,
                    }
                }
            }
        }
    }

    fn tell_link(&mut self) {
        let link = *self.link.borrow_and_update();
        for queue in &self.queues {
            // One that is gone needs none.
            let _ = queue.send(Heard::Link(link));
        }
    }

    fn tell_work(&self, work: &WorkDetected) {
        if let Some(address) = work.queue.as_address() {
            for number in self.by_address.get(&address).into_iter().flatten() {
                let _ = self.queues[*number].send(Heard::Work(work.clone()));
            }
            return;
        }
        for (queue, address) in std::iter::zip(&self.queues, &self.addresses) {
            if work.queue.matches(address) {
                let _ = queue.send(Heard::Work(work.clone()));
            }
        }
    }

    /// Returns whether the relay is asked again.
    fn refused(&mut self, refusal: &Error) -> bool {
        let asks = self.wakes.ask_again(REFUSED);
        for queue in &self.queues {
            let _ = queue.send(Heard::Refused(refusal.clone(), asks));
        }
        asks
    }

    fn take(&mut self, said: Said) {
        match said {
            Said::Report(stream, report, sent) => {
                let reported = match self.link.borrow().welcomes == stream {
                    true => self.wakes.report(report),
                    false => Box::pin(ready(Err(stream_has_ended()))),
                };
                let _ = sent.send(reported);
            }
            Said::Pause(number, paused) => {
                self.paused[number] = paused;
                // The stream is that of the others as well.
                self.wakes.pause(self.paused.iter().all(|paused| *paused));
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
impl Wakes for QueueWakes {
    async fn next(&mut self) -> Option<Result<WorkDetected>> {
        loop {
            match self.heard.recv().await? {
                Heard::Link(link) => {
                    self.link.send_replace(link);
                }
                Heard::Work(work) => return Some(Ok(work)),
                Heard::Refused(refusal, asks) => {
                    self.asks_again = asks;
                    return Some(Err(refusal));
                }
            }
        }
    }

    fn report(&mut self, report: Report) -> Reported {
        let (sent, sending) = oneshot::channel();
        let stream = self.link.borrow().welcomes;
        let _ = self.said.send(Said::Report(stream, report, sent));
        Box::pin(async move { sending.await.map_err(|_| stream_has_ended())?.await })
    }

    fn ask_again(&mut self, _after: Duration) -> bool {
        self.asks_again
    }

    fn pause(&mut self, paused: bool) {
        let _ = self.said.send(Said::Pause(self.number, paused));
    }

    fn link(&self) -> watch::Receiver<LinkState> {
        self.link.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::words::{ConnectionState, ReportState};

    /// A subscription that tells nothing, and takes reports.
    #[derive(Debug)]
    struct Silent {
        link: watch::Sender<LinkState>,
        reported: Arc<Mutex<Vec<u64>>>,
    }

    #[async_trait]
    impl Wakes for Silent {
        async fn next(&mut self) -> Option<Result<WorkDetected>> {
            std::future::pending().await
        }

        fn report(&mut self, report: Report) -> Reported {
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

    /// Has a queue hear what there is.
    async fn hear(wakes: &mut dyn Wakes) {
        let heard = tokio::time::timeout(Duration::from_millis(10), wakes.next()).await;
        assert!(heard.is_err(), "it tells of no work");
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_of_an_older_stream_is_not_sent_on_the_next_one() {
        let (link, scope) = (watch::Sender::new(stream(1)), Scope::new());
        let reported = Arc::default();
        let silent = Silent {
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
