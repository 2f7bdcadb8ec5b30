//! Misbehaviour of peers: all incidents are counted, and each kind is logged once a second.

use std::{io, net::SocketAddr};

use crate::{
    base::{clock::Clock, log_limiter::LimitedCounts},
    console::{Metric, metric_table},
};

/// Declares the kinds with the names of their counters and what the relay did, for the log and the help.
macro_rules! incidents {
    ($($kind:ident = $name:ident, $text:literal;)*) => {
        /// Misbehaviour of a peer.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Incident {
            $($kind),*
        }

        const KINDS: usize = [$(Incident::$kind),*].len();

        impl Incident {
            const fn text(self) -> &'static str {
                match self {
                    $(Self::$kind => $text),*
                }
            }
        }

        impl Incidents {
            /// Returns a counter of each kind.
            pub(crate) fn metrics(&self) -> Vec<Metric> {
                metric_table! {
                    $($name = self.count(Incident::$kind), $text;)*
                }
            }
        }
    };
}

incidents! {
    AddressFull = connections_refused,
        "refused a connection: its address is at its limit";
    Handshake = connections_without_tls, "closed a connection that failed in its TLS handshake";
    Silent = connections_silent, "closed a connection that sent no HTTP/2 preface";
    Full = connections_full, "closed a connection: the relay is at its limit of connections";
    Unused = connections_unused, "closed a connection without an admitted request";
    LateRequest = requests_late, "ended a request that was not complete in time";
    NoGrpc = requests_not_grpc, "refused a request that is not gRPC";
    ShortOfMemory = connections_refused_for_memory,
        "refused a connection or a large request: memory is short";
    StreamRefused = streams_refused, "refused a stream: the relay is at its limit";
    OtherProtocol = connections_other_protocol, "closed a connection that spoke another protocol";
}

/// The counts since the start.
#[derive(Debug)]
pub(crate) struct Incidents {
    clock: Clock,
    counts: LimitedCounts<KINDS>,
}

impl Incidents {
    pub(crate) fn new() -> Self {
        Self {
            clock: Clock::new(),
            counts: LimitedCounts::default(),
        }
    }

    /// Counts an incident, and logs it unless its kind was logged within the last second.
    #[cold]
    pub(crate) fn note(&self, incident: Incident, peer: SocketAddr) {
        if let Some(suppressed) = self.counts.note(incident as usize, self.clock.now()) {
            tracing::warn!(%peer, suppressed, "{}", incident.text());
        }
    }

    /// As [`Incidents::note`], with the reason.
    #[cold]
    pub(super) fn note_error(&self, incident: Incident, peer: SocketAddr, error: &io::Error) {
        if let Some(suppressed) = self.counts.note(incident as usize, self.clock.now()) {
            tracing::warn!(%peer, suppressed, %error, "{}", incident.text());
        }
    }

    /// Returns the number of incidents of a kind.
    pub(crate) fn count(&self, incident: Incident) -> u64 {
        self.counts.count(incident as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_incident_is_counted_by_its_kind() {
        let incidents = Incidents::new();
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        for _ in 0..5 {
            incidents.note(Incident::Full, peer);
        }
        incidents.note(Incident::NoGrpc, peer);
        assert_eq!(incidents.count(Incident::Full), 5);
        assert_eq!(incidents.count(Incident::NoGrpc), 1);
        assert_eq!(incidents.count(Incident::Silent), 0);
    }
}
