//! Named points at which a test can end the process, as a crash would.
//!
//! `REVEILLE_CRASH_POINT=NAME:N` aborts the process at its Nth passage of the point. Only builds with
//! debug assertions read the variable.

use std::sync::{
    OnceLock,
    atomic::{AtomicU32, Ordering},
};

#[derive(Debug)]
struct CrashPoint {
    name: String,
    passages_left: AtomicU32,
}

const VARIABLE: &str = "REVEILLE_CRASH_POINT";

/// Passes the point `name`.
pub(super) fn crash_point(name: &str) {
    static POINT: OnceLock<Option<CrashPoint>> = OnceLock::new();
    if !cfg!(debug_assertions) {
        return;
    }
    let Some(point) = POINT.get_or_init(from_environment) else {
        return;
    };
    if point.name == name && point.passages_left.fetch_sub(1, Ordering::Relaxed) == 1 {
        std::process::abort();
    }
}

fn from_environment() -> Option<CrashPoint> {
    let text = std::env::var(VARIABLE).ok()?;
    let (name, passages) = text.split_once(':')?;
    Some(CrashPoint {
        name: name.to_owned(),
        passages_left: AtomicU32::new(passages.parse().ok()?),
    })
}
