//! The keys of a fleet's policy, which a central agent reads once.

use std::path::Path;

use super::{
    format::{self, Keys, Read},
    invalid, read,
};
use crate::{error::Result, listener::agent::FleetPolicy};

const KEYS: &str = "`min`, `max`, `backlog_per_node`, `latency`, `busy_share`, `step_up`, \
                    `step_down` and `cool_down`";

impl FleetPolicy {
    /// Reads a policy from a TOML file, whose keys are the names of the fields. `max` and one of
    /// `backlog_per_node`, `latency` and `busy_share` must be stated; other keys have the defaults of
    /// [`FleetPolicy::default`].
    ///
    /// ```toml
    /// max = 20
    /// backlog_per_node = 100
    /// cool_down = "10m"
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) where the file cannot be read or breaks a rule:
    /// names file, key and rule.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let policy = read(path).and_then(|text| parse(format::keys(&text)?));
        policy.map_err(|rule| invalid(path, &rule))
    }
}

fn parse(mut keys: Keys) -> Read<FleetPolicy> {
    let default = FleetPolicy::default();
    let missing = || "max: must be a whole number, 1 or more, but is missing".to_owned();
    let policy = FleetPolicy {
        min: keys.number("min")?.unwrap_or(default.min),
        max: keys.count("max")?.ok_or_else(missing)?,
        backlog_per_node: keys.count("backlog_per_node")?.map(|count| count as u64),
        latency: keys.span("latency")?,
        busy_share: keys.share("busy_share")?,
        step_up: keys.count("step_up")?,
        step_down: keys.count("step_down")?,
        cool_down: keys.any_span("cool_down")?.unwrap_or(default.cool_down),
    };
    if let Some(key) = keys.first() {
        return Err(format!(
            "{key}: is no key of a fleet's policy, which has {KEYS}"
        ));
    }
    policy.check().map_err(|error| error.message().to_owned())?;
    Ok(policy)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn parsed(text: &str) -> Read<FleetPolicy> {
        parse(format::keys(text)?)
    }

    #[test]
    fn all_keys_are_read_and_the_others_have_defaults() {
        let text = "min = 1\nmax = 9\nbacklog_per_node = 100\nlatency = \"2s\"\nbusy_share = 0.8\n\
                    step_up = 4\nstep_down = 2\ncool_down = \"0\"\n";
        let all = FleetPolicy {
            min: 1,
            max: 9,
            backlog_per_node: Some(100),
            latency: Some(Duration::from_secs(2)),
            busy_share: Some(0.8),
            step_up: Some(4),
            step_down: Some(2),
            cool_down: Duration::ZERO,
        };
        assert_eq!(parsed(text), Ok(all));
        let least = FleetPolicy {
            max: 3,
            backlog_per_node: None,
            busy_share: Some(1.0),
            ..FleetPolicy::default()
        };
        assert_eq!(parsed("max = 3\nbusy_share = 1\n"), Ok(least));
    }

    #[test]
    fn a_refusal_names_the_key_and_the_rule() {
        for (text, words) in [
            ("max = ", "line 1: "),
            (
                "backlog_per_node = 5",
                "max: must be a whole number, 1 or more, but is missing",
            ),
            (
                "max = 0",
                "max: must be a whole number, 1 or more, but is 0",
            ),
            (
                "max = 3",
                "backlog_per_node: must be stated, or `latency`, or `busy_share`",
            ),
            (
                "max = 3\nmin = 4\nbusy_share = 1",
                "min: must be at most max (3), not 4",
            ),
            (
                "max = 3\nmin = -1",
                "min: must be a whole number, 0 or more, but is -1",
            ),
            (
                "max = 3\nbusy_share = 1.5",
                "busy_share: must be above 0 and at most 1",
            ),
            (
                "max = 3\nbusy_share = nan",
                "busy_share: must be above 0 and at most 1",
            ),
            (
                "max = 3\nbusy_share = \"much\"",
                "busy_share: must be a number, as in 0.8",
            ),
            (
                "max = 3\nlatency = \"0s\"",
                "latency: must be a span of time above zero",
            ),
            (
                "max = 3\ncool_down = 5",
                "cool_down: must be a span of time, as in \"10s\", but is 5",
            ),
            (
                "max = 3\nstep_up = 0",
                "step_up: must be a whole number, 1 or more",
            ),
            (
                "max = 3\nbusy_share = 1\nmost = 3",
                "most: is no key of a fleet's policy",
            ),
        ] {
            let refused = parsed(text).expect_err(text);
            assert!(refused.starts_with(words), "{text}: {refused}");
            assert!(!refused.contains('\n'), "{text}: {refused}");
        }
    }
}
