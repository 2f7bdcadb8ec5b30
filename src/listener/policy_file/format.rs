//! The keys of a policy file and their rules, parsed by hand so that every error names its key.

use std::{fmt::Display, sync::Arc, time::Duration};

use toml::{Table, Value};

use crate::{
    base::duration,
    listener::scaling::{ScalePolicy, StepPolicy, TargetLatencyPolicy},
};

/// Keys that are not read yet.
pub(super) struct Keys(Table);

pub(super) type Read<T> = Result<T, String>;

const POLICY: &str = "must be \"steps\" or \"target-latency\"";
const STEPS: &str = "must be a list of `[messages, tasks]`, as in [[100, 10], [1000, 50]]";
const SPAN: &str = "must be a span of time above zero, as in \"10s\"";
const ANY_SPAN: &str = "must be a span of time, as in \"10s\"";
const COUNT: &str = "must be a whole number, 1 or more";
const NUMBER: &str = "must be a whole number, 0 or more";
const SHARE: &str = "must be a number, as in 0.8";

/// Parses a policy; an error is one line.
pub(crate) fn parse(text: &str) -> Read<Arc<dyn ScalePolicy>> {
    let mut keys = keys(text)?;
    match keys.take("policy") {
        Some(Value::String(name)) if name == "steps" => Ok(Arc::new(keys.steps()?)),
        Some(Value::String(name)) if name == "target-latency" => Ok(Arc::new(keys.latency()?)),
        Some(other) => Err(format!("policy: {POLICY}, but is {other}")),
        None => Err(format!("policy: {POLICY}, but is missing")),
    }
}

/// Reads the keys of a text; an error is one line.
pub(super) fn keys(text: &str) -> Read<Keys> {
    toml::from_str(text).map(Keys).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        let line = 1 + before.unwrap_or_default().matches('\n').count();
        let message = error.message().replace('\n', " ");
        format!("line {line}: {message}")
    })
}

impl Keys {
    fn steps(mut self) -> Read<StepPolicy> {
        let steps = match self.take("steps") {
            Some(value) => pairs(&value).ok_or_else(|| wrong("steps", STEPS, &value))?,
            None => vec![(100, 10), (1_000, 50)],
        };
        let most = self.count("most")?.unwrap_or(100);
        self.none_left("steps", "`steps` and `most`")?;
        StepPolicy::new(steps, most).map_err(|error| error.message().to_owned())
    }

    fn latency(mut self) -> Read<TargetLatencyPolicy> {
        let default = TargetLatencyPolicy::default();
        let policy = TargetLatencyPolicy {
            target: self.span("target")?.unwrap_or(default.target),
            assumed: self.span("assumed")?.unwrap_or(default.assumed),
            most: self.count("most")?.unwrap_or(default.most),
        };
        self.none_left("target-latency", "`target`, `assumed` and `most`")?;
        Ok(policy)
    }

    fn take(&mut self, key: &str) -> Option<Value> {
        self.0.remove(key)
    }

    pub(super) fn count(&mut self, key: &str) -> Read<Option<usize>> {
        self.read(key, COUNT, |value| whole(value).filter(|count| *count > 0))
    }

    /// Reads a number that may be 0.
    pub(super) fn number(&mut self, key: &str) -> Read<Option<usize>> {
        self.read(key, NUMBER, whole)
    }

    pub(super) fn share(&mut self, key: &str) -> Read<Option<f64>> {
        let whole = |value: &Value| f64::from(i32::try_from(value.as_integer()?).ok()?).into();
        self.read(key, SHARE, |value| {
            value.as_float().or_else(|| whole(value))
        })
    }

    pub(super) fn span(&mut self, key: &str) -> Read<Option<Duration>> {
        self.read(key, SPAN, |value| {
            span(value).filter(|span| !span.is_zero())
        })
    }

    /// Reads a span that may be 0.
    pub(super) fn any_span(&mut self, key: &str) -> Read<Option<Duration>> {
        self.read(key, ANY_SPAN, span)
    }

    fn read<T>(
        &mut self,
        key: &str,
        rule: &str,
        convert: impl FnOnce(&Value) -> Option<T>,
    ) -> Read<Option<T>> {
        let Some(value) = self.take(key) else {
            return Ok(None);
        };
        let converted = convert(&value).ok_or_else(|| wrong(key, rule, &value));
        converted.map(Some)
    }

    fn none_left(&self, policy: &str, keys: &str) -> Read<()> {
        match self.first() {
            Some(key) => Err(format!(
                "{key}: is no key of policy \"{policy}\", which has {keys}"
            )),
            None => Ok(()),
        }
    }

    /// Returns a key that was not read.
    pub(super) fn first(&self) -> Option<&str> {
        self.0.keys().next().map(String::as_str)
    }
}

fn whole(value: &Value) -> Option<usize> {
    usize::try_from(value.as_integer()?).ok()
}

fn span(value: &Value) -> Option<Duration> {
    duration::parse(value.as_str()?).ok()
}

fn pairs(value: &Value) -> Option<Vec<(u64, usize)>> {
    let number = |value: &Value| value.as_integer();
    let pair = |value: &Value| match value.as_array()?.as_slice() {
        [messages, tasks] => Some((
            u64::try_from(number(messages)?).ok()?,
            usize::try_from(number(tasks)?).ok()?,
        )),
        _ => None,
    };
    value.as_array()?.iter().map(pair).collect()
}

fn wrong(key: &str, rule: &str, value: &impl Display) -> String {
    format!("{key}: {rule}, but is {value}")
}
