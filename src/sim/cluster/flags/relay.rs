//! The flags of one relay: the production state, and its tasks with model drivers in place of tokio.

use std::{
    pin::pin,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use futures_util::future::select;

use super::{
    asks::{AskRequest, PeerAsks},
    check::Writer,
    tasks::Bell,
};
use crate::{
    base::{clock::Tick, sync::lock},
    coordination::flag::{Flags, FlagsConfig},
    sim::{
        cluster::world::{Event, World},
        flags::store::ShakyStore,
    },
    types::{FlagEvent as WatchEvent, UnleashOptions},
};

/// The flags of a run of a relay.
pub(super) struct FlagRelay {
    pub(super) flags: Flags,
    pub(super) wall: Wall,
}

/// A relay's wall clock: the store's, and a time ahead of it.
#[derive(Debug, Clone)]
pub(super) struct Wall {
    store: ShakyStore,
    ahead: Duration,
}

/// What the tasks have done, for the model.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Relays whose next frames state that flags were written.
    announced: Vec<usize>,
    written: Vec<Written>,
    /// Events of streams, and streams that the relay ends.
    pub(super) told: Vec<(usize, WatchEvent)>,
    pub(super) ended: Vec<usize>,
    pub(super) acked: Vec<Acked>,
    pub(super) asked: Vec<AskRequest>,
}

/// A write that was answered.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) writer: Writer,
    pub(super) began: Tick,
    /// The generation that was set; 0 if the flag was cleared. `None` after a failure.
    pub(super) generation: Option<u64>,
}

/// An acknowledgement that was answered.
#[derive(Debug)]
pub(super) struct Acked {
    pub(super) relay: usize,
    pub(super) life: u64,
    pub(super) client: usize,
    pub(super) generation: u64,
    pub(super) attempt: u32,
    pub(super) counted: bool,
}

/// A relay asks twice a second.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// Between two counts that an observer is told.
const ACK_INTERVAL: Duration = Duration::from_millis(50);
/// Keys of one reply: few, so that several are needed.
const PAGE: u32 = 2;
/// After a refresh that failed.
const AGAIN: Duration = Duration::from_secs(1);

impl Wall {
    pub(super) fn now(&self) -> SystemTime {
        self.store.wall() + self.ahead
    }
}

impl World {
    /// A relay starts: its flags know nothing.
    pub(in crate::sim::cluster) fn start_flags_of(&mut self, relay: usize) {
        if !self.flags.plan.enabled {
            return;
        }
        self.flag_clock();
        let config = FlagsConfig::default();
        let wall = Wall {
            store: self.flags.store.clone(),
            ahead: self.flags.plan.skews[relay],
        };
        let flags = Flags::new(Arc::new(self.flags.store.clone()), config);
        let bell = self.flags.tasks.bell();
        let outbox = Arc::clone(&self.flags.outbox);
        let refresh = refresh(
            flags.clone(),
            wall.clone(),
            Arc::clone(&bell),
            self.flags.plan.refresh,
        );
        let others = PeerAsks {
            relay,
            outbox: Arc::clone(&outbox),
        };
        let (asking, sleep) = (flags.clone(), Arc::clone(&bell));
        let tasks = &mut self.flags.tasks;
        tasks.spawn(relay, announce(flags.clone(), relay, outbox));
        tasks.spawn(relay, refresh);
        tasks.spawn(relay, tell_acks(flags.clone(), bell));
        tasks.spawn(relay, async move {
            loop {
                asking.add_remote_acks(&others, PAGE).await;
                sleep.sleep(ASK_EVERY).await;
            }
        });
        self.flags.relays[relay] = Some(FlagRelay { flags, wall });
    }

    /// A relay ends, with all that its flags know.
    pub(in crate::sim::cluster) fn stop_flags_of(&mut self, relay: usize) {
        if self.flags.relays[relay].take().is_none() {
            return;
        }
        self.flags.tasks.end_all_of(relay);
        self.flag_streams_end(relay);
        self.flag_writer_ends(relay);
    }

    /// C5, C9, C14: another relay has written flags, or may have.
    pub(in crate::sim::cluster) fn read_flags(&mut self, relay: usize) {
        if let Some(place) = &self.flags.relays[relay] {
            self.totals.count("flag refreshes", 1);
            place.flags.refresh_soon();
        }
    }

    /// A request to write the flag reaches a relay.
    pub(super) fn write_flag(&mut self, relay: usize, set: bool) {
        let Some(place) = &self.flags.relays[relay] else {
            return;
        };
        self.totals.count("flag writes", 1);
        self.log
            .note(self.now, "flag is written", &[relay as u64, u64::from(set)]);
        let (flags, wall, name) = (
            place.flags.clone(),
            place.wall.clone(),
            self.flags.name.clone(),
        );
        let (outbox, began) = (Arc::clone(&self.flags.outbox), self.now);
        let options = UnleashOptions {
            set_by: self.flags.rng.u32(..).to_string(),
            ..UnleashOptions::default()
        };
        let writer = self.flags.oracle.begin(relay);
        let work = async move {
            let written = match set {
                true => flags.unleash(&name, &options, wall.now()).await,
                false => flags.leash(&name, wall.now()).await,
            };
            let generation = written.ok().map(|(state, _)| match state.set {
                true => state.generation,
                false => 0,
            });
            lock(&outbox).written.push(Written {
                writer,
                began,
                generation,
            });
        };
        let task = self.flags.tasks.spawn(relay, work);
        self.flags.oracle.writers.insert(task, writer);
    }

    /// Another program sets or clears the flag, without a relay.
    pub(super) fn write_foreign(&mut self, set: bool) {
        let before = self.flags.store.writes();
        self.flags.store.meddle(set);
        self.log
            .note(self.now, "flag is written by hand", &[u64::from(set)]);
        if self.flags.store.writes() > before {
            self.totals.count("flag writes by hand", 1);
            self.flag_has_changed(None);
        }
    }

    /// Takes over what the tasks have done.
    pub(super) fn take_outbox(&mut self) {
        let outbox = std::mem::take(&mut *lock(&self.flags.outbox));
        for relay in outbox.announced {
            if let Some(run) = &mut self.relays[relay].run {
                run.node.note_flags_written();
                self.link_soon(relay);
            }
        }
        for written in outbox.written {
            self.flag_written(&written);
        }
        for (stream, event) in outbox.told {
            self.flag_tells(stream, event);
        }
        for stream in outbox.ended {
            self.flag_after(20, super::FlagEvent::Broken(stream));
        }
        for acked in outbox.acked {
            self.flag_ack_answered(&acked);
        }
        for ask in outbox.asked {
            self.send_query(ask);
        }
    }

    /// Schedules an event of the flag.
    pub(super) fn flag_at(&mut self, at: Tick, event: super::FlagEvent) {
        self.at(at, Event::Flag(event));
    }
}

/// Passes the news of this relay's writes to its link.
async fn announce(flags: Flags, relay: usize, outbox: Arc<Mutex<Outbox>>) {
    loop {
        flags.written().await;
        lock(&outbox).announced.push(relay);
    }
}

/// Reads the watched flags at the interval, and when it is requested.
async fn refresh(flags: Flags, wall: Wall, bell: Arc<Bell>, every: Duration) {
    loop {
        let requested = pin!(flags.refresh_requested());
        if every.is_zero() {
            requested.await;
        } else {
            select(requested, pin!(bell.sleep(every))).await;
        }
        while flags.refresh(wall.now()).await.is_err() {
            bell.sleep(AGAIN).await;
        }
    }
}

/// Tells observers new counts.
async fn tell_acks(flags: Flags, bell: Arc<Bell>) {
    loop {
        flags.acks_changed().await;
        flags.publish_acks();
        bell.sleep(ACK_INTERVAL).await;
    }
}
