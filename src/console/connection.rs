//! Connections to the admin port: few, short, one request each. A stream of events is not short.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::net::{TcpListener, TcpStream};

use crate::base::{
    evicting_pool::{EvictingPool, PoolPlace},
    task::Scope,
};

/// Maximum connections; a newer one displaces the oldest. A probe takes milliseconds, and slow
/// peers must not block it: a process without an answer on `/livez` is killed.
const CONNECTIONS: usize = 64;
/// Time limit of the request's head.
const HEAD_DEADLINE: Duration = Duration::from_secs(5);
/// Time from accept to the answer's last byte. The slowest answers read the store, which has 4 s.
const DEADLINE: Duration = Duration::from_secs(10);
/// Maximum bytes of a request's head. hyper's minimum is 8 KiB.
const HEAD_BYTES: usize = 16 * 1024;
/// Time for open answers when the console ends.
const GRACE: Duration = Duration::from_secs(1);

/// The address of the other side, an extension of its requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// Keeps a connection open for a stream of events, an extension of its requests.
#[derive(Debug, Clone, Default)]
pub(crate) struct LongAnswer(Arc<AtomicBool>);

impl LongAnswer {
    /// The answer has no deadline.
    pub(crate) fn begin(&self) {
        self.0.store(true, Relaxed);
    }
}

pub(super) fn pool() -> EvictingPool {
    EvictingPool::new(CONNECTIONS)
}

/// Accepts connections until the scope ends.
pub(super) async fn accept(
    listener: TcpListener,
    router: Router,
    connections: EvictingPool,
    scope: Arc<Scope>,
) {
    let ended = scope.token();
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            // Mostly a lack of file descriptors: retried after a pause.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let place = connections.enter();
        let (router, ended) = (router.clone(), ended.clone());
        scope.spawn_graceful(async move {
            let late = async {
                ended.cancelled().await;
                tokio::time::sleep(GRACE).await;
            };
            tokio::select! {
                () = serve(stream, router.layer(Extension(Peer(peer))), place) => {}
                () = late => tracing::debug!(%peer, "closed an unfinished admin connection"),
            }
        });
    }
}

/// Answers one request.
async fn serve(stream: TcpStream, router: Router, place: PoolPlace) {
    let long = LongAnswer::default();
    let router = router.layer(Extension(long.clone()));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_buf_size(HEAD_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(served);
    let served = async {
        match tokio::time::timeout(DEADLINE, &mut served).await {
            Ok(served) => served,
            Err(_) if long.0.load(Relaxed) => served.await,
            Err(_) => Ok(()),
        }
    };
    tokio::select! {
        served = served => {
            if let Err(error) = served {
                tracing::debug!(%error, "a connection to the admin port ended");
            }
        }
        () = place.evicted() => {}
    }
}
