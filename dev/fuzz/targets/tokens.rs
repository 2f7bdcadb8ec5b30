//! Position tokens and resume numbers, which come back from subscribers.

use bytes::Bytes;

use crate::{
    relay::hub::{
        Epoch,
        counters::{Counters, Decoded},
        resume::ResumePoint,
    },
    types::{Limits, Token},
};

/// Bytes of the epoch at the start of each token.
const EPOCH: usize = 16;

pub(super) fn tokens(data: &[u8]) {
    let token = Token(Bytes::copy_from_slice(data));
    let epoch = match data.first_chunk::<EPOCH>() {
        Some(bytes) => Epoch(u128::from_le_bytes(*bytes)),
        None => Epoch(0),
    };
    let other = Epoch(!epoch.0);
    match Counters::read(&token, epoch) {
        Decoded::Current(counters) => {
            assert_eq!(counters.token(epoch), token, "{counters:?}");
            assert!(data.len() <= Limits::TOKEN);
            assert_eq!(Counters::read(&token, other), Decoded::OtherEpoch);
        }
        Decoded::OtherEpoch => panic!("the epoch is the token's"),
        Decoded::Malformed => assert_eq!(Counters::read(&token, other), Decoded::Malformed),
    }
    if let Some(point) = ResumePoint::read(&token, epoch) {
        assert_eq!(point.token(epoch), token);
        assert_eq!(ResumePoint::read(&token, other), None);
    }
    written(data, epoch);
}

/// Writes counters that the bytes state, and reads them.
fn written(data: &[u8], epoch: Epoch) {
    let number = |at: usize, bytes: usize| {
        let mut wide = [0; 16];
        let own = data.get(at..at + bytes).unwrap_or_default();
        wide[..own.len()].copy_from_slice(own);
        u128::from_le_bytes(wide)
    };
    let counters = Counters {
        sequence: u64::try_from(number(0, 8)).expect("eight bytes"),
        notifications: number(8, 12),
        payload: number(20, 12),
        messages: number(32, 12),
    };
    let token = counters.token(epoch);
    assert!(token.0.len() <= Limits::TOKEN);
    assert_eq!(Counters::read(&token, epoch), Decoded::Current(counters));
}
