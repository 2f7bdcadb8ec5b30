//! How types are shown: as the text that they hold, or by a part of their fields.

/// Implements `Display` and `Debug` of the types by the field that holds their text.
macro_rules! shown_as_text {
    ($field:tt: $($type:ty),+) => {
        $(
            impl ::std::fmt::Display for $type {
                fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                    f.write_str(&self.$field)
                }
            }

            impl ::std::fmt::Debug for $type {
                fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                    f.write_str(&self.$field)
                }
            }
        )+
    };
}

/// Implements `Debug` of a type by some of its fields and methods: `opaque_debug!(Relay: epoch())`.
macro_rules! opaque_debug {
    ($type:ident $(: $($name:ident $(($($args:tt)*))?),+)?) => {
        impl ::std::fmt::Debug for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.debug_struct(stringify!($type))
                    $($(.field(stringify!($name), &self.$name $(($($args)*))?))+)?
                    .finish_non_exhaustive()
            }
        }
    };
}

pub(crate) use {opaque_debug, shown_as_text};
