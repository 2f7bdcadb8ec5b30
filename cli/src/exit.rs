//! Exit codes: the outcomes that a script can distinguish.

use std::{io, process::ExitCode};

use reveille::ErrorKind;

/// An exit code of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exit(u8);

/// An argument or a setting breaks a rule.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// A failure with exit code 1, for any kind of error behind it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Failed(pub(crate) String);

impl Exit {
    pub(crate) const OK: Self = Self(0);
    pub(crate) const FAILURE: Self = Self(1);
    pub(crate) const USAGE: Self = Self(2);
    pub(crate) const UNREACHABLE: Self = Self(3);
    pub(crate) const DENIED: Self = Self(4);
    pub(crate) const NOT_FOUND: Self = Self(5);
    pub(crate) const TIMED_OUT: Self = Self(6);
    pub(crate) const LEASE_LOST: Self = Self(7);
    pub(crate) const NOT_NOTIFIED: Self = Self(8);
    pub(crate) const INTERRUPTED: Self = Self(130);
    pub(crate) const TERMINATED: Self = Self(143);

    /// Returns the exit code of a child command; 128 + N if signal N ended it.
    pub(crate) fn of_command(status: std::process::ExitStatus) -> Self {
        use std::os::unix::process::ExitStatusExt as _;
        let signalled = || status.signal().map(|signal| 128 + signal);
        let code = status.code().or_else(signalled).unwrap_or(1);
        Self(u8::try_from(code).unwrap_or(1))
    }

    pub(crate) fn of(error: &anyhow::Error) -> Self {
        for cause in error.chain() {
            if cause.is::<Failed>() {
                return Self::FAILURE;
            }
            if cause.is::<Usage>() {
                return Self::USAGE;
            }
            if let Some(error) = cause.downcast_ref::<clap::Error>() {
                // Help that was asked for is no error.
                let is_wrong = error.use_stderr();
                return if is_wrong { Self::USAGE } else { Self::OK };
            }
            if let Some(error) = cause.downcast_ref::<reveille::Error>() {
                return match error.kind() {
                    ErrorKind::Invalid => Self::USAGE,
                    ErrorKind::NotFound | ErrorKind::Conflict | ErrorKind::Busy => Self::NOT_FOUND,
                    ErrorKind::Denied => Self::DENIED,
                    ErrorKind::Unavailable => Self::UNREACHABLE,
                    ErrorKind::Timeout => Self::TIMED_OUT,
                    _ => Self::FAILURE,
                };
            }
            if let Some(error) = cause.downcast_ref::<io::Error>() {
                // The reader of stdout has closed the pipe: it needs no more output.
                let is_closed = error.kind() == io::ErrorKind::BrokenPipe;
                return if is_closed { Self::OK } else { Self::FAILURE };
            }
        }
        Self::FAILURE
    }
}

/// Returns a conversion that gives errors of this kind the exit code 1.
pub(crate) fn failed_if(kind: ErrorKind) -> impl Fn(reveille::Error) -> anyhow::Error {
    move |error| match error.kind() == kind {
        true => Failed(error.to_string()).into(),
        false => error.into(),
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.0)
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn every_kind_of_error_has_its_code() {
        for (kind, code) in [
            (ErrorKind::Invalid, 2),
            (ErrorKind::NotFound, 5),
            (ErrorKind::Conflict, 5),
            (ErrorKind::Denied, 4),
            (ErrorKind::Busy, 5),
            (ErrorKind::Exhausted, 1),
            (ErrorKind::Unavailable, 3),
            (ErrorKind::Timeout, 6),
            (ErrorKind::Closed, 1),
            (ErrorKind::Unsupported, 1),
            (ErrorKind::Internal, 1),
        ] {
            let error = Err::<(), _>(reveille::Error::new(kind, "it failed"))
                .context("notify")
                .expect_err("an error");
            assert_eq!(Exit::of(&error), Exit(code), "{kind:?}");
        }
    }

    #[test]
    fn a_failure_of_the_program_does_not_take_the_code_of_its_cause() {
        assert_eq!(Exit::of(&Failed("port".into()).into()), Exit::FAILURE);
        assert_eq!(Exit::of(&Usage("flag".into()).into()), Exit::USAGE);
        let closed = io::Error::from(io::ErrorKind::BrokenPipe);
        assert_eq!(Exit::of(&closed.into()), Exit::OK);
    }

    #[test]
    fn a_command_that_a_signal_ended_gives_128_and_the_signal() {
        use std::os::unix::process::ExitStatusExt as _;
        let ended = std::process::ExitStatus::from_raw;
        assert_eq!(Exit::of_command(ended(9)), Exit(137));
        assert_eq!(Exit::of_command(ended(7 << 8)), Exit(7));
    }
}
