//! Resuming all queues of a stream by one number, and the numbers that are ignored.

use super::*;
use crate::types::{GroupName, Report};

/// A stream's messages; its time is the test's.
struct Stream {
    feed: SubscriberStream,
    waker: Waker,
}

impl Stream {
    fn open(hub: &Arc<Hub>, options: &SubscribeOptions, now: Tick) -> Self {
        let (_, waker) = Alarm::new();
        let feed = feed_at(hub, options, now);
        Self { feed, waker }
    }

    /// Takes all messages; returns the entries, and the newest number.
    fn take(&mut self, now: Tick) -> (Vec<Entry>, ResumeNumber) {
        let (events, _) = sent(&mut self.feed, now, &self.waker);
        (woken(&events), stated(&events).unwrap_or_default())
    }

    /// Takes all messages, and the heartbeat of the silent stream; closes it.
    fn number(mut self, now: Tick) -> ResumeNumber {
        self.take(now);
        let later = now + 10 * SECOND;
        let (more, number) = self.take(later);
        assert_eq!(more, [], "the stream is silent");
        self.feed.close(later);
        number
    }

    /// Runs one step only.
    fn step(&mut self, now: Tick) -> StreamAction<StreamMessage<Filled>> {
        let mut sink = WakeBuilder::default();
        self.feed.next_into(now, None, &self.waker, &mut sink)
    }
}

fn resuming_by(options: &SubscribeOptions, resume: &ResumeNumber) -> SubscribeOptions {
    SubscribeOptions {
        resume: resume.clone(),
        ..options.clone()
    }
}

/// Returns the first entries of a subscriber that comes back with the number.
fn told_after(
    hub: &Arc<Hub>,
    options: &SubscribeOptions,
    resume: &ResumeNumber,
    now: Tick,
) -> Vec<Entry> {
    let mut stream = Stream::open(hub, &resuming_by(options, resume), now);
    let told = stream.take(now).0;
    // So late that the listener does not count as busy.
    stream.feed.close(now + SECOND);
    told
}

fn catch_up(name: &str) -> Entry {
    entry(name, WakeReason::CatchUp, 0)
}

/// A listener without a group that counts as idle right after a wake-up.
fn listening(selectors: &[&str]) -> SubscribeOptions {
    SubscribeOptions {
        visibility_timeout: Duration::from_nanos(1),
        ..options(selectors)
    }
}

#[test]
fn a_stream_of_ten_thousand_queues_gets_only_the_changed_ones() {
    let hub = hub();
    let names: Vec<_> = (0..10_000).map(|number| format!("q{number:05}")).collect();
    names.iter().for_each(|name| _ = notify(&hub, name));
    let options = options(&["q*"]);
    let resume = Stream::open(&hub, &options, Tick::default()).number(Tick::default());
    assert!(!resume.is_empty() && resume.0.len() <= crate::types::Limits::TOKEN);
    let now = after(20 * SECOND);
    assert_eq!(told_after(&hub, &options, &resume, now), []);
    let changed = ["q00000", "q05000", "q09999"];
    changed.iter().for_each(|name| _ = notify(&hub, name));
    let told = told_after(&hub, &options, &resume, now);
    assert_eq!(told, changed.map(catch_up));
}

/// Counts a notification that the fan-out has not told of when the stream states its number. The
/// subscriber comes back with the number. Returns its entries.
fn stated_before_a_walk(fault: Fault) -> Vec<Entry> {
    fault.plant();
    let hub = hub_where(|config| config.inline = 0);
    let options = options(&["a", "b"]);
    let mut stream = Stream::open(&hub, &options, Tick::default());
    stream.take(Tick::default());
    notify(&hub, "a");
    let (told, resume) = stream.take(after(10 * SECOND));
    assert!(told.is_empty() && !resume.is_empty());
    stream.feed.close(after(11 * SECOND));
    walk_all(&hub);
    notify(&hub, "b");
    told_after(&hub, &options, &resume, after(12 * SECOND))
}

#[test]
fn a_change_that_the_fan_out_had_not_told_of_is_sent_to_a_subscriber_that_comes_back() {
    let both = [catch_up("a"), catch_up("b")];
    assert_eq!(stated_before_a_walk(Fault::None), both);
    let told = stated_before_a_walk(Fault::ResumeNumberTooNew);
    assert_eq!(told, [catch_up("b")]);
}

#[test]
fn a_queue_that_a_walk_has_to_tell_of_is_not_forgotten() {
    let hub = hub_where(|config| config.inline = 0);
    let subscription = subscribe_with(&hub, &listening(&["a*"]), START);
    drain(&subscription, START);
    notify(&hub, "a");
    hub.forget(after(2 * HOUR));
    assert_eq!(hub.stats().forgotten, 0);
    // A walk that is dropped does what is left.
    drop(hub.fanout.pop());
    drain(&subscription, START);
    hub.sweep(&subscription, usize::MAX, after(HOUR));
    hub.forget(after(2 * HOUR));
    assert_eq!(hub.stats().forgotten, 1);
}

#[test]
fn a_walk_that_is_dropped_marks_all_subscribers() {
    let hub = hub_where(|config| config.inline = 0);
    let subscription = settled(&hub, &["a"]);
    notify(&hub, "a");
    drop(hub.fanout.pop());
    assert_eq!(told(&subscription), [entry("a", WakeReason::Notified, 1)]);
}

#[test]
fn a_queue_that_was_forgotten_and_made_again_has_changed() {
    let hub = hub();
    let options = listening(&["a", "b"]);
    let resume = Stream::open(&hub, &options, Tick::default()).number(Tick::default());
    notify(&hub, "a");
    let now = after(2 * HOUR);
    notify_with(&hub, notification("b"), now);
    hub.forget(now);
    assert_eq!(hub.stats().forgotten, 1, "a");
    let told = told_after(&hub, &options, &resume, now);
    assert_eq!(told, [catch_up("a"), catch_up("b")]);
}

#[test]
fn a_pattern_gets_changed_and_forgotten_queues_under_its_name() {
    for fault in [Fault::None, Fault::ResumePastForgotten] {
        fault.plant();
        let hub = hub();
        let options = listening(&["q*"]);
        let now = Tick::default();
        ["q1", "other"]
            .iter()
            .for_each(|name| _ = notify(&hub, name));
        let resume = Stream::open(&hub, &options, now).number(now);
        hub.forget(after(2 * HOUR));
        assert_eq!(hub.stats().forgotten, 2);
        let now = after(3 * HOUR);
        assert_eq!(told_after(&hub, &options, &resume, now), [], "told before");
        notify_with(&hub, notification("q1"), now);
        let now = after(5 * HOUR);
        hub.forget(now);
        assert_eq!(hub.stats().forgotten, 3);
        let told = told_after(&hub, &options, &resume, now);
        match fault {
            Fault::None => assert_eq!(told, [catch_up("q*")]),
            _ => assert_eq!(told, []),
        }
    }
}

#[test]
fn a_number_of_another_subscriber_or_another_life_is_ignored() {
    let hub = hub();
    let options = options(&["a", "b*", "a"]);
    let resume = Stream::open(&hub, &options, Tick::default()).number(Tick::default());
    let now = after(20 * SECOND);
    let same = super::options(&["b*", "a"]);
    assert_eq!(told_after(&hub, &same, &resume, now), [], "in any order");

    let ignored = |options: &SubscribeOptions, resume: &ResumeNumber| {
        let mut stream = Stream::open(&hub, &resuming_by(options, resume), now);
        let told = stream.take(now).0;
        stream.feed.close(now + SECOND);
        !told.is_empty()
    };
    for selectors in [&["a"][..], &["a", "b*", "c"], &["a", "b"], &["a*", "b*"]] {
        assert!(
            ignored(&super::options(selectors), &resume),
            "{selectors:?}"
        );
    }
    let mut another = options.clone();
    another.listener_id = ListenerId::new("another").expect("a name");
    assert!(ignored(&another, &resume), "another listener's");
    let bytes = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = resume.0.to_vec();
        change(&mut bytes);
        ResumeNumber(bytes.into())
    };
    for (what, number) in [
        ("another digest", bytes(&|bytes| bytes[0] ^= 1)),
        ("the future", bytes(&|bytes| bytes[12] ^= 1)),
        ("the next", bytes(&|bytes| bytes[8] += 1)),
        ("a byte too few", bytes(&|bytes| _ = bytes.pop())),
        ("a byte too many", bytes(&|bytes| bytes.push(0))),
        ("nonsense", ResumeNumber(vec![0xff; 64].into())),
        ("more than 64 bytes", ResumeNumber(vec![0xff; 1000].into())),
        ("nothing", ResumeNumber::default()),
    ] {
        assert!(ignored(&options, &number), "{what}");
    }
    // The same epoch and another memory, and the other way round.
    for (epoch, seed) in [(EPOCH, 1), (Epoch(8), 0)] {
        let other = Arc::new(Hub::new(HubConfig {
            epoch,
            seed,
            ..HubConfig::default()
        }));
        (0..9).for_each(|_| _ = Stream::open(&other, &options, now).number(now));
        assert!(!told_after(&other, &options, &resume, now).is_empty());
    }
}

#[test]
fn a_member_is_stated_no_number_and_resumes_by_none() {
    let hub = hub();
    let plain = options(&["a"]);
    let resume = Stream::open(&hub, &plain, Tick::default()).number(Tick::default());
    let member = SubscribeOptions {
        group: Some(GroupName::new("g").expect("a name")),
        ..plain
    };
    let told = told_after(&hub, &member, &resume, Tick::default());
    assert_eq!(told, [catch_up("a")], "a new group's");
    let of_member = Stream::open(&hub, &member, Tick::default()).number(Tick::default());
    assert_eq!(of_member, ResumeNumber::default());
}

#[test]
fn a_busy_stream_is_stated_a_number_in_each_interval() {
    let hub = hub();
    let options = options(&["busy", "quiet"]);
    let mut stream = Stream::open(&hub, &options, Tick::default());
    let mut numbers = Vec::new();
    for second in 0..35 {
        let now = after(second * SECOND);
        notify_with(&hub, notification("busy"), now);
        let (events, until) = sent(&mut stream.feed, now, &stream.waker);
        assert!(until > now, "it sleeps");
        assert_eq!(woken(&events).len(), 1 + usize::from(second == 0));
        numbers.extend(stated(&events));
    }
    assert_eq!(numbers.len(), 3);
    let now = after(35 * SECOND);
    let told = told_after(&hub, &options, &numbers[2], now);
    assert_eq!(told, [catch_up("busy")]);
}

#[test]
fn a_stream_that_always_has_a_wake_to_send_is_stated_a_number() {
    let hub = hub();
    let options = options(&["busy", "quiet"]);
    let mut stream = Stream::open(&hub, &options, Tick::default());
    stream.take(Tick::default());
    let (mut now, mut numbers, mut wakes) = (Tick::default(), Vec::new(), 0);
    for _ in 0..1_000 {
        now += SECOND / 20;
        // So many that the stream is throttled after each Wake.
        let many = vec![notification("busy"); 20];
        notify_all(&hub, &many, now).expect("accepted");
        match stream.step(now) {
            StreamAction::Send(StreamMessage::Wake(_)) => wakes += 1,
            StreamAction::Send(StreamMessage::Event(SubscribeEvent::Heartbeat {
                resume, ..
            })) => numbers.push(resume),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((wakes, numbers.len()), (996, 4));
    let told = told_after(&hub, &options, &numbers[3], now);
    assert_eq!(told, [catch_up("busy")]);
}

#[test]
fn no_number_is_stated_before_entries_without_room_are_sent() {
    let hub = hub();
    let options = options(&["*"]);
    let names = numbered("q", 1_000);
    let mut stream = Stream::open(&hub, &options, Tick::default());
    stream.take(Tick::default());
    for name in &names {
        notify(&hub, name);
    }
    // A Wake has room for 256 entries.
    let (mut now, mut told) = (after(10 * SECOND - SECOND / 1_000), Vec::new());
    let resume = loop {
        let mut sink = WakeBuilder::default();
        match stream.feed.next_into(now, None, &stream.waker, &mut sink) {
            StreamAction::Send(StreamMessage::Wake(_)) => told.extend(entries(&sink.work)),
            StreamAction::Send(StreamMessage::Event(SubscribeEvent::Heartbeat {
                resume, ..
            })) => break resume,
            StreamAction::Send(other) => panic!("{other:?}"),
            StreamAction::Wait(_) | StreamAction::Yield => {}
            StreamAction::End => panic!("it ends"),
        }
        now += SECOND / 1_000;
    };
    assert_eq!(told.len(), names.len());
    assert_eq!(told_after(&hub, &options, &resume, now), []);
}

#[test]
fn a_wake_up_that_was_taken_for_a_broken_stream_is_told_again() {
    let hub = hub();
    let options = options(&["a", "b"]);
    let now = after(20 * SECOND);
    let mut stream = Stream::open(&hub, &options, Tick::default());
    stream.take(Tick::default());
    let (_, resume) = stream.take(after(10 * SECOND));
    notify_with(&hub, notification("a"), now);
    let taken = stream.step(now);
    assert!(matches!(taken, StreamAction::Send(StreamMessage::Wake(_))));
    stream.feed.close(now);
    assert_eq!(told_after(&hub, &options, &resume, now), [catch_up("a")]);
}

#[test]
fn a_second_break_before_any_heartbeat_loses_nothing() {
    let hub = hub();
    let options = options(&["a", "b", "c"]);
    let resume = Stream::open(&hub, &options, Tick::default()).number(Tick::default());
    let now = after(20 * SECOND);
    notify_with(&hub, notification("a"), now);
    for _ in 0..3 {
        // Sent each time, because no newer number is stated.
        assert_eq!(told_after(&hub, &options, &resume, now), [catch_up("a")]);
    }
    notify_with(&hub, notification("b"), now);
    let told = told_after(&hub, &options, &resume, now);
    assert_eq!(told, [catch_up("a"), catch_up("b")]);
}

#[test]
fn a_report_before_its_queue_is_attached_leaves_it_its_catch_up() {
    let hub = hub();
    let names: Vec<_> = (0..2000).map(|number| format!("q{number:04}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let id = SubscriptionId(1);
    let subscription = hub.subscribe(id, &options(&names), Tick::default());
    let subscription = subscription.expect("accepted");
    let drained = report("q1999", ReportState::Drained, 7, 1);
    hub.report(id, &drained, Tick::default()).expect("known");
    let busy = Report {
        state: ReportState::Busy,
        ..report("q1998", ReportState::Busy, 7, 2)
    };
    hub.report(id, &busy, Tick::default()).expect("known");
    while !hub.introduce_some(&subscription, Tick::default()) {}
    assert_eq!(drain(&subscription, Tick::default()).len(), 2000);
}
