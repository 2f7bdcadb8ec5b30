//! A subscription's cursors, by number and by queue.
//!
//! A pattern may match a million queues, so no step here moves, rehashes or frees all of them.
//! Cursors lie in chunks, and a large index is split into shards.

use std::{collections::HashMap, hash::BuildHasher, vec::IntoIter};

use super::{cursor::Cursor, shard_growth::to_reserve};
use crate::types::QueueAddress;

pub(super) struct CursorList {
    /// A cursor's number is its index here; its queue's entry knows the number. All chunks but the
    /// last one are full.
    chunks: Vec<Chunk>,
    /// Unused numbers.
    free: Vec<u32>,
    index: Index,
}

/// The cursors of a closed list, to be dropped in steps.
pub(super) struct DetachedCursors {
    chunk: IntoIter<Option<Cursor>>,
    chunks: IntoIter<Chunk>,
    shards: IntoIter<Shard>,
}

/// The cursors' numbers by queue: no shard, one or [`SHARDS`] of them.
#[derive(Default)]
struct Index(Vec<Shard>);

type Chunk = Vec<Option<Cursor>>;
type Shard = HashMap<QueueAddress, u32>;

/// Up to this many cursors there is no index. Most subscriptions have one cursor, and a map with
/// one entry takes nearly as much memory as the cursor.
const UNINDEXED: usize = 8;
/// Cursors of a chunk.
const CHUNK: usize = 1024;
/// The index is split at this many entries. A shard grows by rehashing all of its entries: 4,096 of
/// a million take some 0.3 ms.
const SPLIT: usize = 4096;
const SHARDS: usize = 256;

impl CursorList {
    /// Allocates room for exactly `expected` cursors. A vector that grows by itself starts with
    /// four, which would be a sixth of an idle subscription's memory.
    pub(super) fn new(expected: usize) -> Self {
        Self {
            chunks: vec![Vec::with_capacity(expected.min(CHUNK))],
            free: Vec::new(),
            index: Index::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.numbers() - self.free.len()
    }

    /// Returns one more than the greatest number so far.
    pub(super) fn numbers(&self) -> usize {
        let last = self.chunks.last().map_or(0, Vec::len);
        self.chunks.len().saturating_sub(1) * CHUNK + last
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Cursor)> {
        let all = (0..).zip(self.chunks.iter().flatten());
        all.filter_map(|(at, cursor)| Some((at, cursor.as_ref()?)))
    }

    /// Returns the cursors with numbers below `numbers`.
    pub(super) fn first(&self, numbers: usize) -> impl Iterator<Item = &Cursor> {
        self.chunks.iter().flatten().take(numbers).flatten()
    }

    pub(super) fn get(&self, at: u32) -> Option<&Cursor> {
        let (chunk, offset) = locate(at);
        self.chunks.get(chunk)?.get(offset)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut Cursor> {
        let (chunk, offset) = locate(at);
        self.chunks.get_mut(chunk)?.get_mut(offset)?.as_mut()
    }

    /// Returns the number of the queue's cursor.
    pub(super) fn find(&self, queue: &QueueAddress) -> Option<u32> {
        if self.index.0.is_empty() {
            let mut all = self.iter();
            return all.find_map(|(at, cursor)| (cursor.entry.address() == queue).then_some(at));
        }
        self.index.get(queue)
    }

    /// Returns the number of the next cursor.
    pub(super) fn next_number(&self) -> u32 {
        let grown = || u32::try_from(self.numbers()).expect("fewer cursors than numbers");
        self.free.last().copied().unwrap_or_else(grown)
    }

    /// Adds the cursor of a queue that has none, under [`CursorList::next_number`].
    pub(super) fn push(&mut self, cursor: Cursor) {
        let at = self.next_number();
        let address = cursor.entry.address().clone();
        if self.free.pop().is_some() {
            let (chunk, offset) = locate(at);
            self.chunks[chunk][offset] = Some(cursor);
        } else {
            self.append(cursor);
        }
        if !self.index.0.is_empty() {
            self.index.insert(address, at);
        } else if self.numbers() > UNINDEXED {
            let all = self.iter();
            let all = all.map(|(at, cursor)| (cursor.entry.address().clone(), at));
            self.index = Index(vec![all.collect()]);
        }
    }

    fn append(&mut self, cursor: Cursor) {
        if let Some(last) = self.chunks.last_mut()
            && last.len() < CHUNK
        {
            last.push(Some(cursor));
            return;
        }
        let mut chunk = Vec::with_capacity(CHUNK);
        chunk.push(Some(cursor));
        self.chunks.push(chunk);
    }

    /// Removes a cursor.
    pub(super) fn remove(&mut self, at: u32) -> Option<Cursor> {
        let (chunk, offset) = locate(at);
        let cursor = self.chunks.get_mut(chunk)?.get_mut(offset)?.take()?;
        self.index.remove(cursor.entry.address());
        self.free.push(at);
        Some(cursor)
    }

    /// Takes out all cursors.
    pub(super) fn take(&mut self) -> DetachedCursors {
        let all = std::mem::replace(self, Self::new(0));
        DetachedCursors {
            chunk: Vec::new().into_iter(),
            chunks: all.chunks.into_iter(),
            shards: all.index.0.into_iter(),
        }
    }

    /// Returns the capacities: cursors, and entries of the index.
    #[cfg(test)]
    pub(super) fn capacities(&self) -> [usize; 2] {
        [
            self.chunks.iter().map(Vec::capacity).sum(),
            self.index.0.iter().map(HashMap::capacity).sum(),
        ]
    }
}

impl DetachedCursors {
    /// Returns up to `count` cursors, fewer only at the end, and drops a part of the index.
    pub(super) fn next(&mut self, count: usize) -> impl Iterator<Item = Cursor> {
        drop(self.shards.next());
        if self.chunk.len() == 0 {
            self.chunk = self.chunks.next().unwrap_or_default().into_iter();
        }
        self.chunk.by_ref().take(count).flatten()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chunk.len() + self.chunks.len() + self.shards.len() == 0
    }
}

impl Index {
    fn shard(&self, queue: &QueueAddress) -> usize {
        match &self.0[..] {
            [_] => 0,
            // The hasher has random keys, so a stranger cannot choose names that fall into one
            // shard.
            shards => usize::from(shards[0].hasher().hash_one(queue).to_be_bytes()[3]),
        }
    }

    fn get(&self, queue: &QueueAddress) -> Option<u32> {
        self.0[self.shard(queue)].get(queue).copied()
    }

    fn insert(&mut self, queue: QueueAddress, at: u32) {
        if self.0.len() == 1 && self.0[0].len() >= SPLIT {
            let all = std::mem::take(&mut self.0[0]);
            self.0.resize_with(SHARDS, Shard::default);
            for (queue, at) in all {
                self.insert(queue, at);
            }
        }
        let shards = self.0.len();
        let number = self.shard(&queue);
        let shard = &mut self.0[number];
        shard.insert(queue, at);
        if let Some(room) = to_reserve(shard.len(), shard.capacity(), number, shards) {
            shard.reserve(room);
        }
    }

    fn remove(&mut self, queue: &QueueAddress) {
        if !self.0.is_empty() {
            let shard = self.shard(queue);
            self.0[shard].remove(queue);
        }
    }
}

/// Returns the chunk and the offset in it.
fn locate(at: u32) -> (usize, usize) {
    let at = at as usize;
    (at / CHUNK, at % CHUNK)
}
