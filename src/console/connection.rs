//! Connections to the admin port: few, short, one request each.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::net::{TcpListener, TcpStream};

use crate::base::{
    eviction::{EvictingPool, PoolPlace},
    task::Scope,
};

/// Maximum connections; a newer one displaces the oldest. A probe takes milliseconds, and slow
/// peers must not block it: a process without an answer on `/livez` is killed.
const CONNECTIONS: usize = 64;
/// Time limit of the request's head.
const HEAD_DEADLINE: Duration = Duration::from_secs(5);
/// Time from accept to the answer's last byte. The slowest answer reads the store, which has 2 s.
const DEADLINE: Duration = Duration::from_secs(10);
/// Maximum bytes of a request's head. hyper's minimum is 8 KiB.
const HEAD_BYTES: usize = 16 * 1024;
/// Time for open answers when the console ends.
const GRACE: Duration = Duration::from_secs(1);

/// The address of the other side, an extension of its requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub(super) SocketAddr);

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
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_buf_size(HEAD_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::select! {
        served = tokio::time::timeout(DEADLINE, served) => {
            if let Ok(Err(error)) = served {
                tracing::debug!(%error, "a connection to the admin port ended");
            }
        }
        () = place.evicted() => {}
    }
}
