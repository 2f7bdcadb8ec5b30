//! What a host reads and writes in the queue file.

use crate::{
    courier::{
        QueueManager,
        config::OUTGOING_QUEUE,
        handover::outgoing::{detours, hops_with, note_error, reroute},
        status::unsigned,
    },
    error::Result,
    queue::sqlite::clock,
    types::QueueAddress,
};

impl QueueManager {
    /// Returns the address under which processes of this machine announce messages to other
    /// machines.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the account breaks the rule for names.
    pub fn outgoing_address(&self) -> Result<QueueAddress> {
        self.shared.address(OUTGOING_QUEUE)
    }

    /// Notes why the messages to a machine wait.
    pub(super) async fn hop_failed(&self, hop: &str, error: &str) -> Result<()> {
        let (hop, error) = (hop.to_owned(), error.to_owned());
        self.database()
            .write(move |transaction| note_error(transaction, &hop, clock::machine_time(), &error))
            .await
    }

    /// Gives the waiting messages the next machines of this host's routes. Their senders may know
    /// other routes, or the routes may have changed since.
    pub(super) async fn choose_hops(&self) -> Result<()> {
        let config = self.config().clone();
        let hop_of = move |authority: &str| config.hop_of(authority).to_owned();
        let detours = self
            .database()
            .run(move |connection| detours(connection, hop_of));
        let detours = detours.await?;
        if detours.is_empty() {
            return Ok(());
        }
        self.database()
            .write(move |transaction| {
                detours
                    .iter()
                    .try_for_each(|detour| reroute(transaction, detour))
            })
            .await
    }

    /// Returns the next machines with messages that are not visible there.
    pub(super) async fn hops_with_messages(&self) -> Result<Vec<String>> {
        self.database()
            .run(|connection| {
                let mut hops = hops_with(connection, 1)?;
                hops.append(&mut hops_with(connection, 2)?);
                Ok(hops)
            })
            .await
    }

    /// Returns the machines that have ever answered. One of them may hold messages that this file
    /// does not know, because it was restored from an older copy.
    pub(super) async fn known_hops(&self) -> Result<Vec<String>> {
        self.database()
            .run(move |connection| {
                let sql = "SELECT authority FROM hops WHERE connected_at IS NOT NULL";
                let mut select = connection.prepare_cached(sql)?;
                let hops = select.query_map([], |row| row.get(0))?;
                hops.collect()
            })
            .await
    }

    /// Counts the dead letters, and the messages that wait for other machines.
    pub(super) async fn count_waiting(&self) -> Result<(u64, u64)> {
        self.database().run(|connection| {
            let sql = "SELECT (SELECT count(*) FROM dead_letters),
                         (SELECT count(*) FROM outgoing INDEXED BY outgoing_ready WHERE status = 1)";
            let mut select = connection.prepare_cached(sql)?;
            select.query_row((), |row| Ok((unsigned(row, 0)?, unsigned(row, 1)?)))
        })
        .await
    }
}
