//! Limits the calls of the store that are made for requests at one time.
//!
//! A slow store must not gather the requests of a client that sends them without end.

use std::{sync::Arc, time::Duration};

use tokio::sync::Semaphore;
use tonic::Extensions;

use crate::error::{Error, ErrorKind, Result};

/// Limits the calls for all connections. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct StoreCalls(Arc<Semaphore>);

/// Limits the calls for one connection. It is an extension of the request.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionStoreCalls(Arc<Semaphore>);

/// Calls for all connections; further ones wait for their turn.
const MAX_CALLS: usize = 256;
/// Calls for one connection; further ones are refused.
const MAX_PER_CONNECTION: usize = 64;
/// A refused call is tried again after this time.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Time limit of a call with the wait for its turn; a slower store counts as unavailable.
pub(super) const TIMEOUT: Duration = Duration::from_secs(4);

impl StoreCalls {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(MAX_CALLS)))
    }

    /// Runs a call for the request with these extensions. A write that exceeds the time limit may have
    /// happened.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] if the connection has too many calls, [`ErrorKind::Unavailable`] if
    /// the store does not answer in time, and those of the call.
    pub(crate) async fn run<T>(
        &self,
        request: &Extensions,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        // Only requests of the console and of tests have no connection.
        let connection = request.get::<ConnectionStoreCalls>().cloned();
        let connection = connection.unwrap_or_default();
        let Ok(_own) = connection.0.try_acquire() else {
            let message = format!(
                "store: the limit is {MAX_PER_CONNECTION} calls at one time for a connection"
            );
            return Err(Error::new(ErrorKind::Exhausted, message).with_retry_after(RETRY_AFTER));
        };
        in_time(async {
            let _shared = self.0.acquire().await.expect("never closed");
            call.await
        })
        .await
    }
}

impl Default for ConnectionStoreCalls {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_PER_CONNECTION)))
    }
}

/// Runs a call of the store with a time limit. A write that exceeds it may have happened.
pub(super) async fn in_time<T>(call: impl Future<Output = Result<T>>) -> Result<T> {
    let late = |_| {
        let message =
            "the store did not answer in time; a write may have happened, check with `flag get`";
        Err(Error::new(ErrorKind::Unavailable, message))
    };
    tokio::time::timeout(TIMEOUT, call)
        .await
        .unwrap_or_else(late)
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::*;

    fn from(connection: &ConnectionStoreCalls) -> Extensions {
        let mut extensions = Extensions::new();
        extensions.insert(connection.clone());
        extensions
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_has_a_limit_and_all_share_one() {
        let calls = StoreCalls::new();
        let slow = || async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            Ok(())
        };
        let greedy = from(&ConnectionStoreCalls::default());
        let many = join_all((0..100).map(|_| calls.run(&greedy, slow()))).await;
        let refused = many.iter().filter_map(|call| call.as_ref().err());
        let refused: Vec<_> = refused.map(|error| error.kind()).collect();
        assert_eq!(refused, [ErrorKind::Exhausted; 100 - MAX_PER_CONNECTION]);

        // The calls of five connections: one of them waits for its turn, and for too long.
        let others: Vec<_> = (0..5)
            .map(|_| from(&ConnectionStoreCalls::default()))
            .collect();
        let all = others
            .iter()
            .flat_map(|connection| (0..MAX_PER_CONNECTION).map(|_| calls.run(connection, slow())));
        let all = join_all(all).await;
        let late = all.iter().filter_map(|call| call.as_ref().err());
        let late: Vec<_> = late.map(|error| error.kind()).collect();
        assert_eq!(
            late,
            [ErrorKind::Unavailable; 5 * MAX_PER_CONNECTION - MAX_CALLS]
        );
        calls.run(&greedy, slow()).await.expect("room again");
    }
}
