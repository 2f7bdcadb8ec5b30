//! `lease show`: prints a lease's holder.

use std::time::SystemTime;

use reveille::{Error, ErrorKind, lease::LeaseState};
use serde::Serialize;

use super::Named;
use crate::{
    exit::Exit,
    output::{self, OutputArgs, Row},
};

/// Show the holder of a lease, or its last holder
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille lease show billing --store az://leases
  reveille lease show billing --store sqlite:/srv/shared.db -o json

AGE is the time since the lease was last acquired, renewed or released. A held lease that is older \
than its duration has lost its holder: the next waiting process acquires it soon. Ends with 5 if the \
lease was never held.")]
pub(super) struct Args {
    #[command(flatten)]
    named: Named,
    #[command(flatten)]
    output: OutputArgs,
}

/// A lease as a row.
#[derive(Debug, Serialize)]
struct LeaseRow {
    lease: String,
    held: bool,
    token: u64,
    holder: String,
    duration_ms: u64,
    #[serde(serialize_with = "output::serialize_time")]
    written_at: Option<SystemTime>,
    age_ms: u64,
    state: Shown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Shown {
    Held,
    /// Its holder has not renewed it for its duration: the next contender has it.
    Expired,
    Released,
}

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let lease = self.named.open_existing().await?;
        let Some(state) = lease.state().await? else {
            let message = format!("{lease} was never held");
            return Err(Error::new(ErrorKind::NotFound, message).into());
        };
        let format = self.output.format;
        format.one(&LeaseRow::new(lease.name(), state, SystemTime::now()))?;
        Ok(Exit::OK)
    }
}

impl LeaseRow {
    fn new(name: &str, state: LeaseState, now: SystemTime) -> Self {
        // The store's clock may be ahead of this machine's: the age is 0 then.
        let age = now.duration_since(state.written).unwrap_or_default();
        let shown = match state.held {
            true if age <= state.duration => Shown::Held,
            true => Shown::Expired,
            false => Shown::Released,
        };
        Self {
            lease: name.to_owned(),
            held: state.held,
            state: shown,
            token: state.token,
            holder: state.holder,
            duration_ms: output::millis(state.duration),
            written_at: Some(state.written),
            age_ms: output::millis(age),
        }
    }
}

impl Row for LeaseRow {
    const COLUMNS: &'static [&'static str] =
        &["lease", "state", "token", "holder", "duration_ms", "age_ms"];
}
