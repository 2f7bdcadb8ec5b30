//! The connection to the broker of a cluster: NATS core.
//!
//! The only module that knows NATS. [`ClusterDriver`] passes the messages to the machine of the
//! relay. [`NatsConnection`] delivers each message that the client has
//! received, in order for each subject, and publishes without waiting. It may drop messages in both
//! directions: the link numbers and repeats its own. It does not read what a message says.
//!
//! Subjects of a cluster NAME:
//! * `reveille1.NAME.all`: frames and heartbeats of all relays;
//! * `reveille1.NAME.to.LIFE`: requests to one life;
//! * `reveille1.NAME.inbox.>`: their replies, which the client's library takes.
//!
//! A refused login, TLS that does not fit and a `max_payload` that is too small end the start. A
//! server that cannot be reached does not: the client tries again without end. A fault that shows later
//! is logged in the client's words, at most once a minute by kind.
//!
//! The client's library runs two tasks for a connection. They end when the connection is closed
//! while a server is reached; otherwise they wait without any work.

mod calls;
mod config;
mod connection;
mod driver;
mod events;
mod subjects;

#[cfg(test)]
mod tests;

pub use self::config::{NatsConfig, NatsCredentials};
pub(crate) use self::{connection::NatsConnection, driver::ClusterDriver, subjects::NatsMessage};
