//! A mutex for each flag's name, in order of arrival.
//!
//! The lock is held while a request to the store runs. It guards no data. It needs no runtime: the
//! release of the lock wakes the next waiter.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use tokio::sync::OwnedMutexGuard;

use crate::{base::sync::lock, types::FlagName};

/// The locks in use, by name.
#[derive(Debug, Default)]
pub(super) struct KeyedMutex {
    by_name: Mutex<BTreeMap<FlagName, Arc<tokio::sync::Mutex<()>>>>,
}

/// Holds the lock of one name until it is dropped.
#[derive(Debug)]
pub(super) struct KeyedGuard<'a> {
    keyed_mutex: &'a KeyedMutex,
    name: FlagName,
    held: Option<OwnedMutexGuard<()>>,
}

impl KeyedMutex {
    /// Waits for the lock of this name.
    ///
    /// # Cancel safety
    /// A waiter that is dropped loses its place. Other waiters keep theirs.
    pub(super) async fn lock(&self, name: &FlagName) -> KeyedGuard<'_> {
        let gate = Arc::clone(lock(&self.by_name).entry(name.clone()).or_default());
        // Made before the wait, so that its drop removes the entry if the wait is cancelled.
        let mut turn = KeyedGuard {
            keyed_mutex: self,
            name: name.clone(),
            held: None,
        };
        turn.held = Some(gate.lock_owned().await);
        turn
    }
}

impl Drop for KeyedGuard<'_> {
    fn drop(&mut self) {
        self.held = None;
        let mut by_name = lock(&self.keyed_mutex.by_name);
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
    fn a_lock_goes_from_waiter_to_waiter_and_leaves_no_entry() {
        let (keyed_mutex, name) = (KeyedMutex::default(), FlagName::new("go").expect("a name"));
        let mut context = Context::from_waker(Waker::noop());
        {
            let mut first = pin!(keyed_mutex.lock(&name));
            let Poll::Ready(held) = first.as_mut().poll(&mut context) else {
                panic!("the lock is free");
            };
            let mut given_up = Box::pin(keyed_mutex.lock(&name));
            let mut second = pin!(keyed_mutex.lock(&name));
            assert!(given_up.as_mut().poll(&mut context).is_pending());
            assert!(second.as_mut().poll(&mut context).is_pending());
            drop(given_up);
            drop(held);
            assert!(second.as_mut().poll(&mut context).is_ready());
        }
        assert!(lock(&keyed_mutex.by_name).is_empty());
    }
}
