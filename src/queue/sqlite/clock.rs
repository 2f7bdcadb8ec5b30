//! The clock of a queue file: the machine's wall clock, but it never goes back.
//!
//! If the machine's clock were used and set back by an hour, hidden messages would wait an hour
//! longer. The file stores the greatest time that was used. While the machine's clock is behind it,
//! the file's clock continues from there at the machine's pace; when the machine's clock has caught
//! up, such as after a boot without a battery and the first answer of a time server, it counts alone.

use rusqlite::{Connection, Transaction};

use crate::base::clock::{micros, wall};

/// Microseconds since 1970.
pub(crate) type Micros = i64;

/// If a clock that is behind the file's goes forward by more, between two uses of the file, it was set. If
/// the file was not used for so long, that time does not count.
const LEAP: Micros = 3_600_000_000;

/// The time is stored again after this much progress; not more than a queue's resolution.
const STEP: Micros = 1_000;

/// Returns the present time, and stores it so that the clock never goes back.
pub(crate) fn advance(transaction: &Transaction<'_>) -> rusqlite::Result<Micros> {
    let (seen, was_ahead) = read(transaction)?;
    let (now, ahead) = file_time(machine_time(), seen, was_ahead);
    if now >= seen.saturating_add(STEP) || ahead != was_ahead {
        let update = "UPDATE clock SET seen = ?1, ahead = ?2";
        transaction.prepare_cached(update)?.execute([now, ahead])?;
    }
    Ok(now)
}

/// As [`advance`], and stores the exact time. So no later commit gets an earlier time, not even by
/// the resolution of [`advance`].
#[cfg(feature = "courier")]
pub(crate) fn advance_exactly(transaction: &Transaction<'_>) -> rusqlite::Result<Micros> {
    let (seen, ahead) = read(transaction)?;
    let (now, ahead) = file_time(machine_time(), seen, ahead);
    let update = "UPDATE clock SET seen = ?1, ahead = ?2";
    transaction.prepare_cached(update)?.execute([now, ahead])?;
    Ok(now)
}

/// Returns the present time without storing it, for reads.
pub(crate) fn now(connection: &Connection) -> rusqlite::Result<Micros> {
    let (seen, ahead) = read(connection)?;
    Ok(file_time(machine_time(), seen, ahead).0)
}

/// Returns the machine's time.
pub(crate) fn machine_time() -> Micros {
    Micros::try_from(micros(wall())).unwrap_or(Micros::MAX)
}

fn read(connection: &Connection) -> rusqlite::Result<(Micros, Micros)> {
    connection
        .prepare_cached("SELECT seen, ahead FROM clock")?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
}

/// Returns the file's time, and how far it is now ahead of the machine's.
pub(crate) fn file_time(machine: Micros, seen: Micros, ahead: Micros) -> (Micros, Micros) {
    if machine >= seen {
        return (machine, 0);
    }
    let now = machine.saturating_add(ahead);
    match (seen..=seen.saturating_add(LEAP)).contains(&now) {
        true => (now, ahead),
        // It was set, back or forward: the file's clock continues from where it is.
        false => (seen, seen.saturating_sub(machine)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_at_the_machines_pace_and_never_back() {
        let (mut seen, mut ahead) = (0, 0);
        // Set back by 900, then forward to where it was, and on.
        for (machine, expected) in [
            (1_000, 1_000),
            (1_010, 1_010),
            (110, 1_010),
            (150, 1_050),
            (1_040, 1_940),
            (1_941, 1_941),
            (1_950, 1_950),
        ] {
            (seen, ahead) = file_time(machine, seen, ahead);
            assert_eq!(seen, expected, "at {machine}");
        }
    }

    #[test]
    fn a_boot_in_1970_that_a_time_server_corrects_does_not_put_the_file_ahead() {
        const NOW: Micros = 56 * 365 * 86_400 * 1_000_000;
        let (seen, ahead) = file_time(1_000, NOW, 0);
        assert_eq!((seen, ahead), (NOW, NOW - 1_000));
        assert_eq!(file_time(NOW + 5, seen, ahead), (NOW + 5, 0));
        // The same where the corrected clock is still a day behind the file's.
        const DAY: Micros = 86_400 * 1_000_000;
        assert_eq!(file_time(NOW - DAY, seen, ahead), (NOW, DAY));
    }
}
