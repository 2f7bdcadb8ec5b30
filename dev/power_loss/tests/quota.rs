//! Fault D7: the disk is full, and later has room again.

use fastrand::Rng;
use reveille::ErrorKind;

use crate::{
    queue::{Workload, read_image},
    support::{assert_none, block_on, check_images, seeds, share},
};

/// D7. A put that is refused was not done, and an acknowledged put is not lost, also if the
/// power is lost while the disk is full.
#[test]
fn a_full_disk_refuses_puts_and_loses_none() {
    let (mut images, mut violations) = (0, Vec::new());
    for seed in seeds(0..12) {
        block_on(async {
            let mut random = Rng::with_seed(seed);
            let mut workload = Workload::new(seed);
            let disk = std::sync::Arc::clone(&workload.mounted.disk);
            for round in 0..4 {
                for _ in 0..6 {
                    workload.step().await;
                }
                assert!(workload.errors.is_empty(), "{:?}", workload.errors);
                disk.set_quota(Some(disk.used() + random.usize(..40_000)));
                for _ in 0..40 {
                    workload.step().await;
                }
                disk.set_quota(None);
                let errors = std::mem::take(&mut workload.errors);
                let full = |error: &&reveille::Error| error.kind() == ErrorKind::Exhausted;
                let exhausted = errors.iter().filter(full).count();
                assert_eq!(exhausted, errors.len(), "seed {seed}: {errors:?}");
                assert!(exhausted > 0, "seed {seed}, round {round}: never full");
                assert!(workload.open().await, "{:?}", workload.errors);
                workload.put().await;
                workload.get().await;
                workload.delete().await;
                assert!(workload.errors.is_empty(), "{:?}", workload.errors);
            }
            let recording = workload.run(0).await;
            let check = async |image: &_, point| {
                let found = read_image(image).await?;
                recording.history.check(point, found.as_deref())
            };
            let (count, found) = check_images(&recording, seed, share(100), check).await;
            images += count;
            violations.extend(found);
        });
    }
    println!("{images} images");
    assert_none(&violations);
}
