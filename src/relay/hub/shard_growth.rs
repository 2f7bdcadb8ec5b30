//! When a shard of a table grows.
//!
//! A shard grows by rehashing all its entries, and all shards of a table fill at the same rate. If
//! each grew when it is full, the few hundred entries of one step would make most of them grow. So
//! each grows earlier, at its own fill between a half and all of its room.

/// A shard with up to this many entries grows when it is full, which takes no time.
const FEW: usize = 64;

/// Returns how many entries to reserve in a shard, the `number`th of `shards`, after an insertion.
pub(super) fn to_reserve(
    len: usize,
    capacity: usize,
    number: usize,
    shards: usize,
) -> Option<usize> {
    // With slots that deletions made unusable, the fill is not known; the table cleans itself.
    let whole = (capacity / 7 * 8).is_power_of_two();
    let grows =
        whole && shards > 1 && len > FEW && 2 * shards * len >= (shards + number) * capacity;
    grows.then(|| capacity + 1 - len)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_shards_of_a_table_grow_one_after_the_other() {
        const SHARDS: usize = 256;
        const STEP: usize = 256;
        let mut shards = vec![HashSet::new(); SHARDS];
        let mut rng = fastrand::Rng::with_seed(7);
        let (mut most, mut grown) = (0, 0);
        for entry in 0..400_000 {
            let number = rng.usize(..SHARDS);
            let shard = &mut shards[number];
            let before = shard.capacity();
            shard.insert(entry);
            if let Some(room) = to_reserve(shard.len(), shard.capacity(), number, SHARDS) {
                shard.reserve(room);
            }
            grown += usize::from(shard.capacity() > before && before >= 112);
            if entry % STEP == 0 {
                most = most.max(std::mem::take(&mut grown));
            }
        }
        // Of 256 shards that all grow when they are full, 30 and more do in a step.
        assert!(most <= 12, "{most} shards grew in one step");
        let room: usize = shards.iter().map(HashSet::capacity).sum();
        assert!(room <= 3 * 400_000, "{room} entries of room");
    }
}
