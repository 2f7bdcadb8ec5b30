//! The locks of a database file: SQLite's five levels.

use std::{collections::HashMap, ffi::c_int};

use rusqlite::ffi::{
    SQLITE_BUSY, SQLITE_LOCK_EXCLUSIVE, SQLITE_LOCK_NONE, SQLITE_LOCK_PENDING,
    SQLITE_LOCK_RESERVED, SQLITE_LOCK_SHARED,
};

use crate::disk::Outcome;

/// The level that each handle of a file holds.
#[derive(Debug, Default)]
pub(crate) struct FileLocks {
    levels: HashMap<u64, c_int>,
}

impl FileLocks {
    pub(crate) fn lock(&mut self, handle: u64, level: c_int) -> Outcome<()> {
        let own = self.level(handle);
        if own >= level {
            return Ok(());
        }
        let others = self.highest_of_others(handle);
        if level == SQLITE_LOCK_SHARED && others >= SQLITE_LOCK_PENDING
            || level >= SQLITE_LOCK_RESERVED && others >= SQLITE_LOCK_RESERVED
        {
            return Err(SQLITE_BUSY);
        }
        if level == SQLITE_LOCK_EXCLUSIVE && others >= SQLITE_LOCK_SHARED {
            // Keeps new readers out, as SQLite's own VFS does.
            self.levels.insert(handle, SQLITE_LOCK_PENDING);
            return Err(SQLITE_BUSY);
        }
        self.levels.insert(handle, level);
        Ok(())
    }

    pub(crate) fn unlock(&mut self, handle: u64, level: c_int) {
        let level = self.level(handle).min(level);
        self.levels.insert(handle, level);
    }

    pub(crate) fn is_reserved(&self) -> bool {
        self.levels
            .values()
            .any(|level| *level >= SQLITE_LOCK_RESERVED)
    }

    pub(crate) fn forget(&mut self, handle: u64) {
        self.levels.remove(&handle);
    }

    fn level(&self, handle: u64) -> c_int {
        self.levels
            .get(&handle)
            .copied()
            .unwrap_or(SQLITE_LOCK_NONE)
    }

    fn highest_of_others(&self, handle: u64) -> c_int {
        let others = self.levels.iter().filter(|(other, _)| **other != handle);
        let levels = others.map(|(_, level)| *level);
        levels.max().unwrap_or(SQLITE_LOCK_NONE)
    }
}
