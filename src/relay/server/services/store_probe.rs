//! Whether the store of the flags can be read: for `/readyz/store`, and for what is wrong now.

use std::{sync::Arc, time::Duration};

use tokio::sync::Mutex;

use crate::{
    base::clock::Tick,
    error::{Error, ErrorKind},
    store::{BlobName, BlobStore},
};

/// Reads the store from time to time.
pub(crate) struct StoreProbe {
    store: Arc<dyn BlobStore>,
    state: Mutex<ProbeState>,
}

#[derive(Default)]
struct ProbeState {
    next_at: Tick,
    failure: Option<String>,
}

/// Time limit of a read, so that a slow store does not delay a probe of an orchestrator.
const READ_WITHIN: Duration = Duration::from_secs(2);
/// Time limit for figures, for which other relays wait a second.
const PATIENCE: Duration = Duration::from_millis(500);
/// Each read is a request to the store.
const READ_EVERY: Duration = Duration::from_secs(10);

/// Returns the error of a failed read, or `None` if the store can be read.
pub(crate) async fn unreadable_store(store: &dyn BlobStore) -> Option<String> {
    failure(store, READ_WITHIN).await
}

async fn failure(store: &dyn BlobStore, within: Duration) -> Option<String> {
    let blob = match BlobName::new("flags/ready") {
        Ok(name) => name,
        Err(error) => return Some(error.to_string()),
    };
    let read = tokio::time::timeout(within, store.get(&blob)).await;
    let slow = |_| {
        let message = format!("store {store} does not answer");
        Err(Error::new(ErrorKind::Timeout, message))
    };
    let failed = read.unwrap_or_else(slow).err();
    failed.map(|error| error.to_string())
}

impl StoreProbe {
    pub(crate) fn new(store: Arc<dyn BlobStore>) -> Self {
        Self {
            store,
            state: Mutex::default(),
        }
    }

    pub(crate) fn store(&self) -> &dyn BlobStore {
        &*self.store
    }

    /// Returns why the newest read has failed; `None` if it has not.
    pub(crate) async fn failure(&self, now: Tick) -> Option<String> {
        let mut state = self.state.lock().await;
        if now >= state.next_at {
            state.next_at = now + READ_EVERY;
            state.failure = failure(&*self.store, PATIENCE).await;
        }
        state.failure.clone()
    }
}
