//! Converts the messages of `flags.proto`.

use super::{
    proto::{self, watch_flag_response::Event},
    relay::goodbye_from_wire,
    time::{time_from_wire, time_to_wire},
};
use crate::{
    error::{Error, ErrorKind, Result},
    types::{FlagEvent, FlagName, FlagState},
};

pub(crate) fn flag_to_wire(state: &FlagState) -> proto::Flag {
    proto::Flag {
        name: state.name.to_string(),
        set: state.set,
        generation: state.generation,
        set_by: state.set_by.clone(),
        reason: state.reason.clone(),
        set_at: time_to_wire(state.set_at),
        expires_at: time_to_wire(state.expires_at),
    }
}

/// Converts the flag of an answer.
pub(crate) fn flag_from_wire(flag: Option<proto::Flag>) -> Result<FlagState> {
    // Not the error of the name's check: `Invalid` would blame the request and end a watch.
    let broken = |what| Error::new(ErrorKind::Internal, format!("the relay's answer {what}"));
    let flag = flag.ok_or_else(|| broken("holds no flag"))?;
    let bad_name = |error| broken("names no flag").with_source(error);
    Ok(FlagState {
        name: FlagName::new(&flag.name).map_err(bad_name)?,
        set: flag.set,
        generation: flag.generation,
        set_by: flag.set_by,
        reason: flag.reason,
        set_at: time_from_wire(flag.set_at),
        expires_at: time_from_wire(flag.expires_at),
    })
}

/// Converts a message of a watch.
pub(crate) fn flag_event(response: proto::WatchFlagResponse) -> Result<FlagEvent> {
    Ok(match response.event {
        None => FlagEvent::Unknown,
        Some(Event::Flag(flag)) => FlagEvent::State(flag_from_wire(Some(flag))?),
        Some(Event::Heartbeat(_)) => FlagEvent::Heartbeat,
        Some(Event::Goodbye(goodbye)) => FlagEvent::Goodbye(goodbye_from_wire(&goodbye)),
        Some(Event::Acks(acks)) => FlagEvent::Acks {
            generation: acks.generation,
            acknowledged: acks.acknowledged,
            watchers: acks.watchers,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_name_in_an_answer_is_the_relays_fault_not_the_requests() {
        for name in ["", "..", "a/b", "go live"] {
            let flag = proto::Flag {
                name: name.to_owned(),
                ..flag_to_wire(&FlagState::unset(FlagName::new("go").expect("a name"), 1))
            };
            let event = Some(Event::Flag(flag.clone()));
            for read in [
                flag_from_wire(Some(flag)).map(|_| ()),
                flag_event(proto::WatchFlagResponse { event }).map(|_| ()),
            ] {
                let error = read.expect_err(name);
                assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
                assert!(error.message().contains("answer"), "{error}");
            }
        }
    }
}
