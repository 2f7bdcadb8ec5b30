//! Durations and points in time in messages.

use std::time::{Duration, SystemTime};

use prost_types::{Duration as WireSpan, Timestamp};

use crate::{
    error::{Error, Result},
    types::is_in_calendar,
};

/// Converts and checks a duration. Absent is `None`.
pub(crate) fn checked_span(field: &str, span: Option<WireSpan>) -> Result<Option<Duration>> {
    let Some(span) = span else { return Ok(None) };
    let refuse = |rule: &str| Err(Error::invalid(field, rule));
    if span.seconds < 0 || span.nanos < 0 {
        return refuse("must not be negative");
    }
    match (u64::try_from(span.seconds), u32::try_from(span.nanos)) {
        (Ok(seconds), Ok(nanos)) if nanos < 1_000_000_000 => {
            Ok(Some(Duration::new(seconds, nanos)))
        }
        _ => refuse("has nanoseconds out of range"),
    }
}

/// Converts a duration; an invalid one is zero.
pub(crate) fn span_from_wire(span: Option<WireSpan>) -> Duration {
    span.and_then(|span| Duration::try_from(span).ok())
        .unwrap_or_default()
}

pub(crate) fn span_to_wire(span: Duration) -> WireSpan {
    WireSpan {
        seconds: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(span.subsec_nanos()).unwrap_or(0),
    }
}

/// Converts and checks a point in time.
pub(super) fn checked_time(field: &str, time: Option<Timestamp>) -> Result<Option<SystemTime>> {
    let read = |time: Timestamp| {
        let sound = (0..1_000_000_000).contains(&time.nanos);
        let time = sound.then(|| SystemTime::try_from(time).ok()).flatten();
        time.filter(|time| is_in_calendar(*time))
            .ok_or_else(|| Error::invalid(field, "is no point in time"))
    };
    time.map(read).transpose()
}

/// Converts a point in time; an invalid one is absent.
pub(super) fn time_from_wire(time: Option<Timestamp>) -> Option<SystemTime> {
    time.and_then(|time| SystemTime::try_from(time).ok())
        .filter(|time| is_in_calendar(*time))
}

/// Converts a point in time; an invalid one is absent.
pub(crate) fn time_to_wire(time: Option<SystemTime>) -> Option<Timestamp> {
    time.filter(|time| is_in_calendar(*time))
        .map(Timestamp::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_or_invalid_duration_is_refused() {
        for (seconds, nanos) in [(-1, 0), (0, -1), (0, 1_000_000_000)] {
            let error =
                checked_span("delay", Some(WireSpan { seconds, nanos })).expect_err("invalid");
            assert!(error.message().starts_with("delay: "), "{error}");
        }
        let span = Duration::new(3, 5);
        assert_eq!(
            checked_span("delay", Some(span_to_wire(span))).expect("valid"),
            Some(span)
        );
        assert_eq!(checked_span("delay", None).expect("absent"), None);
    }
}
