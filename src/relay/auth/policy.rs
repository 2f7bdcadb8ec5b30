//! Rules and verdicts: an action is denied unless a rule allows it.
//!
//! Rules only allow, so their order has no meaning. [`Policy::grants`] selects the rules of a
//! principal once. [`Grants::allows`] then compares prefixes and does not allocate, because it runs
//! for each notification. The explanation is separate.

mod pattern;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

pub(super) use self::pattern::{FlagPattern, QueuePattern};
use super::{
    action::{Action, ActionSet, Target},
    principal::Principal,
    quota::{LimitForm, Quota},
};

/// The members of each group.
pub(super) type Groups = HashMap<Box<str>, HashSet<Box<str>>>;

/// The rules of a relay, and the groups that they name. The default has no rule and denies all.
#[derive(Debug, Default)]
pub struct Policy {
    pub(super) rules: Vec<Arc<Rule>>,
    /// The groups of the file.
    pub(super) groups: Groups,
    /// In the order of the file.
    pub(super) limits: Vec<PolicyLimit>,
}

/// The rules that apply to one principal, and how much it may use.
#[derive(Debug, Default)]
pub struct Grants {
    rules: Box<[Arc<Rule>]>,
    quota: Quota,
}

/// A table `[[limit]]`, and the principals that it applies to.
#[derive(Debug)]
pub(super) struct PolicyLimit {
    pub(super) subjects: Vec<Subject>,
    pub(super) limit: LimitForm,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Subject {
    /// Every authenticated principal.
    Everyone,
    Principal(Box<str>),
    Group(Box<str>),
}

/// The principals of a rule, their allowed actions, and the targets of these.
#[derive(Debug)]
pub(super) struct Rule {
    /// Position in the file, from 1.
    pub(super) number: usize,
    pub(super) subjects: Vec<Subject>,
    pub(super) actions: ActionSet,
    pub(super) queues: Box<[QueuePattern]>,
    pub(super) flags: Box<[FlagPattern]>,
}

/// A decision with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Whether a rule allows the action on the target.
    pub allowed: bool,
    /// The number of the rule that allows it, or that none does.
    pub why: String,
}

impl Policy {
    /// Returns the number of rules.
    pub fn rule_count(&self) -> usize {
        self.rules.len()
    }

    /// Selects the rules and the limits that apply to a principal.
    pub fn grants(&self, principal: &Principal) -> Arc<Grants> {
        let names = |subjects: &[Subject]| {
            let mut subjects = subjects.iter();
            subjects.any(|subject| self.applies(subject, principal))
        };
        let rules = self.rules.iter().filter(|rule| names(&rule.subjects));
        let limits = self.limits.iter().filter(|limit| names(&limit.subjects));
        Arc::new(Grants {
            rules: rules.map(Arc::clone).collect(),
            quota: Quota::of(limits.map(|limit| &limit.limit)),
        })
    }

    /// Decides, and explains the decision. [`Grants::allows`] is the quick form.
    pub fn verdict(&self, principal: &Principal, action: Action, target: Target<'_>) -> Verdict {
        let grants = self.grants(principal);
        grants.verdict(principal, action, target)
    }

    fn applies(&self, subject: &Subject, principal: &Principal) -> bool {
        match subject {
            Subject::Everyone => true,
            Subject::Principal(name) => **name == *principal.name(),
            Subject::Group(group) => {
                let members = self.groups.get(group);
                members.is_some_and(|members| members.contains(principal.name()))
                    || principal.groups().any(|stated| stated == &**group)
            }
        }
    }
}

impl Grants {
    /// Returns whether a rule allows the action on the target. Does not allocate.
    pub fn allows(&self, action: Action, target: Target<'_>) -> bool {
        self.rules.iter().any(|rule| rule.allows(action, target))
    }

    /// Returns how much the principal may use.
    pub fn quota(&self) -> &Quota {
        &self.quota
    }

    /// Returns whether a rule allows the action on any target.
    pub fn may_some(&self, action: Action) -> bool {
        self.rules.iter().any(|rule| rule.actions.contains(action))
    }

    /// Returns the first address from `from` on that could be a queue on which a rule allows an action;
    /// `None` where there is none. So a list need not visit all queues of a relay.
    pub(crate) fn seek_queue(&self, from: &str) -> Option<String> {
        let queues = self.rules.iter().flat_map(|rule| &rule.queues);
        queues.filter_map(|queue| queue.seek(from)).min()
    }

    /// Decides, and explains the decision.
    pub fn verdict(&self, principal: &Principal, action: Action, target: Target<'_>) -> Verdict {
        let mut rules = self.rules.iter();
        let rule = rules.find(|rule| rule.allows(action, target));
        let why = match rule {
            Some(rule) => format!("rule {} allows `{action}` on `{target}`", rule.number),
            None => format!("no rule of `{principal}` allows `{action}` on `{target}`"),
        };
        Verdict {
            allowed: rule.is_some(),
            why,
        }
    }
}

impl Rule {
    fn allows(&self, action: Action, target: Target<'_>) -> bool {
        if !self.actions.contains(action) || action.scope() != target.scope() {
            return false;
        }
        match target {
            Target::Queue(address) => self.queues.iter().any(|queue| queue.matches(address)),
            Target::Selector(selector) => self.queues.iter().any(|queue| queue.covers(selector)),
            Target::Flag(name) => self.flags.iter().any(|flag| flag.0.matches(name.as_str())),
            Target::FlagPrefix(prefix) => {
                self.flags.iter().any(|flag| flag.0.covers_prefix(prefix))
            }
            Target::Relay => true,
        }
    }
}
