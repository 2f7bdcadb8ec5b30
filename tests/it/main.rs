//! Everything against the real relay, over real sockets, in one test binary.
//!
//! `tests/run` prepares what the tests need; nothing is skipped where it is missing, it fails.

mod access;
mod admin;
#[cfg(target_os = "linux")]
mod attacks;
mod binary;
mod causes;
#[cfg(target_os = "linux")]
mod clear_up;
mod cli;
mod client;
mod cluster;
mod connections;
mod console;
mod courier_cli;
mod demo;
mod deploy;
mod examples;
mod features;
mod flags;
mod groups;
mod hostile;
mod ids;
mod keda;
mod layers;
mod lease;
mod limits;
mod listen;
mod listener;
mod nats;
mod processes;
mod python;
mod queues;
mod readme;
mod relay;
mod resume;
mod rules;
mod scale;
mod scale_hook;
#[cfg(unix)]
mod script;
mod set_ups;
mod shared_stores;
mod sources;
mod spans;
#[cfg(unix)]
mod sqlite_file;
mod stats;
mod support;
mod sweep;
mod tls;
mod tokens;
