//! Unique ids for any number of nodes, from a blob that holds one number.
//!
//! A [`UniqueIdGenerator`] takes a range of ids: it adds the range's size to the blob with a
//! conditional write. Then it gives out the ids from memory. A crash loses the rest of its range
//! and repeats no id. The use of the ids is unknown here.

pub(crate) mod generator;
mod sync_store;

#[cfg(test)]
mod tests;

/// Blobs of this folder hold next free ids, where the command line names them: never swept.
pub const FOLDER: &str = "ids/";

pub use self::{
    generator::{IdConfig, UniqueIdGenerator},
    sync_store::{BlobSyncStore, OptimisticSyncStore},
};
