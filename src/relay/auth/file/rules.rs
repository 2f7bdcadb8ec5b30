//! Checks the tables `[groups]`, `[[rule]]` and `[[limit]]`.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt::Display,
    str::FromStr,
    sync::Arc,
};

use serde::Deserialize;

use crate::{
    error::{Error, Result},
    relay::auth::{
        action::{Action, ActionSet, Scope},
        policy::{Policy, PolicyLimit, PolicyRule, Rule, Subject},
        principal::{GROUP_PREFIX, check_principal},
        quota::LimitForm,
    },
    types::Limits,
};

/// A table `[[rule]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleForm {
    principals: Vec<String>,
    actions: Vec<String>,
    queues: Option<Vec<String>>,
    flags: Option<Vec<String>>,
}

type Groups = HashMap<Box<str>, HashSet<Box<str>>>;

/// Reads rules, limits and groups. `states_groups`: an issuer's tokens may name further groups.
pub(super) fn read(
    rules: Vec<RuleForm>,
    limits: Vec<LimitForm>,
    groups: BTreeMap<String, Vec<String>>,
    states_groups: bool,
) -> Result<Policy> {
    let groups = read_groups(groups)?;
    let rules = rules.into_iter().enumerate().map(|(at, form)| {
        let number = at + 1;
        let rule = form.read(number, &groups, states_groups);
        rule.map_err(|error| Error::invalid(&format!("rule {number}"), error))
    });
    let rules = rules.collect::<Result<_>>()?;
    let limits = limits.into_iter().enumerate().map(|(at, form)| {
        let limit = form.read(&groups, states_groups);
        limit.map_err(|error| Error::invalid(&format!("limit {}", at + 1), error))
    });
    let limits = limits.collect::<Result<_>>()?;
    Ok(Policy::new(rules, groups).with_limits(limits))
}

fn read_groups(form: BTreeMap<String, Vec<String>>) -> Result<Groups> {
    let mut groups = Groups::new();
    for (name, members) in form {
        check_principal("groups", &name)?;
        let field = format!("groups: `{name}`");
        check_filled(&field, &members)?;
        for member in &members {
            check_principal(&field, member)?;
        }
        let members = members.into_iter().map(String::into_boxed_str);
        groups.insert(name.into(), members.collect());
    }
    Ok(groups)
}

impl RuleForm {
    fn read(self, number: usize, groups: &Groups, states_groups: bool) -> Result<PolicyRule> {
        let subjects = list("principals", &self.principals, |text| {
            subject(text, groups, states_groups)
        })?;
        let mut actions = ActionSet::default();
        for action in list("actions", &self.actions, Action::from_str)? {
            actions.insert(action);
        }
        let queues = targets("queues", Scope::Queues, actions, self.queues)?;
        let flags = targets("flags", Scope::Flags, actions, self.flags)?;
        let rule = Rule {
            number,
            actions,
            queues,
            flags,
        };
        Ok(PolicyRule {
            subjects,
            rule: Arc::new(rule),
        })
    }
}

impl LimitForm {
    fn read(self, groups: &Groups, states_groups: bool) -> Result<PolicyLimit> {
        let subjects = list("principals", &self.principals, |text| {
            subject(text, groups, states_groups)
        })?;
        let least = Limits::EVENTS;
        if let Some(burst) = self.notify_burst.filter(|burst| (*burst as usize) < least) {
            let rule = format_args!(
                "must be at least {least}, the notifications of one request, not {burst}"
            );
            return Err(Error::invalid("notify_burst", rule));
        }
        let limit = Self {
            principals: Vec::new(),
            ..self
        };
        if limit == Self::default() {
            return Err(Error::invalid("limit", "states no limit"));
        }
        Ok(PolicyLimit { subjects, limit })
    }
}

fn subject(text: &str, groups: &Groups, states_groups: bool) -> Result<Subject> {
    if text == "*" {
        return Ok(Subject::Everyone);
    }
    let Some(group) = text.strip_prefix(GROUP_PREFIX) else {
        check_principal("principals", text)?;
        return Ok(Subject::Principal(text.into()));
    };
    check_principal("principals", group)?;
    if !groups.contains_key(group) && !states_groups {
        let rule =
            format_args!("group `{group}` is neither in [groups] nor in tokens of an issuer");
        return Err(Error::invalid("principals", rule));
    }
    Ok(Subject::Group(group.into()))
}

/// Reads the patterns of a scope, which must stand there if and only if an action has this scope.
fn targets<P: FromStr<Err = Error>>(
    field: &str,
    scope: Scope,
    actions: ActionSet,
    patterns: Option<Vec<String>>,
) -> Result<Box<[P]>> {
    match (patterns, actions.has_scope(scope)) {
        (Some(patterns), true) => Ok(list(field, &patterns, P::from_str)?.into()),
        (None, false) => Ok(Box::default()),
        (Some(_), false) => {
            let rule = format_args!("no action of the rule applies to {field}");
            Err(Error::invalid(field, rule))
        }
        (None, true) => {
            let rule = format_args!("is missing: an action of the rule applies to {field}");
            Err(Error::invalid(field, rule))
        }
    }
}

/// Parses a list that is not empty. An error names the field once.
fn list<T>(field: &str, texts: &[String], parse: impl Fn(&str) -> Result<T>) -> Result<Vec<T>> {
    check_filled(field, texts)?;
    let parsed = texts.iter().map(|text| {
        parse(text).map_err(|error| {
            if error.message().starts_with(field) {
                error
            } else {
                named(field, text, &error)
            }
        })
    });
    parsed.collect()
}

fn named(field: &str, text: &str, error: &dyn Display) -> Error {
    let shown: String = text.chars().take(80).collect();
    Error::invalid(field, format_args!("{shown:?}: {error}"))
}

fn check_filled(field: &str, list: &[String]) -> Result<()> {
    if list.is_empty() {
        Err(Error::invalid(field, "must not be empty"))
    } else {
        Ok(())
    }
}
