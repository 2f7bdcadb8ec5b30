//! Faults D1 and D2: the power is lost at any point of a workload. Of the writes that were not
//! synced any may be lost, reordered or torn, and the log may have garbage behind its end.

use crate::{
    queue::{Workload, read_image},
    support::{assert_none, block_on, check_images, seeds, share},
};

/// D1, D2. In a full run most events have an image.
#[test]
fn a_queue_keeps_its_acknowledged_calls_over_a_loss_of_power() {
    let (mut images, mut violations) = (0, Vec::new());
    for seed in seeds(0..16) {
        block_on(async {
            let recording = Workload::new(seed).run(60).await;
            let check = async |image: &_, point| {
                let found = read_image(image).await?;
                recording.history.check(point, found.as_deref())
            };
            let (count, found) = check_images(&recording, seed, share(400), check).await;
            images += count;
            violations.extend(found);
        });
    }
    println!("{images} images");
    assert_none(&violations);
}
