//! The functions of an open file.

use std::{
    ffi::{c_int, c_void},
    ptr, slice,
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
};

use rusqlite::ffi;

use super::code;
use crate::{disk::Disk, replay::FileNumber};

/// An open file, in memory that SQLite gives.
#[repr(C)]
pub(super) struct File {
    base: ffi::sqlite3_file,
    handle: *mut Handle,
}

/// An open file of a disk.
pub(super) struct Handle {
    pub(super) disk: Arc<Disk>,
    pub(super) file: FileNumber,
    pub(super) id: u64,
    pub(super) syncs_directory: bool,
    pub(super) delete_on_close: Option<String>,
}

static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};

impl File {
    pub(super) fn new(handle: Handle) -> Self {
        Self {
            base: ffi::sqlite3_file { pMethods: &METHODS },
            handle: Box::into_raw(Box::new(handle)),
        }
    }
}

/// Returns the handle of a file.
///
/// # Safety
/// The file was opened by this VFS and is not closed. SQLite calls the functions of one file from
/// one thread at a time.
unsafe fn handle<'a>(file: *mut ffi::sqlite3_file) -> &'a mut Handle {
    // SAFETY: as the caller promises.
    unsafe { &mut *(*file.cast::<File>()).handle }
}

/// SQLite passes no negative offsets and lengths.
fn size(number: impl TryInto<usize>) -> usize {
    number.try_into().unwrap_or_default()
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: the last call for this file.
    let handle = unsafe { Box::from_raw((*file.cast::<File>()).handle) };
    if let Some(name) = &handle.delete_on_close {
        // Closing does not fail.
        let _ = handle.disk.delete(name, false);
    }
    handle.disk.close(handle.file, handle.id);
    ffi::SQLITE_OK
}

unsafe extern "C" fn read(
    file: *mut ffi::sqlite3_file,
    buffer: *mut c_void,
    len: c_int,
    offset: ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: SQLite passes a buffer of this length.
    let (handle, buffer) = unsafe {
        let buffer = slice::from_raw_parts_mut(buffer.cast::<u8>(), size(len));
        (handle(file), buffer)
    };
    match handle.disk.read(handle.file, size(offset), buffer) {
        Ok(true) => ffi::SQLITE_OK,
        Ok(false) => ffi::SQLITE_IOERR_SHORT_READ,
        Err(code) => code,
    }
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    data: *const c_void,
    len: c_int,
    offset: ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: SQLite passes data of this length.
    let (handle, data) = unsafe {
        let data = slice::from_raw_parts(data.cast::<u8>(), size(len));
        (handle(file), data)
    };
    code(handle.disk.write(handle.file, size(offset), data))
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, len: ffi::sqlite3_int64) -> c_int {
    // SAFETY: an open file of this VFS.
    let handle = unsafe { handle(file) };
    code(handle.disk.truncate(handle.file, size(len)))
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, _flags: c_int) -> c_int {
    // SAFETY: an open file of this VFS.
    let handle = unsafe { handle(file) };
    let outcome = handle.disk.sync(handle.file, handle.syncs_directory);
    handle.syncs_directory &= outcome.is_err();
    code(outcome)
}

unsafe extern "C" fn file_size(
    file: *mut ffi::sqlite3_file,
    out: *mut ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: an open file of this VFS, and a place for the result.
    unsafe {
        let handle = handle(file);
        *out = i64::try_from(handle.disk.len(handle.file)).expect("a small file");
    }
    ffi::SQLITE_OK
}

unsafe extern "C" fn lock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    // SAFETY: an open file of this VFS.
    let handle = unsafe { handle(file) };
    let lock = |locks: &mut crate::locks::FileLocks| locks.lock(handle.id, level);
    code(handle.disk.with_locks(handle.file, lock))
}

unsafe extern "C" fn unlock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    // SAFETY: an open file of this VFS.
    let handle = unsafe { handle(file) };
    let id = handle.id;
    handle
        .disk
        .with_locks(handle.file, |locks| locks.unlock(id, level));
    ffi::SQLITE_OK
}

unsafe extern "C" fn check_reserved_lock(file: *mut ffi::sqlite3_file, out: *mut c_int) -> c_int {
    // SAFETY: an open file of this VFS, and a place for the result.
    unsafe {
        let handle = handle(file);
        let reserved = handle
            .disk
            .with_locks(handle.file, |locks| locks.is_reserved());
        *out = c_int::from(reserved);
    }
    ffi::SQLITE_OK
}

unsafe extern "C" fn file_control(
    _file: *mut ffi::sqlite3_file,
    _operation: c_int,
    _argument: *mut c_void,
) -> c_int {
    ffi::SQLITE_NOTFOUND
}

/// As SQLite's own VFS on Unix.
unsafe extern "C" fn sector_size(_file: *mut ffi::sqlite3_file) -> c_int {
    4096
}

/// As SQLite's own VFS on Unix: a write does not damage bytes beside it.
unsafe extern "C" fn device_characteristics(_file: *mut ffi::sqlite3_file) -> c_int {
    ffi::SQLITE_IOCAP_POWERSAFE_OVERWRITE
}

unsafe extern "C" fn shm_map(
    file: *mut ffi::sqlite3_file,
    region: c_int,
    len: c_int,
    extend: c_int,
    out: *mut *mut c_void,
) -> c_int {
    // SAFETY: an open file of this VFS, and a place for the result.
    unsafe {
        let handle = handle(file);
        let id = handle.id;
        let address = handle.disk.with_shared_memory(handle.file, |memory| {
            memory.map(id, size(region), size(len), extend != 0)
        });
        *out = address.unwrap_or(ptr::null_mut());
    }
    ffi::SQLITE_OK
}

unsafe extern "C" fn shm_lock(
    file: *mut ffi::sqlite3_file,
    offset: c_int,
    count: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: an open file of this VFS.
    let handle = unsafe { handle(file) };
    let (id, bits) = (handle.id, (1_u16 << count) - 1);
    let mask = u8::try_from(bits << offset).expect("eight locks");
    let exclusive = flags & ffi::SQLITE_SHM_EXCLUSIVE != 0;
    code(handle.disk.with_shared_memory(handle.file, |memory| {
        if flags & ffi::SQLITE_SHM_UNLOCK != 0 {
            memory.unlock(id, mask);
            return Ok(());
        }
        memory.lock(id, mask, exclusive)
    }))
}

unsafe extern "C" fn shm_barrier(_file: *mut ffi::sqlite3_file) {
    fence(Ordering::SeqCst);
}

unsafe extern "C" fn shm_unmap(file: *mut ffi::sqlite3_file, _delete: c_int) -> c_int {
    // SAFETY: an open file of this VFS.
    let handle = unsafe { handle(file) };
    let id = handle.id;
    handle
        .disk
        .with_shared_memory(handle.file, |memory| memory.leave(id));
    ffi::SQLITE_OK
}
