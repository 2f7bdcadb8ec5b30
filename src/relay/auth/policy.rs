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
    action::{Action, ActionSet, Scope, Target},
    principal::Principal,
    quota::{LimitForm, Quota},
};

/// The rules of a relay, and the groups that they name. The default has no rule and denies all.
#[derive(Debug, Default)]
pub struct Policy {
    rules: Vec<PolicyRule>,
    /// The members of each group of the file.
    groups: HashMap<Box<str>, HashSet<Box<str>>>,
    limits: Vec<PolicyLimit>,
}

/// The rules that apply to one principal, and how much it may use.
#[derive(Debug, Default)]
pub struct Grants {
    rules: Box<[Arc<Rule>]>,
    quota: Quota,
}

/// A rule, and the principals that it applies to.
#[derive(Debug)]
pub(super) struct PolicyRule {
    pub(super) subjects: Vec<Subject>,
    pub(super) rule: Arc<Rule>,
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

/// The allowed actions of a rule, and their targets.
#[derive(Debug)]
pub(super) struct Rule {
    /// Position in the file, from 1.
    pub(super) number: usize,
    pub(super) actions: ActionSet,
    pub(super) queues: Box<[QueuePattern]>,
    pub(super) flags: Box<[FlagPattern]>,
}

/// A decision with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Whether a rule allows the action on the target.
    pub allowed: bool,
    /// The rule that allows it, or the rules that came close. For operators: it names patterns that
    /// the caller may not know.
    pub why: String,
}

/// Most rules that a reason lists.
const LISTED: usize = 5;

impl Policy {
    /// Creates a policy. `groups` are the groups of the file with their members.
    pub(super) fn new(
        rules: Vec<PolicyRule>,
        groups: HashMap<Box<str>, HashSet<Box<str>>>,
    ) -> Self {
        Self {
            rules,
            groups,
            limits: Vec::new(),
        }
    }

    /// Sets the tables `[[limit]]`, in the order of the file.
    pub(super) fn with_limits(mut self, limits: Vec<PolicyLimit>) -> Self {
        self.limits = limits;
        self
    }

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
            rules: rules.map(|rule| Arc::clone(&rule.rule)).collect(),
            quota: Quota::of(limits.map(|limit| &limit.limit)),
        })
    }

    /// Decides, and explains the decision. [`Grants::allows`] is the quick form.
    pub fn verdict(&self, principal: &Principal, action: Action, target: Target<'_>) -> Verdict {
        let grants = self.grants(principal);
        grants.verdict(principal, action, target)
    }

    /// Returns whether a rule allows the principal this action on any target.
    pub fn may_some(&self, principal: &Principal, action: Action) -> bool {
        self.grants(principal).may_some(action)
    }

    fn applies(&self, subject: &Subject, principal: &Principal) -> bool {
        if principal.is_anonymous() {
            return false;
        }
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
        let rules = &self.rules;
        let allowing = rules.iter().find(|rule| rule.allows(action, target));
        let why = match allowing {
            Some(rule) => reason_to_allow(rule, action, target),
            None => reason_to_deny(rules, principal, action, target),
        };
        Verdict {
            allowed: allowing.is_some(),
            why,
        }
    }
}

impl Rule {
    fn allows(&self, action: Action, target: Target<'_>) -> bool {
        self.actions.contains(action) && action.scope() == target.scope() && self.covers(target)
    }

    /// Returns whether the rule covers the target, for any of its actions of this scope.
    fn covers(&self, target: Target<'_>) -> bool {
        match target {
            Target::Queue(address) => self.queues.iter().any(|queue| queue.matches(address)),
            Target::Selector(selector) => self.queues.iter().any(|queue| queue.covers(selector)),
            Target::Flag(name) => self.flags.iter().any(|flag| flag.matches(name.as_str())),
            Target::FlagPrefix(prefix) => self.flags.iter().any(|flag| flag.covers(prefix)),
            Target::Relay => true,
        }
    }
}

fn reason_to_allow(rule: &Rule, action: Action, target: Target<'_>) -> String {
    let number = rule.number;
    match pattern(rule, target) {
        Some(pattern) => format!("rule {number} allows `{action}` on `{pattern}`"),
        None => format!("rule {number} allows `{action}`"),
    }
}

/// Returns the rule's pattern that covers the target.
fn pattern(rule: &Rule, target: Target<'_>) -> Option<String> {
    let mut queues = rule.queues.iter();
    let mut flags = rule.flags.iter();
    match target {
        Target::Queue(address) => queues.find(|p| p.matches(address)).map(ToString::to_string),
        Target::Selector(selector) => queues.find(|p| p.covers(selector)).map(ToString::to_string),
        Target::Flag(name) => flags
            .find(|p| p.matches(name.as_str()))
            .map(ToString::to_string),
        Target::FlagPrefix(prefix) => flags.find(|p| p.covers(prefix)).map(ToString::to_string),
        Target::Relay => None,
    }
}

fn reason_to_deny(
    rules: &[Arc<Rule>],
    principal: &Principal,
    action: Action,
    target: Target<'_>,
) -> String {
    if rules.is_empty() {
        return format!("no rule applies to `{principal}`");
    }
    if action.scope() != target.scope() {
        return format!("`{action}` does not apply to `{target}`");
    }
    let things = match action.scope() {
        Scope::Queues => "queues",
        Scope::Flags => "flags",
        Scope::Relay => "targets",
    };
    let same_action = numbers(rules, |rule| rule.actions.contains(action));
    // Every rule covers the relay, which says nothing.
    let same_target = numbers(rules, |rule| {
        action.scope() != Scope::Relay && rule.covers(target)
    });
    match (same_action, same_target) {
        (Some(a), Some(t)) => format!(
            "{a} allows `{action}` on other {things}, and {t} allows other actions on `{target}`"
        ),
        (Some(a), None) => format!("{a} allows `{action}`, but on other {things}"),
        (None, Some(t)) => format!("{t} covers `{target}`, but without `{action}`"),
        (None, None) => format!("no rule of `{principal}` allows `{action}`"),
    }
}

/// Returns the numbers of the rules for which `is_close` holds.
fn numbers(rules: &[Arc<Rule>], is_close: impl Fn(&Rule) -> bool) -> Option<String> {
    let close = rules.iter().filter(|rule| is_close(rule));
    let close: Vec<_> = close.map(|rule| format!("rule {}", rule.number)).collect();
    let listed = close.get(..LISTED).unwrap_or(&close).join(", ");
    match close.len() {
        0 => None,
        count if count > LISTED => Some(format!("each of {listed} and {} more", count - LISTED)),
        1 => Some(listed),
        _ => Some(format!("each of {listed}")),
    }
}
