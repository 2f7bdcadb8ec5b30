//! Fault D5, as a control: on a disk that ignores syncs, or on one whose syncs do not cover the
//! writes before them, the same checks must report violations. A disk that lies about syncs is
//! outside of what one machine can promise.

use crate::{
    history::History,
    queue::{Workload, read_image},
    support::{Recording, block_on, check_images, seeds},
};
use reveille_power_loss::Event;

/// Counts the images with a violation.
async fn violations(recording: &Recording<History>, seed: u64, images: usize) -> (usize, usize) {
    let check = async |image: &_, point| {
        let found = read_image(image).await?;
        recording.history.check(point, found.as_deref())
    };
    let (images, violations) = check_images(recording, seed, images, check).await;
    (images, violations.len())
}

/// D5.
#[test]
fn the_checks_notice_a_disk_that_ignores_syncs() {
    for seed in seeds(0..3) {
        block_on(async {
            let workload = Workload::new(seed);
            workload.mounted.disk.ignore_syncs();
            let recording = workload.run(60).await;
            let (images, violations) = violations(&recording, seed, 60).await;
            println!("seed {seed}: {violations} of {images} images have a violation");
            assert!(violations * 2 > images, "{violations} of {images}");
        });
    }
}

/// D5. Each sync is lost alone: the workload is the same, so a check that passes by chance shows.
#[test]
fn the_checks_notice_that_every_tenth_sync_is_ignored() {
    for seed in seeds(0..3) {
        block_on(async {
            let mut recording = Workload::new(seed).run(60).await;
            let mut syncs = 0;
            // An event with no effect keeps the numbers of the others.
            for event in &mut recording.events {
                if matches!(event, Event::Sync { .. }) {
                    syncs += 1;
                    if syncs % 10 == 0 {
                        *event = Event::None;
                    }
                }
            }
            let (images, violations) = violations(&recording, seed, 300).await;
            println!("seed {seed}: {violations} of {images} images have a violation");
            assert!(violations > 0, "of {images} images and {syncs} syncs");
        });
    }
}
