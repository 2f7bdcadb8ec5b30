//! What the figures of its queues mean for a scaled object, and when its stream sends `true`.
//!
//! KEDA drops a `true` that comes before the object's metric is in its status, so one is not enough.
//! But each one restarts the cool-down of the workload, so a timer alone would keep it up for ever. The
//! stream repeats `true` only while no listener has come.

use std::time::Duration;

use super::object::ScaledObject;
use crate::base::{backoff::about, clock::Tick};

/// What is known of one queue. The default is that it is empty.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueueFacts {
    pub(super) backlog: u64,
    /// Listeners that are busy with it.
    pub(super) busy: u32,
    /// It has a listener.
    pub(super) is_served: bool,
    /// It has had a cause since it was certainly empty.
    pub(super) is_caused: bool,
    /// It may have messages that the relay does not know of. The doubt counts from this time on;
    /// [`Tick::NEVER`]: there is none.
    pub(super) doubtful_from: Tick,
}

/// What all queues of an object need.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Demand {
    /// The value of the metric.
    pub(super) messages: f64,
    pub(super) is_active: bool,
    /// Each queue that is active has a listener.
    is_served: bool,
    /// When a doubt makes it active; [`Tick::NEVER`] for none.
    doubtful_from: Tick,
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

impl Default for QueueFacts {
    fn default() -> Self {
        Self {
            backlog: 0,
            busy: 0,
            is_served: false,
            is_caused: false,
            doubtful_from: Tick::NEVER,
        }
    }
}

impl Demand {
    pub(super) fn of(object: &ScaledObject, queues: &[QueueFacts], now: Tick) -> Self {
        let mut all = Self {
            messages: 0.0,
            is_active: false,
            is_served: true,
            doubtful_from: Tick::NEVER,
        };
        let (mut backlog, mut busy) = (0_u64, 0_u32);
        for queue in queues {
            backlog = backlog.saturating_add(queue.backlog);
            busy = busy.saturating_add(queue.busy);
            let doubtful_from = match object.activates_on_doubt {
                true => queue.doubtful_from,
                false => Tick::NEVER,
            };
            let has_messages = match queue.backlog {
                // A cause without messages: a timer of a message that becomes visible again.
                0 => queue.is_caused,
                backlog => backlog > object.activation,
            };
            if has_messages || queue.busy > 0 || doubtful_from <= now {
                all.is_active = true;
                all.is_served &= queue.is_served;
            } else {
                all.doubtful_from = all.doubtful_from.min(doubtful_from);
            }
        }
        // A listener that is busy keeps its replica, whatever another one has found.
        all.messages = (backlog as f64).max(f64::from(busy) * object.target);
        all
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
            (false, _) => demand.doubtful_from,
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
        let active = |object: &ScaledObject, queues: &[QueueFacts]| {
            Demand::of(object, queues, at(1_000)).is_active
        };
        assert!(!active(&plain, &[queue(0, false), queue(0, true)]));
        assert!(active(&plain, &[queue(0, false), queue(1, false)]));
        let caused = QueueFacts {
            is_caused: true,
            ..queue(0, false)
        };
        assert!(active(&plain, &[caused]));
        let few = object(&[("activation", "3")]);
        assert!(!active(&few, &[queue(3, false), queue(3, false)]));
        assert!(active(&few, &[queue(0, false), queue(4, false)]));
    }

    #[test]
    fn the_metric_is_the_backlog_and_at_least_the_target_of_each_busy_listener() {
        let object = object(&[("targetPerReplica", "2.5")]);
        let busy = QueueFacts {
            busy: 2,
            ..queue(0, true)
        };
        let demand = Demand::of(&object, &[queue(3, true), busy], at(0));
        assert_eq!((demand.messages, demand.is_active), (5.0, true));
        let demand = Demand::of(&object, &[queue(30, true), busy], at(0));
        assert_eq!(demand.messages, 30.0);
    }

    #[test]
    fn a_doubt_counts_from_its_time_on_unless_it_is_ignored() {
        let doubtful = QueueFacts {
            doubtful_from: at(2_000),
            ..queue(0, false)
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
        // A cause is no doubt.
        let caused = QueueFacts {
            is_caused: true,
            ..doubtful
        };
        assert!(Demand::of(&ignores, &[caused], at(9_000)).is_active);
    }

    #[test]
    fn true_is_repeated_only_while_no_listener_has_come() {
        let (object, mut random) = (object(&[]), fastrand::Rng::with_seed(7));
        let (waits, served, idle) = (queue(2, false), queue(2, true), queue(0, true));
        let mut stream = Assertions::new();
        let mut look = |queue: QueueFacts, is_caused, now| {
            let demand = Demand::of(&object, &[queue], now);
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
        let demand = Demand::of(&object, &[queue(1, false), queue(1, true)], at(0));
        assert!(!demand.is_served);
        // An idle queue needs none.
        let demand = Demand::of(&object, &[queue(0, false), queue(1, true)], at(0));
        assert!(demand.is_served);
    }
}
