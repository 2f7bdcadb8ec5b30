//! Durations in human-readable form: `250ms`, `2s`, `10m`, `1h30m`, `14d`.
//!
//! One spelling for the command line, the environment and the configuration file.

use std::{fmt, str::FromStr, time::Duration};

/// The error for a text that is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no duration: write it like `250ms`, `2s`, `10m` or `1h30m`")]
pub struct ParseDurationError(String);

/// A duration in the form that [`parse`] reads; displayed rounded for people.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span(pub Duration);

/// Parses a duration: the sum of numbers with units, such as `ns`, `us`, `ms`, `s`, `m`, `h`, `d`, `w`.
/// Decimal fractions are allowed, and `0` needs no unit.
///
/// # Errors
/// If the text does not have this form, is negative, or is more than 584 years.
pub fn parse(text: &str) -> Result<Duration, ParseDurationError> {
    let parsed = humantime::parse_duration(text).ok();
    parsed
        .filter(|span| u64::try_from(span.as_nanos()).is_ok())
        .ok_or_else(|| ParseDurationError(text.to_owned()))
}

impl FromStr for Span {
    type Err = ParseDurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map(Self)
    }
}

#[cfg(any(feature = "cloud", feature = "coordination", feature = "listener"))]
impl<'de> serde::Deserialize<'de> for Span {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text: String = serde::Deserialize::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        span.0
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let micros = self.0.as_micros();
        match (seconds, micros) {
            (0, 0) => write!(f, "0s"),
            (0, us) if us < 1_000 => write!(f, "{us}us"),
            (0, us) if us < 10_000 => write!(f, "{}.{}ms", us / 1_000, us % 1_000 / 100),
            (0, us) => write!(f, "{}ms", us / 1_000),
            (s, _) if s < 10 => {
                let tenths = self.0.subsec_millis() / 100;
                if tenths == 0 {
                    write!(f, "{s}s")
                } else {
                    write!(f, "{s}.{tenths}s")
                }
            }
            (s, _) if s < 60 => write!(f, "{s}s"),
            (s, _) if s < 3600 => pair(f, (s / 60, "m"), (s % 60, "s")),
            (s, _) if s < 24 * 3600 => pair(f, (s / 3600, "h"), (s % 3600 / 60, "m")),
            (s, _) => pair(f, (s / 86_400, "d"), (s % 86_400 / 3600, "h")),
        }
    }
}

/// Writes the greater unit, and the smaller one if it is not zero.
fn pair(f: &mut fmt::Formatter<'_>, great: (u64, &str), small: (u64, &str)) -> fmt::Result {
    write!(f, "{}{}", great.0, great.1)?;
    if small.0 > 0 {
        write!(f, "{}{}", small.0, small.1)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 3600 * 1_000_000_000;

    #[test]
    fn durations_are_parsed() {
        for (text, nanos) in [
            ("0", 0),
            ("250ms", 250_000_000),
            ("2s", 2_000_000_000),
            ("1.5s", 1_500_000_000),
            ("10m", 600_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("14d", 14 * DAY),
            ("1w", 7 * DAY),
            ("1w2d", 9 * DAY),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn invalid_text_is_refused_with_an_example() {
        for text in [
            "",
            "5",
            "-1s",
            "s",
            "1x",
            "1..5s",
            ".5s",
            "5.s",
            "99999999999d",
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains("2s"), "{error}");
        }
    }

    #[test]
    fn displayed_durations_are_parsed_again() {
        for text in [
            "0s", "7us", "2.5ms", "250ms", "2s", "2.5s", "42s", "1m30s", "10m", "1h30m", "14d",
        ] {
            assert_eq!(Span(parse(text).expect(text)).to_string(), text);
        }
    }
}
