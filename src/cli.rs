//! The command line: one file a verb.

pub(crate) mod bench;
