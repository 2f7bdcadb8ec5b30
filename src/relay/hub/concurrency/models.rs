//! The models: concurrent operations of a few threads, and the wake-ups that listeners must get.
//!
//! Each runs one schedule; an error states a wake-up that a listener did not get, or got twice.

mod drain;
mod groups;
mod increments;
mod overflow;
mod reports;
mod sentinel;

use std::{sync::Arc, time::Duration};

use shuttle::thread;

use super::{
    core::Hub,
    listener::{Alarm, Listener, NOW, hub, notify, walk},
    sync::{AtomicU64, Ordering},
};
use crate::base::{clock::Tick, fault::Fault};

const LATER: Duration = Duration::from_secs(3600);
const AT_ONCE: Duration = Duration::ZERO;
/// The time of a silent stream's heartbeat.
const BEAT: Tick = Tick::from_nanos(11_000_000_000);

/// Checks a listener's bits at the end, after its last alarm.
fn told_all(mut listener: Listener, wanted: u64) -> Result<(), String> {
    listener.listen();
    let told = listener.told;
    match told & wanted == wanted && !listener.wrong {
        true => Ok(()),
        false => Err(format!("told {told:b} of {wanted:b}")),
    }
}

fn spawn_notify(
    hub: &Arc<Hub>,
    name: &'static str,
    bits: &'static [u32],
) -> thread::JoinHandle<()> {
    let hub = Arc::clone(hub);
    thread::spawn(move || notify(&hub, name, bits, AT_ONCE))
}

fn spawn_rounds(mut listener: Listener, rounds: usize) -> thread::JoinHandle<Listener> {
    thread::spawn(move || {
        listener.rounds(rounds);
        listener
    })
}

fn spawn_forget(hub: &Arc<Hub>) -> thread::JoinHandle<()> {
    let hub = Arc::clone(hub);
    thread::spawn(move || hub.forget(NOW + 2 * LATER))
}

fn join<T>(handle: thread::JoinHandle<T>) -> T {
    handle.join().expect("no thread of a model panics")
}

/// The smallest of all: one parked listener, one event.
pub(super) fn notify_one(fault: Fault) -> Result<(), String> {
    let hub = hub(64, fault);
    let listener = spawn_rounds(Listener::settled(&hub, "a/q", 1), 1);
    notify(&hub, "q", &[0], AT_ONCE);
    told_all(join(listener), 0b1)
}

/// An event that arrives while a stream takes its entries.
pub(super) fn notify_and_take(fault: Fault) -> Result<(), String> {
    let hub = hub(64, fault);
    let listener = spawn_rounds(Listener::subscribe(&hub, "a/q", 1), 1);
    notify(&hub, "q", &[0], AT_ONCE);
    told_all(join(listener), 0b1)
}

/// Two publishers and two listeners that only a fan-out wakes.
pub(super) fn fan_out(fault: Fault) -> Result<(), String> {
    let hub = hub(0, fault);
    let listeners = [1, 2].map(|number| Listener::settled(&hub, "a/q", number));
    let alarm = Alarm::new();
    hub.fanout.waker.register(&Arc::clone(&alarm).into());
    let listeners = listeners.map(|listener| spawn_rounds(listener, 2));
    let publishers = [
        spawn_notify(&hub, "q", &[0, 1]),
        spawn_notify(&hub, "q", &[2]),
    ];
    let fanout = {
        let (hub, alarm) = (Arc::clone(&hub), Arc::clone(&alarm));
        thread::spawn(move || {
            for _ in 0..2 {
                fan_out_once(&hub, &alarm);
                thread::yield_now();
            }
        })
    };
    publishers.into_iter().for_each(join);
    join(fanout);
    fan_out_once(&hub, &alarm);
    listeners
        .map(join)
        .into_iter()
        .try_for_each(|listener| told_all(listener, 0b111))
}

/// Runs walks until none is left, where it was woken, as the relay's task does.
fn fan_out_once(hub: &Hub, alarm: &Arc<Alarm>) {
    while alarm.heard() {
        hub.fanout.waker.register(&Arc::clone(alarm).into());
        walk(hub);
    }
}

/// Publishes bits. They are wanted from the time when the subscription was answered.
fn spawn_watched(
    hub: &Arc<Hub>,
    subscribed: &Arc<AtomicU64>,
    events: &'static [(&'static str, u32)],
) -> thread::JoinHandle<u64> {
    let (hub, subscribed) = (Arc::clone(hub), Arc::clone(subscribed));
    thread::spawn(move || {
        let mut wanted = 0;
        for (name, bit) in events {
            wanted |= subscribed.load(Ordering::SeqCst) << bit;
            notify(&hub, name, &[*bit], AT_ONCE);
        }
        wanted
    })
}

/// Subscribes while two threads publish; returns the listener and its wanted bits.
fn subscribe_meanwhile(
    hub: &Arc<Hub>,
    selector: &'static str,
    first: &'static [(&'static str, u32)],
    second: &'static [(&'static str, u32)],
) -> (Listener, u64) {
    let subscribed = Arc::new(AtomicU64::new(0));
    let publishers = [first, second].map(|events| spawn_watched(hub, &subscribed, events));
    let listener = {
        let (hub, subscribed) = (Arc::clone(hub), Arc::clone(&subscribed));
        thread::spawn(move || {
            let mut listener = Listener::subscribe(&hub, selector, 1);
            subscribed.store(1, Ordering::SeqCst);
            listener.rounds(2);
            listener
        })
    };
    let wanted = publishers
        .map(join)
        .into_iter()
        .fold(0, |all, bits| all | bits);
    (join(listener), wanted)
}

/// A subscriber that subscribes during publishing gets all later events, and polls for earlier
/// ones: its last position is the queue's head.
pub(super) fn subscribe_exact(fault: Fault) -> Result<(), String> {
    let hub = hub(64, fault);
    let (mut listener, wanted) =
        subscribe_meanwhile(&hub, "a/q", &[("q", 0), ("q", 1)], &[("q", 2)]);
    listener.listen();
    let place = listener.place("q");
    told_all(listener, wanted)?;
    match place {
        Some(3) => Ok(()),
        place => Err(format!("told up to {place:?}")),
    }
}

/// A pattern's subscriber gets wake-ups for queues that are made while it subscribes.
pub(super) fn subscribe_pattern(fault: Fault) -> Result<(), String> {
    let hub = hub(64, fault);
    let (mut listener, wanted) =
        subscribe_meanwhile(&hub, "a/*", &[("x", 0), ("y", 1)], &[("y", 2)]);
    listener.listen();
    told_all(listener, wanted)
}

/// A parked pattern subscriber gets wake-ups for later queues.
pub(super) fn later_queues(fault: Fault) -> Result<(), String> {
    let hub = hub(64, fault);
    let listener = spawn_rounds(Listener::settled(&hub, "a/*", 1), 2);
    let publishers = [
        spawn_notify(&hub, "x", &[0]),
        spawn_notify(&hub, "x", &[1]),
        spawn_notify(&hub, "y", &[2]),
    ];
    publishers.into_iter().for_each(join);
    told_all(join(listener), 0b111)
}

/// A subscriber that loses its stream and resubscribes with its number is told of the queue if it
/// has changed since.
pub(super) fn disconnect_and_resume(fault: Fault) -> Result<(), String> {
    resume_after(fault, |_| {})
}

/// The same with the stream's last operation `end`, while two threads publish.
fn resume_after(fault: Fault, end: fn(&mut Listener)) -> Result<(), String> {
    let hub = hub(64, fault);
    let mut listener = Listener::settled(&hub, "a/q", 1);
    listener.beat(BEAT);
    let publishers = [
        spawn_notify(&hub, "q", &[0, 1]),
        spawn_notify(&hub, "q", &[2]),
    ];
    let listener = thread::spawn(move || {
        listener.rounds(1);
        end(&mut listener);
        listener.come_back(2, NOW);
        listener.rounds(1);
        listener
    });
    publishers.into_iter().for_each(join);
    let mut listener = join(listener);
    listener.listen();
    told_head(&hub, &listener)
}

/// The same while the queue is forgotten.
pub(super) fn forget_and_resume(fault: Fault) -> Result<(), String> {
    let hub = hub(64, fault);
    let mut listener = Listener::settled(&hub, "a/q", 1);
    notify(&hub, "q", &[3], AT_ONCE);
    listener.listen();
    listener.beat(BEAT);
    let publishers = [spawn_notify(&hub, "q", &[0]), spawn_notify(&hub, "q", &[1])];
    let forgetter = spawn_forget(&hub);
    let listener = thread::spawn(move || {
        listener.rounds(1);
        // So late that it does not count as busy any more.
        listener.come_back(2, NOW + LATER);
        listener.rounds(1);
        listener
    });
    publishers.into_iter().for_each(join);
    join(forgetter);
    let mut listener = join(listener);
    listener.listen();
    told_head(&hub, &listener)?;
    notify(&hub, "q", &[2], AT_ONCE);
    listener.listen();
    told_head(&hub, &listener)
}

/// The newest entry of the queue has the sequence of its head, and no event was told twice.
fn told_head(hub: &Hub, listener: &Listener) -> Result<(), String> {
    let queues = hub.queues("", usize::MAX, NOW);
    let head = queues.first().map(|queue| queue.sequence);
    let place = listener.place("q");
    match !listener.wrong && head == place && listener.has_number() {
        true => Ok(()),
        false => Err(format!("told up to {place:?} of {head:?}")),
    }
}

/// A delayed event wakes the listeners at its due time, though the queue was about to be forgotten
/// when it arrived.
pub(super) fn delay_and_forget(fault: Fault) -> Result<(), String> {
    let hub = hub(64, fault);
    // So late that it does not count as busy any more: no timer keeps the queue.
    Listener::settled(&hub, "a/q", 1).close(NOW + LATER);
    let publisher = {
        let hub = Arc::clone(&hub);
        thread::spawn(move || notify(&hub, "q", &[0], LATER))
    };
    let forgetter = spawn_forget(&hub);
    let mut listener = Listener::settled(&hub, "a/q", 2);
    listener.rounds(1);
    join(publisher);
    join(forgetter);
    hub.fire(NOW + 2 * LATER);
    told_all(listener, 0b1)
}

/// The queue of a listener that ends while it is busy is woken again, for the listeners at that
/// time.
pub(super) fn busy_ends_and_forget(fault: Fault) -> Result<(), String> {
    let hub = hub(64, fault);
    let mut busy = Listener::settled(&hub, "a/q", 1);
    let ending = thread::spawn(move || busy.close(NOW));
    let forgetter = spawn_forget(&hub);
    let listener = {
        let hub = Arc::clone(&hub);
        thread::spawn(move || Listener::settled(&hub, "a/q", 2))
    };
    join(ending);
    join(forgetter);
    let mut listener = join(listener);
    let before = listener.place("q");
    hub.fire(NOW + 2 * LATER);
    listener.listen();
    match listener.place("q") > before {
        true => Ok(()),
        false => Err(format!("not woken again after {before:?}")),
    }
}

/// A stream states its resume number during two events, one in a known queue and one in a new queue,
/// and then breaks. A listener that resubscribes with the number gets both, by either stream.
pub(super) fn state_and_resume(inline: usize, fault: Fault) -> Result<(), String> {
    let hub = hub(inline, fault);
    ["x", "y"]
        .iter()
        .for_each(|name| notify(&hub, name, &[0], AT_ONCE));
    let mut listener = Listener::settled(&hub, "a/*", 1);
    let publishers = [spawn_notify(&hub, "x", &[1]), spawn_notify(&hub, "z", &[2])];
    let listener = thread::spawn(move || {
        listener.beat(BEAT);
        listener
    });
    publishers.into_iter().for_each(join);
    let mut listener = join(listener);
    listener.come_back(2, BEAT);
    listener.listen();
    match (listener.place("x"), listener.place("z")) {
        (Some(2), Some(1)) => Ok(()),
        places => Err(format!(
            "told up to {places:?}, number: {}",
            listener.has_number()
        )),
    }
}

/// The same, where the notifications mark the stream.
pub(super) fn mark_and_resume(fault: Fault) -> Result<(), String> {
    state_and_resume(64, fault)
}

/// The same, where no fan-out marks it.
pub(super) fn walk_and_resume(fault: Fault) -> Result<(), String> {
    state_and_resume(0, fault)
}
