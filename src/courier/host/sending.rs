//! The sending side of one connection to another machine.
//!
//! Offers messages, and confirms them when the other machine has stored them. Each answer is written
//! to the queue file before the next frame is sent; answers that arrive together share a write. The
//! rules are those of [`SenderSession`], which a failed write ends together with the connection.

use std::{sync::Arc, time::Duration};

use rusqlite::Transaction;
use tokio::sync::{Notify, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::{Shared, wire};
use crate::{
    base::clock::Tick,
    client::RelayChannel,
    courier::{
        crash_point::crash_point,
        handover::{
            ReceiverContent, ReceiverFrame, SenderFrame, SenderSession, outgoing::bury_damaged,
        },
    },
    error::{Error, ErrorKind, Result},
    wire::{
        from_status,
        proto::{HandOverRequest, HandOverResponse, courier_client::CourierClient},
    },
};

/// One connection.
pub(super) struct Sending {
    shared: Arc<Shared>,
    authority: String,
    requests: mpsc::Sender<HandOverRequest>,
    answers: Streaming<HandOverResponse>,
    /// `None` while a job of the file has it, and after a job has failed.
    session: Option<SenderSession>,
    /// The last progress: an answer, or an offer while there was nothing to answer.
    progress: Tick,
}

/// How a connection has ended without a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// There were no messages for a while, or this host ends.
    Idle,
    /// The other machine has closed the stream: its connection is at the maximum age.
    ByPeer,
}

/// Frames that wait for the network. The window of the session is the real limit.
const FRAMES: usize = 16;
/// Answers that share a write.
const MAX_ANSWERS: usize = 64;

impl Sending {
    /// Opens the stream and says hello.
    pub(super) async fn open(
        shared: Arc<Shared>,
        authority: &str,
        offer_bytes: usize,
        mut client: CourierClient<RelayChannel>,
    ) -> Result<Self> {
        let name = shared.config.name.clone();
        let session = SenderSession::new(authority, &name, fastrand::u64(..));
        let mut session = session.with_offer_bytes(offer_bytes);
        let (session, hello) = shared
            .manager
            .read(move |connection, _| {
                let hello = session.begin(connection)?;
                Ok((session, hello))
            })
            .await?;
        let (requests, frames) = mpsc::channel(FRAMES);
        requests
            .try_send(wire::request(hello))
            .expect("the channel is new");
        let opened = client.hand_over(ReceiverStream::new(frames));
        let limit = shared.config.answer_timeout;
        let answers = match tokio::time::timeout(limit, opened).await {
            Ok(opened) => opened.map_err(from_status)?.into_inner(),
            Err(_) => return Err(silent(authority, limit)),
        };
        crash_point("sending-after-hello");
        Ok(Self {
            progress: shared.clock.now(),
            shared,
            authority: authority.to_owned(),
            requests,
            answers,
            session: Some(session),
        })
    }

    /// Returns whether the other machine holds no message of an earlier connection any more.
    pub(super) fn has_settled(&self) -> bool {
        let session = self.session.as_ref();
        session.is_some_and(SenderSession::has_settled)
    }

    /// Returns whether the other machine has accepted a message on this connection.
    pub(super) fn has_accepted(&self) -> bool {
        self.session
            .as_ref()
            .is_some_and(SenderSession::has_accepted)
    }

    /// Returns the largest offer for the next connection; `None` after a job has failed.
    pub(super) fn next_offer_bytes(&self) -> Option<usize> {
        let session = self.session.as_ref();
        session.map(SenderSession::next_offer_bytes)
    }

    /// Moves messages until there are none for a while, the other machine closes the stream, or the
    /// host ends.
    pub(super) async fn run(&mut self, changed: &Notify) -> Result<End> {
        let (answers_within, idle) = {
            let config = &self.shared.config;
            (config.answer_timeout, config.idle)
        };
        loop {
            let retry = self.offer().await?.unwrap_or(Duration::MAX);
            let waits = self.session.as_ref().ok_or_else(lost)?.awaits_answer();
            let limit = if waits { answers_within } else { idle };
            let silent_for = self.shared.clock.now().since(self.progress);
            tokio::select! {
                answer = self.answers.message() => match answer.map_err(from_status)? {
                    Some(answer) => self.on_answer(answer).await?,
                    None => return Ok(End::ByPeer),
                },
                () = changed.notified() => {}
                () = self.shared.ending.cancelled() => return Ok(End::Idle),
                () = tokio::time::sleep(retry.min(limit.saturating_sub(silent_for))) => {
                    let silent_for = self.shared.clock.now().since(self.progress);
                    match waits {
                        _ if silent_for < limit => {}
                        true => return Err(silent(&self.authority, limit)),
                        false => return Ok(End::Idle),
                    }
                }
            }
        }
    }

    /// Notes in the file which messages the other machine may have stored.
    pub(super) async fn end(mut self) -> Result<()> {
        let Some(mut session) = self.session.take() else {
            return Ok(());
        };
        let manager = &self.shared.manager;
        let ended = manager.write(move |transaction, _| session.end(transaction));
        ended.await
    }

    /// Offers messages as far as the window allows. Returns when a postponed destination may be
    /// offered again.
    async fn offer(&mut self) -> Result<Option<Duration>> {
        loop {
            let mut session = self.session.take().ok_or_else(lost)?;
            let awaited = session.awaits_answer();
            let offering = self.shared.manager.read(move |connection, now| {
                let next = session.next_offer(connection, now)?;
                Ok((session, next))
            });
            let (session, next) = offering.await?;
            self.session = Some(session);
            let has_more_purged = next.has_purged && self.expire().await?;
            if !next.damaged.is_empty() {
                let bury = self
                    .shared
                    .manager
                    .write(move |transaction, now| bury_damaged(transaction, &next.damaged, now));
                bury.await?;
            }
            let Some(offer) = next.offer else {
                // Between two steps an answer is read.
                return Ok(match has_more_purged {
                    true => Some(Duration::ZERO),
                    false => next.wait,
                });
            };
            if !awaited {
                self.progress = self.shared.clock.now();
            }
            crash_point("sending-before-offer");
            self.send(offer).await?;
            crash_point("sending-after-offer");
        }
    }

    /// Removes messages that were purged meanwhile, in one step. Returns whether there may be more.
    async fn expire(&mut self) -> Result<bool> {
        let session = self.session.take().ok_or_else(lost)?;
        let expiring = self.shared.manager.write(move |transaction, now| {
            let has_more = session.expire(transaction, now)?;
            Ok((session, has_more))
        });
        let (session, has_more) = expiring.await?;
        self.session = Some(session);
        Ok(has_more)
    }

    /// Handles an answer, together with further answers that have arrived.
    async fn on_answer(&mut self, first: HandOverResponse) -> Result<()> {
        self.progress = self.shared.clock.now();
        let mut frames: Vec<ReceiverFrame> = vec![wire::answer(first)?];
        while frames.len() < MAX_ANSWERS {
            let next = futures_util::FutureExt::now_or_never(self.answers.message());
            match next {
                Some(Ok(Some(answer))) => frames.push(wire::answer(answer)?),
                // The end is found again by the next call.
                _ => break,
            }
        }
        crash_point("sending-before-write");
        // A connection begins with the messages that the other machine holds: those that are missing
        // there are visible. So a loss of power may undo the mark.
        let is_visible =
            |frame: &ReceiverFrame| matches!(frame.content, ReceiverContent::Visible(_));
        let is_repeatable = frames.iter().all(is_visible);
        let mut session = self.session.take().ok_or_else(lost)?;
        let handle = move |transaction: &Transaction<'_>, now| {
            let mut replies = Vec::new();
            for frame in frames {
                match session.on_frame(transaction, now, frame)? {
                    Ok(frames) => replies.extend(frames),
                    Err(error) => return Ok((session, Err(error))),
                }
            }
            Ok((session, Ok(replies)))
        };
        let manager = &self.shared.manager;
        let (session, replies) = match is_repeatable {
            true => manager.write_unsynced(handle).await?,
            false => manager.write(handle).await?,
        };
        crash_point("sending-after-write");
        self.session = Some(session);
        for reply in replies? {
            self.send(reply).await?;
            crash_point("sending-after-confirm");
        }
        Ok(())
    }

    async fn send(&self, frame: SenderFrame) -> Result<()> {
        let limit = self.shared.config.answer_timeout;
        match tokio::time::timeout(limit, self.requests.send(wire::request(frame))).await {
            // After the end of the stream no frame is taken. The next answer says why it ended.
            Ok(Ok(()) | Err(_)) => Ok(()),
            Err(_) => Err(silent(&self.authority, limit)),
        }
    }
}

#[cold]
fn lost() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the hand-over has failed: a new connection begins",
    )
}

#[cold]
fn silent(authority: &str, limit: Duration) -> Error {
    let text = format!("`{authority}` has not answered for {limit:?}");
    Error::new(ErrorKind::Timeout, text)
}
