//! A disk in memory that loses power, for the tests of SQLite files.
//!
//! [`install`] sets a default VFS for this process that keeps the files of each mounted
//! [`Disk`] in memory and passes all other files on to the real VFS. So the product's own code runs
//! on it unchanged. A disk records each write, truncation, sync and change of its directory. From
//! this record a [`Replay`] makes [`Image`]s: contents that a real disk may have after a loss of
//! power. A disk can also fail calls ([`Fault`]), be full, or ignore syncs.

mod content;
mod disk;
mod image;
mod locks;
mod replay;
mod shared_memory;
mod vfs;

pub use self::{
    content::Content,
    disk::{Call, Disk, Failure, Fault},
    image::Image,
    replay::{Change, Event, FileNumber, Replay},
    vfs::install,
};
