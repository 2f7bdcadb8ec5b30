//! What may be on a disk after a loss of power.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;

use crate::{
    content::Content,
    replay::{Change, Durable, Replay},
};

/// The smallest part of a write that is written as a whole.
const SECTOR: usize = 512;

/// The files of a disk, by their names.
#[derive(Debug, Clone, Default)]
pub struct Image {
    pub(crate) files: BTreeMap<String, Content>,
}

/// Which of the changes that were not synced are in an image.
#[derive(Debug, Clone, Copy)]
enum Kept {
    None,
    All,
    /// Those up to some point, the last of them torn.
    First,
    /// Any of them, in their order, each possibly torn.
    Some,
    /// Any of them, in any order, each possibly torn.
    Shuffled,
}

impl Image {
    /// Returns the names and contents of the files.
    pub fn files(&mut self) -> &mut BTreeMap<String, Content> {
        &mut self.files
    }
}

impl Replay {
    /// Returns one of the images that the disk may have if the power is lost at this point.
    pub fn image(&self, random: &mut Rng) -> Image {
        // Of each name's changes those up to some point are kept.
        let mut names = self.names.clone();
        let mut lost = BTreeSet::new();
        for (name, number) in &self.pending_names {
            if lost.contains(name) || random.bool() {
                lost.insert(name);
                continue;
            }
            match number {
                Some(number) => names.insert(name.clone(), *number),
                None => names.remove(name),
            };
        }
        let files = names.into_iter().map(|(name, number)| {
            let durable = &self.files[&number];
            let mut content = durable.after_power_loss(random);
            if name.ends_with("-wal") {
                add_garbage(&mut content, durable, random);
            }
            (name, content)
        });
        Image {
            files: files.collect(),
        }
    }

    /// Returns the image in which each change reached the disk, as after a crash of the process.
    pub fn unharmed_image(&self) -> Image {
        let mut names = self.names.clone();
        for (name, number) in &self.pending_names {
            match number {
                Some(number) => names.insert(name.clone(), *number),
                None => names.remove(name),
            };
        }
        let files = names.into_iter().map(|(name, number)| {
            let durable = &self.files[&number];
            let mut content = durable.content.clone();
            durable
                .pending
                .iter()
                .for_each(|change| change.apply(&mut content));
            (name, content)
        });
        Image {
            files: files.collect(),
        }
    }
}

impl Durable {
    fn after_power_loss(&self, random: &mut Rng) -> Content {
        let mut content = self.content.clone();
        let count = self.pending.len();
        if count == 0 {
            return content;
        }
        let kept = match random.u8(..10) {
            0 => Kept::None,
            1 => Kept::All,
            2..=4 => Kept::First,
            5..=7 => Kept::Some,
            _ => Kept::Shuffled,
        };
        let mut order: Vec<usize> = (0..count).collect();
        let end = random.usize(..=count);
        // Few, half, or most of them.
        let share = [0.1, 0.5, 0.9][random.usize(..3)];
        match kept {
            Kept::None => order.clear(),
            Kept::All => {}
            Kept::First => order.truncate(end),
            Kept::Some => order.retain(|_| random.f64() < share),
            Kept::Shuffled => {
                order.retain(|_| random.f64() < share);
                random.shuffle(&mut order);
            }
        }
        let last = order.last().copied();
        for at in order {
            let torn = match kept {
                Kept::None | Kept::All => false,
                Kept::First => Some(at) == last,
                Kept::Some | Kept::Shuffled => random.u8(..4) == 0,
            };
            match &self.pending[at] {
                Change::Write { offset, data } if torn => {
                    write_torn(&mut content, *offset, data, random);
                }
                change => change.apply(&mut content),
            }
        }
        content
    }
}

/// Writes any of the sectors that the data touches.
pub(crate) fn write_torn(content: &mut Content, offset: usize, data: &[u8], random: &mut Rng) {
    let mut at = 0;
    while at < data.len() {
        let sector_end = (offset + at + 1).next_multiple_of(SECTOR) - offset;
        let end = sector_end.min(data.len());
        if random.bool() {
            content.write(offset + at, &data[at..end]);
        }
        at = end;
    }
}

/// Adds sectors behind the end of a log that grew: a file system may have made it longer before its
/// data was written. They have random bytes, or bytes from an earlier part of the log.
fn add_garbage(content: &mut Content, durable: &Durable, random: &mut Rng) {
    let grew = durable.pending.iter().any(|change| match change {
        Change::Write { offset, data } => offset + data.len() > durable.content.len(),
        Change::Truncate { .. } => false,
    });
    if !grew || random.u8(..3) > 0 {
        return;
    }
    let (end, sectors) = (content.len(), random.usize(1..=24));
    let garbage = match random.bool() {
        true => (0..sectors * SECTOR).map(|_| random.u8(..)).collect(),
        false => content.part(random.usize(..=end), sectors * SECTOR),
    };
    content.write(end, &garbage);
}
