//! A contender at its store: asks what its machine wants to know, each time for a limited time.

use std::{sync::Arc, time::Duration};

use super::Place;
use crate::{
    clock::{Clock, Tick, micros, wall},
    duration::Span,
    error::{Error, ErrorKind, Result},
    store::{Blob, BlobContent, ETag},
    tenure::{Answer, Content, End, Record, Step, Tenure, Terms, Version},
};

#[derive(Debug)]
pub(super) struct Contender {
    place: Place,
    clock: Clock,
    tenure: Tenure,
    /// The store failed last time, and that was said.
    troubled: bool,
    /// The store was read once: what it refuses later is a credential that is being changed, and
    /// ends nobody who waits.
    was_read: bool,
    /// A write has succeeded once: the store takes writes under a condition.
    was_written: bool,
}

/// What a turn came to.
#[derive(Debug)]
pub(super) enum Turn {
    Answered,
    /// The store failed in a way that may pass.
    Failed(Error),
    /// There is nothing to ask before this.
    Wait(Tick),
    Ended(End),
}

impl Contender {
    pub(super) fn new(place: &Place, terms: &Terms) -> Self {
        let seed = getrandom::u64().unwrap_or_else(|_| fastrand::u64(..));
        Self {
            place: place.clone(),
            clock: Clock::new(),
            tenure: Tenure::new(terms.clone(), fastrand::Rng::with_seed(seed)),
            troubled: false,
            was_read: false,
            was_written: false,
        }
    }

    pub(super) fn clock(&self) -> Clock {
        self.clock
    }

    pub(super) fn believed(&self) -> Option<(u64, Tick)> {
        self.tenure.believed(self.clock.now())
    }

    /// Gives the lease back in the turns that follow.
    pub(super) fn release(&mut self) {
        self.tenure.release(self.clock.now());
    }

    /// Reads in the next turn, whenever it would have been due.
    pub(super) fn look_now(&mut self) {
        self.tenure.look_now();
    }

    /// Asks the store what is to be asked now, and takes in its answer.
    ///
    /// # Errors
    /// What waiting does not change.
    ///
    /// # Cancel safety
    /// Safe: what was asked counts as unanswered.
    pub(super) async fn turn(&mut self) -> Result<Turn> {
        let asked = match self.tenure.step(self.clock.now(), micros(wall())) {
            Step::Wait(until) => return Ok(Turn::Wait(until)),
            Step::Ended(end) => return Ok(Turn::Ended(end)),
            Step::Read => self.in_time(self.read()).await,
            Step::Create(record) => self.in_time(self.create(record)).await,
            Step::Update(record, version) => self.in_time(self.update(record, version)).await,
        };
        let (answer, failure) = match asked {
            Ok(answer) => (answer, None),
            Err(error) if error.kind() == ErrorKind::Conflict => (Answer::Conflict, None),
            // One that says that nothing was done is believed no more than the others: that costs
            // a read.
            Err(error) => (Answer::Unknown, Some(error)),
        };
        self.was_read |= matches!(answer, Answer::Found(_));
        self.was_written |= matches!(answer, Answer::Written(_));
        let taken = self.tenure.answered(self.clock.now(), answer);
        taken.map_err(|unreadable| self.place.unreadable(&unreadable))?;
        self.tell(failure.as_ref());
        match failure {
            None => Ok(Turn::Answered),
            Some(error) if self.is_final(error.kind()) => Err(error),
            Some(error) => Ok(Turn::Failed(error)),
        }
    }

    /// Returns whether the same call would fail in the same way, however long one waits.
    fn is_final(&self, kind: ErrorKind) -> bool {
        match kind {
            ErrorKind::Denied | ErrorKind::Invalid | ErrorKind::NotFound => !self.was_read,
            // Reads succeed on a store that has no conditional writes.
            ErrorKind::Unsupported => !self.was_written,
            _ => false,
        }
    }

    pub(super) async fn rest(&self, until: Tick) {
        tokio::time::sleep_until(self.clock.instant(until)).await;
    }

    async fn read(&self) -> Result<Answer> {
        let found = self.place.store.get(&self.place.blob).await?;
        let content = |blob: Blob| Content {
            version: blob.etag.as_str().into(),
            bytes: blob.content.bytes,
        };
        Ok(Answer::Found(found.map(content)))
    }

    async fn create(&self, record: Record) -> Result<Answer> {
        let content = BlobContent::from(record.bytes());
        let written = self.place.store.create(&self.place.blob, content).await?;
        Ok(Answer::Written(Arc::from(written.as_str())))
    }

    async fn update(&self, record: Record, version: Version) -> Result<Answer> {
        let (content, etag) = (BlobContent::from(record.bytes()), ETag::new(&version));
        let written = self
            .place
            .store
            .update(&self.place.blob, content, &etag)
            .await?;
        Ok(Answer::Written(Arc::from(written.as_str())))
    }

    async fn in_time(&self, asked: impl Future<Output = Result<Answer>>) -> Result<Answer> {
        let patience: Duration = self.tenure.terms().patience();
        let answered = tokio::time::timeout(patience, asked).await;
        answered.unwrap_or_else(|_| {
            let (store, span) = (&self.place.store, Span(patience));
            let message = format!("{store} did not answer within {span}");
            Err(Error::new(ErrorKind::Timeout, message))
        })
    }

    /// Logs that the store fails, once until it answers.
    fn tell(&mut self, failure: Option<&Error>) {
        let lease = &*self.place.name;
        match failure {
            Some(error) if !self.troubled => {
                tracing::warn!(lease, %error, "the store of a lease fails; trying again");
            }
            None if self.troubled => tracing::info!(lease, "the store of a lease answers again"),
            _ => {}
        }
        self.troubled = failure.is_some();
    }
}
