//! Unique ids for any number of nodes, on nothing but a blob that holds one number.
//!
//! A [`UniqueIdGenerator`] takes a range of ids by adding its size to the blob, under the condition
//! that nobody else wrote meanwhile, and hands the range out of memory. A crash loses what is left
//! of its ranges, and repeats nothing. Knows nothing of what the ids are for.

mod generator;
mod sync_store;

#[cfg(test)]
mod tests;

/// Blobs of this folder hold next free ids, where the command line names them: never swept.
pub const FOLDER: &str = "ids/";

pub use self::{
    generator::{IdConfig, UniqueIdGenerator},
    sync_store::{BlobSyncStore, OptimisticSyncStore},
};
