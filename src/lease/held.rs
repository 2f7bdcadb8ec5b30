//! A lease that is held: renewed by a task of its own, until it is released, lost or dropped.

use std::{fmt, sync::Arc, time::Duration};

use tokio::sync::{oneshot, watch};

use super::{
    Place,
    contender::{Contender, Turn},
};
use crate::{
    clock::{Clock, Tick},
    error::{Error, ErrorKind, Result},
    task::Scope,
    tenure::End,
};

/// A lease that is held.
///
/// It is renewed in the background until it is released or dropped. Where it is dropped it is given
/// up without a word: others have it when its duration has passed since the last renewal. A holder
/// does not believe in it any more well before that, so that no two do at the same time; while its
/// process is stopped or its machine sleeps nothing can say so to what it has begun: that is what
/// the [`token`](Self::token) is for.
pub struct Held {
    place: Place,
    token: u64,
    clock: Clock,
    belief: Arc<watch::Sender<Belief>>,
    release: oneshot::Sender<()>,
    released: oneshot::Receiver<Result<()>>,
    /// Ends the task with the holder.
    scope: Scope,
}

/// What is believed.
#[derive(Debug)]
struct Belief {
    until: Tick,
    /// Why it was not renewed last time.
    trouble: Option<Error>,
    /// Why it is over, for good: whoever was told so once is not told otherwise.
    over: Option<Error>,
}

/// The task that renews.
struct Keeper {
    place: Place,
    contender: Contender,
    belief: Arc<watch::Sender<Belief>>,
}

impl Held {
    pub(super) fn start(place: &Place, token: u64, until: Tick, contender: Contender) -> Self {
        let clock = contender.clock();
        let belief = Belief {
            until,
            trouble: None,
            over: None,
        };
        let belief = Arc::new(watch::Sender::new(belief));
        let (release, asked) = oneshot::channel();
        let (done, released) = oneshot::channel();
        let keeper = Keeper {
            place: place.clone(),
            contender,
            belief: Arc::clone(&belief),
        };
        let scope = Scope::new();
        scope.spawn(async move {
            let outcome = keeper.run(asked).await;
            // Whoever holds it may not want to know.
            let _ = done.send(outcome);
        });
        Self {
            place: place.clone(),
            token,
            clock,
            belief,
            release,
            released,
            scope,
        }
    }

    /// Returns the fencing token: greater than that of every earlier holder of this lease. What
    /// refuses lower tokens than it has seen is safe from holders that woke up too late.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Returns whether the lease is held at this moment, by this machine's monotonic clock. Once it
    /// is not, it never is again.
    pub fn is_held(&self) -> bool {
        self.loss().is_none()
    }

    /// Waits until the lease is lost, and returns why: not renewed in time, or taken or deleted by
    /// whoever wrote its blob. Resolves before any other contender can take it, where the clocks'
    /// rates differ by less than a fifth.
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

    /// Waits until the lease is lost unless it is renewed within `span`: time to wind up. Renewals
    /// begin at a third of the duration, and belief ends at four fifths, so that a span of a fifth
    /// passes only after several failures.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn ends_within(&self, span: Duration) {
        let mut changes = self.belief.subscribe();
        loop {
            let left = {
                let belief = changes.borrow_and_update();
                if belief.over.is_some() {
                    return;
                }
                belief.until.since(self.clock.now())
            };
            if left <= span {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(left - span) => {}
                // The sender lives as long as we do.
                _ = changes.changed() => {}
            }
        }
    }

    /// Gives the lease back, so that the next holder need not wait. It is not believed in any more
    /// from the call on.
    ///
    /// # Errors
    /// Why it was lost before; [`ErrorKind::Unavailable`] where the store does not answer within a
    /// third of the duration, at most 30 s: it ends by itself then.
    ///
    /// # Cancel safety
    /// Not safe: it is released, or it ends by itself.
    pub async fn release(self) -> Result<()> {
        if let Some(loss) = self.loss() {
            return Err(loss);
        }
        let closed = || Error::new(ErrorKind::Closed, "its renewal has ended");
        // Where the task has ended it has left word.
        let _ = self.release.send(());
        let outcome = self.released.await;
        drop(self.scope);
        outcome.unwrap_or_else(|_| Err(closed()))
    }

    /// Returns why the lease is lost, where it is by now.
    fn loss(&self) -> Option<Error> {
        lapse(&self.belief, &self.place, self.clock.now());
        self.belief.borrow().over.clone()
    }
}

impl Keeper {
    async fn run(mut self, mut asked: oneshot::Receiver<()>) -> Result<()> {
        let mut releasing = false;
        loop {
            let turn = match self.contender.turn().await {
                Ok(turn) => turn,
                // Refused for now; a holder tries until it must not believe any more.
                Err(error) => Turn::Failed(error),
            };
            if !releasing && let Some((_, until)) = self.contender.believed() {
                self.believe(until)?;
            }
            match turn {
                Turn::Answered => {}
                Turn::Failed(error) => self.trouble(error),
                Turn::Ended(End::Released) => return Ok(()),
                Turn::Ended(end) => return Err(self.end(&end)),
                Turn::Wait(until) => {
                    tokio::select! {
                        biased;
                        asked = &mut asked, if !releasing => {
                            // Dropped: whoever held it wants nothing any more.
                            if asked.is_err() {
                                return Ok(());
                            }
                            releasing = true;
                            self.contender.release();
                        }
                        () = self.contender.rest(until) => {}
                    }
                }
            }
        }
    }

    /// Lets it be believed for longer, unless somebody was told already that it is over.
    fn believe(&self, until: Tick) -> Result<()> {
        let mut over = None;
        self.belief.send_if_modified(|belief| {
            over = belief.over.clone();
            let longer = over.is_none() && belief.until != until;
            if longer {
                belief.until = until;
                belief.trouble = None;
            }
            longer
        });
        over.map_or(Ok(()), Err)
    }

    fn trouble(&self, error: Error) {
        self.belief.send_if_modified(|belief| {
            belief.trouble = Some(error);
            false
        });
    }

    /// Tells why it is over.
    fn end(&self, end: &End) -> Error {
        let mut told = None;
        self.belief.send_if_modified(|belief| {
            let trouble = belief.trouble.take();
            let over = belief
                .over
                .get_or_insert_with(|| self.place.lost(end, trouble.as_ref()));
            told = Some(over.clone());
            true
        });
        told.unwrap_or_else(|| self.place.lost(end, None))
    }
}

/// Ends a belief whose time is over.
fn lapse(belief: &watch::Sender<Belief>, place: &Place, now: Tick) {
    belief.send_if_modified(|belief| {
        let lapses = belief.over.is_none() && now >= belief.until;
        if lapses {
            let trouble = belief.trouble.take();
            belief.over = Some(place.lost(&End::Lapsed, trouble.as_ref()));
        }
        lapses
    });
}

impl Place {
    /// Returns what is told of a holding that has ended against its holder's will.
    fn lost(&self, end: &End, trouble: Option<&Error>) -> Error {
        let name = &self.name;
        let lost = |kind, why: &str| Error::new(kind, format!("lease `{name}` was lost: {why}"));
        let why = |what: &str| match trouble {
            Some(error) => format!("{what}: {error}"),
            None => what.to_owned(),
        };
        match end {
            End::Lapsed => lost(ErrorKind::Timeout, &why("it was not renewed in time")),
            End::Taken(holder) => lost(ErrorKind::Conflict, &format!("`{holder}` has it")),
            End::Gone => lost(ErrorKind::NotFound, "its blob was deleted"),
            End::Unreadable(shown) => {
                let why = format!("its blob was overwritten by {shown}");
                lost(ErrorKind::Conflict, &why)
            }
            End::Released | End::Unsettled => {
                let why = why("the store did not answer in time; it ends by itself");
                let message = format!("lease `{name}` could not be released: {why}");
                Error::new(ErrorKind::Unavailable, message)
            }
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Held({}, token {})", self.place.blob, self.token)
    }
}
