//! What the figures of its queues mean for a scaled object, and when its stream sends `true`.
//!
//! KEDA drops a `true` that comes before the object's metric is in its status, so one is not enough.
//! But each one restarts the cool-down of the workload, so a timer alone would keep it up for ever. The
//! stream repeats `true` only while no listener has come.

use std::time::Duration;

use super::object::ScaledObject;
use crate::base::{backoff::about, clock::Tick};

/// What is known of one queue. The default is that it is empty.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct QueueFacts {
    pub(super) backlog: u64,
    /// Listeners that are busy with it.
    pub(super) busy: u32,
    /// It has a listener.
    pub(super) is_served: bool,
    /// It may have messages that are not in the backlog.
    pub(super) is_unbounded: bool,
}

/// What all queues of an object need.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Demand {
    /// The value of the metric.
    pub(super) messages: f64,
    pub(super) is_active: bool,
    /// Each queue that is active has a listener.
    is_served: bool,
}

/// When the stream of an object sends `true`.
#[derive(Debug)]
pub(super) struct Assertions {
    again_at: Tick,
    /// When to look again without a cause.
    pub(super) look_at: Tick,
}

/// Between two `true` without a listener, give or take a tenth; and the least time between two with one.
const AGAIN: Duration = Duration::from_secs(5);

impl Demand {
    pub(super) fn of(object: &ScaledObject, queues: &[QueueFacts]) -> Self {
        let is_active = |queue: &&QueueFacts| {
            queue.is_unbounded || queue.busy > 0 || queue.backlog > object.activation
        };
        let backlog = queues.iter().map(|queue| queue.backlog);
        let backlog = backlog.fold(0, u64::saturating_add);
        let busy: u64 = queues.iter().map(|queue| u64::from(queue.busy)).sum();
        Self {
            // A listener that is busy keeps its replica, whatever another one has found.
            messages: (backlog as f64).max(busy as f64 * object.target),
            is_active: queues.iter().any(|queue| is_active(&queue)),
            is_served: queues.iter().filter(is_active).all(|queue| queue.is_served),
        }
    }
}

impl Assertions {
    pub(super) fn new() -> Self {
        Self {
            again_at: Tick::default(),
            look_at: Tick::NEVER,
        }
    }

    /// Looks at the demand. `is_caused` tells whether a queue has had a cause since the look before, or
    /// whether this is the first look. Returns whether to send `true`.
    pub(super) fn look(
        &mut self,
        demand: &Demand,
        is_caused: bool,
        now: Tick,
        random: &mut fastrand::Rng,
    ) -> bool {
        let is_due = now >= self.again_at;
        let sends = match demand.is_served {
            true => is_caused && is_due,
            false => is_caused || is_due,
        };
        let sends = sends && demand.is_active;
        if sends {
            self.again_at = now + about(AGAIN, random);
        }
        self.look_at = match (demand.is_active, demand.is_served) {
            // The listener may go.
            (true, true) => now + AGAIN,
            (true, false) => self.again_at,
            (false, _) => Tick::NEVER,
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

    fn queue(backlog: u64, is_served: bool) -> QueueFacts {
        QueueFacts {
            backlog,
            is_served,
            ..QueueFacts::default()
        }
    }

    #[test]
    fn an_object_is_active_while_one_of_its_queues_may_have_work() {
        let plain = object(&[]);
        let active =
            |object: &ScaledObject, queues: &[QueueFacts]| Demand::of(object, queues).is_active;
        assert!(!active(&plain, &[queue(0, false), queue(0, true)]));
        assert!(active(&plain, &[queue(0, false), queue(1, false)]));
        let unbounded = QueueFacts {
            is_unbounded: true,
            ..queue(0, false)
        };
        assert!(active(&plain, &[unbounded]));
        let few = object(&[("activation", "3")]);
        assert!(!active(&few, &[queue(3, false), queue(3, false)]));
        assert!(active(&few, &[queue(0, false), queue(4, false)]));
        assert!(active(&few, &[unbounded]));
    }

    #[test]
    fn the_metric_is_the_backlog_and_at_least_the_target_of_each_busy_listener() {
        let object = object(&[("targetPerReplica", "2.5")]);
        let busy = QueueFacts {
            busy: 2,
            ..queue(0, true)
        };
        let demand = Demand::of(&object, &[queue(3, true), busy]);
        assert_eq!((demand.messages, demand.is_active), (5.0, true));
        let demand = Demand::of(&object, &[queue(30, true), busy]);
        assert_eq!(demand.messages, 30.0);
    }

    #[test]
    fn true_is_repeated_only_while_no_listener_has_come() {
        let (object, mut random) = (object(&[]), fastrand::Rng::with_seed(7));
        let (waits, served, idle) = (queue(2, false), queue(2, true), queue(0, true));
        let mut stream = Assertions::new();
        let mut look = |queue: QueueFacts, is_caused, now| {
            let demand = Demand::of(&object, &[queue]);
            let sends = stream.look(&demand, is_caused, now, &mut random);
            (sends, stream.look_at)
        };
        assert_eq!(look(queue(0, false), true, at(0)), (false, Tick::NEVER));
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
        // A listener has come. It is looked at whether it stays.
        let (sends, again) = look(served, false, again);
        assert!(!sends && again < at(60_000));
        assert!(look(waits, false, again).0, "it has gone");
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
        let demand = Demand::of(&object, &[queue(1, false), queue(1, true)]);
        assert!(!demand.is_served);
        // An idle queue needs none.
        let demand = Demand::of(&object, &[queue(0, false), queue(1, true)]);
        assert!(demand.is_served);
    }
}
