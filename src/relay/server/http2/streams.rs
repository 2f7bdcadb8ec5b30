//! The streams of one connection, run as parts of its bundle.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;
use tokio::time::Sleep;

use super::{activity::Activity, incidents::Incident};
use crate::base::task::{TaskGroup, Work, spend};

/// Runs a connection's streams in its bundle.
#[derive(Debug, Clone)]
pub(crate) struct StreamExecutor {
    pub(super) bundle: TaskGroup,
    pub(super) activity: Arc<Activity>,
}

pin_project! {
    // One stream. It ends early if the peer does not read the answer to a unary request in time,
    // which resets the stream and frees its memory.
    struct ServedStream<F> {
        #[pin]
        stream: F,
        activity: Arc<Activity>,
        // Set once an answer is ready and not sent at once.
        overdue: Option<Pin<Box<Sleep>>>,
    }
}

/// Time to read an answer: 1 MiB at 300 kbit/s.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        // A peer that opens many streams at once takes turns with the other connections.
        spend(Work::Request);
        self.bundle.add(ServedStream {
            stream,
            activity: Arc::clone(&self.activity),
            overdue: None,
        });
    }
}

impl<F: Future<Output = ()>> Future for ServedStream<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        if this.stream.poll(cx).is_ready() {
            this.activity.take_unary_answer();
            return Poll::Ready(());
        }
        // The streams of a connection are polled one after another, so the answer is this stream's.
        if this.activity.take_unary_answer() {
            *this.overdue = Some(Box::pin(tokio::time::sleep(ANSWER_TIMEOUT)));
        }
        let Some(overdue) = this.overdue else {
            return Poll::Pending;
        };
        std::task::ready!(overdue.as_mut().poll(cx));
        this.activity.note(Incident::UnreadAnswer);
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::relay::server::http2::incidents::{Incident, Incidents};

    #[tokio::test(start_paused = true)]
    async fn a_unary_answer_that_is_not_taken_ends_its_stream_alone() {
        let incidents = Arc::new(Incidents::new());
        let activity = Activity::for_test(Arc::clone(&incidents), CancellationToken::new());
        let streams = StreamExecutor {
            bundle: TaskGroup::default(),
            activity: Arc::clone(&activity),
        };
        // As in hyper: the service returns its answer, and the peer's window stays closed.
        let (unary, unary_ended) = tokio::sync::oneshot::channel::<()>();
        hyper::rt::Executor::execute(&streams, async move {
            let _ended = unary;
            activity.note_unary_answer();
            std::future::pending::<()>().await;
        });
        let (open, open_ended) = tokio::sync::oneshot::channel::<()>();
        hyper::rt::Executor::execute(&streams, async move {
            let _ended = open;
            std::future::pending::<()>().await;
        });
        let start = tokio::time::Instant::now();
        let ended = streams.bundle.clone().run(unary_ended).await;
        assert!(ended.is_err(), "dropped");
        assert_eq!(start.elapsed().as_secs(), ANSWER_TIMEOUT.as_secs());
        assert_eq!(incidents.count(Incident::UnreadAnswer), 1);
        drop(open_ended);
    }
}
