//! The receiving side of one connection from another machine.
//!
//! Frames that arrive together share a write; their answers are sent when it is on the disk. The
//! rules are those of [`ReceiverSession`]. After an error the stream must end; the sender connects
//! again.

use std::sync::Arc;

use super::{Shared, wire};
use crate::{
    courier::{
        crash_point::crash_point,
        handover::{ReceiverSession, SenderFrame, SenderRights},
    },
    error::{Error, ErrorKind, Result},
    queue::sqlite::clock::{self, machine_time},
    wire::proto::{HandOverRequest, HandOverResponse},
};

/// One connection.
#[derive(Debug)]
pub(crate) struct ReceivingStream {
    shared: Arc<Shared>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Hello has not arrived.
    New,
    Open(Box<ReceiverSession>),
    /// After an error.
    Ended,
}

impl ReceivingStream {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            state: State::New,
        }
    }

    /// The answers were passed to the connection.
    pub(crate) fn answered(&self) {
        crash_point("receiving-after-answer");
    }

    /// Handles frames of a sender in their order, and returns the answers.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a frame that breaks a rule; [`ErrorKind::Conflict`] if the sender
    /// has opened another stream; the error of the queue file. The stream must end then.
    ///
    /// # Cancel safety
    /// A cancelled call may have taken effect; the stream must end.
    pub(crate) async fn handle(
        &mut self,
        requests: Vec<HandOverRequest>,
        rights: SenderRights,
    ) -> Result<Vec<HandOverResponse>> {
        let frames: Result<Vec<SenderFrame>> = requests.into_iter().map(wire::frame).collect();
        let frames = frames?;
        let state = std::mem::replace(&mut self.state, State::Ended);
        let policy = self.shared.policy.clone();
        let connection: [u8; 16] = fastrand::u128(..).to_be_bytes();
        crash_point("receiving-before-write");
        let handled = self
            .shared
            .manager
            .database()
            .write(move |transaction| {
                // Exactly: confirmed messages are read in the order of their times.
                let (now, wall) = (clock::advance_exactly(transaction)?, machine_time());
                let mut answers = Vec::new();
                let mut session = match state {
                    State::Open(session) => session,
                    State::New => Box::new(ReceiverSession::new(connection, policy)),
                    State::Ended => return Ok(Err(ended())),
                };
                session.set_rights(rights);
                for frame in frames {
                    match session.on_frame(transaction, now, wall, frame)? {
                        Ok(frames) => answers.extend(frames),
                        Err(error) => return Ok(Err(error)),
                    }
                }
                Ok(Ok((session, answers)))
            })
            .await?;
        crash_point("receiving-after-write");
        // Messages may have become visible, or may go to the next machine, also before an error.
        self.shared.file_changed();
        let (session, answers) = handled?;
        self.state = State::Open(session);
        Ok(answers.into_iter().map(wire::response).collect())
    }
}

#[cold]
fn ended() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the hand-over has failed: connect again",
    )
}
