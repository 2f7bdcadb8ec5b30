//! Checks the tables `[groups]`, `[[rule]]` and `[[limit]]`.

use std::{
    collections::{BTreeMap, HashSet},
    str::FromStr,
    sync::Arc,
};

use serde::Deserialize;

use crate::{
    error::{Error, Result},
    relay::auth::{
        action::{Action, ActionSet, Scope},
        policy::{Groups, Policy, PolicyLimit, Rule, Subject},
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
    #[serde(default)]
    queues: Vec<String>,
    #[serde(default)]
    flags: Vec<String>,
}

pub(super) fn read(
    rules: &[RuleForm],
    limits: Vec<LimitForm>,
    groups: BTreeMap<String, Vec<String>>,
) -> Result<Policy> {
    let rules = rules.iter().enumerate().map(|(at, form)| {
        let number = at + 1;
        let rule = form.read(number);
        rule.map_err(|error| Error::invalid(&format!("rule {number}"), error))
    });
    let limits = limits.into_iter().enumerate().map(|(at, limit)| {
        let read = limit
            .check()
            .and_then(|()| list("principals", &limit.principals, subject));
        let subjects = read.map_err(|error| Error::invalid(&format!("limit {}", at + 1), error))?;
        Ok(PolicyLimit { subjects, limit })
    });
    Ok(Policy {
        rules: rules.collect::<Result<_>>()?,
        limits: limits.collect::<Result<_>>()?,
        groups: read_groups(groups)?,
    })
}

fn read_groups(form: BTreeMap<String, Vec<String>>) -> Result<Groups> {
    let mut groups = Groups::new();
    for (name, members) in form {
        check_principal("groups", &name)?;
        let member = |text: &str| check_principal("member", text).map(|()| Box::from(text));
        let members = list(&format!("groups: `{name}`"), &members, member)?;
        groups.insert(name.into(), HashSet::from_iter(members));
    }
    Ok(groups)
}

impl RuleForm {
    fn read(&self, number: usize) -> Result<Arc<Rule>> {
        let mut actions = ActionSet::default();
        for action in list("actions", &self.actions, Action::from_str)? {
            actions.insert(action);
        }
        Ok(Arc::new(Rule {
            number,
            subjects: list("principals", &self.principals, subject)?,
            actions,
            queues: targets("queues", Scope::Queues, actions, &self.queues)?,
            flags: targets("flags", Scope::Flags, actions, &self.flags)?,
        }))
    }
}

impl LimitForm {
    fn check(&self) -> Result<()> {
        let least = Limits::EVENTS;
        match self.notify_burst {
            Some(burst) if (burst as usize) < least => {
                let rule = format_args!("must be at least {least}, the events of one request");
                Err(Error::invalid("notify_burst", rule))
            }
            _ => Ok(()),
        }
    }
}

fn subject(text: &str) -> Result<Subject> {
    if text == "*" {
        return Ok(Subject::Everyone);
    }
    let group = text.strip_prefix(GROUP_PREFIX);
    check_principal("principal", group.unwrap_or(text))?;
    Ok(match group {
        Some(group) => Subject::Group(group.into()),
        None => Subject::Principal(text.into()),
    })
}

/// Reads the patterns of a scope, which must stand there if and only if an action has this scope.
fn targets<P: FromStr<Err = Error>>(
    field: &str,
    scope: Scope,
    actions: ActionSet,
    patterns: &[String],
) -> Result<Box<[P]>> {
    match (patterns, actions.has_scope(scope)) {
        ([], false) => Ok(Box::default()),
        (_, true) => Ok(list(field, patterns, P::from_str)?.into()),
        (_, false) => {
            let rule = format_args!("no action of the rule applies to {field}");
            Err(Error::invalid(field, rule))
        }
    }
}

/// Parses a list that is not empty.
fn list<T>(field: &str, texts: &[String], parse: impl Fn(&str) -> Result<T>) -> Result<Vec<T>> {
    if texts.is_empty() {
        return Err(Error::invalid(field, "must not be empty"));
    }
    let parsed = texts.iter().map(|text| {
        parse(text).map_err(|error| Error::invalid(field, format_args!("{text:?}: {error}")))
    });
    parsed.collect()
}
