//! Names, and their rule: 1 to 128 bytes of `[A-Za-z0-9._-]`, and neither `.` nor `..`.

use std::{str::FromStr, sync::Arc};

use super::Limits;
use crate::{
    base::text::shown_as_text,
    error::{Error, Result},
};

/// Defines the type of a name. Errors contain the field.
macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $field:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Creates the name.
            ///
            /// # Errors
            /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if it breaks the rule for names.
            pub fn new(name: &str) -> Result<Self> {
                check_name($field, name)?;
                Ok(Self(name.into()))
            }

            /// Returns the name.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                Self::new(text)
            }
        }

        shown_as_text!(0: $name);
    };
}

name! {
    /// A listener's name, which operators recognise. Several streams may use the same one.
    ListenerId, "listener_id"
}

name! {
    /// The name of a group, whose members share wake-ups. Each wake-up goes to as many members as it
    /// needs.
    GroupName, "group"
}

name! {
    /// A flag's name, under the rule for names.
    FlagName, "flag"
}

impl ListenerId {
    /// Creates an id that no other process has: the given prefix and eight random characters.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the prefix breaks the rule for names.
    pub fn unique(prefix: &str) -> Result<Self> {
        let random: String = std::iter::repeat_with(fastrand::alphanumeric)
            .take(8)
            .collect();
        Self::new(&format!("{prefix}-{random}"))
    }
}

/// Checks a name against the rule; the error contains `field`.
pub(crate) fn check_name(field: &str, name: &str) -> Result<()> {
    if is_name(name) {
        Ok(())
    } else {
        Err(refuse(field, name))
    }
}

/// Returns whether `name` follows the rule.
fn is_name(name: &str) -> bool {
    (1..=Limits::NAME).contains(&name.len())
        && name != "."
        && name != ".."
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

#[cold]
fn refuse(field: &str, name: &str) -> Error {
    let shown: String = name.chars().take(40).collect();
    Error::invalid(
        field,
        format_args!("must be 1 to 128 of [A-Za-z0-9._-], not `.` or `..`, but is {shown:?}"),
    )
}

/// Checks a free text of a caller: at most `limit` bytes, nothing that acts on a terminal.
pub(crate) fn check_text(field: &str, text: &str, limit: usize) -> Result<()> {
    check_kept_text(field, text, limit)?;
    if text.chars().any(acts_on_a_terminal) {
        let rule = "must not hold control characters, nor marks that turn the text's direction";
        return Err(Error::invalid(field, rule));
    }
    Ok(())
}

/// Checks a free text that the store or another relay has: one of an earlier version may hold marks that
/// [`check_text`] refuses.
pub(crate) fn check_kept_text(field: &str, text: &str, limit: usize) -> Result<()> {
    if text.len() > limit {
        return Err(Error::invalid(
            field,
            format_args!("must be at most {limit} bytes, but has {}", text.len()),
        ));
    }
    if text.chars().any(char::is_control) {
        return Err(Error::invalid(field, "must not hold control characters"));
    }
    Ok(())
}

/// Returns whether a character could change how a terminal shows the others: a control character, the
/// separator of a line, or an override of the direction.
fn acts_on_a_terminal(char: char) -> bool {
    char.is_control() || matches!(char, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_the_rule() {
        let longest = "x".repeat(128);
        for good in ["a", "acct", "A.b_c-9", "...", longest.as_str()] {
            assert!(is_name(good), "{good}");
        }
        let too_long = "x".repeat(129);
        for bad in [
            "",
            ".",
            "..",
            "a/b",
            "a b",
            "ä",
            "a\n",
            "a*",
            "/../",
            too_long.as_str(),
        ] {
            let error = check_name("queue_name", bad).expect_err(bad);
            assert!(
                error.message().starts_with("queue_name: must be 1 to 128"),
                "{error}"
            );
        }
    }

    #[test]
    fn free_texts_are_bounded_and_printable() {
        assert!(check_text("publisher", "billing on node 7", 128).is_ok());
        assert!(check_text("publisher", "אבג 👩\u{200d}🔧", 128).is_ok());
        for bad in [
            "a\u{7}",
            "a\u{9b}2J",
            "a\u{2028}b",
            "\u{202e}evil",
            "\u{2066}x",
        ] {
            assert!(check_text("publisher", bad, 128).is_err(), "{bad:?}");
            let is_kept = !bad.chars().any(char::is_control);
            assert_eq!(
                check_kept_text("reason", bad, 128).is_ok(),
                is_kept,
                "{bad:?}"
            );
        }
        assert!(check_text("publisher", &"x".repeat(129), 128).is_err());
    }

    #[test]
    fn unique_ids_differ() {
        let (a, b) = (
            ListenerId::unique("demo").expect("a"),
            ListenerId::unique("demo").expect("b"),
        );
        assert_ne!(a, b);
    }
}
