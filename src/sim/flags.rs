//! The place for the flags' part of the simulation: watchers, an expiring store and R20 to R22.
