//! C15: the end of a relay that has drained, and what the others know of it (C7).

use std::time::Duration;

use super::{
    relay::Relay,
    world::{Event, World},
};
use crate::{types::cluster::LifeId, wire::proto::RelayState};

/// The drain, as the machine's last output states it, and the end of the process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Departure {
    pub(super) relay: usize,
    pub(super) run: u64,
    pub(super) life: LifeId,
    pub(super) told: bool,
    troubles: u64,
}

/// A client that closes its connection of the broker waits for its last messages.
const FLUSHED_WITHIN: Duration = Duration::from_secs(1);
/// Longer than a relay takes to miss another one.
const MISSED: Duration = Duration::from_secs(7);

impl World {
    /// The machine has left the cluster: the process ends when the client has written its messages.
    pub(super) fn leaves(&mut self, relay: usize, told: bool) {
        let run_number = self.relays[relay].life;
        let Some(run) = &self.relays[relay].run else {
            return;
        };
        let troubles = run.draining.as_ref().map_or(0, |one| one.troubles);
        let departure = Departure {
            relay,
            run: run_number,
            life: run.life_id(),
            told,
            troubles,
        };
        let written = self.broker.ports[relay].written_at().max(self.now);
        let at = written.min(self.now + FLUSHED_WITHIN) + Duration::from_millis(1);
        self.at(at, Event::Departs(departure));
    }

    /// The process of a relay that has left ends.
    pub(super) fn departs(&mut self, departure: Departure) {
        let Departure {
            relay, run, told, ..
        } = departure;
        if self.relays[relay].run_of(run).is_none() {
            return;
        }
        self.log
            .note(self.now, "departs", &[relay as u64, u64::from(told)]);
        self.ends(relay);
        match told {
            true => self.relay_has_left(departure),
            false => {
                // The others may not know of timers that have fired.
                self.forget_delayed_of(relay, run);
                self.relay_has_died(relay);
            }
        }
    }

    /// A relay that has left in a calm time puts nothing off: no relay has to notice its end.
    fn relay_has_left(&mut self, departure: Departure) {
        let number = departure.relay;
        self.totals.count("relays left", 1);
        let calm = |relay: &Relay| relay.whole_from <= self.now;
        let all_calm = self.relays.iter().all(calm);
        if all_calm && self.troubles == departure.troubles {
            self.after(MISSED, Event::LeftSettled(departure));
        }
        self.relay_has_left_calmly(number, all_calm);
    }

    /// C7: a relay that has left is not missing.
    pub(super) fn check_left(&mut self, departure: Departure) {
        if self.troubles != departure.troubles {
            return;
        }
        for (number, relay) in self.relays.iter().enumerate() {
            let old = relay.started_at + MISSED + MISSED < self.now;
            let Some(run) = relay.run.as_ref().filter(|_| old) else {
                continue;
            };
            let mut peers = run.node.link().peers(self.local(number));
            let left = peers
                .any(|peer| peer.life == departure.life && peer.info.state() == RelayState::Left);
            drop(peers);
            if !left {
                let gone = departure.relay;
                return self.violate(|| {
                    format!("C7: relay {gone} has left, and relay {number} counts it as missing")
                });
            }
        }
        self.totals.count("departures checked", 1);
    }
}
