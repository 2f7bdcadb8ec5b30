//! Mounted disks, seeds, and the images of a recording.

use std::{ops::Range, path::PathBuf, sync::Arc};

use fastrand::Rng;
use reveille_power_loss::{Disk, Event, Image, Replay, install};

/// A disk with its directory; both go with it.
pub(crate) struct Mounted {
    pub(crate) disk: Arc<Disk>,
    _directory: tempfile::TempDir,
}

/// A workload's events and history, from an empty disk to its end.
pub(crate) struct Recording<H> {
    pub(crate) events: Vec<Event>,
    pub(crate) history: H,
}

/// A violation of a promise.
pub(crate) type Violation = String;

impl Mounted {
    pub(crate) fn new(image: &Image) -> Self {
        install();
        let directory = tempfile::tempdir().expect("a directory");
        let disk = Disk::mount(directory.path(), image);
        // The product looks for the file on the real disk.
        std::fs::write(disk.path("file.db"), []).expect("an empty file");
        Self {
            disk,
            _directory: directory,
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.disk.path("file.db")
    }

    /// Checks the structure of the database.
    pub(crate) fn check_integrity(&self) -> Result<(), Violation> {
        let read = || -> rusqlite::Result<String> {
            let connection = rusqlite::Connection::open(self.path())?;
            connection.query_row("PRAGMA integrity_check", [], |row| row.get(0))
        };
        match read() {
            Ok(answer) if answer == "ok" => Ok(()),
            Ok(answer) => Err(format!("integrity check: {answer}")),
            Err(error) => Err(format!("integrity check: {error}")),
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.disk.unmount();
    }
}

/// Returns the seeds of a test: that of `REVEILLE_SEED`, or the given ones.
pub(crate) fn seeds(all: Range<u64>) -> Range<u64> {
    match std::env::var("REVEILLE_SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("REVEILLE_SEED is a number");
            seed..seed + 1
        }
        Err(_) => all,
    }
}

/// Whether a test takes all of its images: with `REVEILLE_FULL=1`, and for the replay of a seed. The
/// images of a quick run are replayed with `REVEILLE_FULL=0`.
pub(crate) fn is_full() -> bool {
    match std::env::var_os("REVEILLE_FULL") {
        Some(set) => set == "1",
        None => std::env::var_os("REVEILLE_SEED").is_some(),
    }
}

/// Returns how many of these images or flips a test takes: all, or a seventh.
pub(crate) fn share(all: usize) -> usize {
    if is_full() { all } else { all.div_ceil(7) }
}

/// Runs a test's future.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(work)
}

/// Takes about `count` images, spread evenly over the points of a recording, calls `check` with each
/// and its point, and returns the number of images and the violations.
pub(crate) async fn check_images<H>(
    recording: &Recording<H>,
    seed: u64,
    count: usize,
    check: impl AsyncFn(&Image, usize) -> Result<(), Violation>,
) -> (usize, Vec<Violation>) {
    let mut random = Rng::with_seed(seed ^ 0x0001_4a6e);
    let points = recording.events.len() + 1;
    let share = (count as f64 / points as f64).min(3.0);
    let mut replay = Replay::new(&Image::default());
    let (mut images, mut violations) = (0, Vec::new());
    let mut wanted = random.f64();
    for point in 0..points {
        wanted = wanted.fract() + share;
        while wanted >= 1.0 {
            wanted -= 1.0;
            let image = replay.image(&mut random);
            images += 1;
            if let Err(violation) = check(&image, point).await {
                violations.push(format!("seed {seed}, event {point}: {violation}"));
            }
            if replay.is_synced() {
                break;
            }
        }
        if let Some(event) = recording.events.get(point) {
            replay.step(event, &mut random);
        }
    }
    (images, violations)
}

/// Fails with the first violations.
pub(crate) fn assert_none(violations: &[Violation]) {
    let first: Vec<_> = violations.iter().take(5).collect();
    assert!(
        violations.is_empty(),
        "{} violations; replay with REVEILLE_FULL={} and REVEILLE_SEED: {first:#?}",
        violations.len(),
        u8::from(is_full())
    );
}
