//! Checks of patterns, with and without known queues.

use super::*;

#[test]
fn a_pattern_without_a_known_queue_is_looked_at_under_its_own_name() {
    let guarded = Guarded::on(&[["ord*"]; 2]);
    let told = guarded.asked(1, 67);
    assert!(matches!(told[..], [(54..=66, _, Sentinel)]), "{told:?}");
    notify(&guarded.hub, "orders");
    guarded.asked(68, 68);
    guarded.say(0, Drained, 68);
    let told = guarded.asked(69, 200);
    let reasons: Vec<_> = told.iter().map(|asked| asked.2).collect();
    let each = "the queue's own, of each in turn";
    assert_eq!(reasons, [Sentinel, Sentinel], "{each}");
}

#[test]
fn a_pattern_that_lacks_cursors_is_looked_at_under_its_own_name() {
    for known_first in [true, false] {
        let hub = hub_with(HubConfig {
            max_cursors_per_stream: 0,
            ..guarded().shared.config.clone()
        });
        if known_first {
            notify(&hub, "orders");
        }
        let all = vec![settled(&hub, &["ord*"])];
        notify(&hub, "orders");
        walk_all(&hub);
        drain(&all[0], START);
        let told = Guarded { hub, all }.asked(1, 67);
        let is_in_time =
            |(at, _, reason): &(_, _, _)| (54..=67).contains(at) && *reason == Sentinel;
        assert!(!told.is_empty() && told.iter().all(is_in_time), "{told:?}");
    }
}

#[test]
fn a_pattern_that_comes_back_is_looked_at_within_an_interval() {
    let mut guarded = Guarded::on(&[["ord*"]]);
    guarded.leave(0, 0);
    guarded.all.push(settled(&guarded.hub, &["ord*"]));
    let (second, ..) = guarded.first_asked(1);
    assert!(second <= 67, "{second}");
}

#[test]
fn a_queue_that_a_pattern_reports_first_is_looked_at_as_well() {
    let guarded = Guarded::on(&[["ord*"]]);
    guarded.say(0, Busy, 0);
    assert_eq!(guarded.first_asked(1).2, Sentinel);
}

#[test]
fn a_queue_that_a_pattern_without_room_for_cursors_reports_first_is_looked_at_as_well() {
    let hub = hub_with(HubConfig {
        max_cursors_per_stream: 0,
        ..guarded().shared.config.clone()
    });
    let all = vec![settled(&hub, &["ord*"])];
    let guarded = Guarded { hub, all };
    guarded.say(0, Drained, 0);
    assert_eq!(guarded.first_asked(1).2, Sentinel);
}

#[test]
fn streams_of_a_pattern_that_resume_and_come_and_go_do_not_put_it_off() {
    let (hub, options) = (guarded(), options(&["ord*"]));
    let first = subscribe_with(&hub, &options, START);
    let resume = resume_number(&hub, &first, START);
    hub.unsubscribe(&first, START);
    let told = come_and_go(&hub, &SubscribeOptions { resume, ..options }, 1800);
    // Each is the pattern's first, and is asked at a random time of an interval.
    assert!(matches!(told.len(), 5..30), "{told:?}");
    assert!(told.iter().all(|asked| asked.2 == Sentinel), "{told:?}");
}

#[test]
fn checks_of_many_patterns_go_in_slices() {
    let hub = guarded();
    let patterns: Vec<_> = (0..100).map(|at| format!("p{at}-*")).collect();
    let stream = |name: String| {
        let options = SubscribeOptions {
            listener_id: ListenerId::new(&name).expect("a name"),
            ..options(&patterns)
        };
        let stream = subscribe_with(&hub, &options, START);
        drain(&stream, START);
        stream
    };
    let streams: Vec<_> = numbered("listener-", 300).into_iter().map(stream).collect();
    let (mut slices, mut asked) = (0, 0);
    while hub.next_timer().is_some_and(|due| due <= at(67)) {
        hub.fire(at(67));
        let told = streams.iter().map(|one| drain(one, at(67)).len());
        let told: usize = told.sum();
        assert!(told < 20, "{told} checks in one slice");
        (slices, asked) = (slices + 1, asked + told);
    }
    assert!(slices > 5, "{slices}");
    assert_eq!(asked, 100);
}
