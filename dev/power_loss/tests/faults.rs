//! Fault D3: each single call to the disk fails, and calls fail in a row.
//!
//! A call of the queue then fails too, or its effect is there. Nothing that is acknowledged after
//! the fault is lost with the power. A failed sync loses its writes: the next sync succeeds without
//! them, as on Linux.

use fastrand::Rng;
use reveille_power_loss::{Call, Failure, Fault, Image, Replay};

use crate::{
    history::History,
    queue::{Workload, read_image},
    support::{Recording, Violation, assert_none, block_on, is_full, seeds},
};

const STEPS: usize = 16;

/// The ways in which calls fail.
const FAILURES: [(Call, Failure); 8] = [
    (Call::Read, Failure::Error),
    (Call::Write, Failure::Error),
    (Call::Write, Failure::Short),
    (Call::Write, Failure::Full),
    (Call::Sync, Failure::Error),
    (Call::Truncate, Failure::Error),
    (Call::Open, Failure::Error),
    (Call::Delete, Failure::Error),
];

/// Runs the workload with a fault. Returns its recording, and the numbers of failed calls of the
/// disk and of the queue.
async fn run(seed: u64, fault: Fault) -> (Recording<History>, u64, usize) {
    let mut workload = Workload::new(seed);
    let disk = std::sync::Arc::clone(&workload.mounted.disk);
    disk.set_fault(Some(fault));
    for _ in 0..STEPS {
        workload.step().await;
    }
    // The disk works again: the queue does, too.
    disk.set_fault(None);
    workload.close();
    let errors = std::mem::take(&mut workload.errors);
    for _ in 0..4 {
        workload.step().await;
    }
    assert!(
        workload.errors.is_empty(),
        "{fault:?}: {:?}",
        workload.errors
    );
    let recording = workload.run(0).await;
    (recording, disk.failed_calls(), errors.len())
}

/// Checks the image that the processes saw at the end, and some after a loss of power.
async fn check(recording: &Recording<History>, random: &mut Rng) -> Result<usize, Violation> {
    let points = recording.events.len();
    let mut wanted: Vec<usize> = (0..2).map(|_| random.usize(..points)).collect();
    wanted.push(points);
    let mut replay = Replay::new(&Image::default());
    let mut images = 0;
    for point in 0..=points {
        for _ in wanted.iter().filter(|wanted| **wanted == point) {
            let found = read_image(&replay.image(random)).await?;
            recording.history.check(point, found.as_deref())?;
            images += 1;
        }
        if let Some(event) = recording.events.get(point) {
            replay.step(event, random);
        }
    }
    Ok(images)
}

/// Fails `count` calls in a row, from each call of the workload on; from every third one in a
/// quick run.
fn fail_each_call(seed: u64, count: u64, failures: &[(Call, Failure)]) {
    let mut random = Rng::with_seed(seed);
    let (mut runs, mut images, mut errors) = (0, 0, 0);
    let step = if is_full() { 1 } else { 3 };
    let mut violations = Vec::new();
    block_on(async {
        for &(call, failure) in failures {
            for first in (0..).step_by(step) {
                let fault = Fault {
                    call,
                    first,
                    count,
                    failure,
                };
                let (recording, failed, seen) = run(seed, fault).await;
                if failed == 0 {
                    break;
                }
                runs += 1;
                errors += seen;
                match check(&recording, &mut random).await {
                    Ok(count) => images += count,
                    Err(violation) => {
                        violations.push(format!("seed {seed}, {fault:?}: {violation}"));
                    }
                }
            }
        }
    });
    println!("{runs} runs, {errors} failed calls of the queue, {images} images");
    assert!(errors > 0);
    assert_none(&violations);
}

/// D3. `PRAGMA journal_mode = wal` among them, whose failed commit once left the old mode.
#[test]
fn a_single_failed_call_of_the_disk_loses_nothing_acknowledged() {
    for seed in seeds(0..1) {
        fail_each_call(seed, 1, &FAILURES);
    }
}

/// D3. The second failure meets the code that handles the first one: after a failed sync of a commit
/// the file cannot be closed in order, and the log keeps the commit that is not on the disk.
#[test]
fn failed_calls_of_the_disk_in_a_row_lose_nothing_acknowledged() {
    for seed in seeds(2..3) {
        for count in [2, 6] {
            fail_each_call(seed, count, &FAILURES[3..6]);
        }
    }
}
