//! The actions that rules allow, and the targets that they apply to.

use std::{fmt, str::FromStr};

use crate::{
    error::{Error, Result},
    types::{FlagName, QueueAddress, Selector},
};

/// An action of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Action {
    /// Notify a queue.
    Notify,
    /// Subscribe to queues.
    Subscribe,
    /// Report the state of a queue's listener.
    Report,
    /// Watch and read flags.
    Watch,
    /// Set and clear flags.
    Unleash,
    /// Read the relay's state.
    Admin,
    /// Hand over messages to queues of another machine.
    HandOver,
}

/// The kind of target that an action applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Queues.
    Queues,
    /// Flags.
    Flags,
    /// The relay as a whole.
    Relay,
}

/// The target of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// One queue.
    Queue(&'a QueueAddress),
    /// All queues that a selector matches.
    Selector(&'a Selector),
    /// One flag.
    Flag(&'a FlagName),
    /// All flags whose names begin so.
    FlagPrefix(&'a str),
    /// The relay as a whole.
    Relay,
}

/// A set of actions, one bit for each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ActionSet(u8);

impl Action {
    /// All actions.
    pub const ALL: [Self; 7] = [
        Self::Notify,
        Self::Subscribe,
        Self::Report,
        Self::Watch,
        Self::Unleash,
        Self::Admin,
        Self::HandOver,
    ];

    /// Returns the name in rules and in the audit log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Notify => "notify",
            Self::Subscribe => "subscribe",
            Self::Report => "report",
            Self::Watch => "watch",
            Self::Unleash => "unleash",
            Self::Admin => "admin",
            Self::HandOver => "hand_over",
        }
    }

    /// Returns the kind of target that the action applies to.
    pub const fn scope(self) -> Scope {
        match self {
            Self::Notify | Self::Subscribe | Self::Report | Self::HandOver => Scope::Queues,
            Self::Watch | Self::Unleash => Scope::Flags,
            Self::Admin => Scope::Relay,
        }
    }
}

impl Target<'_> {
    /// Returns the kind of target.
    pub const fn scope(&self) -> Scope {
        match self {
            Self::Queue(_) | Self::Selector(_) => Scope::Queues,
            Self::Flag(_) | Self::FlagPrefix(_) => Scope::Flags,
            Self::Relay => Scope::Relay,
        }
    }
}

impl ActionSet {
    pub(super) const fn insert(&mut self, action: Action) {
        self.0 |= 1 << action as u8;
    }

    pub(super) const fn contains(self, action: Action) -> bool {
        self.0 & (1 << action as u8) != 0
    }

    /// Returns whether the set has an action of this scope.
    pub(super) fn has_scope(self, scope: Scope) -> bool {
        let mut all = Action::ALL.into_iter();
        all.any(|action| action.scope() == scope && self.contains(action))
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Action {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|action| action.as_str() == text);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::as_str).join(", ");
            Error::invalid("action", format_args!("must be of {names}"))
        })
    }
}

/// Shows the target as rules write it.
impl fmt::Display for Target<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue(address) => address.fmt(f),
            Self::Selector(selector) => selector.fmt(f),
            Self::Flag(name) => name.fmt(f),
            Self::FlagPrefix(prefix) => write!(f, "{prefix}*"),
            Self::Relay => f.write_str("relay"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_each_action_is_parsed_again() {
        for action in Action::ALL {
            assert_eq!(
                action.as_str().parse::<Action>().expect("an action"),
                action
            );
        }
        let error = "read".parse::<Action>().expect_err("no action");
        assert!(error.message().contains("must be of notify, "), "{error}");
    }

    #[test]
    fn a_set_has_the_inserted_actions_only() {
        let mut set = ActionSet::default();
        set.insert(Action::HandOver);
        set.insert(Action::Notify);
        for action in Action::ALL {
            let inserted = matches!(action, Action::HandOver | Action::Notify);
            assert_eq!(set.contains(action), inserted, "{action}");
        }
        assert!(set.has_scope(Scope::Queues));
        assert!(!set.has_scope(Scope::Flags) && !set.has_scope(Scope::Relay));
    }
}
