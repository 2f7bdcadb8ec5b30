//! The record of a disk, and the durable state at each point of it.
//!
//! A write is durable after a sync of its file. A name is durable after a sync of the directory. A
//! failed sync may lose any of the writes before it, as on Linux: the next sync does not repeat
//! them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use fastrand::Rng;

use crate::{content::Content, image::Image, image::write_torn};

/// Identifies a file on its disk, also after its name is gone.
pub type FileNumber = u64;

/// A change of a file's content.
#[derive(Debug, Clone)]
pub enum Change {
    /// A write.
    Write {
        /// Where it begins.
        offset: usize,
        /// What it writes.
        data: Arc<[u8]>,
    },
    /// A new length.
    Truncate {
        /// The length.
        len: usize,
    },
}

/// An event on a disk.
#[derive(Debug, Clone)]
pub enum Event {
    /// A file got a name.
    Link {
        /// The name.
        name: String,
        /// The file.
        number: FileNumber,
    },
    /// A file lost its name.
    Unlink {
        /// The name.
        name: String,
    },
    /// A file was changed.
    Change {
        /// The file.
        file: FileNumber,
        /// The change.
        change: Change,
    },
    /// A file was synced.
    Sync {
        /// The file.
        file: FileNumber,
    },
    /// A sync of a file failed.
    FailedSync {
        /// The file.
        file: FileNumber,
    },
    /// The directory was synced.
    SyncDirectory,
    /// Nothing: stands for an event that a test takes out.
    None,
}

/// A file's durable content, and the changes since its last sync.
#[derive(Debug, Clone, Default)]
pub(crate) struct Durable {
    pub(crate) content: Content,
    pub(crate) pending: Vec<Change>,
}

/// The durable state of a disk, event by event.
#[derive(Debug)]
pub struct Replay {
    pub(crate) files: HashMap<FileNumber, Durable>,
    pub(crate) names: BTreeMap<String, FileNumber>,
    /// The changes of names since the last sync of the directory.
    pub(crate) pending_names: Vec<(String, Option<FileNumber>)>,
}

impl Change {
    pub(crate) fn apply(&self, content: &mut Content) {
        match self {
            Self::Write { offset, data } => content.write(*offset, data),
            Self::Truncate { len } => content.truncate(*len),
        }
    }
}

impl Replay {
    /// Begins with the image that the disk was mounted with.
    pub fn new(image: &Image) -> Self {
        let mut replay = Self {
            files: HashMap::new(),
            names: BTreeMap::new(),
            pending_names: Vec::new(),
        };
        for (number, (name, content)) in (0..).zip(&image.files) {
            let pending = Vec::new();
            let content = content.clone();
            replay.files.insert(number, Durable { content, pending });
            replay.names.insert(name.clone(), number);
        }
        replay
    }

    /// Goes past the next event of the disk.
    pub fn step(&mut self, event: &Event, random: &mut Rng) {
        match event {
            Event::Link { name, number } => {
                self.files.entry(*number).or_default();
                self.pending_names.push((name.clone(), Some(*number)));
            }
            Event::Unlink { name } => self.pending_names.push((name.clone(), None)),
            Event::Change { file, change } => self.durable(*file).pending.push(change.clone()),
            Event::Sync { file } => {
                let durable = self.durable(*file);
                for change in std::mem::take(&mut durable.pending) {
                    change.apply(&mut durable.content);
                }
            }
            Event::FailedSync { file } => self.durable(*file).fail(random),
            Event::None => {}
            Event::SyncDirectory => {
                for (name, number) in std::mem::take(&mut self.pending_names) {
                    match number {
                        Some(number) => self.names.insert(name, number),
                        None => self.names.remove(&name),
                    };
                }
            }
        }
    }

    /// Returns whether anything may be lost at this point.
    pub fn is_synced(&self) -> bool {
        let mut files = self.files.values();
        self.pending_names.is_empty() && files.all(|durable| durable.pending.is_empty())
    }

    fn durable(&mut self, file: FileNumber) -> &mut Durable {
        self.files.entry(file).or_default()
    }
}

impl Durable {
    /// Half of the failed syncs lose all writes, the others any of them.
    fn fail(&mut self, random: &mut Rng) {
        let loses_all = random.bool();
        for change in std::mem::take(&mut self.pending) {
            match change {
                Change::Truncate { .. } => change.apply(&mut self.content),
                Change::Write { .. } if loses_all => {}
                Change::Write { offset, data } => {
                    write_torn(&mut self.content, offset, &data, random);
                }
            }
        }
    }
}
