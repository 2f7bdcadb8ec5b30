//! Reports to the relay, and their times.

use super::*;

#[test]
fn quick_work_is_reported_once_and_long_work_twice() {
    let mut bench = Bench::pushed();
    let task = bench.works(7, false);
    assert_eq!(bench.waits(), bench.now + Duration::from_millis(250));
    bench.pass(250);
    assert_eq!(bench.told_state(), (Busy, 7));
    bench.goes_on(task);
    bench.leaves(task);
    assert_eq!(bench.told().state, Drained);
    bench.waits();
}

#[test]
fn work_found_without_a_wake_up_is_reported_at_once() {
    let mut bench = Bench::pushed();
    bench.works_unasked();
    assert_eq!(bench.told_state(), (Busy, 0));
}

#[test]
fn nothing_is_drained_while_another_task_holds_messages() {
    let mut bench = Bench::pushed();
    let holds = bench.works(1, false);
    bench.wake(2);
    let looks = bench.gets();
    bench.leaves(looks);
    bench.pass(250);
    assert_eq!(bench.told().state, Busy);
    bench.goes_on(holds);
    bench.leaves(holds);
    assert_eq!(bench.told().state, Drained);
}

#[test]
fn a_new_stream_gets_all_valid_reports_and_no_older_sequence() {
    let mut bench = Bench::pushed();
    bench.works(40, false);
    bench.hides(seconds(60));
    let due = bench.told();
    assert_eq!((due.state, due.sequence), (Busy, 40));
    assert!(due.visible_in >= Some(seconds(60)));
    bench.pass(1_000);
    bench.link(1, Reconnecting);
    bench.link(2, Connected);
    let again = bench.told();
    assert_eq!((again.state, again.sequence), (Busy, 0));
    assert!(again.visible_in >= Some(seconds(59)), "{again:?}");
}

#[test]
fn a_report_that_found_no_stream_waits_for_the_next_welcome() {
    let mut bench = Bench::pushed();
    bench.hides(Duration::ZERO);
    bench.refused(ErrorKind::NotFound);
    bench.pass(60_000);
    bench.waits();
    bench.link(2, Connected);
    assert_eq!(bench.told().visible_in, Some(Duration::ZERO));
}

#[test]
fn a_report_without_an_answer_is_made_again() {
    let mut bench = Bench::pushed();
    bench.hides(Duration::ZERO);
    bench.refused(ErrorKind::Timeout);
    assert_eq!(bench.waits(), bench.now + seconds(1));
    bench.pass(1_000);
    assert_eq!(bench.told().visible_in, Some(Duration::ZERO));
}

#[test]
fn a_lease_is_renewed_by_gets() {
    let mut bench = Bench::pushed();
    let task = bench.works(1, false);
    bench.pass(250);
    bench.told();
    for _ in 0..2 {
        bench.goes_on(task);
        bench.finds(task, false);
        assert_eq!(
            bench.waits(),
            Tick::NEVER,
            "it is known, and no timer renews it"
        );
        bench.pass(5_000);
    }
    bench.goes_on(task);
    bench.finds(task, false);
    assert_eq!(bench.told().state, Busy);
    bench.pass(60_000);
    bench.waits();
}

#[test]
fn messages_that_became_visible_without_a_stream_are_one_report() {
    let mut bench = Bench::pushed();
    bench.link(1, Reconnecting);
    for _ in 0..10_000 {
        bench.hides(seconds(1));
        bench.pass(100);
    }
    bench.pass(10_000);
    bench.link(2, Connected);
    assert_eq!(bench.told().visible_in, Some(Duration::ZERO));
    bench.waits();
}

#[test]
fn a_refusal_that_may_pass_forgets_no_timer() {
    let mut bench = Bench::pushed();
    bench.hides(seconds(600));
    bench.refused(ErrorKind::Unsupported);
    assert_eq!(bench.waits(), bench.now + seconds(30));
    assert!(
        !bench.scaler.reporter.has_pending_report(bench.now),
        "no shutdown waits for it"
    );
    bench.pass(30_000);
    assert!(bench.told().visible_in >= Some(seconds(570)));
}

#[test]
fn work_found_while_drained_is_in_flight_is_reported() {
    let mut bench = Bench::pushed();
    let task = bench.works_unasked();
    assert_eq!(bench.told().state, Busy);
    bench.goes_on(task);
    bench.leaves(task);
    assert!(matches!(bench.step(), Step::Report(_)), "drained");
    bench.works_unasked();
    bench.scaler.reporter.on_answered(None, bench.now);
    assert_eq!(bench.told().state, Busy);
}

#[test]
fn an_error_has_one_task_try_again_and_the_others_leave() {
    let mut bench = Bench::pushed();
    let mut rng = fastrand::Rng::with_seed(1);
    bench.scaler.start_more(3, bench.now);
    let tasks = [bench.gets(), bench.gets(), bench.gets()];
    let kind = ErrorKind::Unavailable;
    let rests = tasks.map(|task| {
        let (now, rng) = (bench.now, &mut rng);
        bench.scaler.failed(task, kind, VISIBILITY, now, rng)
    });
    assert!(matches!(rests, [Sleep(_), Leave, Leave]), "{rests:?}");
    let due = bench.told();
    let visible_in = due.visible_in.expect("what they may have got comes back");
    assert!(visible_in >= VISIBILITY, "{visible_in:?}");
    bench.wake(1);
    bench.waits();
    bench.pass(5_000);
    bench.polls(tasks[0]);
}
