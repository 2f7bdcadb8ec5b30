//! Connections to the admin port: few, short, one request each.

use std::{sync::Arc, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::net::{TcpListener, TcpStream};

use crate::{
    eviction::{EvictingPool, PoolPlace},
    task::Scope,
};

/// At one time; a newer one displaces the oldest. A probe takes milliseconds, and slow peers must
/// not keep it out: who is not answered on `/livez` is killed.
const CONNECTIONS: usize = 64;
/// For the request's head.
const HEAD_DEADLINE: Duration = Duration::from_secs(5);
/// From accept to the answer's last byte. The slowest answer asks the store, which has 2 s.
const DEADLINE: Duration = Duration::from_secs(10);
/// What a request's head may take. hyper's least is 8 KiB.
const HEAD_BYTES: usize = 16 * 1024;
/// For answers that are on their way when the console ends.
const GRACE: Duration = Duration::from_secs(1);

pub(super) fn pool() -> EvictingPool {
    EvictingPool::new(CONNECTIONS)
}

/// Takes connections until the scope ends.
pub(super) async fn accept(
    listener: TcpListener,
    router: Router,
    connections: EvictingPool,
    scope: Arc<Scope>,
) {
    let ended = scope.token();
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            // Out of file descriptors, mostly: not asked again at once.
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
                () = serve(stream, router, place) => {}
                () = late => tracing::debug!(%peer, "left a connection to the admin port behind"),
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
