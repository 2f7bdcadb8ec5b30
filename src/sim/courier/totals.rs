//! What happened in all seeds of the hand-over's simulation.

/// Counts over all seeds: an event that never happens is not tested.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Totals {
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) crashes: u64,
    pub(super) restores: u64,
    pub(super) cuts: u64,
    pub(super) late: u64,
    pub(super) repeated: u64,
    pub(super) swapped: u64,
    pub(super) lost: u64,
    pub(super) postponed: u64,
    pub(super) dead: u64,
    pub(super) passed_on: u64,
}

impl Totals {
    pub(super) fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.received += other.received;
        self.crashes += other.crashes;
        self.restores += other.restores;
        self.cuts += other.cuts;
        self.late += other.late;
        self.repeated += other.repeated;
        self.swapped += other.swapped;
        self.lost += other.lost;
        self.postponed += other.postponed;
        self.dead += other.dead;
        self.passed_on += other.passed_on;
    }

    pub(super) fn rarest(&self) -> u64 {
        let counts = [
            self.received,
            self.crashes,
            self.restores,
            self.cuts,
            self.late,
            self.repeated,
            self.swapped,
            self.lost,
            self.postponed,
            self.dead,
            self.passed_on,
        ];
        counts.into_iter().min().unwrap_or_default()
    }
}
