//! Resume numbers, which come back from subscribers.

use bytes::Bytes;

use crate::{
    relay::hub::resume::ResumePoint,
    types::{Limits, ResumeNumber},
};

pub(super) fn resume(data: &[u8]) {
    let number = ResumeNumber(Bytes::copy_from_slice(data));
    if let Some(point) = ResumePoint::read(&number) {
        assert_eq!(point.number(), number);
        assert!(data.len() <= Limits::TOKEN);
    }
}
