//! A held lease. A task renews it until it is released, lost or dropped.

use std::{fmt, sync::Arc, time::Duration};

use tokio::sync::{oneshot, watch};

use super::{
    LeaseBlob,
    contender::{Contender, StepOutcome},
    machine::EndReason,
};
use crate::{
    base::{
        clock::{Clock, Tick},
        task::Scope,
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

/// How long the lease is valid.
#[derive(Debug)]
struct Validity {
    until: Tick,
    /// Why the last renewal failed.
    last_error: Option<Error>,
    /// Why the lease was lost. Once set it is final, because callers may have seen it.
    loss: Option<Error>,
}

/// The task that renews the lease.
struct Renewer {
    lease_blob: LeaseBlob,
    contender: Contender,
    validity: Arc<watch::Sender<Validity>>,
}

impl LeaseGuard {
    pub(super) fn start(
        lease_blob: &LeaseBlob,
        token: u64,
        until: Tick,
        contender: Contender,
    ) -> Self {
        let clock = contender.clock();
        let validity = Validity {
            until,
            last_error: None,
            loss: None,
        };
        let validity = Arc::new(watch::Sender::new(validity));
        let (release, release_requests) = oneshot::channel();
        let (done, released) = oneshot::channel();
        let renewer = Renewer {
            lease_blob: lease_blob.clone(),
            contender,
            validity: Arc::clone(&validity),
        };
        let scope = Scope::new();
        scope.spawn(async move {
            let outcome = renewer.run(release_requests).await;
            // The guard may have been dropped.
            let _ = done.send(outcome);
        });
        Self {
            lease_blob: lease_blob.clone(),
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
            let left = {
                let validity = changes.borrow_and_update();
                if validity.loss.is_some() {
                    return;
                }
                validity.until.since(self.clock.now())
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
        end_overdue(&self.validity, &self.lease_blob, self.clock.now());
        self.validity.borrow().loss.clone()
    }
}

impl Renewer {
    async fn run(mut self, mut release_requests: oneshot::Receiver<()>) -> Result<()> {
        let mut releasing = false;
        loop {
            let outcome = match self.contender.run_step().await {
                Ok(outcome) => outcome,
                // Another file may have taken the place of the store's, with a holder of its own.
                Err(error) if error.kind() == ErrorKind::Closed => {
                    self.note_error(error);
                    return Err(self.report_loss(&EndReason::Gone));
                }
                // The store refuses the request for now. A holder retries until its validity ends.
                Err(error) => StepOutcome::Failed(error),
            };
            if !releasing && let Some((_, until)) = self.contender.validity() {
                self.extend(until)?;
            }
            match outcome {
                StepOutcome::Answered => {}
                StepOutcome::Failed(error) => self.note_error(error),
                StepOutcome::Ended(EndReason::Released) => return Ok(()),
                StepOutcome::Ended(end) => return Err(self.report_loss(&end)),
                StepOutcome::Wait(until) => {
                    tokio::select! {
                        biased;
                        request = &mut release_requests, if !releasing => {
                            // The guard was dropped.
                            if request.is_err() {
                                return Ok(());
                            }
                            releasing = true;
                            self.contender.release();
                        }
                        () = self.contender.sleep_until(until) => {}
                    }
                }
            }
        }
    }

    /// Extends the validity, unless a loss was already reported.
    fn extend(&self, until: Tick) -> Result<()> {
        let mut loss = None;
        self.validity.send_if_modified(|validity| {
            loss = validity.loss.clone();
            let longer = loss.is_none() && validity.until != until;
            if longer {
                validity.until = until;
                validity.last_error = None;
            }
            longer
        });
        loss.map_or(Ok(()), Err)
    }

    fn note_error(&self, error: Error) {
        self.validity.send_if_modified(|validity| {
            validity.last_error = Some(error);
            false
        });
    }

    /// Reports the loss. An earlier report stays.
    fn report_loss(&self, end: &EndReason) -> Error {
        let mut reported = None;
        self.validity.send_if_modified(|validity| {
            let last_error = validity.last_error.take();
            let loss = validity
                .loss
                .get_or_insert_with(|| self.lease_blob.lost(end, last_error.as_ref()));
            reported = Some(loss.clone());
            true
        });
        reported.unwrap_or_else(|| self.lease_blob.lost(end, None))
    }
}

/// Ends a validity whose time has passed.
fn end_overdue(validity: &watch::Sender<Validity>, lease_blob: &LeaseBlob, now: Tick) {
    validity.send_if_modified(|validity| {
        let lapses = validity.loss.is_none() && now >= validity.until;
        if lapses {
            let last_error = validity.last_error.take();
            validity.loss = Some(lease_blob.lost(&EndReason::Lapsed, last_error.as_ref()));
        }
        lapses
    });
}

impl LeaseBlob {
    /// Returns the error of a lease that was lost or could not be released.
    fn lost(&self, end: &EndReason, last_error: Option<&Error>) -> Error {
        let name = &self.name;
        let lost = |kind, why: &str| Error::new(kind, format!("lease `{name}` was lost: {why}"));
        let why = |what: &str| match last_error {
            Some(error) => format!("{what}: {error}"),
            None => what.to_owned(),
        };
        match end {
            EndReason::Lapsed => lost(ErrorKind::Timeout, &why("it was not renewed in time")),
            EndReason::Taken(holder) => lost(ErrorKind::Conflict, &format!("`{holder}` has it")),
            EndReason::Gone => lost(ErrorKind::NotFound, &why("its blob was deleted")),
            EndReason::Unreadable(shown) => {
                let why = format!("its blob was overwritten by {shown}");
                lost(ErrorKind::Conflict, &why)
            }
            EndReason::Released | EndReason::ReleaseUnknown => {
                let why = why("the store did not answer in time; it ends by itself");
                let message = format!("lease `{name}` could not be released: {why}");
                Error::new(ErrorKind::Unavailable, message)
            }
        }
    }
}

impl fmt::Debug for LeaseGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "LeaseGuard({}, token {})",
            self.lease_blob.blob, self.token
        )
    }
}
