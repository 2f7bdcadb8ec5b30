//! SQLite's default VFS of this process: files below a mounted disk are on that disk, all others on
//! the real one.

#![allow(
    unsafe_code,
    reason = "a VFS is a table of C functions that get pointers"
)]

mod methods;

use std::{
    ffi::{CStr, OsStr, c_char, c_int},
    mem::size_of,
    os::unix::ffi::OsStrExt as _,
    path::Path,
    ptr,
    sync::{
        Arc, Once, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use rusqlite::ffi;

use self::methods::{File, Handle};
use crate::disk::{Disk, Outcome};

/// The VFS that was the default one before.
struct Real(*mut ffi::sqlite3_vfs);

// SAFETY: SQLite calls a VFS from any thread, and the pointer is never changed.
unsafe impl Send for Real {}
// SAFETY: as above.
unsafe impl Sync for Real {}

static REAL: OnceLock<Real> = OnceLock::new();
static NEXT_HANDLE: AtomicU64 = AtomicU64::new(1);

/// Makes this VFS the default one of the process. Call it before a database is opened.
///
/// # Panics
/// If SQLite refuses it.
pub fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: the VFS is found and registered by SQLite's own functions; the new one is a copy
        // of the old one with other functions, and lives as long as the process.
        unsafe {
            let real = ffi::sqlite3_vfs_find(ptr::null());
            assert!(!real.is_null(), "SQLite has a default VFS");
            let mut vfs = *real;
            let size = c_int::try_from(size_of::<File>()).expect("a small structure");
            vfs.szOsFile = vfs.szOsFile.max(size);
            vfs.pNext = ptr::null_mut();
            vfs.zName = c"power-loss".as_ptr();
            vfs.xOpen = Some(open);
            vfs.xDelete = Some(delete);
            vfs.xAccess = Some(access);
            assert!(REAL.set(Real(real)).is_ok(), "set once");
            let code = ffi::sqlite3_vfs_register(Box::leak(Box::new(vfs)), 1);
            assert_eq!(code, ffi::SQLITE_OK, "the VFS is registered");
        }
    });
}

fn real() -> *mut ffi::sqlite3_vfs {
    REAL.get().expect("set before this VFS is registered").0
}

/// Returns the disk and the name of a path. SQLite's temporary files have no path.
///
/// # Safety
/// The path is null or a C string.
unsafe fn on_disk(path: *const c_char) -> Option<(Arc<Disk>, String)> {
    if path.is_null() {
        return None;
    }
    // SAFETY: as the caller promises.
    let path = unsafe { CStr::from_ptr(path) };
    Disk::of(Path::new(OsStr::from_bytes(path.to_bytes())))
}

fn code(outcome: Outcome<()>) -> c_int {
    outcome.err().unwrap_or(ffi::SQLITE_OK)
}

unsafe extern "C" fn open(
    _vfs: *mut ffi::sqlite3_vfs,
    path: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: SQLite passes a path or null.
    let Some((disk, name)) = (unsafe { on_disk(path) }) else {
        // SAFETY: the arguments are passed on to the VFS that SQLite would have called.
        return unsafe {
            let open = (*real()).xOpen.expect("a VFS can open files");
            open(real(), path, file, flags, out_flags)
        };
    };
    // The product makes an empty database file itself, on the real disk.
    let create = flags & (ffi::SQLITE_OPEN_CREATE | ffi::SQLITE_OPEN_MAIN_DB) != 0;
    let opened = disk.open(&name, create);
    // SAFETY: SQLite gives `szOsFile` bytes for the file, which has room for a `File`.
    unsafe {
        (*file).pMethods = ptr::null();
        let number = match opened {
            Ok(number) => number,
            Err(code) => return code,
        };
        // As SQLite's own VFS: the first sync of a new journal or log also syncs the directory.
        let journal = ffi::SQLITE_OPEN_MAIN_JOURNAL | ffi::SQLITE_OPEN_WAL;
        let handle = Handle {
            disk,
            file: number,
            id: NEXT_HANDLE.fetch_add(1, Ordering::Relaxed),
            syncs_directory: flags & ffi::SQLITE_OPEN_CREATE != 0 && flags & journal != 0,
            delete_on_close: (flags & ffi::SQLITE_OPEN_DELETEONCLOSE != 0).then_some(name),
        };
        file.cast::<File>().write(File::new(handle));
        if !out_flags.is_null() {
            *out_flags = flags;
        }
    }
    ffi::SQLITE_OK
}

unsafe extern "C" fn delete(
    _vfs: *mut ffi::sqlite3_vfs,
    path: *const c_char,
    sync_directory: c_int,
) -> c_int {
    // SAFETY: SQLite passes a path; without a disk the call is passed on.
    unsafe {
        match on_disk(path) {
            Some((disk, name)) => code(disk.delete(&name, sync_directory != 0)),
            None => {
                let delete = (*real()).xDelete.expect("a VFS can delete files");
                delete(real(), path, sync_directory)
            }
        }
    }
}

unsafe extern "C" fn access(
    _vfs: *mut ffi::sqlite3_vfs,
    path: *const c_char,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: SQLite passes a path and a place for the result; without a disk the call is passed on.
    unsafe {
        match on_disk(path) {
            Some((disk, name)) => {
                *out = c_int::from(disk.exists(&name));
                ffi::SQLITE_OK
            }
            None => {
                let access = (*real()).xAccess.expect("a VFS can look for files");
                access(real(), path, flags, out)
            }
        }
    }
}
