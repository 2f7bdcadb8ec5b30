//! The clients of the flag: watchers, which acknowledge it, and observers, which count.

use std::{
    future::poll_fn,
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};

use super::{
    FlagEvent,
    relay::{Acked, Outbox},
};
use crate::{
    base::{clock::Tick, sync::lock},
    coordination::flag::WatchGuard,
    error::Result,
    sim::cluster::world::World,
    types::{FlagEvent as WatchEvent, FlagState, ListenerId},
};

/// One client. It has a stream at one relay at a time.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) id: ListenerId,
    pub(super) observer: bool,
    relay: usize,
    pub(super) stream: Option<usize>,
    /// The number of writes of the store up to the newest state that it was told: it may be told no
    /// older one.
    pub(super) position: usize,
    /// The number of the write of the newest set that it was told.
    pub(super) newest_set: usize,
    pub(super) told: Option<FlagState>,
    /// The newest count: the generation, and the number of acknowledgements and watchers.
    pub(super) count: Option<(u64, u32, u32)>,
    acked: u64,
    /// It leaves when its acknowledgement is answered.
    released: bool,
}

/// A stream of a client.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) client: usize,
    pub(super) relay: usize,
    /// When its relay registered it, and the writes of the store at that time.
    pub(super) opened: Option<(Tick, usize)>,
    /// The number of the write of the newest set on it.
    pub(super) newest_set: usize,
    /// It was told a state.
    pub(super) told: bool,
    task: Option<u64>,
    down_at: Tick,
    pub(super) ended: bool,
}

/// Attempts at an acknowledgement.
const ACK_ATTEMPTS: u32 = 12;

impl Client {
    pub(super) fn new(number: usize, observer: bool) -> Self {
        Self {
            id: ListenerId::new(&format!("node-{number}")).expect("a name"),
            observer,
            relay: 0,
            stream: None,
            position: 0,
            newest_set: 0,
            told: None,
            count: None,
            acked: 0,
            released: false,
        }
    }
}

impl World {
    /// A client opens a stream at any relay.
    pub(super) fn flag_connects(&mut self, number: usize) {
        if self.flags.clients[number].stream.is_some() {
            return;
        }
        let relay = self.flags.rng.usize(0..self.relays.len());
        let stream = self.flags.streams.len();
        self.flags.streams.push(Stream {
            client: number,
            relay,
            opened: None,
            newest_set: 0,
            told: false,
            task: None,
            down_at: self.now,
            ended: false,
        });
        let client = &mut self.flags.clients[number];
        (client.relay, client.stream, client.count) = (relay, Some(stream), None);
        let transit = self.flags.transit();
        self.flag_at(self.now + transit, FlagEvent::Open(relay, stream));
    }

    /// A stream reaches its relay, which registers the watcher.
    pub(super) fn flag_opens(&mut self, relay: usize, number: usize) {
        let Some(place) = &self.flags.relays[relay] else {
            self.flags.streams[number].ended = true;
            return self.flag_after(20, FlagEvent::Broken(number));
        };
        let stream = &mut self.flags.streams[number];
        if stream.ended {
            return;
        }
        self.totals.count("flag streams", 1);
        let client = &mut self.flags.clients[stream.client];
        let writes = self.flags.store.writes();
        stream.opened = Some((self.now, writes));
        client.position = client.position.max(writes);
        let wall = place.wall.now();
        let guard = place
            .flags
            .watch_within_limit(&self.flags.name, client.id.clone(), client.observer, wall)
            .expect("there is room");
        let outbox = Arc::clone(&self.flags.outbox);
        let settling = guard.sync(wall);
        let work = watch(guard, settling, number, outbox);
        stream.task = Some(self.flags.tasks.spawn(relay, work));
        let noted = [relay as u64, number as u64];
        self.log.note(self.now, "flag is watched", &noted);
    }

    /// The relay learns that a client has closed its stream.
    pub(super) fn flag_closes(&mut self, stream: usize) {
        if let Some(task) = self.flags.streams[stream].task.take() {
            self.flags.tasks.end(task);
        }
    }

    /// A relay has ended: so have its streams.
    pub(super) fn flag_streams_end(&mut self, relay: usize) {
        for number in 0..self.flags.streams.len() {
            let stream = &mut self.flags.streams[number];
            if stream.relay == relay && stream.opened.is_some() && !stream.ended {
                (stream.ended, stream.task) = (true, None);
                self.flag_after(50, FlagEvent::Broken(number));
            }
        }
    }

    /// A client learns that its stream has ended, and opens another one.
    pub(super) fn flag_broken(&mut self, number: usize) {
        let stream = &mut self.flags.streams[number];
        stream.ended = true;
        let client = stream.client;
        self.flag_closes(number);
        if self.flags.clients[client]
            .stream
            .take_if(|own| *own == number)
            .is_some()
        {
            self.flag_after(1_000, FlagEvent::Connect(client));
        }
    }

    /// A client closes its stream, and opens another one soon.
    pub(super) fn flag_moves(&mut self, client: usize) {
        self.totals.count("flag moves", 1);
        self.flag_leaves(client, 500);
    }

    /// A released client leaves, and comes back later.
    pub(super) fn flag_finishes(&mut self, client: usize) {
        if std::mem::take(&mut self.flags.clients[client].released) {
            self.flag_leaves(client, 15_000);
        }
    }

    fn flag_leaves(&mut self, client: usize, millis: u64) {
        if let Some(number) = self.flags.clients[client].stream.take() {
            let stream = &mut self.flags.streams[number];
            stream.ended = true;
            let relay = stream.relay;
            let transit = self.flags.transit();
            self.flag_at(self.now + transit, FlagEvent::Close(relay, number));
            self.flag_after(millis, FlagEvent::Connect(client));
        }
    }

    /// A relay sends an event on a stream.
    pub(super) fn flag_tells(&mut self, number: usize, event: WatchEvent) {
        let transit = self.flags.transit();
        let stream = &mut self.flags.streams[number];
        stream.down_at = stream.down_at.max(self.now + transit);
        let at = stream.down_at;
        self.flag_at(at, FlagEvent::Told(number, event));
    }

    /// An event reaches its client.
    pub(super) fn flag_told(&mut self, number: usize, event: &WatchEvent) {
        let client = self.flags.streams[number].client;
        if self.flags.clients[client].stream != Some(number) {
            return;
        }
        match event {
            WatchEvent::State(state) => {
                self.totals.count("flag states", 1);
                let noted = [client as u64, u64::from(state.set), state.generation];
                self.log.note(self.now, "flag is told", &noted);
                self.check_flag_told(number, state);
                self.flags.clients[client].told = Some(state.clone());
                self.flag_released(client, state);
            }
            WatchEvent::Acks {
                generation,
                acknowledged,
                watchers,
            } => {
                self.totals.count("flag counts", 1);
                let count = (*generation, *acknowledged, *watchers);
                let noted = [client as u64, *generation, u64::from(*acknowledged)];
                self.log.note(self.now, "flag is counted", &noted);
                self.flags.clients[client].count = Some(count);
                self.check_flag_count(client);
            }
            _ => {}
        }
    }

    /// A watcher that is told a set acknowledges it, and may leave.
    fn flag_released(&mut self, number: usize, state: &FlagState) {
        let client = &mut self.flags.clients[number];
        if !state.set || client.observer || client.acked == state.generation {
            return;
        }
        client.acked = state.generation;
        if self.flags.rng.u32(0..10) > 0 {
            self.flag_after(300, FlagEvent::Ack(number, state.generation, 0));
        }
        let releases = self.flags.plan.releases && self.flags.rng.u32(0..3) == 0;
        self.flags.clients[number].released |= releases;
        // Its relay drains: the acknowledgement may reach another one.
        if self.flags.rng.u32(0..8) == 0 {
            self.flag_moves(number);
        }
    }

    /// A client sends an acknowledgement to the relay of its newest stream.
    pub(super) fn flag_acks(&mut self, client: usize, generation: u64, attempt: u32) {
        let (relay, transit) = (self.flags.clients[client].relay, self.flags.transit());
        let event = FlagEvent::AckArrives(relay, client, generation, attempt);
        self.flag_at(self.now + transit, event);
    }

    /// An acknowledgement reaches a relay.
    pub(super) fn flag_acked(
        &mut self,
        relay: usize,
        client: usize,
        generation: u64,
        attempt: u32,
    ) {
        let Some(place) = &self.flags.relays[relay] else {
            return self.flag_acks_again(client, generation, attempt);
        };
        let (flags, name) = (place.flags.clone(), self.flags.name.clone());
        let (listener, outbox) = (
            self.flags.clients[client].id.clone(),
            Arc::clone(&self.flags.outbox),
        );
        let (life, wall) = (self.relays[relay].life, place.wall.clone());
        self.flags.tasks.spawn(relay, async move {
            let counted = flags.ack_any(&name, generation, &listener, wall.now());
            let counted = counted.await.is_ok();
            lock(&outbox).acked.push(Acked {
                relay,
                life,
                client,
                generation,
                attempt,
                counted,
            });
        });
    }

    pub(super) fn flag_acks_again(&mut self, client: usize, generation: u64, attempt: u32) {
        if attempt < ACK_ATTEMPTS {
            let longest = (100 << attempt.min(6)).min(5_000);
            let again = FlagEvent::Ack(client, generation, attempt + 1);
            self.flag_after(longest, again);
        }
    }

    /// Returns since when a client has a stream at a relay that runs.
    pub(super) fn flag_watches_since(&self, client: &Client) -> Option<(usize, Tick)> {
        let stream = &self.flags.streams[client.stream?];
        let (relay, place) = (stream.relay, &self.relays[stream.relay]);
        let runs = place.run.is_some() && place.paused_until + Duration::from_secs(1) <= self.now;
        let (opened, _) = stream.opened.filter(|_| runs && !stream.ended)?;
        Some((relay, opened))
    }
}

/// A watcher at its relay: reads the store until the state is known, and sends events.
async fn watch(
    guard: WatchGuard,
    settling: impl Future<Output = Result<()>>,
    stream: usize,
    outbox: Arc<Mutex<Outbox>>,
) {
    let mut settling = Some(Box::pin(settling));
    loop {
        let next = poll_fn(|context| {
            if let Some(sync) = &mut settling
                && let Poll::Ready(settled) = sync.as_mut().poll(context)
            {
                settling = None;
                if settled.is_err() {
                    return Poll::Ready(None);
                }
            }
            match guard.next_event(context.waker()) {
                Some(event) => Poll::Ready(Some(event)),
                None => Poll::Pending,
            }
        });
        match next.await {
            Some(event) => lock(&outbox).told.push((stream, event)),
            None => return lock(&outbox).ended.push(stream),
        }
    }
}
