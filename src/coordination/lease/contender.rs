//! A contender with its store. Sends the machine's requests, each with a time-out.

use std::{sync::Arc, time::Duration};

use super::{
    LeaseBlob,
    machine::{Action, Answer, ContenderConfig, Content, EndReason, LeaseMachine, Record, Version},
};
use crate::{
    base::{
        clock::{Clock, Tick, micros, wall},
        duration::Span,
    },
    error::{Error, ErrorKind, Result},
    store::{Blob, BlobContent, ETag},
};

#[derive(Debug)]
pub(super) struct Contender {
    lease_blob: LeaseBlob,
    clock: Clock,
    machine: LeaseMachine,
    /// Whether the last request failed and that was logged.
    failing: bool,
    /// Whether the store was read once. A later refusal is a credential that is being changed, and
    /// does not end the wait.
    was_read: bool,
    /// Whether a write has succeeded once: then the store supports conditional writes.
    was_written: bool,
}

/// The outcome of one step.
#[derive(Debug)]
pub(super) enum StepOutcome {
    Answered,
    /// The store failed with an error that may pass.
    Failed(Error),
    /// No request is due before this time.
    Wait(Tick),
    Ended(EndReason),
}

impl Contender {
    pub(super) fn new(lease_blob: &LeaseBlob, config: &ContenderConfig) -> Self {
        let seed = getrandom::u64().unwrap_or_else(|_| fastrand::u64(..));
        Self {
            lease_blob: lease_blob.clone(),
            clock: Clock::new(),
            machine: LeaseMachine::new(config.clone(), fastrand::Rng::with_seed(seed)),
            failing: false,
            was_read: false,
            was_written: false,
        }
    }

    pub(super) fn clock(&self) -> Clock {
        self.clock
    }

    pub(super) fn validity(&self) -> Option<(u64, Tick)> {
        self.machine.validity(self.clock.now())
    }

    /// Releases the lease in the steps that follow.
    pub(super) fn release(&mut self) {
        self.machine.release(self.clock.now());
    }

    /// Reads the store in the next step, without a wait.
    pub(super) fn read_now(&mut self) {
        self.machine.read_now();
    }

    /// Sends the request that is due, and passes its answer to the machine.
    ///
    /// # Errors
    /// An error that waiting does not solve.
    ///
    /// # Cancel safety
    /// Safe: the request counts as unanswered.
    pub(super) async fn run_step(&mut self) -> Result<StepOutcome> {
        let asked = match self.machine.step(self.clock.now(), micros(wall())) {
            Action::Wait(until) => return Ok(StepOutcome::Wait(until)),
            Action::Ended(end) => return Ok(StepOutcome::Ended(end)),
            Action::Read => self.with_timeout(self.read()).await,
            Action::Create(record) => self.with_timeout(self.create(record)).await,
            Action::Update(record, version) => {
                self.with_timeout(self.update(record, version)).await
            }
        };
        let (answer, failure) = match asked {
            Ok(answer) => (answer, None),
            Err(error) if error.kind() == ErrorKind::Conflict => (Answer::Conflict, None),
            // An error that proves that nothing was written is treated as unknown as well. It costs
            // a read.
            Err(error) => (Answer::Unknown, Some(error)),
        };
        self.was_read |= matches!(answer, Answer::Found(_));
        self.was_written |= matches!(answer, Answer::Written(_));
        let taken = self.machine.answered(self.clock.now(), answer);
        taken.map_err(|unreadable| self.lease_blob.unreadable(&unreadable))?;
        self.log_failure(failure.as_ref());
        match failure {
            None => Ok(StepOutcome::Answered),
            Some(error) if self.is_final(error.kind()) => Err(error),
            Some(error) => Ok(StepOutcome::Failed(error)),
        }
    }

    /// Returns whether the same call would always fail in the same way.
    fn is_final(&self, kind: ErrorKind) -> bool {
        match kind {
            ErrorKind::Denied | ErrorKind::Invalid | ErrorKind::NotFound => !self.was_read,
            // Reads succeed on a store without conditional writes.
            ErrorKind::Unsupported => !self.was_written,
            // Another file may have taken the place of the store's, with a lease of its own.
            ErrorKind::Closed => true,
            _ => false,
        }
    }

    pub(super) async fn sleep_until(&self, until: Tick) {
        tokio::time::sleep_until(self.clock.instant(until)).await;
    }

    async fn read(&self) -> Result<Answer> {
        let found = self.lease_blob.store.get(&self.lease_blob.blob).await?;
        let content = |blob: Blob| Content {
            version: blob.etag.as_str().into(),
            bytes: blob.content.bytes,
        };
        Ok(Answer::Found(found.map(content)))
    }

    async fn create(&self, record: Record) -> Result<Answer> {
        let content = BlobContent::from(record.bytes());
        let written = self
            .lease_blob
            .store
            .create(&self.lease_blob.blob, content)
            .await?;
        Ok(Answer::Written(Arc::from(written.as_str())))
    }

    async fn update(&self, record: Record, version: Version) -> Result<Answer> {
        let (content, etag) = (BlobContent::from(record.bytes()), ETag::new(&version));
        let written = self
            .lease_blob
            .store
            .update(&self.lease_blob.blob, content, &etag)
            .await?;
        Ok(Answer::Written(Arc::from(written.as_str())))
    }

    async fn with_timeout(&self, asked: impl Future<Output = Result<Answer>>) -> Result<Answer> {
        let timeout: Duration = self.machine.config().request_timeout();
        let answered = tokio::time::timeout(timeout, asked).await;
        answered.unwrap_or_else(|_| {
            let (store, span) = (&self.lease_blob.store, Span(timeout));
            let message = format!("{store} did not answer within {span}");
            Err(Error::new(ErrorKind::Timeout, message))
        })
    }

    /// Logs a failure of the store once until it answers again.
    fn log_failure(&mut self, failure: Option<&Error>) {
        let lease = &*self.lease_blob.name;
        match failure {
            Some(error) if !self.failing => {
                tracing::warn!(lease, %error, "the lease's store fails; retrying");
            }
            None if self.failing => tracing::info!(lease, "the lease's store answers again"),
            _ => {}
        }
        self.failing = failure.is_some();
    }
}
