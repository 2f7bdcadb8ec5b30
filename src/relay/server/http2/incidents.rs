//! Misbehaviour of peers: all incidents are counted, and each kind is logged once a second.

use std::{io, net::SocketAddr, time::Duration};

use crate::base::{clock::Clock, log_limiter::LimitedCounts};

/// Misbehaviour of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Incident {
    /// Connected beyond the limit for its address, or too often, or was displaced at that limit before
    /// its first request.
    AddressFull,
    /// Failed in the TLS handshake, or spoke plain text.
    Handshake,
    /// Sent no preface in time, or was displaced by newer connections before it did.
    Silent,
    /// Sent its preface, but no connection became free in time.
    Full,
    /// Sent no request in time that was admitted.
    Unused,
    /// Did not complete a request in time.
    LateRequest,
    /// Did not read the answer to a unary request in time.
    UnreadAnswer,
    /// Sent a request that is not gRPC.
    NoGrpc,
    /// Connected, or sent a large request, when the process was short of memory.
    ShortOfMemory,
    /// Asked for a stream, or a list, beyond a limit of the relay.
    StreamRefused,
    /// Spoke another protocol than HTTP/2, such as TLS on a port without it.
    OtherProtocol,
}

/// The counts since the start.
#[derive(Debug)]
pub(crate) struct Incidents {
    clock: Clock,
    counts: LimitedCounts<KINDS>,
}

const KINDS: usize = 11;
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

impl Incident {
    fn text(self) -> &'static str {
        match self {
            Self::AddressFull => {
                "refused a connection: its address is at its limit, or connects too often"
            }
            Self::Handshake => "closed a connection that failed in its TLS handshake",
            Self::Silent => "closed a connection that sent no HTTP/2 preface",
            Self::Full => "closed a connection: the relay is at its limit of connections",
            Self::Unused => "closed a connection without an admitted request",
            Self::LateRequest => "ended a request that was not complete in time",
            Self::UnreadAnswer => "reset a stream whose answer was not read in time",
            Self::NoGrpc => "refused a request that is not gRPC",
            Self::ShortOfMemory => "refused a connection or a large request: memory is short",
            Self::StreamRefused => "refused a stream: the relay is at its limit",
            Self::OtherProtocol => "closed a connection that spoke another protocol",
        }
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
