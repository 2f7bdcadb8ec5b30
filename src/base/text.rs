//! Types that are shown as the text that they hold.

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

pub(crate) use shown_as_text;
