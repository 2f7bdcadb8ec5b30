//! Reports in the simulation: unary calls that may be lost, late, or overtake each other.
//!
//! A report without an answer is repeated while it still matters. A report that found no stream
//! waits for the next Welcome.

use std::{sync::Arc, time::Duration};

use super::{
    net::ConnId,
    oracle::later,
    plan::Trouble,
    queue::{Announced, MessageId},
    world::{Event, World},
};
use crate::{
    base::clock::Tick,
    error::ErrorKind,
    relay::hub::SubscriptionId,
    types::{Report, ReportState},
};

/// One call in flight.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) listener: usize,
    life: u64,
    pub(super) number: u64,
    subscription: Arc<str>,
    report: Report,
    pub(super) queue: usize,
    message: Option<(MessageId, u64)>,
    /// Its sequence is of another life of the relay.
    stale: bool,
}

/// The answer to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Accepted,
    Refused,
    /// Refused because the relay has no room: repeated later.
    Full,
    Late,
}

/// A message that a listener released, with or without a delay.
#[derive(Debug, Clone)]
pub(super) struct Released {
    pub(super) message: MessageId,
    receipt: u64,
    queue: usize,
    at: Tick,
    /// The relay has accepted the report of it.
    known: bool,
}

/// A call without an answer for this long is repeated.
pub(super) const ANSWER: Duration = Duration::from_secs(3);

impl Call {
    /// Makes the report call of a listener's scaler.
    pub(super) fn scaled(
        listener: usize,
        life: u64,
        subscription: Arc<str>,
        report: Report,
        queue: usize,
    ) -> Self {
        Self {
            listener,
            life,
            number: report.number,
            subscription,
            report,
            queue,
            message: None,
            stale: false,
        }
    }
}

impl World {
    /// Shows a message again, and reports when (R10: a listener reports what becomes visible again).
    pub(super) fn release(&mut self, number: usize, message: MessageId, receipt: u64, at: Tick) {
        if !self.queues.release(message, receipt, at) {
            return;
        }
        let queue = self.queues.messages[message].queue;
        self.log.note(
            self.now,
            "released",
            &[number as u64, message as u64, at.as_nanos()],
        );
        self.listeners[number].released.push(Released {
            message,
            receipt,
            queue,
            at,
            known: false,
        });
        self.report_release(number, message, receipt);
    }

    /// Reports a queue's state.
    pub(super) fn report(&mut self, number: usize, queue: usize, state: ReportState) {
        if !self.plan.listeners[number].mute {
            self.call(number, queue, state, None);
        }
    }

    /// After each Welcome: every queue where it is busy or holds messages that become visible
    /// later; a talkative listener reports the others as well.
    pub(super) fn report_again(&mut self, number: usize) {
        let (now, listener) = (self.now, &mut self.listeners[number]);
        listener
            .released
            .retain(|released| !released.known || released.at > now);
        let released: Vec<_> = listener
            .released
            .iter()
            .map(|released| (released.message, released.receipt))
            .collect();
        let talkative = self.plan.listeners[number].talkative;
        let states: Vec<_> = listener
            .workers
            .iter()
            .filter(|(queue, worker)| {
                worker.active || (talkative && listener.seen.contains_key(queue))
            })
            .map(|(queue, worker)| {
                let busy = worker.active;
                (
                    *queue,
                    if busy {
                        ReportState::Busy
                    } else {
                        ReportState::Drained
                    },
                )
            })
            .collect();
        for (queue, state) in states {
            self.report(number, queue, state);
        }
        for (message, receipt) in released {
            self.report_release(number, message, receipt);
        }
    }

    /// A report arrives at the relay.
    pub(super) fn take_report(&mut self, call: Call) {
        let Some(hub) = self.relay.hub.clone() else {
            return;
        };
        let (_, text) = call
            .subscription
            .rsplit_once('/')
            .expect("the relay's own form");
        let id = u128::from_str_radix(text, 16).expect("the relay's own form");
        let answer = hub.report(SubscriptionId(id), &call.report, self.now);
        let answer = match answer.map_err(|error| error.kind()) {
            Ok(()) => Answer::Accepted,
            Err(ErrorKind::Exhausted) => Answer::Full,
            Err(_) => Answer::Refused,
        };
        let accepted = answer == Answer::Accepted;
        if answer == Answer::Full {
            self.note_refusal();
        }
        self.totals.reports += 1;
        self.log.note(
            self.now,
            "report",
            &[
                call.listener as u64,
                call.queue as u64,
                call.report.state as u64,
                call.report.sequence,
                u64::from(accepted),
            ],
        );
        if accepted {
            if let Some(conn) = self.relay.ids.get(&id).copied() {
                self.was_accepted(conn, &call);
            } else {
                self.violate(|| "a report of a stream that has ended is accepted".to_owned());
            }
        }
        if !self.is_lost(call.listener) {
            let transit = self.transit();
            self.after(transit, Event::Reported(call, answer));
        }
    }

    /// A call is answered or timed out.
    pub(super) fn reported(&mut self, call: &Call, answer: Answer) {
        let listener = &mut self.listeners[call.listener];
        if listener.is_alive(call.life) && listener.is_scaled() {
            return self.scaled_reported(call, answer);
        }
        // A call that found no room stays in the list until it times out.
        if !listener.is_alive(call.life)
            || answer == Answer::Full
            || listener.calls.remove(&call.number).is_none()
        {
            return;
        }
        if let Some((message, receipt)) = call.message {
            if answer == Answer::Accepted {
                for released in &mut listener.released {
                    released.known |= (released.message, released.receipt) == (message, receipt);
                }
            } else if answer == Answer::Late {
                self.report_release(call.listener, message, receipt);
            }
            return;
        }
        // Refused: its stream has ended, and the next Welcome brings another report.
        let newer = listener.calls.values().any(|queue| *queue == call.queue);
        if answer == Answer::Late && !newer {
            let busy = listener
                .workers
                .get(&call.queue)
                .is_some_and(|worker| worker.active);
            let state = if busy {
                ReportState::Busy
            } else {
                ReportState::Drained
            };
            self.report(call.listener, call.queue, state);
        }
    }

    fn was_accepted(&mut self, conn: ConnId, call: &Call) {
        self.accepted(conn, &call.report, call.stale);
        let drained = call.report.state == ReportState::Drained;
        if call.stale && drained {
            // Its sequence may be that of this stream's first wake-up, which it has not seen.
            self.not_counted(call.queue);
        }
        if call.stale && drained && self.is_member(call.listener) {
            // A sequence of another life that is valid in this one. If it crossed the stream's
            // first wake-up, it covers that, and only the sentinel finds the messages.
            for id in self.queues.list[call.queue].messages.clone() {
                let message = &mut self.queues.messages[id];
                if matches!(message.announced, Announced::Due(_)) {
                    message.announced = Announced::Unannounced;
                }
            }
        }
        if let (Some(delay), None) = (call.report.visible_in, call.message) {
            return self.scaled_hidden_known(call, delay);
        }
        let (Some((id, receipt)), Some(delay)) = (call.message, call.report.visible_in) else {
            return;
        };
        let message = &mut self.queues.messages[id];
        let waits = matches!(
            message.announced,
            Announced::Listener(..) | Announced::Unannounced
        );
        if message.gets == receipt && waits {
            message.announced = Announced::Due(self.now + later(delay));
        }
    }

    fn report_release(&mut self, number: usize, message: MessageId, receipt: u64) {
        let mut released = self.listeners[number].released.iter();
        let Some(found) = released
            .find(|released| (released.message, released.receipt) == (message, receipt))
            .cloned()
        else {
            return;
        };
        self.call(number, found.queue, ReportState::Unspecified, Some(found));
    }

    fn call(
        &mut self,
        number: usize,
        queue: usize,
        state: ReportState,
        released: Option<Released>,
    ) {
        let now = self.now;
        let stream_life = self.listeners[number].stream_life;
        let address = self.queues.list[queue].address.clone();
        let listener = &mut self.listeners[number];
        let life = listener.life;
        let (seen_life, sequence) = listener.seen.get(&queue).copied().unwrap_or_default();
        let mut report = Report {
            state,
            sequence,
            visible_in: released.as_ref().map(|released| released.at.since(now)),
            ..Report::new(address)
        };
        let session = listener.session.as_mut().expect("it is alive");
        let Ok(subscription) = session.report(&mut report) else {
            // Without a stream it is reported after the next Welcome.
            return;
        };
        let call = Call {
            listener: number,
            life,
            number: report.number,
            subscription,
            report,
            queue,
            message: released.map(|released| (released.message, released.receipt)),
            stale: seen_life != stream_life,
        };
        listener.calls.insert(call.number, queue);
        self.send_report(call);
    }

    /// Sends a call, which may be lost or late.
    pub(super) fn send_report(&mut self, call: Call) {
        self.after(ANSWER, Event::ReportLate(call.clone()));
        if self.is_lost(call.listener) {
            return;
        }
        let slow = self.may(Trouble::ReportsLost) && self.rng.u32(0..4) == 0;
        let within = if slow { 2_000 } else { 40 };
        self.within_millis(within, Event::Report(call));
    }

    fn is_lost(&mut self, number: usize) -> bool {
        self.listeners[number].partition_until > self.now
            || (self.may(Trouble::ReportsLost) && self.rng.u32(0..4) == 0)
    }
}
