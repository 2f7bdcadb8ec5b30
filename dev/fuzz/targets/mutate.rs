//! Mutations of an input, by a seeded generator.

/// The longest input, as in the fuzzer's runs.
const MAX_INPUT: usize = 4_096;
/// Values at which lengths and numbers overflow.
const EDGES: [u8; 6] = [0, 1, 0x7f, 0x80, 0xfe, 0xff];

/// Changes an input at one to four places.
pub(crate) fn mutate(input: &mut Vec<u8>, others: &[Vec<u8>], rng: &mut fastrand::Rng) {
    for _ in 0..rng.usize(1..=4) {
        let at = rng.usize(0..=input.len());
        let length = rng.usize(0..=16).min(input.len() - at);
        match rng.u8(0..7) {
            0 if at < input.len() => input[at] ^= 1 << rng.u8(0..8),
            1 if at < input.len() => input[at] = EDGES[rng.usize(0..EDGES.len())],
            2 => input.insert(at, rng.u8(..)),
            3 => drop(input.drain(at..at + length)),
            4 => {
                let copy = input[at..at + length].to_vec();
                let to = rng.usize(0..=input.len());
                drop(input.splice(to..to, copy));
            }
            5 => input.truncate(at),
            _ => {
                let other = &others[rng.usize(0..others.len())];
                let from = rng.usize(0..=other.len());
                let to = rng.usize(from..=other.len());
                drop(input.splice(at..at, other[from..to].iter().copied()));
            }
        }
    }
    input.truncate(MAX_INPUT);
}
