//! Copies of a queue file with one flipped bit.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use fastrand::Rng;
use reveille_power_loss::install;

use super::Bodies;
use crate::history::body;

/// A closed queue file, or one with its log.
pub(super) struct Original {
    pub(super) main: Vec<u8>,
    pub(super) log: Option<Vec<u8>>,
    pub(super) committed: Bodies,
    /// The table or index of each page, by the page's number.
    areas: BTreeMap<usize, String>,
}

/// A copy in a directory of its own.
pub(super) struct Copy {
    home: tempfile::TempDir,
}

/// A flipped bit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flip {
    pub(super) offset: usize,
    pub(super) bit: u8,
}

const PAGE: usize = 4096;

impl Original {
    /// Reads a file that is closed.
    pub(super) fn closed(path: &Path, committed: Bodies) -> Self {
        wait_until_closed(path);
        Self {
            main: fs::read(path).expect("a file"),
            log: None,
            committed,
            areas: areas(path),
        }
    }

    /// Returns the table or index of the page that holds an offset of the file.
    pub(super) fn area(&self, offset: usize) -> &str {
        let area = self.areas.get(&(offset / PAGE + 1));
        area.map_or("no table", String::as_str)
    }

    /// Returns a random bit of the file. Half of them are in bytes that are not zero: most bytes of
    /// the file are free.
    pub(super) fn flip(&self, random: &mut Rng) -> Flip {
        let is_used = random.bool();
        loop {
            let offset = random.usize(..self.main.len());
            if !is_used || self.main[offset] != 0 {
                let bit = random.u8(..8);
                return Flip { offset, bit };
            }
        }
    }

    /// Writes a copy with a flipped bit in the file.
    pub(super) fn copy(&self, flip: Option<Flip>) -> Copy {
        let mut main = self.main.clone();
        if let Some(flip) = flip {
            main[flip.offset] ^= 1 << flip.bit;
        }
        let copy = Copy::new();
        fs::write(copy.path(), main).expect("written");
        if let Some(log) = &self.log {
            copy.write_log(log);
        }
        copy
    }
}

impl Copy {
    pub(super) fn new() -> Self {
        install();
        // In memory if the system has a place for that: the syncs of a disk would take most of the
        // time, and a flipped bit needs none.
        let memory = Path::new("/dev/shm");
        let home = match memory.is_dir() {
            true => tempfile::tempdir_in(memory),
            false => tempfile::tempdir(),
        };
        let home = home.expect("a directory");
        Self { home }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.home.path().join("queues.db")
    }

    pub(super) fn write_log(&self, log: &[u8]) {
        fs::write(self.home.path().join("queues.db-wal"), log).expect("written");
    }

    /// Marks the file as hosted before, and as closed in order or not.
    pub(super) fn mark(&self, was_clean: bool) {
        let mark = if was_clean { "clean\n" } else { "in use\n" };
        fs::write(self.home.path().join("queues.db.host"), mark).expect("written");
    }
}

/// Makes a body of up to 60, 900 or 9,000 bytes: the longest ones fill pages of their own.
pub(super) fn random_body(number: u64, random: &mut Rng) -> Bytes {
    let longest = [60, 60, 900, 9_000][random.usize(..4)];
    body(number, random.usize(..longest))
}

/// Waits until all connections are closed: the last one removes the log.
pub(super) fn wait_until_closed(path: &Path) {
    let log = path.with_file_name("queues.db-wal");
    for _ in 0..1_000 {
        if !log.exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("the file stays open");
}

fn areas(path: &Path) -> BTreeMap<usize, String> {
    let connection = rusqlite::Connection::open(path).expect("open");
    let mut select = connection
        .prepare("SELECT pageno, name FROM dbstat")
        .expect("prepared");
    let rows = select.query_map((), |row| Ok((row.get::<_, u32>(0)? as usize, row.get(1)?)));
    rows.expect("selected")
        .map(|row| row.expect("read"))
        .collect()
}
