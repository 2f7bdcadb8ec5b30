//! Public types that mirror messages of the relay: each field is stated once.

use std::time::{Duration, SystemTime};

use prost_types::{Duration as WireSpan, Timestamp};

use crate::{
    types::WakeReason,
    wire::{proto, reason_from_wire, span_from_wire},
};

/// Reads a value of a message. An absent or invalid one is the default.
pub(super) trait FromWire<W> {
    fn from_wire(value: W) -> Self;
}

/// Defines a struct and reads it from the message with the same fields. `= name` states a field that
/// has another name in the message.
macro_rules! mirror {
    ($(#[$meta:meta])* pub struct $name:ident from $message:ident {
        $($(#[$doc:meta])* pub $field:ident $(= $wire:ident)?: $type:ty,)*
    }) => {
        $(#[$meta])*
        pub struct $name {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl $crate::client::mirror::FromWire<$crate::wire::proto::$message> for $name {
            fn from_wire(message: $crate::wire::proto::$message) -> Self {
                use $crate::client::mirror::FromWire;
                Self {
                    $($field: FromWire::from_wire(mirror!(@field message $field $($wire)?)),)*
                }
            }
        }

        impl $crate::client::mirror::FromWire<Option<$crate::wire::proto::$message>> for $name {
            fn from_wire(message: Option<$crate::wire::proto::$message>) -> Self {
                Self::from_wire(message.unwrap_or_default())
            }
        }
    };
    (@field $message:ident $field:ident) => { $message.$field };
    (@field $message:ident $field:ident $wire:ident) => { $message.$wire };
}

/// Defines an enum, its names on the command line, and reads it from the enum of the message. A value
/// that a later version added is `Unknown`.
macro_rules! mirror_enum {
    ($(#[$meta:meta])* pub enum $name:ident from $message:ident {
        $($(#[$doc:meta])* $variant:ident = $wire:ident $text:literal,)*
    }) => {
        $(#[$meta])*
        pub enum $name {
            $($(#[$doc])* $variant,)*
            /// A value that a later version added.
            Unknown,
        }

        impl $name {
            /// Returns the name as the command line and JSON write it.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                    Self::Unknown => "unknown",
                }
            }
        }

        impl $crate::client::mirror::FromWire<i32> for $name {
            fn from_wire(value: i32) -> Self {
                match $crate::wire::proto::$message::try_from(value) {
                    $(Ok($crate::wire::proto::$message::$wire) => Self::$variant,)*
                    _ => Self::Unknown,
                }
            }
        }
    };
}

pub(super) use {mirror, mirror_enum};

/// Values that are the same in a message.
macro_rules! same {
    ($($type:ty),*) => {
        $(impl FromWire<$type> for $type {
            fn from_wire(value: $type) -> Self {
                value
            }
        })*
    };
}

same!(bool, u32, u64, f64, String);

impl<W, T: FromWire<W>> FromWire<Vec<W>> for Vec<T> {
    fn from_wire(values: Vec<W>) -> Self {
        values.into_iter().map(T::from_wire).collect()
    }
}

impl<W, T: FromWire<W>> FromWire<Option<W>> for Option<T> {
    fn from_wire(value: Option<W>) -> Self {
        value.map(T::from_wire)
    }
}

/// Absent texts are empty.
impl FromWire<String> for Option<String> {
    fn from_wire(text: String) -> Self {
        Some(text).filter(|text| !text.is_empty())
    }
}

impl FromWire<proto::Selector> for String {
    fn from_wire(selector: proto::Selector) -> Self {
        format!("{}/{}", selector.storage_account, selector.queue_name)
    }
}

impl FromWire<WireSpan> for Duration {
    fn from_wire(span: WireSpan) -> Self {
        span_from_wire(Some(span))
    }
}

impl FromWire<Option<WireSpan>> for Duration {
    fn from_wire(span: Option<WireSpan>) -> Self {
        span_from_wire(span)
    }
}

/// Microseconds.
impl FromWire<u64> for Duration {
    fn from_wire(micros: u64) -> Self {
        Self::from_micros(micros)
    }
}

impl FromWire<Option<Timestamp>> for SystemTime {
    fn from_wire(time: Option<Timestamp>) -> Self {
        time.and_then(|time| Self::try_from(time).ok())
            .unwrap_or(Self::UNIX_EPOCH)
    }
}

impl FromWire<Timestamp> for SystemTime {
    fn from_wire(time: Timestamp) -> Self {
        Self::from_wire(Some(time))
    }
}

impl FromWire<i32> for WakeReason {
    fn from_wire(reason: i32) -> Self {
        reason_from_wire(proto::WakeReason::try_from(reason).unwrap_or_default())
    }
}
