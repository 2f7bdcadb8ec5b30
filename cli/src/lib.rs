//! The command line: one file a verb, on the library's public interface only.
//!
//! | verb | does |
//! |---|---|
//! | `serve` | the relay |
//! | `notify` | tells the relay that a queue has work |
//! | `subscribe` | prints wake-ups, or runs a command on each |
//! | `listen`, `queue ...` | runs a command for each message of a queue; reads and writes queues by hand |
//! | `courier ...` | sends messages between machines |
//! | `scale` | starts workers while queues have work |
//! | `unleash`, `leash`, `flag get/list/watch`, `wait` | the durable flag |
//! | `ids next` | prints unique ids |
//! | `lease run/show` | one lease holder at a time |
//! | `sweep`, `sweep ttl` | removes blobs whose time to live has ended |
//! | `auth check/can`, `auth token new/list/revoke` | the rules for callers, and their credentials |
//! | `listeners`, `queues`, `why`, `relays`, `console`, `top`, `health`, `drain` | for operators of a relay |
//! | `demo` | a demonstration on one machine |
//! | `completions`, `proto` | files for shells, and for clients in other languages |
//!
//! clap's structs hold the arguments, whose defaults the configuration file may state: see `settings`.
//! Data goes to stdout, everything else to stderr.

mod auth;
mod child;
mod cluster;
mod completions;
mod console;
mod courier;
mod credential;
mod demo;
mod drain;
mod exit;
mod flag;
mod health;
mod help;
mod ids;
mod lease;
mod listen;
mod listeners;
mod log;
mod message;
mod notify;
mod output;
mod program;
mod proto;
mod queue;
mod queues;
mod relays;
mod scale;
mod serve;
mod service;
mod settings;
mod signals;
mod store;
mod subscribe;
mod sweep;
mod target;
#[cfg(test)]
mod tests;
mod top;
mod unleash;
mod values;
mod wait;
mod why;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

pub use self::program::main;
use self::{exit::Exit, program::until_interrupted, settings::Settings};

/// Wakes queue workers the instant there is work, so that no worker polls.
#[derive(Debug, Parser)]
#[command(name = "reveille", version, after_help = AFTER_HELP, max_term_width = 100)]
struct Cli {
    /// A TOML file of settings; flags and REVEILLE_* variables override it
    #[arg(long, global = true, env = "REVEILLE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Serve(Box<serve::Args>),
    Notify(notify::Args),
    Subscribe(subscribe::Args),
    Listen(listen::Args),
    Scale(Box<scale::Args>),
    #[command(subcommand)]
    Queue(queue::Verb),
    Unleash(unleash::Args),
    Leash(unleash::LeashArgs),
    #[command(subcommand)]
    Flag(flag::Verb),
    Wait(wait::Args),
    Why(why::Args),
    Top(top::Args),
    Console(console::Args),
    Queues(queues::Args),
    Listeners(listeners::Args),
    Relays(relays::Args),
    Health(health::Args),
    Drain(drain::Args),
    #[command(subcommand)]
    Auth(auth::Verb),
    #[command(subcommand)]
    Courier(courier::Verb),
    #[command(subcommand)]
    Ids(ids::Verb),
    #[command(subcommand)]
    Lease(lease::Verb),
    Sweep(sweep::Args),
    Demo(demo::DemoArgs),
    Completions(completions::Args),
    Proto(proto::Args),
}

const AFTER_HELP: &str = "\
Example:
  reveille demo
  reveille serve
  reveille subscribe acct/orders
  reveille notify acct/orders

Settings, strongest first: flags, REVEILLE_* variables, the file of --config, defaults.
Durations: 250ms, 2s, 10m, 1h30m, 14d, 1w.
azure://, az://, s3://, gs:// and --cluster need a build with all back-ends:
  cargo install --path cli --features full

Exit codes:
  0    done
  1    failed: the relay refused the request or failed; `serve` could not listen or open its store
  2    wrong usage or configuration
  3    the relay or the store cannot be reached, did not answer within --timeout, or is not ready
  4    denied
  5    not found, or in conflict with the current state
  6    the awaited event did not happen within --timeout, or --expect was not met
  7    the lease was lost, and `lease run` ended CMD
  8    messages are stored, but the relay did not acknowledge the notification (`queue put --notify`,
       `courier send --relay`)
  130  interrupted (143: terminated; 0: `serve` and `courier serve` after one signal, and `listen` after
       it finished its messages)
  `wait -- CMD` and `lease run` return the exit code of CMD (128 + N if signal N ended it).";

impl Verb {
    async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        match self {
            // These end in their own ways at a signal.
            Self::Serve(args) => Box::pin(args.run(settings)).await,
            Self::Subscribe(args) => args.run().await,
            Self::Listen(args) => Box::pin(args.run()).await,
            Self::Scale(args) => Box::pin(args.run()).await,
            Self::Lease(args) => Box::pin(args.run()).await,
            Self::Sweep(args) => Box::pin(args.run()).await,
            Self::Courier(args) => Box::pin(args.run(settings)).await,
            Self::Notify(args) => until_interrupted(args.run()).await,
            Self::Wait(args) => until_interrupted(args.run()).await,
            Self::Unleash(args) => until_interrupted(args.run()).await,
            Self::Leash(args) => until_interrupted(args.run()).await,
            Self::Flag(args) => until_interrupted(args.run()).await,
            Self::Queue(args) => until_interrupted(args.run()).await,
            Self::Ids(args) => until_interrupted(args.run()).await,
            Self::Auth(args) => until_interrupted(args.run()).await,
            Self::Listeners(args) => until_interrupted(args.run()).await,
            Self::Queues(args) => until_interrupted(args.run()).await,
            Self::Why(args) => until_interrupted(args.run()).await,
            Self::Relays(args) => until_interrupted(args.run()).await,
            Self::Console(args) => until_interrupted(args.run()).await,
            Self::Top(args) => until_interrupted(Box::pin(args.run())).await,
            Self::Health(args) => until_interrupted(args.run()).await,
            Self::Drain(args) => until_interrupted(args.run()).await,
            Self::Demo(args) => until_interrupted(demo::run(args)).await,
            Self::Completions(args) => args.run(),
            Self::Proto(args) => args.run(),
        }
    }
}
