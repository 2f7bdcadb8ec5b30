//! A held lease. A task renews it until it is released, lost or dropped.

use std::{sync::Arc, time::Duration};

use tokio::sync::{oneshot, watch};

use super::{Contender, LeaseBlob, StepOutcome, machine::EndReason};
use crate::{
    base::{
        clock::{Clock, Tick},
        task::Scope,
        text::opaque_debug,
    },
    error::{Error, ErrorKind, Result},
};

/// A held lease.
///
/// A task renews it in the background until it is released or dropped. After a drop no release is
/// written: other contenders wait until its duration has passed since the last renewal.
///
/// The guard reports the loss well before another contender can take the lease, so that no two
/// processes rely on it at once. A stopped process or a sleeping machine cannot react to that
/// report. For that case there is the [`token`](Self::token).
pub struct LeaseGuard {
    lease_blob: LeaseBlob,
    token: u64,
    clock: Clock,
    validity: Arc<watch::Sender<Validity>>,
    release: oneshot::Sender<()>,
    released: oneshot::Receiver<Result<()>>,
    /// Ends the task when the guard is dropped.
    scope: Scope,
}

/// Until when the lease is valid, or why it was lost. A loss is final, because callers may have seen
/// it.
type Validity = Result<Tick>;

impl LeaseGuard {
    pub(super) fn start(contender: Contender, token: u64, until: Tick) -> Self {
        let (lease_blob, clock) = (contender.lease_blob.clone(), contender.clock);
        let validity = Arc::new(watch::Sender::new(Ok(until)));
        let (release, release_requests) = oneshot::channel();
        let (done, released) = oneshot::channel();
        let renewal = renew(contender, Arc::clone(&validity), release_requests);
        let scope = Scope::new();
        scope.spawn(async move {
            // The guard may have been dropped.
            let _ = done.send(renewal.await);
        });
        Self {
            lease_blob,
            token,
            clock,
            validity,
            release,
            released,
            scope,
        }
    }

    /// Returns the fencing token, which is greater than that of every earlier holder of this lease.
    /// A system that refuses tokens lower than the greatest it has seen is safe from late writes of
    /// earlier holders.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Returns whether the lease is held now, by this machine's monotonic clock. Once it returns
    /// `false` it never returns `true` again.
    pub fn is_held(&self) -> bool {
        self.loss().is_none()
    }

    /// Waits until the lease is lost, and returns the reason: it was not renewed in time, or
    /// another writer replaced or deleted its blob. Resolves before any other contender can take
    /// the lease, provided that the clocks' rates differ by less than a fifth.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn lost(&self) -> Error {
        loop {
            self.ends_within(Duration::ZERO).await;
            if let Some(loss) = self.loss() {
                return loss;
            }
        }
    }

    /// Waits until the lease ends within `span` unless it is renewed: time to stop work. Renewals
    /// begin at a third of the duration and the validity ends at four fifths. So a span of a fifth
    /// is only reached after several failures.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn ends_within(&self, span: Duration) {
        let mut changes = self.validity.subscribe();
        loop {
            let left = match &*changes.borrow_and_update() {
                Ok(until) => until.since(self.clock.now()),
                Err(_) => return,
            };
            if left <= span {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(left - span) => {}
                // The sender lives as long as this guard.
                _ = changes.changed() => {}
            }
        }
    }

    /// Releases the lease, so that the next holder need not wait. It is not valid here from the
    /// call on.
    ///
    /// # Errors
    /// The reason of an earlier loss; [`ErrorKind::Unavailable`] if the store does not answer
    /// within a third of the duration, at most 30 s. The lease then ends by itself.
    ///
    /// # Cancel safety
    /// Not safe: the lease is released or ends by itself.
    pub async fn release(self) -> Result<()> {
        if let Some(loss) = self.loss() {
            return Err(loss);
        }
        let ended = "the task that renews the lease has ended";
        // A task that has ended has sent its result.
        let _ = self.release.send(());
        let outcome = self.released.await;
        drop(self.scope);
        outcome.unwrap_or_else(|_| Err(Error::new(ErrorKind::Closed, ended)))
    }

    /// Returns why the lease was lost, if it was.
    fn loss(&self) -> Option<Error> {
        self.validity.send_if_modified(|validity| {
            let now = self.clock.now();
            let lapses = validity.as_ref().is_ok_and(|until| now >= *until);
            if lapses {
                *validity = Err(self.lease_blob.lost(&EndReason::Lapsed));
            }
            lapses
        });
        self.validity.borrow().clone().err()
    }
}

impl LeaseBlob {
    /// Returns the error of a lease that was lost or could not be released.
    fn lost(&self, end: &EndReason) -> Error {
        let name = &self.name;
        let lost = |kind, why: &str| Error::new(kind, format!("lease `{name}` was lost: {why}"));
        match end {
            EndReason::Lapsed => lost(ErrorKind::Timeout, "it was not renewed in time"),
            EndReason::Taken(holder) => lost(ErrorKind::Conflict, &format!("`{holder}` has it")),
            EndReason::Gone => lost(ErrorKind::NotFound, "its blob was deleted"),
            EndReason::Unreadable(shown) => {
                let why = format!("its blob was overwritten by {shown:?}");
                lost(ErrorKind::Conflict, &why)
            }
            EndReason::Released | EndReason::ReleaseUnknown => {
                let message = format!(
                    "lease `{name}` could not be released: the store did not answer in time; it ends \
                     by itself"
                );
                Error::new(ErrorKind::Unavailable, message)
            }
        }
    }
}

opaque_debug!(LeaseGuard: lease_blob, token);

/// Renews the lease until it is released, lost or dropped.
async fn renew(
    mut contender: Contender,
    validity: Arc<watch::Sender<Validity>>,
    mut release_requests: oneshot::Receiver<()>,
) -> Result<()> {
    let mut releasing = false;
    loop {
        let outcome = match contender.run_step().await {
            // Another file may have taken the place of the store's, with a holder of its own.
            Err(error) if error.kind() == ErrorKind::Closed => {
                Ok(StepOutcome::Ended(EndReason::Gone))
            }
            outcome => outcome,
        };
        if !releasing && let Some((_, until)) = contender.machine.validity(contender.clock.now()) {
            set_validity(&validity, Ok(until))?;
        }
        match outcome {
            // If the store refuses the request for now, a holder retries until its validity ends.
            Ok(StepOutcome::Sent) | Err(_) => {}
            Ok(StepOutcome::Ended(EndReason::Released)) => return Ok(()),
            Ok(StepOutcome::Ended(end)) => {
                return set_validity(&validity, Err(contender.lease_blob.lost(&end)));
            }
            Ok(StepOutcome::Wait(until)) => {
                tokio::select! {
                    biased;
                    request = &mut release_requests, if !releasing => {
                        // The guard was dropped.
                        if request.is_err() {
                            return Ok(());
                        }
                        releasing = true;
                        let now = contender.clock.now();
                        contender.machine.release(now);
                    }
                    () = contender.sleep_until(until) => {}
                }
            }
        }
    }
}

/// Extends the validity or reports its loss. An earlier report of a loss stays, and is returned.
fn set_validity(validity: &watch::Sender<Validity>, new: Validity) -> Result<()> {
    validity.send_if_modified(|known| {
        let is_news = known
            .as_ref()
            .is_ok_and(|known| new.as_ref().ok() != Some(known));
        if is_news {
            *known = new;
        }
        is_news
    });
    validity.borrow().clone().map(drop)
}
