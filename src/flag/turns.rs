//! One at a time for each flag: whoever comes later waits for its turn, in order.
//!
//! A turn is kept while the store works, which no lock of ours ever is; it guards no data. Needs
//! no runtime: whoever waits is woken by whoever had the turn.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use tokio::sync::OwnedMutexGuard;

use crate::{sync::lock, words::FlagName};

/// Who works on which flag.
#[derive(Debug, Default)]
pub(super) struct Turns {
    by_name: Mutex<BTreeMap<FlagName, Arc<tokio::sync::Mutex<()>>>>,
}

/// A turn; the next one's when it is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    name: FlagName,
    held: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    /// Waits for the flag's turn.
    ///
    /// # Cancel safety
    /// Whoever stops waiting loses its place, and nobody else's.
    pub(super) async fn take(&self, name: &FlagName) -> Turn<'_> {
        let gate = Arc::clone(lock(&self.by_name).entry(name.clone()).or_default());
        // Made before it waits, so that it tidies up where the wait is given up.
        let mut turn = Turn {
            turns: self,
            name: name.clone(),
            held: None,
        };
        turn.held = Some(gate.lock_owned().await);
        turn
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.held = None;
        let mut by_name = lock(&self.turns.by_name);
        if by_name
            .get(&self.name)
            .is_some_and(|gate| Arc::strong_count(gate) == 1)
        {
            by_name.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use super::*;

    #[test]
    fn turns_come_one_at_a_time_and_leave_nothing_behind() {
        let (turns, name) = (Turns::default(), FlagName::new("go").expect("a name"));
        let mut context = Context::from_waker(Waker::noop());
        {
            let mut first = pin!(turns.take(&name));
            let Poll::Ready(held) = first.as_mut().poll(&mut context) else {
                panic!("nobody else is there");
            };
            let mut given_up = Box::pin(turns.take(&name));
            let mut second = pin!(turns.take(&name));
            assert!(given_up.as_mut().poll(&mut context).is_pending());
            assert!(second.as_mut().poll(&mut context).is_pending());
            drop(given_up);
            drop(held);
            assert!(second.as_mut().poll(&mut context).is_ready());
        }
        assert!(lock(&turns.by_name).is_empty());
    }
}
