//! Faults D1 and D2 on the blob store: each acknowledged write and deletion survives.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use fastrand::Rng;
use reveille::{
    Error,
    store::{self, BlobName, BlobStore, ETag, PageOptions},
};
use reveille_power_loss::Image;

use crate::{
    history::{Span, body},
    queue::words,
    support::{Mounted, Recording, Violation, assert_none, block_on, check_images, seeds, share},
};

/// The names of the blobs.
const NAMES: u64 = 6;

/// The writes of each name in their order; `None` is a deletion.
type Writes = BTreeMap<String, Vec<(Span, Option<Bytes>)>>;

/// A store on a disk, with its writes.
struct Workload {
    mounted: Mounted,
    random: Rng,
    store: Option<Arc<dyn BlobStore>>,
    etags: BTreeMap<String, ETag>,
    writes: Writes,
    next: u64,
}

async fn open(mounted: &Mounted) -> Result<Arc<dyn BlobStore>, Error> {
    store::open(&format!("sqlite:{}", mounted.path().display())).await
}

impl Workload {
    fn new(seed: u64) -> Self {
        Self {
            mounted: Mounted::new(&Image::default()),
            random: Rng::with_seed(seed),
            store: None,
            etags: BTreeMap::new(),
            writes: Writes::new(),
            next: 1,
        }
    }

    async fn run(mut self, steps: usize) -> Recording<Writes> {
        for _ in 0..steps {
            if self.random.u8(..30) == 0 {
                self.close();
            }
            self.write().await;
        }
        self.close();
        Recording {
            events: self.mounted.disk.events(),
            history: self.writes,
        }
    }

    fn close(&mut self) {
        self.store = None;
        self.mounted.disk.wait_until_closed();
    }

    async fn write(&mut self) {
        let store = match &self.store {
            Some(store) => Arc::clone(store),
            None => open(&self.mounted).await.expect("open"),
        };
        self.store = Some(Arc::clone(&store));
        let name = format!("flags/{}", self.random.u64(..NAMES));
        let blob = BlobName::new(&name).expect("a name");
        self.next += 1;
        let len = [30, 900, 20_000][self.random.usize(..3)];
        let value = body(self.next, self.random.usize(..len));
        let begun = self.mounted.disk.moment();
        let (value, etag) = match self.etags.get(&name) {
            None => {
                let etag = store.create(&blob, value.clone().into()).await;
                (Some(value), Some(etag.expect("created")))
            }
            Some(etag) if self.random.u8(..4) > 0 => {
                let etag = store.update(&blob, value.clone().into(), etag).await;
                (Some(value), Some(etag.expect("updated")))
            }
            Some(etag) => {
                let deleted = store.delete(&blob, Some(etag)).await;
                assert!(deleted.expect("deleted"));
                (None, None)
            }
        };
        let done = Some(self.mounted.disk.moment());
        match etag {
            Some(etag) => self.etags.insert(name.clone(), etag),
            None => self.etags.remove(&name),
        };
        let writes = self.writes.entry(name).or_default();
        writes.push((Span { begun, done }, value));
    }
}

/// Checks all blobs of an image.
async fn check(image: &Image, writes: &Writes, point: usize) -> Result<(), Violation> {
    let mounted = Mounted::new(image);
    let store = open(&mounted).await;
    let store = store.map_err(|error| format!("open: {}", words(&error)))?;
    mounted.check_integrity()?;
    let failed = |error: Error| words(&error);
    let listed = store.list("", &PageOptions::default()).await;
    let mut listed = listed.map_err(failed)?.entries.into_iter().peekable();
    for (name, writes) in writes {
        let blob = BlobName::new(name).expect("a name");
        let found = store.get(&blob).await.map_err(failed)?;
        let found = found.map(|blob| blob.content.bytes);
        let is_listed = listed.next_if(|entry| entry.name == blob).is_some();
        if is_listed != found.is_some() {
            return Err(format!("{name} is listed: {is_listed}"));
        }
        let last = writes.iter().rposition(|(span, _)| span.is_done(point));
        let later = writes.iter().skip(last.map_or(0, |last| last + 1));
        let mut allowed = vec![last.and_then(|last| writes[last].1.clone())];
        allowed.extend(
            later
                .filter(|(span, _)| span.has_begun(point))
                .map(|(_, value)| value.clone()),
        );
        if !allowed.contains(&found) {
            let len = found.map(|found| found.len());
            return Err(format!(
                "{name} has none of its {} values: {len:?} bytes",
                allowed.len()
            ));
        }
    }
    match listed.next() {
        Some(entry) => Err(format!("{} was never written", entry.name)),
        None => Ok(()),
    }
}

/// D1, D2.
#[test]
fn a_store_keeps_its_acknowledged_writes_over_a_loss_of_power() {
    let (mut images, mut violations) = (0, Vec::new());
    for seed in seeds(0..12) {
        block_on(async {
            let recording = Workload::new(seed).run(100).await;
            let writes = &recording.history;
            let check = async |image: &_, point| check(image, writes, point).await;
            let (count, found) = check_images(&recording, seed, share(400), check).await;
            images += count;
            violations.extend(found);
        });
    }
    println!("{images} images");
    assert_none(&violations);
}

/// D5: the same check notices a disk that ignores syncs.
#[test]
fn the_check_of_a_store_notices_a_disk_that_ignores_syncs() {
    for seed in seeds(0..2) {
        block_on(async {
            let workload = Workload::new(seed);
            workload.mounted.disk.ignore_syncs();
            let recording = workload.run(100).await;
            let writes = &recording.history;
            let check = async |image: &_, point| check(image, writes, point).await;
            let (images, violations) = check_images(&recording, seed, 60, check).await;
            assert!(violations.len() * 2 > images, "of {images}: {violations:?}");
        });
    }
}
