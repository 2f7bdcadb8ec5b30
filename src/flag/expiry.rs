//! How flags end by themselves: the relay judges it, by the wall clock that it is given.
//!
//! What is over reads as not set from that moment on. Its blob is removed afterwards, and only if
//! it is still the blob that was judged (R22: an expired flag is removed only as it was read):
//! another relay may have given it more time.

use std::{
    task::{Poll, Waker},
    time::SystemTime,
};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::{
    ATTEMPTS, Flags, READS_AT_ONCE, Write,
    board::{Written, judge},
    body::{FOLDER, blob_name, flag_names},
};
use crate::{
    error::{Error, ErrorKind, Result},
    fault::planted,
    store::PageOptions,
    words::{FlagName, Limits},
};

impl Flags {
    /// Looks for flags that end by themselves, set by an earlier life of this relay or by another.
    ///
    /// # Errors
    /// Whatever kept the store from answering.
    pub(crate) async fn recover(&self, wall: SystemTime) -> Result<()> {
        let mut page = PageOptions {
            size: Limits::PAGE_MAX,
            token: None,
        };
        loop {
            let found = self.inner.store.list(FOLDER, &page).await?;
            let names = flag_names(found.entries).into_iter();
            let reads = names.map(|name| async move { self.inner.read(&name).await });
            let mut reads = stream::iter(reads).buffer_unordered(READS_AT_ONCE);
            while let Some(found) = reads.try_next().await? {
                let Some((state, _)) = found else { continue };
                let wakers = self.inner.board().remember(state, wall);
                wakers.wake();
            }
            page.token = found.next;
            if page.token.is_none() {
                return Ok(());
            }
        }
    }

    /// Returns when the next flag ends by itself.
    pub(crate) fn next_expiry(&self) -> Option<SystemTime> {
        self.inner.board().next_expiry()
    }

    /// Waits until the next expiry is another one than `known`.
    pub(crate) fn poll_expiry_moved(&self, known: Option<SystemTime>, waker: &Waker) -> Poll<()> {
        let mut board = self.inner.board();
        if board.next_expiry() != known {
            return Poll::Ready(());
        }
        board.set_driver(waker);
        Poll::Pending
    }

    /// Ends the flags whose time has come: removes each by a delete conditional on its ETag (R22:
    /// only as it was read), then tells its watchers. Returns whether the store was asked for
    /// anything.
    ///
    /// # Errors
    /// Whatever kept the store from answering; what did not end now is still due.
    pub(crate) async fn expire(&self, wall: SystemTime) -> Result<bool> {
        let due = self.inner.board().due(wall);
        let asked = !due.is_empty();
        let mut outcome = Ok(asked);
        for name in due {
            // One flag's failure holds no other one up.
            outcome = self.expire_one(&name, wall).await.and(outcome);
        }
        outcome
    }

    async fn expire_one(&self, name: &FlagName, wall: SystemTime) -> Result<()> {
        let inner = &*self.inner;
        let _turn = inner.writes.take(name).await;
        for _ in 0..ATTEMPTS {
            let write = Write::begin(inner, name);
            // Read again: another writer may have given it more time.
            let Some((state, etag)) = inner.read(name).await? else {
                inner.board().set.remove(name);
                write.end(Written::Unset).tell().await;
                return Ok(());
            };
            if let Some(state) = judge(Some(state), wall) {
                write.end(Written::Found(state)).tell().await;
                return Ok(());
            }
            let condition = if planted!(inner.fault, FlagExpiryUnconditional) {
                None
            } else if inner.store.capabilities().conditional_delete {
                Some(&etag)
            } else {
                // It stays, and reads as not set.
                write.end(Written::Unset).tell().await;
                return Ok(());
            };
            match inner.store.delete(&blob_name(name), condition).await {
                Ok(_) => {
                    inner.board().set.remove(name);
                    write.end(Written::Unset).tell().await;
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                // Found out by asking. It stays, and reads as not set.
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    inner.board().cannot_remove();
                    write.end(Written::Unset).tell().await;
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        let message = format!("flag `{name}` is over, but others keep changing it");
        Err(Error::new(ErrorKind::Unavailable, message))
    }
}
