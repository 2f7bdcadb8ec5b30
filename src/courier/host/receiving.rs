//! The receiving side of one connection from another machine.
//!
//! Each answer is sent when its step is on the disk. The rules are those of [`ReceiverSession`]. After an
//! error the stream must end; the sender connects again.

use std::sync::Arc;

use super::Shared;
use crate::{
    courier::handover::{ReceiverSession, SenderRights},
    error::Result,
    queue::sqlite::clock::{self, machine_time},
    wire::proto::{HandOverRequest, HandOverResponse},
};

/// One connection.
#[derive(Debug)]
pub(crate) struct ReceivingStream {
    shared: Arc<Shared>,
    session: ReceiverSession,
}

impl ReceivingStream {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let connection = fastrand::u128(..).to_be_bytes();
        Self {
            session: ReceiverSession::new(connection, Arc::clone(&shared.policy)),
            shared,
        }
    }

    /// Handles a request of a sender, and returns the answer.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a request that breaks a rule;
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if the sender has opened another stream; the
    /// error of the queue file. The stream must end then.
    ///
    /// # Cancel safety
    /// A cancelled call may have taken effect; the stream must end.
    pub(crate) async fn handle(
        &mut self,
        request: HandOverRequest,
        rights: SenderRights,
    ) -> Result<HandOverResponse> {
        let mut session = self.session.clone();
        let handled = self.shared.manager.database().write(move |transaction| {
            // Exactly: confirmed messages are read in the order of their times.
            let times = (clock::advance_exactly(transaction)?, machine_time());
            let answer = session.on_request(transaction, &rights, times, request)?;
            Ok((session, answer))
        });
        let (session, answer) = handled.await?;
        // Messages may have become visible, or may go to the next machine.
        self.shared.file_changed();
        self.session = session;
        Ok(answer)
    }
}
