//! The publisher's task: connects, receives answers, and sends what callers have only posted.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::PublisherInner;
use crate::{
    base::clock::Tick,
    client::{connection::RelayClient, pool::Lease, session::leaves_relay},
    error::{Error, ErrorKind, Result},
    wire::{from_status, proto},
};

/// Why a stream has ended.
enum StreamEnd {
    /// The relay ended it in order.
    Ended,
    /// It broke, or the relay cannot confirm notifications.
    Failed(Error),
}

impl StreamEnd {
    fn error(&self) -> Error {
        match self {
            Self::Ended => Error::new(ErrorKind::Unavailable, "the relay ended the stream"),
            Self::Failed(error) => error.clone(),
        }
    }
}

/// The publisher's task: keeps a stream open while there is work.
pub(super) async fn run(inner: Arc<PublisherInner>) {
    loop {
        let outcome = inner.pump();
        if !outcome.has_work {
            inner.wait_for_signal(outcome.next_pump).await;
            continue;
        }
        let (error, has_left) = match open(&inner).await {
            Ok((answers, connection)) => {
                let end = serve(&inner, answers, &connection).await;
                let error = end.error();
                // A limit of the rate is the publisher's own, and a relay whose connection is at its
                // maximum age serves the next one.
                let stays = matches!(end, StreamEnd::Ended) || error.kind() == ErrorKind::Exhausted;
                let has_left = !stays && leave_after(&inner, &connection, &error);
                (error, has_left)
            }
            Err(failure) => failure,
        };
        tracing::debug!(%error, "notify stream ended");
        inner.broken(&error);
        if has_left {
            inner.left_relay();
        }
        back_off(&inner).await;
    }
}

/// Waits for the session's back-off to end, and fails callers whose deadline passes.
async fn back_off(inner: &PublisherInner) {
    loop {
        let outcome = inner.pump();
        let retry_at = inner.lock().session.retry_at();
        if retry_at <= inner.clock.now() {
            return;
        }
        inner.wait_for_signal(retry_at.min(outcome.next_pump)).await;
    }
}

/// Opens the stream, and fails callers whose deadline passes until then. The error comes with
/// whether the client has left the relay.
async fn open(
    inner: &PublisherInner,
) -> Result<(Streaming<proto::NotifyResponse>, Lease), (Error, bool)> {
    // Capacity for all requests in flight: with a full channel the task would poll repeatedly.
    let (requests, outbound) = mpsc::channel(inner.pipeline);
    let opening = async {
        // The number of relays must be known: another one may be well.
        inner.client.resolve().await;
        let connection = inner.client.relay_list().call_connection();
        let within = inner.answer_timeout();
        let mut relay = RelayClient::new(connection.channel());
        let call = relay.notify_stream(ReceiverStream::new(outbound));
        let answers = inner.client.call_within(&connection, within, call).await;
        (answers, connection, within)
    };
    tokio::pin!(opening);
    let (answers, connection, within) = loop {
        let next_pump = inner.pump().next_pump;
        tokio::select! {
            opened = &mut opening => break opened,
            () = inner.wait_for_signal(next_pump) => {}
        }
    };
    let answers = answers.map_err(|error| {
        let has_left = leave_after(inner, &connection, &error);
        (error, has_left)
    })?;
    let mut state = inner.lock();
    state.requests = Some(requests);
    state.session.set_answer_timeout(within);
    drop(state);
    Ok((answers, connection))
}

/// Moves on to another relay if this one sends the publisher away; returns whether it does. A proxy
/// may answer that it knows no such service while the relay behind it is away.
fn leave_after(inner: &PublisherInner, connection: &Lease, error: &Error) -> bool {
    let is_away = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Unsupported);
    let leaves = is_away || leaves_relay(Some(error));
    if leaves {
        inner.client.relay_list().leave(connection);
    }
    leaves
}

/// Receives answers, and sends the requests that no caller sends, until the stream ends. A relay that
/// is cut off from its cluster answers each request with UNAVAILABLE; if there are others, that ends
/// the stream.
async fn serve(
    inner: &PublisherInner,
    mut answers: Streaming<proto::NotifyResponse>,
    connection: &Lease,
) -> StreamEnd {
    let sleep = tokio::time::sleep_until(inner.clock.instant(Tick::NEVER));
    tokio::pin!(sleep);
    loop {
        let outcome = inner.pump();
        if outcome.overdue {
            connection.retire();
            let error = Error::new(ErrorKind::Unavailable, "no answer in time");
            return StreamEnd::Failed(error);
        }
        let next_pump = inner.clock.instant(outcome.next_pump);
        if sleep.deadline() != next_pump {
            sleep.as_mut().reset(next_pump);
        }
        tokio::select! {
            answer = answers.message() => match answer {
                Ok(Some(answer)) => {
                    let failure = inner.answered(answer);
                    let others = inner.client.relay_list().others();
                    if let Some(error) = failure.filter(|_| others > 0) {
                        return StreamEnd::Failed(error);
                    }
                }
                Ok(None) => return StreamEnd::Ended,
                Err(status) => return StreamEnd::Failed(from_status(status)),
            },
            () = inner.task_signal.notified() => {}
            () = &mut sleep => {}
        }
    }
}
