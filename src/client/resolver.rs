//! The addresses of a relay's name. Each of several addresses is a relay of one cluster, as behind a
//! headless service of Kubernetes.
//!
//! All connections of a client go to the same address while that takes them. Where the client leaves
//! that relay, the next address comes first.

#[cfg(test)]
mod tests;

use std::{
    future::Future,
    hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher},
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    vec,
};

use hyper_util::client::legacy::connect::dns::Name;
use tonic::codegen::Service;

/// Addresses of the first family that one attempt tries: each gets an equal part of its time.
const MOST_ADDRESSES: usize = 3;

/// Resolves one name. Cheap to clone; the clones share their state.
#[derive(Debug, Clone)]
pub(super) struct Resolver(Arc<Addresses>);

#[derive(Debug)]
struct Addresses {
    /// Each client has another order, so that the clients of a fleet spread.
    seed: u64,
    /// How often the client has left an address.
    turn: AtomicUsize,
    /// The relays behind the name when it was resolved last; 0 before.
    count: AtomicUsize,
}

impl Resolver {
    pub(super) fn new() -> Self {
        Self(Arc::new(Addresses {
            seed: fastrand::u64(..),
            turn: AtomicUsize::new(0),
            count: AtomicUsize::new(0),
        }))
    }

    /// Returns the number of relays behind the name: 1 for an address, and until the name is
    /// resolved.
    pub(super) fn count(&self) -> usize {
        self.0.count.load(Relaxed).max(1)
    }

    /// Resolves the host of a URL, unless it is an address, or was resolved before. A failure is left
    /// to the connection, which reports it.
    pub(super) async fn resolve_once(&self, host: &str) {
        let host = host.trim_matches(['[', ']']);
        if self.0.count.load(Relaxed) == 0 && host.parse::<IpAddr>().is_err() {
            let _ = self.clone().resolve(host.to_owned()).await;
        }
    }

    /// Returns how often the client has left an address. A connection keeps the number of its time.
    pub(super) fn turn(&self) -> usize {
        self.0.turn.load(Relaxed)
    }

    /// Leaves the address of a connection with this number; returns whether no other connection has
    /// left it before.
    pub(super) fn leave(&self, turn: usize) -> bool {
        let left = turn.wrapping_add(1);
        let exchanged = self.0.turn.compare_exchange(turn, left, Relaxed, Relaxed);
        exchanged.is_ok()
    }

    async fn resolve(self, name: String) -> io::Result<vec::IntoIter<SocketAddr>> {
        let found = look_up(&name).await?;
        Ok(self.order(found).into_iter())
    }

    /// Returns the addresses of this turn: the next relay's, and some that follow. A machine with an
    /// address of each family is one relay. So the turns go over the larger family, and the other one
    /// is the second choice.
    fn order(&self, found: Vec<SocketAddr>) -> Vec<SocketAddr> {
        let prefers_v6 = found.first().is_some_and(SocketAddr::is_ipv6);
        let families = found
            .into_iter()
            .partition::<Vec<_>, _>(|address| address.is_ipv6() == prefers_v6);
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let mut families = [families.0, families.1];
        for family in &mut families {
            family.sort_by_key(|address| (hasher.hash_one((self.0.seed, address)), *address));
            family.dedup();
        }
        // Some relays may have no address of the system's preferred family.
        if families[1].len() > families[0].len() {
            families.swap(0, 1);
        }
        let count = families[0].len().max(1);
        self.0.count.store(count, Relaxed);
        let at = self.turn() % count;
        for family in &mut families {
            let at = at.checked_rem(family.len()).unwrap_or_default();
            family.rotate_left(at);
        }
        let [first, second] = &families;
        let most = |family: &[SocketAddr], most| family[..family.len().min(most)].to_vec();
        [most(first, MOST_ADDRESSES), most(second, 1)].concat()
    }
}

impl Service<Name> for Resolver {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        Box::pin(self.clone().resolve(name.as_str().to_owned()))
    }
}

/// Asks the system for the addresses of a name.
async fn look_up(name: &str) -> io::Result<Vec<SocketAddr>> {
    #[cfg(test)]
    if let Some(addresses) = tests::addresses(name) {
        return Ok(addresses);
    }
    Ok(tokio::net::lookup_host((name, 0)).await?.collect())
}
