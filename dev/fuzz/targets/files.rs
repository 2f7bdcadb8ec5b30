//! The files of operators: scale policies and jobs of a sweeper.

use std::time::Duration;

use crate::{
    listener::{policy_file, scaling::Load},
    store::BlobName,
    sweep::SweepJob,
};

pub(super) fn files(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else {
        return;
    };
    match policy_file::parse(text) {
        Ok(policy) => {
            let tasks = |depth, concurrency, handling_time| {
                let load = Load {
                    depth,
                    concurrency,
                    handling_time,
                };
                policy.tasks(&load)
            };
            for time in [None, Some(Duration::ZERO), Some(Duration::MAX)] {
                for concurrency in [0, 1, usize::MAX] {
                    for depth in [0, 1, 1_000, u64::MAX] {
                        assert!(tasks(depth, concurrency, time) > 0, "{policy:?}");
                    }
                }
            }
        }
        Err(error) => assert!(!error.contains('\n'), "{error:?}"),
    }
    match SweepJob::parse(text) {
        Ok(job) => check_job(&job),
        Err(error) => assert!(!error.message().is_empty()),
    }
}

fn check_job(job: &SweepJob) {
    let day = Duration::from_secs(24 * 3600);
    assert!((Duration::from_secs(1)..=30 * day).contains(&job.interval));
    assert!((1..=5_000).contains(&job.page_size) && (1..=256).contains(&job.parallel));
    assert!(!job.containers.is_empty() && !job.state.is_empty());
    let blob = BlobName::new(&format!("sweeps/{}", job.name));
    blob.expect("the name of the job's document");
    let mut ids: Vec<String> = job
        .containers
        .iter()
        .map(|one| format!("{one:?}"))
        .collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), job.containers.len());
}
