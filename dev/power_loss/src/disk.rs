//! The disk as running processes see it, and the record of their calls.
//!
//! Knows SQLite's error codes, and nothing of its C interface.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::c_int,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use rusqlite::ffi;

use crate::{
    content::Content,
    image::Image,
    locks::FileLocks,
    replay::{Change, Event, FileNumber},
    shared_memory::SharedMemory,
};

/// The result of a call: an error is SQLite's code.
pub(crate) type Outcome<T> = Result<T, c_int>;

/// A disk in memory, mounted at a directory. The directory must exist on the real disk, because the
/// product makes an empty file there.
#[derive(Debug)]
pub struct Disk {
    directory: PathBuf,
    /// Held by a test that keeps all calls waiting.
    gate: Mutex<()>,
    state: Mutex<State>,
}

/// A kind of call that can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    /// A read of a file.
    Read,
    /// A write of a file.
    Write,
    /// A sync of a file.
    Sync,
    /// A truncation of a file.
    Truncate,
    /// The opening of a file.
    Open,
    /// The deletion of a file.
    Delete,
}

/// How a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// EIO. A failed sync loses its writes: a later sync succeeds without them.
    Error,
    /// A write of the first half, then EIO.
    Short,
    /// A write of the first half, then ENOSPC.
    Full,
}

/// Calls that will fail.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// The kind of the calls.
    pub call: Call,
    /// The first failing call of this kind, counted from 0.
    pub first: u64,
    /// The number of failing calls.
    pub count: u64,
    /// How they fail.
    pub failure: Failure,
}

#[derive(Debug, Default)]
struct State {
    names: BTreeMap<String, FileNumber>,
    files: HashMap<FileNumber, Content>,
    next_file: FileNumber,
    events: Vec<Event>,
    locks: HashMap<FileNumber, FileLocks>,
    shared: HashMap<FileNumber, SharedMemory>,
    open_handles: usize,
    calls: BTreeMap<Call, u64>,
    fault: Option<Fault>,
    failed: u64,
    quota: Option<usize>,
    ignores_syncs: bool,
}

static MOUNTED: Mutex<BTreeMap<PathBuf, Arc<Disk>>> = Mutex::new(BTreeMap::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Disk {
    /// Mounts a disk with the image's content at a directory.
    ///
    /// # Panics
    /// If the directory does not exist, or has a disk already.
    pub fn mount(directory: &Path, image: &Image) -> Arc<Self> {
        let directory = directory.canonicalize().expect("a directory that exists");
        let mut state = State::default();
        for (name, content) in &image.files {
            let number = state.next_file;
            state.next_file += 1;
            state.names.insert(name.clone(), number);
            state.files.insert(number, content.clone());
        }
        let disk = Arc::new(Self {
            directory: directory.clone(),
            gate: Mutex::new(()),
            state: Mutex::new(state),
        });
        let before = lock(&MOUNTED).insert(directory, Arc::clone(&disk));
        assert!(before.is_none(), "the directory has a disk already");
        disk
    }

    /// Ends the mount. Connections that are still open keep working on it.
    pub fn unmount(&self) {
        lock(&MOUNTED).remove(&self.directory);
    }

    /// Returns the disk of a path, and the file's name on it.
    pub(crate) fn of(path: &Path) -> Option<(Arc<Self>, String)> {
        let disk = Arc::clone(lock(&MOUNTED).get(path.parent()?)?);
        Some((disk, path.file_name()?.to_str()?.to_owned()))
    }

    /// Returns the path of a file on this disk.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Keeps all calls waiting until the guard is dropped.
    pub fn hold(&self) -> MutexGuard<'_, ()> {
        lock(&self.gate)
    }

    /// Returns the number of events so far: the present moment, for comparison with crash points.
    pub fn moment(&self) -> usize {
        lock(&self.state).events.len()
    }

    /// Returns the events so far.
    pub fn events(&self) -> Vec<Event> {
        lock(&self.state).events.clone()
    }

    /// Returns the number of calls of each kind so far.
    pub fn calls(&self) -> BTreeMap<Call, u64> {
        lock(&self.state).calls.clone()
    }

    /// Sets the calls that will fail; the calls are counted from 0 again.
    pub fn set_fault(&self, fault: Option<Fault>) {
        let mut state = lock(&self.state);
        state.calls.clear();
        state.fault = fault;
    }

    /// Returns the number of calls that have failed.
    pub fn failed_calls(&self) -> u64 {
        lock(&self.state).failed
    }

    /// Sets the largest sum of all files' lengths.
    pub fn set_quota(&self, quota: Option<usize>) {
        lock(&self.state).quota = quota;
    }

    /// Returns the sum of the lengths of all files that have a name.
    pub fn used(&self) -> usize {
        lock(&self.state).used()
    }

    /// From now on a sync does nothing and succeeds.
    pub fn ignore_syncs(&self) {
        lock(&self.state).ignores_syncs = true;
    }

    /// Waits until no file is open.
    ///
    /// # Panics
    /// If a file is open for a minute.
    pub fn wait_until_closed(&self) {
        for _ in 0..600_000 {
            if lock(&self.state).open_handles == 0 {
                return;
            }
            thread::sleep(Duration::from_micros(100));
        }
        panic!("a file of {} is still open", self.directory.display());
    }

    /// Returns the content as processes see it.
    pub fn seen(&self) -> Image {
        let state = lock(&self.state);
        let named = |(name, number): (&String, &FileNumber)| {
            Some((name.clone(), state.files.get(number)?.clone()))
        };
        let files = state.names.iter().filter_map(named).collect();
        Image { files }
    }

    pub(crate) fn open(&self, name: &str, create: bool) -> Outcome<FileNumber> {
        let mut state = self.enter();
        state.call(Call::Open, ffi::SQLITE_CANTOPEN)?;
        let number = match state.names.get(name) {
            Some(number) => *number,
            None if create => {
                let number = state.next_file;
                state.next_file += 1;
                state.names.insert(name.to_owned(), number);
                state.files.insert(number, Content::default());
                let name = name.to_owned();
                state.events.push(Event::Link { name, number });
                number
            }
            None => return Err(ffi::SQLITE_CANTOPEN),
        };
        state.open_handles += 1;
        Ok(number)
    }

    pub(crate) fn close(&self, file: FileNumber, handle: u64) {
        let mut state = self.enter();
        state.open_handles -= 1;
        state.locks.entry(file).or_default().forget(handle);
        state.shared.entry(file).or_default().leave(handle);
    }

    pub(crate) fn delete(&self, name: &str, sync: bool) -> Outcome<()> {
        let mut state = self.enter();
        state.call(Call::Delete, ffi::SQLITE_IOERR_DELETE)?;
        if state.names.remove(name).is_none() {
            return Err(ffi::SQLITE_IOERR_DELETE_NOENT);
        }
        let name = name.to_owned();
        state.events.push(Event::Unlink { name });
        if sync && !state.ignores_syncs {
            state.events.push(Event::SyncDirectory);
        }
        Ok(())
    }

    /// Returns whether the file exists and has a byte, which is SQLite's own meaning on Unix.
    pub(crate) fn exists(&self, name: &str) -> bool {
        let state = self.enter();
        let number = state.names.get(name);
        number.is_some_and(|number| !state.files[number].is_empty())
    }

    /// Fills the buffer; returns whether all of it is in the file.
    pub(crate) fn read(&self, file: FileNumber, offset: usize, buffer: &mut [u8]) -> Outcome<bool> {
        let mut state = self.enter();
        state.call(Call::Read, ffi::SQLITE_IOERR_READ)?;
        Ok(state.files[&file].read(offset, buffer) == buffer.len())
    }

    pub(crate) fn write(&self, file: FileNumber, offset: usize, data: &[u8]) -> Outcome<()> {
        let mut state = self.enter();
        let failure = state.count(Call::Write);
        let (mut written, mut outcome) = match failure {
            None => (data.len(), Ok(())),
            Some(Failure::Error) => (0, Err(ffi::SQLITE_IOERR_WRITE)),
            Some(Failure::Short) => (data.len() / 2, Err(ffi::SQLITE_IOERR_WRITE)),
            Some(Failure::Full) => (data.len() / 2, Err(ffi::SQLITE_FULL)),
        };
        let len = state.files[&file].len();
        if let Some(quota) = state.quota {
            let room = len + quota.saturating_sub(state.used());
            if offset + written > room.max(len) {
                written = room.saturating_sub(offset);
                outcome = Err(ffi::SQLITE_FULL);
            }
        }
        if written > 0 {
            let data: Arc<[u8]> = data[..written].into();
            state.change(file, Change::Write { offset, data });
        }
        outcome
    }

    pub(crate) fn truncate(&self, file: FileNumber, len: usize) -> Outcome<()> {
        let mut state = self.enter();
        state.call(Call::Truncate, ffi::SQLITE_IOERR_TRUNCATE)?;
        state.change(file, Change::Truncate { len });
        Ok(())
    }

    pub(crate) fn sync(&self, file: FileNumber, with_directory: bool) -> Outcome<()> {
        let mut state = self.enter();
        if let Err(code) = state.call(Call::Sync, ffi::SQLITE_IOERR_FSYNC) {
            state.events.push(Event::FailedSync { file });
            return Err(code);
        }
        if !state.ignores_syncs {
            state.events.push(Event::Sync { file });
            if with_directory {
                state.events.push(Event::SyncDirectory);
            }
        }
        Ok(())
    }

    pub(crate) fn len(&self, file: FileNumber) -> usize {
        self.enter().files[&file].len()
    }

    pub(crate) fn with_locks<T>(
        &self,
        file: FileNumber,
        work: impl FnOnce(&mut FileLocks) -> T,
    ) -> T {
        work(self.enter().locks.entry(file).or_default())
    }

    pub(crate) fn with_shared_memory<T>(
        &self,
        file: FileNumber,
        work: impl FnOnce(&mut SharedMemory) -> T,
    ) -> T {
        work(self.enter().shared.entry(file).or_default())
    }

    fn enter(&self) -> MutexGuard<'_, State> {
        drop(lock(&self.gate));
        lock(&self.state)
    }
}

impl State {
    fn used(&self) -> usize {
        let named = self.names.values().filter_map(|file| self.files.get(file));
        named.map(Content::len).sum()
    }

    fn change(&mut self, file: FileNumber, change: Change) {
        let content = self.files.get_mut(&file);
        change.apply(content.expect("an open file has a content"));
        self.events.push(Event::Change { file, change });
    }

    /// Counts a call, and returns how it fails.
    fn count(&mut self, call: Call) -> Option<Failure> {
        let count = self.calls.entry(call).or_default();
        let number = *count;
        *count += 1;
        let fault = self.fault.filter(|fault| fault.call == call)?;
        let fails = (fault.first..fault.first + fault.count).contains(&number);
        self.failed += u64::from(fails);
        fails.then_some(fault.failure)
    }

    /// Counts a call that has one way to fail only.
    fn call(&mut self, call: Call, code: c_int) -> Outcome<()> {
        match self.count(call) {
            None => Ok(()),
            Some(_) => Err(code),
        }
    }
}
