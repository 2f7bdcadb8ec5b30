//! Conversions between the clients' attributes and a blob's metadata and time.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use object_store::{Attribute, AttributeValue, Attributes};

pub(super) fn attributes(metadata: BTreeMap<String, String>) -> Attributes {
    let pairs = metadata.into_iter().map(|(name, value)| {
        let value: AttributeValue = value.into();
        (Attribute::Metadata(name.into()), value)
    });
    pairs.collect()
}

pub(super) fn metadata(attributes: &Attributes) -> BTreeMap<String, String> {
    let pairs = attributes.iter().filter_map(|(name, value)| match name {
        Attribute::Metadata(name) => Some((name.to_ascii_lowercase(), value.to_string())),
        _ => None,
    });
    pairs.collect()
}

/// Headers have whole seconds, lists a finer time. The same blob must have the same time.
pub(super) fn seconds(since: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::try_from(since).unwrap_or_default())
}
