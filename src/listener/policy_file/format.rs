//! The keys of a policy file and their rules, parsed by hand so that every error names its key.

use std::{fmt::Display, sync::Arc, time::Duration};

use toml::{Table, Value};

use crate::{
    base::duration,
    listener::scaling::{ScalePolicy, StepPolicy, TargetLatencyPolicy},
};

/// Keys that are not read yet.
struct Keys(Table);

type Read<T> = Result<T, String>;

const POLICY: &str = "must be \"steps\" or \"target-latency\"";
const STEPS: &str = "must be a list of `[messages, tasks]`, as in [[100, 10], [1000, 50]]";
const SPAN: &str = "must be a span of time above zero, as in \"10s\"";
const COUNT: &str = "must be a whole number, 1 or more";

/// Parses a policy; an error is one line.
pub(crate) fn parse(text: &str) -> Read<Arc<dyn ScalePolicy>> {
    let mut keys = Keys(table(text)?);
    match keys.take("policy") {
        Some(Value::String(name)) if name == "steps" => Ok(Arc::new(keys.steps()?)),
        Some(Value::String(name)) if name == "target-latency" => Ok(Arc::new(keys.latency()?)),
        Some(other) => Err(format!("policy: {POLICY}, but is {other}")),
        None => Err(format!("policy: {POLICY}, but is missing")),
    }
}

fn table(text: &str) -> Read<Table> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
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

    fn count(&mut self, key: &str) -> Read<Option<usize>> {
        let Some(value) = self.take(key) else {
            return Ok(None);
        };
        match usize::try_from(value.as_integer().unwrap_or_default()) {
            Ok(count) if count > 0 => Ok(Some(count)),
            _ => Err(wrong(key, COUNT, &value)),
        }
    }

    fn span(&mut self, key: &str) -> Read<Option<Duration>> {
        let Some(value) = self.take(key) else {
            return Ok(None);
        };
        let span = value.as_str().and_then(|text| duration::parse(text).ok());
        match span.filter(|span| !span.is_zero()) {
            Some(span) => Ok(Some(span)),
            None => Err(wrong(key, SPAN, &value)),
        }
    }

    fn none_left(&self, policy: &str, keys: &str) -> Read<()> {
        match self.0.keys().next() {
            Some(key) => Err(format!(
                "{key}: is no key of policy \"{policy}\", which has {keys}"
            )),
            None => Ok(()),
        }
    }
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
