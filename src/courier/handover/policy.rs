//! What a machine accepts from others, and where it passes messages on.

use std::sync::Arc;

use rusqlite::{OptionalExtension as _, Transaction, params};

use crate::{
    backend::sqlite::refuse,
    base::text::opaque_debug,
    courier::{config::QueueManagerConfig, message::MessageId},
    error::{Error, ErrorKind},
    wire::proto::OfferedMessage,
};

/// The rules of a receiver.
#[derive(Debug, Clone)]
pub(crate) struct Policy {
    /// The id of the own file.
    pub(crate) own: [u8; 16],
    pub(crate) config: QueueManagerConfig,
}

/// Who has opened a connection. The default may do everything.
#[derive(Clone, Default)]
pub(crate) struct SenderRights {
    /// `None` without access control.
    pub(crate) principal: Option<String>,
    /// Returns whether the principal may hand over messages to this queue.
    pub(crate) may_send: Option<Arc<MaySend>>,
}

/// For a queue of this machine, its name; for another machine `None`.
pub(crate) type MaySend = dyn Fn(Option<&str>) -> bool + Send + Sync;

impl SenderRights {
    /// Checks that the queue file of a sender has not come from another principal before.
    pub(super) fn check_file(
        &self,
        transaction: &Transaction<'_>,
        file: &[u8],
    ) -> rusqlite::Result<()> {
        let other = "SELECT file, principal FROM senders WHERE file = ?1 AND principal <> ?2";
        let other: Option<([u8; 16], String)> = transaction
            .prepare_cached(other)?
            .query_row(params![file, self.principal], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .optional()?;
        let (Some((file, other)), Some(principal)) = (other, &self.principal) else {
            return Ok(());
        };
        let file = MessageId::from_bytes(file);
        let message = format!(
            "queue file {file} belongs to principal `{other}`, not to `{principal}`: if that is so \
             no longer, run `reveille courier forget DIR --sender {file}` there"
        );
        Err(refuse(Error::new(ErrorKind::Denied, message)))
    }

    /// Returns why the message may not be handed over.
    pub(super) fn refusal(&self, message: &OfferedMessage) -> Option<String> {
        let may_send = self.may_send.as_ref()?;
        let queue = message.authority.is_empty().then_some(&*message.queue);
        if may_send(queue) {
            return None;
        }
        let principal = self.principal.as_deref().unwrap_or_default();
        Some(match queue {
            Some(queue) => format!("`{principal}` may not hand over messages to queue `{queue}`"),
            None => format!("`{principal}` may not hand over messages to other machines"),
        })
    }
}

opaque_debug!(SenderRights: principal);
