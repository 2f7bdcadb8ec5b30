//! The lists of queues, listeners and flags' watchers: of this relay, and merged with those of the cluster.

pub(super) mod cluster_lists;
pub(super) mod own_lists;
pub(super) mod pages;
pub(super) mod stored;
