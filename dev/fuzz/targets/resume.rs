//! Resume numbers, which come back from subscribers.

use bytes::Bytes;

use crate::{
    relay::hub::resume,
    types::{Limits, ResumeNumber},
};

pub(super) fn resume(data: &[u8]) {
    let number = ResumeNumber(Bytes::copy_from_slice(data));
    if let Some((digest, revision)) = resume::read(&number) {
        assert_eq!(resume::number(digest, revision), number);
        assert!(data.len() <= Limits::TOKEN);
    }
}
