//! Each model holds without faults, and finds the planted faults.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};

use shuttle::{
    Config, Runner,
    scheduler::{DfsScheduler, PctScheduler, RandomScheduler, Scheduler},
};

use super::{models::*, sync};
use crate::{base::fault::Fault, sim::quick_or_full};

/// Runs one schedule.
pub(super) type Model = fn(Fault) -> Result<(), String>;

/// Schedules of each kind for a model that must hold: of a quick run, and of a full one.
const SCHEDULES: [usize; 2] = [600, 3000];
/// Hundreds of schedules in which a fault must be found.
const AT_MOST: u64 = 200;
/// The depth of these races: the switches of threads at decisive points.
const DEPTH: usize = 3;

fn run(scheduler: impl Scheduler + 'static, model: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = 256 * 1024;
    config.silence_warnings = true;
    sync::set_in_model(true);
    Runner::new(scheduler, config).run(move || {
        sync::begin_schedule();
        model();
    });
    sync::set_in_model(false);
}

/// Asserts that no schedule loses a wake-up or sends one twice.
fn holds(model: Model) {
    holds_in(quick_or_full(SCHEDULES), model);
}

/// The same in so many schedules of each kind.
pub(super) fn holds_in(schedules: usize, model: Model) {
    let check = move || assert_eq!(model(Fault::None), Ok(()));
    run(RandomScheduler::new_from_seed(1, schedules), check);
    run(PctScheduler::new_from_seed(2, DEPTH, schedules), check);
}

/// Asserts that the model finds the fault.
pub(super) fn finds(model: Model, fault: Fault) {
    let found = Arc::new(AtomicBool::new(false));
    for seed in 0..AT_MOST {
        let seen = Arc::clone(&found);
        let check = move || {
            if model(fault).is_err() {
                seen.store(true, Relaxed);
            }
        };
        match seed % 2 {
            0 => run(RandomScheduler::new_from_seed(seed, 100), check),
            _ => run(PctScheduler::new_from_seed(seed, DEPTH, 100), check),
        }
        if found.load(Relaxed) {
            return;
        }
    }
    panic!("{fault:?} was not found");
}

#[test]
fn one_event_reaches_one_listener_in_every_schedule() {
    let schedules = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&schedules);
    run(DfsScheduler::new(None, false), move || {
        counted.fetch_add(1, Relaxed);
        assert_eq!(notify_one(Fault::None), Ok(()));
    });
    assert!(schedules.load(Relaxed) > 100, "{schedules:?}");
}

#[test]
fn an_event_while_a_stream_takes_is_not_lost() {
    holds(notify_and_take);
}

#[test]
fn a_fan_out_loses_nothing() {
    holds(fan_out);
}

#[test]
fn a_subscriber_that_joins_during_publishing_misses_nothing() {
    holds(subscribe_exact);
}

#[test]
fn a_pattern_that_is_subscribed_meanwhile_misses_no_queue() {
    holds(subscribe_pattern);
}

#[test]
fn a_parked_pattern_gets_later_queues() {
    holds(later_queues);
}

#[test]
fn a_subscriber_that_comes_back_gets_exactly_the_missed_events() {
    holds(disconnect_and_resume);
}

#[test]
fn a_listener_that_resumes_by_number_gets_an_event_that_the_fan_out_did_not_reach() {
    holds(walk_and_resume);
}

#[test]
fn a_listener_that_resumes_by_number_gets_an_event_while_the_number_is_drawn() {
    holds(mark_and_resume);
}

#[test]
fn a_resume_number_that_is_too_new_is_found() {
    finds(walk_and_resume, Fault::ResumeNumberTooNew);
    finds(mark_and_resume, Fault::ResumeNumberDrawnLate);
}

#[test]
fn forgetting_a_queue_loses_nothing_for_a_subscriber_that_comes_back() {
    holds(forget_and_resume);
}

#[test]
fn forgetting_a_queue_loses_no_delayed_event() {
    holds(delay_and_forget);
}

#[test]
fn forgetting_a_queue_loses_no_timer_of_a_busy_listener() {
    holds(busy_ends_and_forget);
}

#[test]
fn a_dirty_mark_that_is_cleared_late_is_found() {
    finds(fan_out, Fault::MarkClearedAfterWalk);
}

#[test]
fn a_forgotten_record_that_is_not_marked_dead_is_found() {
    finds(delay_and_forget, Fault::DeadNotMarked);
    finds(busy_ends_and_forget, Fault::DeadNotMarked);
}

#[test]
fn a_pattern_that_a_queue_does_not_look_up_is_found() {
    finds(subscribe_pattern, Fault::NewPatternUnmatched);
    finds(later_queues, Fault::NewQueueUnmatched);
}

#[test]
fn a_take_that_its_queue_does_not_notice_is_found() {
    finds(later_queues, Fault::TakeUnnoticed);
}
