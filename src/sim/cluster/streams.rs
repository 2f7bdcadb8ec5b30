//! The streams of a relay: subscriptions, messages, reports.

use std::{sync::Arc, task::Waker, time::Duration};

use super::{
    clients::{ConnId, Down, Up},
    relay::Ring,
    world::{Event, World},
};
use crate::{
    base::clock::Tick,
    error::{Error, ErrorKind},
    relay::hub::{SubscriberStream, SubscriptionId, WakeBuilder},
    types::{Report, StreamAction, SubscribeEvent, SubscribeOptions, WakeReason},
};

/// One subscriber's stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) feed: SubscriberStream,
    waker: Waker,
    poll_at: Option<Tick>,
    /// Its client does not read until this time.
    pub(super) blocked_until: Tick,
    /// The newest Welcome or Heartbeat said so; `None` before the Welcome.
    pub(super) degraded: Option<bool>,
}

impl World {
    pub(super) fn relay_hears(&mut self, id: ConnId, message: Up) {
        let conn = &mut self.conns[id];
        if conn.reset || conn.relay_gone {
            return;
        }
        let relay = conn.relay;
        let life = self.relays[relay].life;
        if self.relays[relay].run.is_none() {
            conn.relay_gone = true;
            let refused = Error::new(ErrorKind::Unavailable, "connection refused");
            return self.send_down(id, Down::Closed(Some(refused)));
        }
        if *conn.life.get_or_insert(life) != life {
            conn.relay_gone = true;
            return self.send_down(id, Down::Closed(None));
        }
        match message {
            Up::Subscribe(options) => self.subscribe(relay, id, &options),
            Up::Report(report) => self.take_report(relay, id, &report),
            Up::Close => self.stream_ends(id),
        }
    }

    /// The relay learns that a connection has ended, or ends it.
    pub(super) fn stream_ends(&mut self, id: ConnId) {
        let relay = self.conns[id].relay;
        if std::mem::replace(&mut self.conns[id].relay_gone, true) {
            return;
        }
        let now = self.local(relay);
        if let Some(run) = &mut self.relays[relay].run
            && let Some(mut stream) = run.streams.remove(&id)
        {
            stream.feed.close(now);
            self.log.note(self.now, "stream ends", &[id as u64]);
            self.busy_ends(id);
        }
        self.send_down(id, Down::Closed(None));
    }

    fn subscribe(&mut self, relay: usize, id: ConnId, options: &SubscribeOptions) {
        let (now, number) = (self.local(relay), self.rng.u128(..));
        let waker = self.relays[relay].waker(Ring::Stream(id));
        let Some(run) = &self.relays[relay].run else {
            return;
        };
        if run.draining.is_some() {
            let refused = Error::new(ErrorKind::Unavailable, "the relay is shutting down");
            let refused = refused.with_retry_after(Duration::from_secs(1));
            self.conns[id].relay_gone = true;
            self.totals.count("streams refused", 1);
            return self.send_down(id, Down::Closed(Some(refused)));
        }
        let (hub, epoch) = (Arc::clone(&run.hub), run.epoch);
        let config = self.stream_config(relay, epoch);
        let subscription = hub.subscribe(SubscriptionId(number), options, now);
        let subscription = subscription.expect("there is room");
        let feed = SubscriberStream::new(hub, subscription, options, &config, now, &mut self.rng);
        let stream = Stream {
            feed,
            waker,
            poll_at: None,
            blocked_until: self.now,
            degraded: None,
        };
        self.conns[id].subscription = Some(number);
        if let Some(run) = &mut self.relays[relay].run {
            run.streams.insert(id, stream);
            if let Some(group) = &options.group {
                let number = self.conns[id].listener.0;
                run.groups.insert(number, group.clone());
            }
        }
        self.totals.count("streams", 1);
        self.log
            .note(self.now, "stream opens", &[id as u64, relay as u64]);
        self.send_down(id, Down::Opened);
        let soon = Duration::from_micros(self.rng.u64(10..5_000));
        self.poll_stream(relay, id, self.now + soon);
    }

    fn take_report(&mut self, relay: usize, id: ConnId, report: &Report) {
        let now = self.local(relay);
        let Some(number) = self.conns[id].subscription else {
            return;
        };
        let Some(run) = &self.relays[relay].run else {
            return;
        };
        // The stream may have ended since.
        if run.hub.report(SubscriptionId(number), report, now).is_ok() {
            self.reported(id, report);
        }
        self.link_soon(relay);
    }

    pub(super) fn poll_stream(&mut self, relay: usize, id: ConnId, at: Tick) {
        let at = at.max(self.now);
        let Some(run) = &mut self.relays[relay].run else {
            return;
        };
        let Some(stream) = run.streams.get_mut(&id) else {
            return;
        };
        if stream.poll_at.is_none_or(|earlier| at < earlier) {
            stream.poll_at = Some(at);
            self.at(at, Event::Feed(id));
        }
    }

    /// Polls a stream for its next message.
    pub(super) fn feed(&mut self, id: ConnId) {
        let relay = self.conns[id].relay;
        let (real, now) = (self.now, self.local(relay));
        let clock = self.relays[relay].clock;
        let Some(run) = &mut self.relays[relay].run else {
            return;
        };
        let Some(stream) = run.streams.get_mut(&id) else {
            return;
        };
        if stream.poll_at.is_none_or(|at| at > real) {
            return;
        }
        stream.poll_at = None;
        if stream.blocked_until > real {
            let until = stream.blocked_until;
            return self.poll_stream(relay, id, until);
        }
        let mut sink = WakeBuilder::default();
        let drain = run.draining.as_ref().map(|draining| draining.drain);
        let next = stream.feed.next_into(now, drain, &stream.waker, &mut sink);
        match next {
            StreamAction::Wait(at) => self.poll_stream(relay, id, clock.real(at)),
            StreamAction::End => self.stream_ends(id),
            StreamAction::Yield => self.poll_again(relay, id),
            StreamAction::Send(message) => {
                let event = message.into_event(sink);
                self.stream_sends(relay, id, &event);
                self.send_down(id, Down::Event(Box::new(event)));
                self.poll_again(relay, id);
            }
        }
    }

    fn poll_again(&mut self, relay: usize, id: ConnId) {
        let gap = Duration::from_micros(self.rng.u64(10..1_000));
        self.poll_stream(relay, id, self.now + gap);
    }

    fn stream_sends(&mut self, relay: usize, id: ConnId, event: &SubscribeEvent) {
        let degraded = match event {
            SubscribeEvent::Welcome(welcome) => welcome.degraded,
            SubscribeEvent::Heartbeat { degraded, .. } => *degraded,
            SubscribeEvent::Wake(work) => {
                self.totals.count("wakes", work.len() as u64);
                let with = |reason| work.iter().filter(|one| one.reason == reason).count() as u64;
                self.totals.count("catch-ups", with(WakeReason::CatchUp));
                self.conns[id].hidden.woken(work);
                self.quiet_wakes(relay, id, work);
                let patterns = work.iter().filter(|one| one.queue.is_pattern()).count();
                self.totals.count("patterns checked", patterns as u64);
                return;
            }
            _ => return,
        };
        let now = self.local(relay);
        let Some(run) = &mut self.relays[relay].run else {
            return;
        };
        let stream = run.streams.get_mut(&id).expect("it sends");
        stream.degraded = Some(degraded);
        let isolated = now >= run.own.isolated_from();
        self.totals.count("degraded streams", u64::from(degraded));
        if isolated && !degraded {
            self.violate(|| format!("J8: relay {relay} is isolated, and states the contrary"));
        }
    }
}
