//! The reports of such a listener, and the knowledge that the relay gets from them.

use std::time::Duration;

use super::super::{
    oracle::later,
    queue::Announced,
    reports::{Answer, Call},
    world::World,
};
use crate::{error::ErrorKind, listener::scaling::PendingReport, types::Report};

impl World {
    /// A report was answered.
    pub(in crate::sim) fn scaled_reported(&mut self, call: &Call, answer: Answer) {
        let (number, queue, now) = (call.listener, call.queue, self.now);
        let Some(scaled) = self.listeners[number].scaled.get_mut(&queue) else {
            return;
        };
        if scaled.report != Some(call.number) {
            return;
        }
        scaled.report = None;
        let error = match answer {
            Answer::Accepted => None,
            Answer::Refused => Some(ErrorKind::NotFound),
            Answer::Full => Some(ErrorKind::Exhausted),
            Answer::Late => Some(ErrorKind::Timeout),
        };
        scaled.scaler.reporter.on_answered(error, now);
        self.scaled_step(number, queue);
    }

    /// The relay knows when messages of this queue are visible again.
    pub(in crate::sim) fn scaled_hidden_known(&mut self, call: &Call, delay: Duration) {
        let (now, due) = (self.now, self.now + later(delay));
        for id in self.queues.list[call.queue].messages.clone() {
            let message = &mut self.queues.messages[id];
            let waits = match message.announced {
                Announced::Listener(number, _) => number == call.listener,
                Announced::Unannounced => true,
                _ => false,
            };
            if waits && message.holder.is_none() && message.visible_at <= now + delay {
                message.announced = Announced::Due(due);
            }
        }
    }

    pub(super) fn scaled_report(&mut self, number: usize, queue: usize, due: PendingReport) {
        let now = self.now;
        let address = self.queues.list[queue].address.clone();
        let listener = &mut self.listeners[number];
        let (life, session) = (listener.life, listener.session.as_mut());
        let scaled = listener.scaled.get_mut(&queue).expect("it has a machine");
        let (active, total) = scaled.scaler.active();
        let mut report = Report {
            state: due.state,
            sequence: due.sequence,
            visible_in: due.visible_in,
            active_dequeue_tasks: u32::try_from(active).expect("few"),
            total_dequeue_tasks: u32::try_from(total).expect("few"),
            ..Report::new(address)
        };
        let Some(Ok(subscription)) = session.map(|session| session.report(&mut report)) else {
            scaled
                .scaler
                .reporter
                .on_answered(Some(ErrorKind::Unavailable), now);
            return;
        };
        scaled.report = Some(report.number);
        let call = Call::scaled(number, life, subscription, report, queue);
        self.send_report(call);
    }
}
