//! Forgets which queue file answered under a machine's name, after that file was replaced; whose a
//! sender's file is; and the identity of a copy.

use rusqlite::{OptionalExtension as _, Transaction, params};

use super::{
    handover::outgoing::{self, ALL},
    manager::QueueManager,
    message::{MessageId, check_authority},
    status::unsigned,
};
use crate::{
    backend::sqlite::refuse,
    error::{Error, ErrorKind, Result},
    queue::sqlite::clock,
};

/// The result of [`QueueManager::forget_machine`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Forgotten {
    /// Messages that only the former file has. They become dead letters without their bodies.
    pub given_up: u64,
    /// Messages that the former file may have, at most. They are offered to the next file, so that
    /// they arrive twice if the former file returns.
    pub uncertain: u64,
}

impl QueueManager {
    /// Forgets which queue file answered as `authority` (`HOST:PORT`, a next machine), so that
    /// messages go to the file that answers now. Needed only if the former file is gone for good
    /// while messages to it were not settled: the hand-over refuses the new file then.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if this file has no connection to that machine on record; errors of
    /// the file.
    pub async fn forget_machine(&self, authority: &str) -> Result<Forgotten> {
        check_authority(authority)?;
        let authority = authority.to_ascii_lowercase();
        let forgotten = self
            .database()
            .write(move |transaction| forget(transaction, &authority));
        forgotten.await
    }

    /// Forgets which principal has shown the queue file of a sender first, so that another one may; returns
    /// whether the file was known.
    ///
    /// # Errors
    /// Of the file.
    pub async fn forget_sender(&self, file: MessageId) -> Result<bool> {
        let update = "UPDATE senders SET principal = NULL WHERE file = ?1";
        let forgotten = self
            .database()
            .write(move |transaction| transaction.execute(update, [file.as_bytes()]));
        Ok(forgotten.await? > 0)
    }

    /// Makes a copy of a queue file another file: it gets a new id, and forgets what only the original may
    /// settle. Call it for a file that [`QueueManager::host`] has opened, before it is hosted.
    ///
    /// Messages that wait for other machines stay; each of them arrives once, from the original or from the
    /// copy. Those that the file held for their senders, or whose next machine had not confirmed them, are
    /// removed: the original has them. Returns their number.
    ///
    /// # Errors
    /// Of the file.
    pub async fn new_identity(&self) -> Result<u64> {
        let removed = self.database().write(|transaction| {
            transaction.execute("UPDATE identity SET id = randomblob(16)", [])?;
            let mut removed = transaction.execute("DELETE FROM inbound WHERE queue <> ''", [])?;
            // The ids of messages that were given up.
            transaction.execute("DELETE FROM inbound", [])?;
            removed += transaction.execute("DELETE FROM outgoing WHERE status = 2", [])?;
            transaction.execute("DELETE FROM senders", [])?;
            let update = "UPDATE hops SET uncertain_upto = 0, receiver = NULL, connected_at = NULL";
            transaction.execute(update, [])?;
            Ok(removed as u64)
        });
        removed.await
    }
}

fn forget(transaction: &Transaction<'_>, authority: &str) -> rusqlite::Result<Forgotten> {
    let select = "SELECT uncertain_upto FROM hops
                  WHERE authority = ?1 AND (receiver IS NOT NULL OR uncertain_upto > 0)";
    let uncertain: Option<i64> = transaction
        .query_row(select, [authority], |row| row.get(0))
        .optional()?;
    let Some(upto) = uncertain else {
        let message = format!("no queue file has answered as `{authority}`");
        return Err(refuse(Error::new(ErrorKind::NotFound, message)));
    };
    let count = |status: i64, upto: i64| {
        let sql = "SELECT count(*) FROM outgoing WHERE hop = ?1 AND status = ?2 AND id <= ?3";
        transaction.query_row(sql, params![authority, status, upto], |row| {
            unsigned(row, 0)
        })
    };
    let forgotten = Forgotten {
        given_up: count(2, i64::MAX)?,
        uncertain: count(1, upto)?,
    };
    // Their bodies are at the former file only.
    let reason = format!("given up: only the former queue file of `{authority}` has it");
    let now = clock::advance(transaction)?;
    let sent = "SELECT id FROM outgoing WHERE hop = ?1 AND status = 2";
    let mut sent = transaction.prepare(sent)?;
    let sent = sent.query_map([authority], |row| row.get(0))?;
    for row in sent.collect::<rusqlite::Result<Vec<_>>>()? {
        outgoing::bury(transaction, row, now, &reason)?;
    }
    // A connection that is open now notes its own end.
    let update = "UPDATE hops SET receiver = NULL,
                    uncertain_upto = iif(uncertain_upto = ?2, ?2, 0) WHERE authority = ?1";
    transaction.execute(update, params![authority, ALL])?;
    Ok(forgotten)
}
