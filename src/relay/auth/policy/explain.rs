//! The reason of a verdict, for the audit log and for operators.

use std::sync::Arc;

use super::Rule;
use crate::relay::auth::{
    action::{Action, Scope, Target},
    principal::Principal,
};

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

pub(super) fn verdict(
    rules: &[Arc<Rule>],
    principal: &Principal,
    action: Action,
    target: Target<'_>,
) -> Verdict {
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
