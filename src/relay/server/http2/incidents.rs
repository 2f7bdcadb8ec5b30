//! Misbehaviour of peers: all incidents are counted, and each kind is logged once a second.

use std::{io, net::SocketAddr, time::Duration};

use crate::base::{clock::Clock, log_limiter::LimitedCounts};

/// Declares the incidents: each with the text of its log line, and the name and the text of its metric.
macro_rules! incidents {
    ($($(#[$doc:meta])* $kind:ident: $log:literal, $metric:literal, $help:literal;)+) => {
        /// Misbehaviour of a peer.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Incident {
            $($(#[$doc])* $kind,)+
        }

        impl Incident {
            pub(crate) const ALL: &[Self] = &[$(Self::$kind),+];

            fn text(self) -> &'static str {
                match self {
                    $(Self::$kind => $log,)+
                }
            }

            /// Returns the name and the text of the metric.
            pub(crate) fn metric(self) -> (&'static str, &'static str) {
                match self {
                    $(Self::$kind => ($metric, $help),)+
                }
            }
        }
    };
}

incidents! {
    /// Connected beyond the limit for its address, or was displaced at that limit before its first request.
    AddressFull: "refused a connection: its address is at its limit",
        "connections_refused", "Connections closed at the limit of their address";
    /// Failed in the TLS handshake, or spoke plain text.
    Handshake: "closed a connection that failed in its TLS handshake",
        "connections_without_tls", "Connections closed for a failed TLS handshake";
    /// Sent no preface in time, or was displaced by newer connections before it did.
    Silent: "closed a connection that sent no HTTP/2 preface",
        "connections_silent", "Connections closed without a preface";
    /// Sent its preface, but no connection became free in time.
    Full: "closed a connection: the relay is at its limit of connections",
        "connections_full", "Connections closed after their preface at the limit of connections";
    /// Sent no request in time that was admitted.
    Unused: "closed a connection without an admitted request",
        "connections_unused", "Connections closed without an admitted request";
    /// Did not complete a request in time.
    LateRequest: "ended a request that was not complete in time",
        "requests_late", "Requests ended that were not complete in time";
    /// Did not read the answer to a unary request in time.
    UnreadAnswer: "reset a stream whose answer was not read in time",
        "answers_unread", "Streams reset because a unary answer was not read in time";
    /// Sent a request that is not gRPC.
    NoGrpc: "refused a request that is not gRPC",
        "requests_not_grpc", "Requests refused for their method or content type";
    /// Connected, or sent a large request, when the process was short of memory.
    ShortOfMemory: "refused a connection or a large request: memory is short",
        "connections_refused_for_memory",
        "Connections and large requests refused near the maximum of memory";
    /// Asked for a stream, or a list, beyond a limit of the relay.
    StreamRefused: "refused a stream: the relay is at its limit",
        "streams_refused", "Streams refused at the maximum of streams or of memory";
    /// Spoke another protocol than HTTP/2, such as TLS on a port without it.
    OtherProtocol: "closed a connection that spoke another protocol",
        "connections_other_protocol",
        "Connections closed because they spoke another protocol than HTTP/2";
}

/// The counts since the start.
#[derive(Debug)]
pub(crate) struct Incidents {
    clock: Clock,
    counts: LimitedCounts<{ Incident::ALL.len() }>,
}

/// Minimum interval between log lines of one kind, for all peers together.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

impl Incidents {
    pub(crate) fn new() -> Self {
        Self {
            clock: Clock::new(),
            counts: LimitedCounts::new(LOG_INTERVAL),
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
