//! `lease run`, `lease show`: one lease holder at a time, among any number of processes.

use std::{
    ffi::OsString,
    io::{self, IsTerminal as _},
    process::{ExitStatus, Stdio},
    time::{Duration, SystemTime},
};

use clap::Subcommand;
use reveille::{
    Error, ErrorKind, duration,
    lease::{Lease, LeaseConfig, LeaseGuard, LeaseState},
    store,
};
use rustix::process::Signal as Number;
use serde_json::{Value, json};

use super::{
    child::{self, Process},
    exit::Exit,
    log,
    output::{self, OutputArgs},
    program,
    signals::Interrupts,
    store::StoreArgs,
    values,
};

/// Let one process at a time run a command
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example:
  reveille lease run billing --store sqlite:/srv/shared.db -- ./bill
  reveille lease show billing --store sqlite:/srv/shared.db")]
pub(super) enum Verb {
    Run(Run),
    Show(Show),
}

/// Wait for a lease, and run a command while holding it
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille lease run billing --store az://leases -- ./bill
  reveille lease run billing --store sqlite:/srv/shared.db --duration 30s --timeout 10m -- ./bill

The command's environment has LEASE_NAME, LEASE_HOLDER and LEASE_TOKEN, a number that grows with \
every holder. Send the token with every write of the command, and let the receiver refuse lower \
tokens: a process that was suspended may continue for a moment without its lease.

If the lease cannot be renewed, the command gets SIGTERM a fifth of the duration (at most 30s) before \
the lease is lost, and is killed when it is lost. A SIGKILL of `lease run` itself leaves the command \
running: then only the token protects the data. Ctrl-C and SIGTERM are forwarded to the command, and a \
second one kills it. Other processes of its group may run as long as that after it, and are then killed.

Ends with the exit code of the command (128 + N if signal N ended it), with 7 if the lease was lost, \
and with 6 if the lease was not acquired within --timeout.")]
pub(super) struct Run {
    /// The name of the lease
    name: String,
    #[command(flatten)]
    store: StoreArgs,
    /// How long the lease stays taken if this process dies; 1s to 24h
    #[arg(long, value_name = "D", value_parser = duration::parse, default_value = "15s")]
    duration: Duration,
    /// The holder's name, shown to people [default: host name and process id]
    #[arg(long, value_name = "ID")]
    holder: Option<String>,
    /// Give up after waiting this long [default: never]
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    timeout: Option<Duration>,
    /// The command to run
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Show the holder of a lease, or its last holder
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille lease show billing --store az://leases

AGE is the time since the lease was last acquired, renewed or released. A held lease that is older \
than its duration has lost its holder: the next waiting process acquires it soon. Ends with 5 if the \
lease was never held.")]
pub(super) struct Show {
    /// The name of the lease
    name: String,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    output: OutputArgs,
}

const COLUMNS: &str = "lease state holder age_ms duration_ms token";
/// Logs failures of the store, and nothing else of the library.
const LOG: &str = "error,reveille::coordination::lease=warn";
/// The default grace period of Kubernetes.
const MAX_GRACE: Duration = Duration::from_secs(30);

impl Verb {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        match self {
            Self::Run(args) => args.run().await,
            Self::Show(args) => program::until_interrupted(args.run()).await,
        }
    }
}

impl Run {
    async fn run(self) -> anyhow::Result<Exit> {
        log::start(LOG, false);
        let mut interrupts = Interrupts::listen()?;
        child::check_exists(&self.command)?;
        let config = LeaseConfig {
            duration: self.duration,
            holder: (self.holder.clone())
                .unwrap_or_else(|| format!("{}-{}", values::host(), std::process::id())),
            poll: LeaseConfig::default().poll.min(self.duration / 5),
        };
        let holder = config.holder.clone();
        let acquiring = async {
            let store = store::open(self.store.resolve()?).await?;
            let lease = Lease::new(store, &self.name, config)?;
            if let Ok(Some(state)) = lease.state().await
                && state.held
            {
                let (name, holder) = (lease.name(), state.holder);
                output::note(format_args!(
                    "lease `{name}` is held by `{holder}`; waiting"
                ));
            }
            let held = lease.acquire().await?;
            anyhow::Ok((lease, held))
        };
        let late = format!("lease `{}` was not acquired", self.name);
        let late = (ErrorKind::Timeout, late);
        let (lease, held) = tokio::select! {
            held = program::within(self.timeout, late, acquiring) => held?,
            signal = interrupts.next() => return Ok(signal.exit()),
        };
        output::note(format_args!("{lease} is held, token {}", held.token()));
        let ended = match self.start(&held, holder) {
            Ok(process) => self.supervise(&held, process, &mut interrupts).await,
            Err(error) => Err(error),
        };
        let (lost, status) = match ended {
            Ok(ended) => ended,
            Err(error) => {
                release(held).await;
                return Err(child::cannot_run(&self.command, error).into());
            }
        };
        if lost {
            let reason = match held.is_held() {
                true => format!("{lease} could not be renewed in time"),
                false => held.lost().await.to_string(),
            };
            let name = self.command[0].to_string_lossy();
            output::note(format_args!("error: {reason}; `{name}` was ended"));
            return Ok(Exit::LEASE_LOST);
        }
        release(held).await;
        Ok(Exit::of_command(status))
    }

    fn start(&self, held: &LeaseGuard, holder: String) -> io::Result<Process> {
        let environment = [
            ("LEASE_NAME", self.name.clone()),
            ("LEASE_TOKEN", held.token().to_string()),
            ("LEASE_HOLDER", holder),
        ];
        // The system stops a background process group that reads from the terminal.
        let stdin = if io::stdin().is_terminal() {
            Stdio::null()
        } else {
            Stdio::inherit()
        };
        Process::start(&self.command, environment, stdin, Stdio::inherit())
    }

    /// Waits for the command's end, forwards signals, and ends it if the lease is about to be lost.
    /// Returns whether the lease ended it, and the command's status.
    async fn supervise(
        &self,
        held: &LeaseGuard,
        mut process: Process,
        interrupts: &mut Interrupts,
    ) -> io::Result<(bool, ExitStatus)> {
        let grace = (self.duration / 5).min(MAX_GRACE);
        let mut interrupted = false;
        let ended = loop {
            tokio::select! {
                biased;
                () = held.ends_within(grace) => break None,
                status = process.wait() => break Some(status?),
                signal = interrupts.next() => {
                    process.signal(if interrupted { Number::KILL } else { signal.number() });
                    interrupted = true;
                }
            }
        };
        let mut lost = ended.is_none();
        let status = match ended {
            Some(status) => status,
            None => {
                // The command must end now, even if a renewal succeeds later.
                process.signal(Number::TERM);
                tokio::select! {
                    biased;
                    _ = process.wait() => {}
                    _ = held.lost() => process.signal(Number::KILL),
                    () = tokio::time::sleep(grace) => process.signal(Number::KILL),
                    _ = interrupts.next() => process.signal(Number::KILL),
                }
                process.wait().await?
            }
        };
        // Processes that the command has started act under its lease. The rest is killed with `process`.
        tokio::select! {
            () = process.wait_for_group() => {}
            _ = held.lost() => lost = true,
            () = tokio::time::sleep(grace) => {}
            _ = interrupts.next() => {}
        }
        Ok((lost, status))
    }
}

impl Show {
    async fn run(self) -> anyhow::Result<Exit> {
        let store = store::open_existing(self.store.resolve()?).await?;
        let lease = Lease::new(store, &self.name, LeaseConfig::default())?;
        let Some(state) = lease.state().await? else {
            let message = format!("{lease} was never held");
            return Err(Error::new(ErrorKind::NotFound, message).into());
        };
        let row = row(lease.name(), &state, SystemTime::now());
        self.output.format.row(COLUMNS, &row)?;
        Ok(Exit::OK)
    }
}

fn row(name: &str, state: &LeaseState, now: SystemTime) -> Value {
    // The store's clock may be ahead of this machine's: the age is 0 then.
    let age = now.duration_since(state.written).unwrap_or_default();
    let shown = match state.held {
        true if age <= state.duration => "held",
        // Its holder has not renewed it for its duration: the next contender has it.
        true => "expired",
        false => "released",
    };
    json!({
        "lease": name,
        "held": state.held,
        "state": shown,
        "token": state.token,
        "holder": state.holder,
        "duration_ms": output::millis(state.duration),
        "written_at": output::time(state.written),
        "age_ms": output::millis(age),
    })
}

/// Releases the lease. If that fails, the lease expires by itself.
async fn release(held: LeaseGuard) {
    if let Err(error) = held.release().await {
        output::note(error);
    }
}
