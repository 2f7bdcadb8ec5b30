//! What the figures of its queues mean for a scaled object, and when its stream sends `true`.
//!
//! KEDA drops a `true` that comes before the object's metric is in its status, so one is not enough.
//! But each one restarts the cool-down of the workload, so a timer alone would keep it up for ever. The
//! stream repeats `true` only while no listener has come.

use std::time::Duration;

use super::object::ScaledObject;
use crate::base::{backoff::about, clock::Tick};

/// What is known of one queue.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct QueueFacts {
    pub(super) backlog: u64,
    pub(super) busy: u32,
    pub(super) listeners: u32,
    /// It may have messages that the relay does not know of. The doubt counts from this time on.
    pub(super) doubtful_from: Option<Tick>,
}

/// What all queues of an object need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Demand {
    pub(super) backlog: u64,
    pub(super) is_active: bool,
    /// The listeners of the queues that are active.
    listeners: u32,
    /// When a doubt makes it active; [`Tick::NEVER`] for none.
    doubtful_from: Tick,
}

/// When the stream of an object sends `true`.
#[derive(Debug)]
pub(super) struct Assertions {
    has_begun: bool,
    again_at: Tick,
    /// When to look again without a cause.
    pub(super) look_at: Tick,
}

/// Between two `true` without a listener, give or take a tenth; and the least time between two with one.
const AGAIN: Duration = Duration::from_secs(5);

impl Demand {
    pub(super) fn of(object: &ScaledObject, queues: &[QueueFacts], now: Tick) -> Self {
        let mut all = Self {
            backlog: 0,
            is_active: false,
            listeners: 0,
            doubtful_from: Tick::NEVER,
        };
        let mut unserved = false;
        for queue in queues {
            let doubtful_from = queue.doubtful_from.filter(|_| object.activates_on_doubt);
            let is_doubtful = doubtful_from.is_some_and(|from| from <= now);
            all.backlog = all.backlog.saturating_add(queue.backlog);
            if queue.backlog > object.activation || queue.busy > 0 || is_doubtful {
                all.is_active = true;
                unserved |= queue.listeners == 0;
                all.listeners = all.listeners.max(queue.listeners);
            } else if let Some(from) = doubtful_from {
                all.doubtful_from = all.doubtful_from.min(from);
            }
        }
        if unserved {
            all.listeners = 0;
        }
        all
    }
}

impl Assertions {
    pub(super) fn new() -> Self {
        Self {
            has_begun: false,
            again_at: Tick::default(),
            look_at: Tick::NEVER,
        }
    }

    /// Looks at the demand; `caused` tells whether a queue has had a cause since the look before.
    /// Returns whether to send `true`.
    pub(super) fn look(
        &mut self,
        demand: &Demand,
        caused: bool,
        now: Tick,
        random: &mut fastrand::Rng,
    ) -> bool {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        let is_unserved = demand.listeners == 0;
        let is_due = now >= self.again_at;
        let sends = demand.is_active
            && (is_first || caused && (is_unserved || is_due) || is_unserved && is_due);
        if sends {
            self.again_at = now + about(AGAIN, random);
        }
        self.look_at = match demand.is_active && is_unserved {
            true => self.again_at,
            false => demand.doubtful_from,
        };
        sends
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::scaler::ScaledObjectRef;

    fn object(keys: &[(&str, &str)]) -> ScaledObject {
        let queues = ("queues", "acct/a,acct/b");
        let all = keys.iter().chain([&queues]);
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        ScaledObject::read(&ScaledObjectRef {
            scaler_metadata: all.map(owned).collect(),
            ..ScaledObjectRef::default()
        })
        .expect("valid")
    }

    fn at(millis: u64) -> Tick {
        Tick::default() + Duration::from_millis(millis)
    }

    fn queue(backlog: u64, listeners: u32) -> QueueFacts {
        QueueFacts {
            backlog,
            listeners,
            ..QueueFacts::default()
        }
    }

    #[test]
    fn an_object_is_active_while_one_of_its_queues_may_have_work() {
        let plain = object(&[]);
        let active = |object: &ScaledObject, queues: &[QueueFacts]| {
            Demand::of(object, queues, at(1_000)).is_active
        };
        assert!(!active(&plain, &[queue(0, 0), queue(0, 1)]));
        assert!(active(&plain, &[queue(0, 0), queue(1, 0)]));
        let busy = QueueFacts {
            busy: 1,
            ..queue(0, 1)
        };
        assert!(active(&plain, &[busy]));
        let few = object(&[("activation", "3")]);
        assert!(!active(&few, &[queue(3, 0), queue(3, 0)]));
        assert!(active(&few, &[queue(0, 0), queue(4, 0)]));
        let sum = Demand::of(&few, &[queue(3, 0), queue(4, 2)], at(0));
        assert_eq!(sum.backlog, 7);
    }

    #[test]
    fn a_doubt_counts_from_its_time_on_unless_it_is_ignored() {
        let doubtful = QueueFacts {
            doubtful_from: Some(at(2_000)),
            ..queue(0, 0)
        };
        let plain = object(&[]);
        let before = Demand::of(&plain, &[doubtful], at(1_999));
        assert_eq!((before.is_active, before.doubtful_from), (false, at(2_000)));
        assert!(Demand::of(&plain, &[doubtful], at(2_000)).is_active);
        let ignores = object(&[("onDoubt", "ignore")]);
        let ignored = Demand::of(&ignores, &[doubtful], at(9_000));
        assert_eq!(
            (ignored.is_active, ignored.doubtful_from),
            (false, Tick::NEVER)
        );
    }

    #[test]
    fn true_is_repeated_only_while_no_listener_has_come() {
        let (object, mut random) = (object(&[]), fastrand::Rng::with_seed(7));
        let (waits, served, idle) = (queue(2, 0), queue(2, 1), queue(0, 1));
        let mut stream = Assertions::new();
        let mut look = |queue: QueueFacts, caused, now| {
            let demand = Demand::of(&object, &[queue], now);
            let sends = stream.look(&demand, caused, now, &mut random);
            (sends, stream.look_at)
        };
        assert_eq!(look(queue(0, 0), false, at(0)), (false, Tick::NEVER));
        // The edge, and a further cause.
        let (sends, again) = look(waits, true, at(10_000));
        assert!(
            sends && again >= at(14_000) && again <= at(16_000),
            "{again:?}"
        );
        let (sends, again) = look(waits, true, at(11_000));
        assert!(sends && again >= at(15_000));
        // Nothing else happens: it is repeated.
        let (sends, again) = look(waits, false, again);
        assert!(sends && again < at(30_000));
        // A listener has come.
        assert_eq!(look(served, false, again), (false, Tick::NEVER));
        // A queue with traffic is in use: now and then.
        assert!(look(served, true, at(60_000)).0);
        assert!(!look(served, true, at(61_000)).0);
        assert!(look(served, true, at(66_000)).0);
        assert_eq!(look(idle, true, at(90_000)), (false, Tick::NEVER));
        assert_eq!(look(idle, false, at(95_000)), (false, Tick::NEVER));
    }

    #[test]
    fn a_listener_of_another_queue_serves_no_queue() {
        let object = object(&[]);
        let demand = Demand::of(&object, &[queue(1, 0), queue(1, 3)], at(0));
        assert_eq!(demand.listeners, 0);
        // An idle queue needs none.
        let demand = Demand::of(&object, &[queue(0, 0), queue(1, 3)], at(0));
        assert_eq!(demand.listeners, 3);
    }
}
