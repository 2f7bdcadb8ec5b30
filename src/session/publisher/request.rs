//! A request on its way: what it carries, and since when.

use crate::{
    clock::Tick,
    session::{entry::Entry, set_aside::Refused},
};

/// A request that is on its way.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) load: Load,
    pub(super) sent_at: Tick,
}

/// What a request carries.
#[derive(Debug)]
pub(super) enum Load {
    Entries(Vec<Entry>),
    /// Entries that were refused for want of room.
    Probe(Vec<Refused>),
}

impl Request {
    /// Returns the entries for which a flush waits.
    pub(super) fn entries(&self) -> Option<&[Entry]> {
        match &self.load {
            Load::Entries(entries) => Some(entries),
            Load::Probe(_) => None,
        }
    }
}

impl Load {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Entries(entries) => entries.len(),
            Self::Probe(probe) => probe.len(),
        }
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        let (entries, probe) = match self {
            Self::Entries(entries) => (&entries[..], &[][..]),
            Self::Probe(probe) => (&[][..], &probe[..]),
        };
        entries
            .iter()
            .chain(probe.iter().map(|refused| &refused.entry))
    }

    pub(super) fn entries_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        let (entries, probe) = match self {
            Self::Entries(entries) => (&mut entries[..], &mut [][..]),
            Self::Probe(probe) => (&mut [][..], &mut probe[..]),
        };
        let refused = probe.iter_mut().map(|refused| &mut refused.entry);
        entries.iter_mut().chain(refused)
    }

    pub(super) fn into_entries(self) -> impl Iterator<Item = Entry> {
        let (entries, probe) = match self {
            Self::Entries(entries) => (entries, Vec::new()),
            Self::Probe(probe) => (Vec::new(), probe),
        };
        let refused = probe.into_iter().map(|refused| refused.entry);
        entries.into_iter().chain(refused)
    }
}
