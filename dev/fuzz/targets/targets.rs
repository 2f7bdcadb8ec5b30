//! Targets of the fuzzer: each decodes bytes of a peer, of a store or of an operator, and checks
//! properties of the result.
//!
//! Present in tests and under `--cfg fuzzing` only. `dev/fuzz/run` runs the targets with
//! libFuzzer. The tests replay `dev/fuzz/seeds`, and mutations of these seeds.

mod access;
mod blobs;
mod credentials;
mod files;
mod link;
#[cfg(test)]
mod mutate;
mod queues;
mod receiver;
#[cfg(test)]
mod replay;
mod resume;
mod texts;
mod wire;

/// A target with the name of its folder of seeds.
type Target = (&'static str, fn(&[u8]));

/// All targets.
const TARGETS: [Target; 12] = [
    ("access", access::access),
    ("answers", wire::answers),
    ("blobs", blobs::blobs),
    ("credentials", credentials::credentials),
    ("files", files::files),
    ("link", link::link),
    ("notify", wire::notify),
    ("queues", queues::queues),
    ("receiver", receiver::receiver),
    ("requests", wire::requests),
    ("resume", resume::resume),
    ("texts", texts::texts),
];

/// Runs a target on one input.
///
/// # Panics
/// If a property does not hold, or no target has this name.
pub fn run(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|(target, _)| *target == name);
    let (_, target) = target.expect("a target of this name");
    target(data);
}

/// Returns the first byte and the rest.
fn split_first(data: &[u8]) -> (u8, &[u8]) {
    data.split_first()
        .map_or((0, data), |(first, rest)| (*first, rest))
}
