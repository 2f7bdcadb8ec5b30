//! The index of a write-ahead log in shared memory, and its eight locks.
//!
//! All connections are in this process, so the memory is plain memory. It does not outlive its last
//! handle, and so it is lost with the power.

use std::{cell::UnsafeCell, collections::HashMap, ffi::c_void};

use rusqlite::ffi::SQLITE_BUSY;

use crate::disk::Outcome;

/// Aligned for the 64-bit values of the index.
type Region = Box<[UnsafeCell<u64>]>;

/// The regions of a file's index, and the locks that each handle holds.
#[derive(Debug, Default)]
pub(crate) struct SharedMemory {
    regions: Vec<Region>,
    locks: HashMap<u64, Masks>,
}

/// A bit for each lock.
#[derive(Debug, Clone, Copy, Default)]
struct Masks {
    shared: u8,
    exclusive: u8,
}

impl SharedMemory {
    /// Returns a region's address, which is valid until the last handle leaves; `None` if the region
    /// does not exist and is not to be made.
    pub(crate) fn map(
        &mut self,
        handle: u64,
        index: usize,
        size: usize,
        make: bool,
    ) -> Option<*mut c_void> {
        self.locks.entry(handle).or_default();
        while make && self.regions.len() <= index {
            let words = (0..size.div_ceil(8)).map(|_| UnsafeCell::new(0));
            self.regions.push(words.collect());
        }
        let region = self.regions.get(index)?;
        Some(region.as_ptr().cast::<c_void>().cast_mut())
    }

    pub(crate) fn lock(&mut self, handle: u64, mask: u8, exclusive: bool) -> Outcome<()> {
        let others = self.locks.iter().filter(|(other, _)| **other != handle);
        for (_, held) in others {
            let conflicting = match exclusive {
                true => held.shared | held.exclusive,
                false => held.exclusive,
            };
            if conflicting & mask != 0 {
                return Err(SQLITE_BUSY);
            }
        }
        let own = self.locks.entry(handle).or_default();
        match exclusive {
            true => own.exclusive |= mask,
            false => own.shared |= mask,
        }
        Ok(())
    }

    pub(crate) fn unlock(&mut self, handle: u64, mask: u8) {
        let own = self.locks.entry(handle).or_default();
        own.shared &= !mask;
        own.exclusive &= !mask;
    }

    pub(crate) fn leave(&mut self, handle: u64) {
        self.locks.remove(&handle);
        if self.locks.is_empty() {
            self.regions.clear();
        }
    }
}
