//! Tasks with free places, and limits of the policy.

use super::*;

#[test]
fn a_task_gets_more_when_half_of_its_places_are_free_and_there_was_more() {
    let mut bench = Bench::pushed();
    let task = bench.works(1, true);
    bench.depth(Some(1));
    bench.places_free(task, false);
    let soon = bench.sleeps_until(task).expect("not yet");
    assert!(
        soon.since(bench.now) <= Duration::from_millis(200),
        "{soon:?}"
    );
    bench.places_free(task, true);
    assert_eq!(bench.sleeps_until(task), None);
    bench.polls(task);
    assert_eq!(
        bench.finds_nothing(task),
        Sleep(Tick::NEVER),
        "it holds some"
    );
    bench.pass(250);
    assert_eq!(bench.told().state, Busy);
    assert_eq!(bench.done(task), Leave, "it has issued_wake");
    assert_eq!(bench.told().state, Drained);
    bench.waits();
}

#[test]
fn a_task_with_an_empty_get_while_it_handled_polls_again_after_a_wake() {
    let mut bench = Bench::pushed();
    let task = bench.works(1, true);
    bench.step();
    bench.scaler.on_depth(Some((1, usize::MAX)), bench.now);
    bench.places_free(task, true);
    bench.polls(task);
    bench.finds_nothing(task);
    bench.wake(2);
    assert_eq!(bench.sleeps_until(task), None, "itself");
    bench.polls(task);
    assert_eq!(bench.finds_nothing(task), Sleep(Tick::NEVER));
    bench.wake(3);
    assert_ne!(bench.done(task), Leave, "R17");
    assert_eq!(bench.sleeps_until(task), None);
    bench.polls(task);
}

#[test]
fn while_polling_one_task_polls_although_others_handle_messages() {
    let mut bench = Bench::new(false);
    let mut task = bench.started();
    for _ in 0..4 {
        bench.pass(1_000);
        bench.polls(task);
        bench.finds(task, false);
        task = bench.started();
    }
    assert_eq!(bench.scaler.tasks.list.len(), 5, "as many as there may be");
}

/// A polling scaler whose policy allows one task, which holds messages.
fn limited_to_one() -> (Bench, TaskId) {
    let mut bench = Bench::new(false);
    let task = bench.gets();
    bench.finds(task, true);
    let beside = bench.started();
    assert_eq!(bench.step(), Step::QueryDepth);
    bench.scaler.on_depth(Some((1, 1)), bench.now);
    bench.pass(500);
    assert_eq!(bench.begin(beside), Leave);
    (bench, task)
}

#[test]
fn no_task_polls_beyond_the_number_of_the_policy() {
    let (mut bench, task) = limited_to_one();
    bench.waits();
    assert_eq!(bench.done(task), Get);
    bench.polls(task);
}

#[test]
fn where_all_tasks_that_the_policy_had_hold_messages_the_depth_is_asked_again() {
    let (mut bench, _) = limited_to_one();
    let until = bench.waits();
    assert!(until.since(bench.now) <= seconds(2), "{until:?}");
    bench.now = until;
    assert_eq!(bench.step(), Step::QueryDepth);
    bench.scaler.on_depth(Some((3, 3)), bench.now);
    bench.gets();
}
