//! Whether the store of the flags can be read: for `/readyz/store`, and for what is wrong now.

use std::{sync::Arc, time::Duration};

use futures_core::future::BoxFuture;
use tokio::sync::Mutex;

use crate::{
    base::clock::Tick,
    error::{Error, ErrorKind},
    store::{BlobName, BlobStore},
};

/// Reads the store from time to time, for callers that do not wait for it.
pub(crate) struct StoreProbe {
    store: Arc<dyn BlobStore>,
    state: Mutex<ProbeState>,
}

#[derive(Default)]
struct ProbeState {
    reading: Option<BoxFuture<'static, Option<String>>>,
    next_at: Tick,
    failure: Option<String>,
}

/// Time limit of a read, so that a slow store does not delay a probe of an orchestrator.
const READ_WITHIN: Duration = Duration::from_secs(2);
/// Each read is a request to the store.
const READ_EVERY: Duration = Duration::from_secs(10);
/// A read that takes longer goes on with the next question.
const PATIENCE: Duration = Duration::from_millis(50);

/// Returns the error of a failed read, or `None` if the store can be read.
pub(crate) async fn unreadable_store(store: Arc<dyn BlobStore>) -> Option<String> {
    let blob = match BlobName::new("flags/ready") {
        Ok(name) => name,
        Err(error) => return Some(error.to_string()),
    };
    let read = tokio::time::timeout(READ_WITHIN, store.get(&blob)).await;
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

    /// Returns why the newest read has failed; `None` if it has not, or before the first one has ended.
    pub(crate) async fn failure(&self, now: Tick) -> Option<String> {
        let mut state = self.state.lock().await;
        let ProbeState {
            reading,
            next_at,
            failure,
        } = &mut *state;
        if reading.is_none() && now >= *next_at {
            *next_at = now + READ_EVERY;
            *reading = Some(Box::pin(unreadable_store(Arc::clone(&self.store))));
        }
        if let Some(running) = reading
            && let Ok(result) = tokio::time::timeout(PATIENCE, running).await
        {
            (*failure, *reading) = (result, None);
        }
        failure.clone()
    }
}
