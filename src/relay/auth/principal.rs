//! The principal of a call: a name, and the groups that its credential states.

use std::{fmt, sync::Arc, time::SystemTime};

use crate::error::{Error, Result};

/// The authenticated identity of a caller. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Principal(Arc<Identity>);

#[derive(PartialEq, Eq, Hash)]
struct Identity {
    name: Box<str>,
    groups: Box<[Box<str>]>,
}

/// A principal whose credential was accepted.
#[derive(Debug)]
pub(super) struct Verified {
    pub(super) principal: Principal,
    /// What kind of credential it was, and which: never its text.
    pub(super) by: Box<str>,
    /// The time from which the credential is refused.
    pub(super) expires_at: Option<SystemTime>,
}

/// Longest name, in bytes. A SPIFFE id may have more (2,048), but ids in use are short.
const LONGEST_NAME: usize = 128;
/// No principal: it could be taken for the callers of a relay without authentication.
const ANONYMOUS: &str = "anonymous";
/// Begins the name of a group where principals and groups stand in one list.
pub(super) const GROUP_PREFIX: &str = "group:";
pub(super) const RULE: &str =
    "must be 1 to 128 of [A-Za-z0-9._@:/|+-], not `anonymous` and not begin with `group:`";

impl Principal {
    /// Creates a principal without groups.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the name is not 1 to 128 bytes of
    /// `[A-Za-z0-9._@:/|+-]`, is `anonymous`, or begins with `group:`.
    pub fn new(name: &str) -> Result<Self> {
        Self::with_groups(name, [])
    }

    /// Creates a principal with the groups that its credential states. Groups that break the rule for
    /// names are left out, because no rule can name them.
    ///
    /// # Errors
    /// As [`Principal::new`].
    pub fn with_groups<'a>(name: &str, groups: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        check_principal("principal", name)?;
        let groups = groups.into_iter().filter(|group| is_principal(group));
        Ok(Self(Arc::new(Identity {
            name: name.into(),
            groups: groups.map(Box::from).collect(),
        })))
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the groups that the credential states, without those of the operator's file.
    pub fn groups(&self) -> impl Iterator<Item = &str> {
        self.0.groups.iter().map(|group| &**group)
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Checks a principal's or a group's name; the error contains `field`.
pub(super) fn check_principal(field: &str, name: &str) -> Result<()> {
    if is_principal(name) {
        return Ok(());
    }
    Err(Error::invalid(field, RULE))
}

fn is_principal(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._@:/|+-".contains(&byte);
    (1..=LONGEST_NAME).contains(&name.len())
        && name != ANONYMOUS
        && !name.starts_with(GROUP_PREFIX)
        && name.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mail_addresses_and_spiffe_ids_are_names() {
        let longest = "x".repeat(128);
        for good in [
            "billing",
            "ops+night@example.com",
            "auth0|5f7c8ec7c33c6c004bbafe82",
            "spiffe://example.com/ns/a",
            &longest,
        ] {
            assert_eq!(Principal::new(good).expect(good).name(), good);
        }
    }

    #[test]
    fn a_name_that_breaks_the_rule_is_refused() {
        let too_long = "x".repeat(129);
        for bad in [
            "",
            "a b",
            "a*",
            "*",
            "ä",
            "a\n",
            "anonymous",
            "group:ops",
            &too_long,
        ] {
            let error = Principal::new(bad).expect_err(bad);
            assert!(error.message().starts_with("principal: must be"), "{error}");
        }
    }

    #[test]
    fn groups_that_no_rule_can_name_are_left_out() {
        let groups = ["ops", "Domain Users", "group:x", "anonymous"];
        let principal = Principal::with_groups("a", groups).expect("a name");
        assert_eq!(principal.groups().collect::<Vec<_>>(), ["ops"]);
    }
}
