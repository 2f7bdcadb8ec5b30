//! C15: the timers of a relay that ends go to the other relays, in requests of bounded size.
//!
//! The driver sends each request and states its result. A message may be lost, so a request without
//! a reply is repeated, at another life where there is one: a timer that two lives have taken is one
//! wake-up too many. A request that all lives refuse is lost, and the next one is offered.

use std::{collections::VecDeque, time::Duration};

use prost::Message as _;

use crate::{
    base::clock::Tick,
    relay::hub::{Hub, PendingTimers},
    types::cluster::{HandedTimer, LifeId},
    wire::{link::TimersRequest, timer_to_wire},
};

/// A hand-over that is under way.
pub(crate) struct TimerHandOver {
    pending: PendingTimers,
    /// The first one gets the next request.
    lives: VecDeque<LifeId>,
    /// The timers of the request that no life has taken yet, and when their delays were read.
    request: Option<(Tick, Vec<HandedTimer>)>,
    /// Those that have refused it.
    refused: Vec<LifeId>,
    /// Without a reply until then, the rest is lost.
    reply_until: Tick,
    ends_at: Tick,
    handed: HandedOver,
}

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimersReply {
    /// The life has set the timers.
    Taken,
    /// It ends as well, or has no room.
    Refused,
    /// None came in time.
    Missing,
}

/// The timers of a relay that ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct HandedOver {
    pub(crate) taken: u64,
    /// No other relay has acknowledged them: their queues are checked by the sentinel.
    pub(crate) lost: u64,
}

/// Encoded bytes of a request before the timers of the last queue: these have at most 37 KiB, four
/// texts of 128 bytes and the numbers for each of 64.
const FILLED: usize = 24 * 1024;
/// Without any reply for this long, the relay is cut off.
const REPLY_WITHIN: Duration = Duration::from_secs(5);
/// A million timers take some seconds.
const ALL_WITHIN: Duration = Duration::from_secs(20);

impl TimerHandOver {
    /// Begins the hand-over of all pending timers to these lives.
    pub(crate) fn new(hub: &Hub, lives: VecDeque<LifeId>, now: Tick) -> Self {
        Self {
            pending: hub.pending_timers(),
            lives,
            request: None,
            refused: Vec::new(),
            reply_until: now + REPLY_WITHIN,
            ends_at: now + ALL_WITHIN,
            handed: HandedOver::default(),
        }
    }

    /// Returns the next request and its life, or `None` at the end. The caller states the result
    /// of each request before it takes the next one.
    pub(crate) fn next_request(&mut self, now: Tick) -> Option<(LifeId, TimersRequest)> {
        loop {
            let (read_at, timers) = self.request.take().or_else(|| self.next_timers(now))?;
            let in_time = now < self.reply_until.min(self.ends_at);
            let Some(life) = self.lives.front().copied().filter(|_| in_time) else {
                self.lives.extend(self.refused.drain(..));
                self.handed.lost += timers.len() as u64;
                continue;
            };
            let passed = now.since(read_at);
            let timers = self.request.insert((read_at, timers)).1.iter().cloned();
            let timers = timers.map(|mut timer| {
                timer.due_in = timer.due_in.saturating_sub(passed);
                timer_to_wire(&timer)
            });
            let timers = timers.collect();
            return Some((life, TimersRequest { timers }));
        }
    }

    /// States the result of the newest request.
    pub(crate) fn replied(&mut self, reply: TimersReply, now: Tick) {
        if reply == TimersReply::Missing {
            return self.lives.rotate_left(1);
        }
        self.reply_until = now + REPLY_WITHIN;
        if reply == TimersReply::Refused {
            self.refused.extend(self.lives.pop_front());
        } else if let Some((_, timers)) = self.request.take() {
            self.lives.extend(self.refused.drain(..));
            self.handed.taken += timers.len() as u64;
        }
    }

    pub(crate) fn handed_over(&self) -> HandedOver {
        self.handed
    }

    /// Returns timers for a request: all of a queue, and of as many queues as there is room for.
    fn next_timers(&mut self, now: Tick) -> Option<(Tick, Vec<HandedTimer>)> {
        let (mut all, mut bytes) = (Vec::new(), 0);
        while bytes < FILLED
            && let Some(timers) = self.pending.next_queue(now)
        {
            let encoded = timers
                .iter()
                .map(|timer| timer_to_wire(timer).encoded_len());
            bytes += encoded.map(|length| length + 8).sum::<usize>();
            all.extend(timers);
        }
        (!all.is_empty()).then_some((now, all))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::{TimersReply as Reply, *};
    use crate::{
        relay::hub::HubConfig,
        types::{Limits, Notification, QueueAddress, cluster::ClusterLimits},
        wire::link::{PeerRequest, peer_request::Call},
    };

    const NOW: Tick = Tick::from_nanos(1_000_000_000);

    fn notify(hub: &Hub, account: &str, queue: &str, publisher: &str, delay: Duration) {
        let queue = QueueAddress::new(account, queue).expect("an address");
        let delayed = Notification {
            delay,
            payload_size: u64::MAX,
            messages: u64::MAX,
            published_at: Some(SystemTime::now()),
            traceparent: "t".repeat(Limits::TRACEPARENT).into(),
            ..Notification::new(queue)
        };
        hub.notify_all(&publisher.into(), &[delayed], NOW)
            .expect("there is room");
    }

    fn hub_with_timers(queues: u64) -> Hub {
        let hub = Hub::new(HubConfig::default());
        for number in 0..queues {
            let delay = Duration::from_secs(10);
            notify(&hub, "acct", &format!("q{number}"), "p", delay);
        }
        hub
    }

    /// Hands the timers of 2,000 queues over; returns the lives that were asked.
    fn run(lives: &[u128], reply: impl Fn(u128, usize) -> Reply) -> (Vec<u128>, HandedOver) {
        let lives = lives.iter().map(|life| LifeId(*life)).collect();
        let mut hand_over = TimerHandOver::new(&hub_with_timers(2_000), lives, NOW);
        let (mut now, mut asked) = (NOW, Vec::new());
        while let Some((life, _)) = hand_over.next_request(now) {
            let reply = reply(life.0, asked.len());
            asked.push(life.0);
            let waited = match reply {
                Reply::Missing => Duration::from_secs(1),
                _ => Duration::from_millis(1),
            };
            now += waited;
            hand_over.replied(reply, now);
        }
        (asked, hand_over.handed_over())
    }

    const ALL: HandedOver = HandedOver {
        taken: 2_000,
        lost: 0,
    };

    #[test]
    fn a_request_without_a_reply_is_repeated() {
        let (asked, handed) = run(&[1], |_, number| match number {
            0 | 2 => Reply::Missing,
            _ => Reply::Taken,
        });
        assert_eq!(handed, ALL);
        assert!(asked.len() > 4, "{asked:?}");
    }

    #[test]
    fn a_request_that_a_life_refuses_goes_to_another_one_and_so_do_later_ones() {
        let (asked, handed) = run(&[1, 2], |life, _| match life {
            1 => Reply::Refused,
            _ => Reply::Taken,
        });
        assert_eq!(handed, ALL);
        assert_eq!(asked.iter().filter(|life| **life == 1).count(), 1);
    }

    #[test]
    fn a_request_that_all_lives_refuse_is_lost_and_the_next_one_is_offered() {
        let (asked, handed) = run(&[1, 2], |_, number| match number {
            1 | 2 => Reply::Refused,
            _ => Reply::Taken,
        });
        assert!(asked.len() > 3, "{asked:?}");
        assert!(handed.lost > 0 && handed.taken > handed.lost, "{handed:?}");
        assert_eq!(handed.lost + handed.taken, 2_000);
    }

    #[test]
    fn a_life_whose_reply_was_lost_is_asked_again_after_a_refusal_of_another_one() {
        let (asked, handed) = run(&[1, 2], |life, number| match (life, number) {
            (_, 1) => Reply::Missing,
            (1, _) => Reply::Refused,
            _ => Reply::Taken,
        });
        assert_eq!(asked[..3], [1, 2, 2]);
        assert_eq!(handed, ALL);
    }

    #[test]
    fn a_repeated_request_has_the_delays_that_are_left() {
        let mut hand_over = TimerHandOver::new(&hub_with_timers(1), [LifeId(1)].into(), NOW);
        let due_in = |request: TimersRequest| {
            let due_in = request.timers[0].due_in.expect("a delay");
            Duration::new(due_in.seconds.unsigned_abs(), due_in.nanos.unsigned_abs())
        };
        let (_, first) = hand_over.next_request(NOW).expect("a request");
        let later = NOW + Duration::from_secs(4);
        hand_over.replied(Reply::Missing, later);
        let (_, again) = hand_over.next_request(later).expect("the same request");
        assert_eq!(due_in(again), due_in(first) - Duration::from_secs(4));
    }

    #[test]
    fn without_any_reply_the_timers_are_lost_after_five_seconds() {
        let (asked, handed) = run(&[1, 2], |_, _| Reply::Missing);
        assert_eq!((asked, handed.lost), (vec![1, 2, 1, 2, 1], 2_000));
        let (asked, handed) = run(&[], |_, _| Reply::Taken);
        assert_eq!((asked, handed.lost), (Vec::new(), 2_000));
    }

    /// A queue with as many timers as it may have, behind this many queues that are due sooner.
    fn hub_with_longest_names(before: usize) -> Hub {
        let hub = Hub::new(HubConfig::default());
        let longest = "x".repeat(Limits::NAME);
        for number in 0..before {
            let name = format!("{number:02}{}", &longest[2..]);
            notify(&hub, &longest, &name, &longest, Duration::from_secs(5));
        }
        // So far apart that no two are one timer.
        let mut delay = Duration::from_secs(10);
        for _ in 0..64 {
            notify(&hub, &longest, &longest, &longest, delay);
            delay = delay.mul_f64(1.15);
        }
        hub
    }

    #[test]
    fn the_largest_request_fits_a_message() {
        let mut largest = 0;
        for before in 30..70 {
            let hub = hub_with_longest_names(before);
            let mut hand_over = TimerHandOver::new(&hub, [LifeId(1)].into(), NOW);
            let mut timers = 0;
            while let Some((_, request)) = hand_over.next_request(NOW) {
                timers += request.timers.len();
                let call = Some(Call::Timers(request));
                largest = largest.max(PeerRequest { call }.encoded_len());
                hand_over.replied(Reply::Taken, NOW);
            }
            assert_eq!(timers, before + 64);
        }
        let limit = ClusterLimits::MESSAGE_BYTES;
        assert!(
            (limit * 7 / 8..=limit).contains(&largest),
            "{largest} bytes"
        );
    }
}
