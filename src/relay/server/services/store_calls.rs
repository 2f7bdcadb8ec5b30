//! Limits the calls of the store that are made for requests at one time.
//!
//! A slow store must not gather the requests of a client that sends them without end.

use std::{sync::Arc, time::Duration};

use tokio::sync::Semaphore;
use tonic::Extensions;

use crate::{
    error::{Error, ErrorKind, Result},
    relay::server::http2::{activity::MAX_STORE_CALLS, limits::retry_later, service::Connection},
};

/// Limits the calls for all connections. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct StoreCalls(Arc<Semaphore>);

/// Calls for all connections; further ones wait for their turn.
const MAX_CALLS: usize = 256;
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
        // Only requests of the console have no connection.
        let connection = request.get::<Connection>();
        let own = connection.map(|connection| connection.store_calls().try_acquire());
        let _own = own.transpose().map_err(|_| {
            let message =
                format!("store: the limit is {MAX_STORE_CALLS} calls at one time for a connection");
            retry_later(Error::new(ErrorKind::Exhausted, message))
        })?;
        in_time(async {
            let _shared = self.0.acquire().await.expect("never closed");
            call.await
        })
        .await
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
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::relay::server::http2::{activity::Activity, incidents::Incidents};

    /// Returns a request of a new connection.
    fn request() -> Extensions {
        let incidents = Arc::new(Incidents::new());
        let mut extensions = Extensions::new();
        extensions.insert(Connection(Activity::for_test(
            incidents,
            CancellationToken::new(),
        )));
        extensions
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_has_a_limit_and_all_share_one() {
        let calls = StoreCalls::new();
        let slow = || async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            Ok(())
        };
        let greedy = request();
        let many = join_all((0..100).map(|_| calls.run(&greedy, slow()))).await;
        let refused = many.iter().filter_map(|call| call.as_ref().err());
        let refused: Vec<_> = refused.map(|error| error.kind()).collect();
        assert_eq!(refused, [ErrorKind::Exhausted; 100 - MAX_STORE_CALLS]);

        // The calls of five connections: one of them waits for its turn, and for too long.
        let others: Vec<_> = (0..5).map(|_| request()).collect();
        let all = others
            .iter()
            .flat_map(|connection| (0..MAX_STORE_CALLS).map(|_| calls.run(connection, slow())));
        let all = join_all(all).await;
        let late = all.iter().filter_map(|call| call.as_ref().err());
        let late: Vec<_> = late.map(|error| error.kind()).collect();
        assert_eq!(
            late,
            [ErrorKind::Unavailable; 5 * MAX_STORE_CALLS - MAX_CALLS]
        );
        calls.run(&greedy, slow()).await.expect("room again");
    }
}
