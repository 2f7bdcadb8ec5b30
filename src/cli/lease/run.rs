//! `lease run`: a command that runs while the lease is held, and never longer.

use std::{
    ffi::OsString,
    io::{self, IsTerminal as _},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use reveille::{
    Error, ErrorKind, duration,
    lease::{Lease, LeaseConfig, LeaseGuard},
};
use rustix::process::Signal as Number;
use tokio::time::Instant;

use super::Named;
use crate::cli::{
    exit::{Exit, Failed},
    output,
    process::{self, Groups, Process},
    settings::Settings,
    signals::{Interrupts, Signal},
    target::PATIENCE,
};

/// Wait for a lease, and run a command while holding it
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille lease run billing --store az://leases -- ./bill
  reveille lease run billing --store sqlite:/srv/shared.db --duration 30s --timeout 10m -- ./bill

The command's environment has LEASE_NAME, LEASE_HOLDER and LEASE_TOKEN, a number that grows with \
every holder. Hand the token to whatever the command writes to, and let that refuse lower ones: \
a process that was stopped goes on for a moment without its lease. Where `lease run` is killed by \
SIGKILL, the command is told to end by SIGTERM at once, and is killed a fifth of the duration later.

The lease is renewed meanwhile. Where that fails, the command is told to end by SIGTERM a fifth of \
the duration (30s at most) before the lease is lost, and is killed when it is: before anybody else \
can have it. It is a process group of its own; its standard input is passed on unless it is a terminal.

Ctrl-C and SIGTERM are passed on to the command; a second one kills it. Then the lease is released. \
Ends with the code of the command (128 + N where signal N ended it); with 7 where the lease was lost; \
with 6 where it was not had within --timeout.")]
pub(super) struct Args {
    #[command(flatten)]
    named: Named,
    /// For how long others are kept away where this process dies; 1s to 24h
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = duration::parse, default_value = "15s")]
    duration: Duration,
    /// Who holds it, for people [default: the machine's name and the process's number]
    #[arg(long, value_name = "ID")]
    holder: Option<String>,
    /// Give up after waiting this long [default: never]
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = duration::parse)]
    timeout: Option<Duration>,
    /// What to run
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// How a run ended.
struct Ended {
    status: ExitStatus,
    /// The command was ended for the lease's sake.
    lost: bool,
}

/// A lease that was about to be lost is given back within this, or ends by itself.
const RELEASE_LATE: Duration = Duration::from_secs(1);
/// As long as Kubernetes gives.
const LONGEST_GRACE: Duration = Duration::from_secs(30);
/// Long enough to be never.
const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

impl Args {
    pub(super) async fn run(
        self,
        settings: &Settings,
        interrupts: &mut Interrupts,
    ) -> anyhow::Result<Exit> {
        process::find(&self.command)?;
        let mut config = LeaseConfig {
            duration: self.duration,
            holder: self.holder.clone().unwrap_or_else(this_process),
            ..LeaseConfig::default()
        };
        config.poll = config.poll.min(self.duration / 5);
        let holder = config.holder.clone();
        let waiting = self.within(async {
            let lease = self.named.open(settings, config).await?;
            let held = patiently(&lease).await?;
            anyhow::Ok((lease, held))
        });
        let (lease, held) = tokio::select! {
            held = waiting => held?,
            signal = interrupts.next() => return Ok(signal.exit()),
        };
        output::note(format_args!("{lease} is held, token {}", held.token()));
        let process = match self.start(&held, holder) {
            Ok(process) => process,
            Err(error) => {
                give_back(held).await;
                let name = self.command.first().map(|name| name.to_string_lossy());
                let name = name.unwrap_or_default();
                return Err(Failed(format!("`{name}` cannot be run: {error}")).into());
            }
        };
        let ended = self.attend(&held, process, interrupts).await?;
        if ended.lost {
            return Ok(self.lose(held).await);
        }
        give_back(held).await;
        Ok(Exit::of_command(ended.status))
    }

    /// Opens the store and waits for the lease, for as long as is given for both.
    async fn within<T>(&self, had: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        let Some(timeout) = self.timeout else {
            return had.await;
        };
        tokio::time::timeout(timeout, had)
            .await
            .unwrap_or_else(|_| {
                let (name, span) = (&self.named.name, duration::Span(timeout));
                let message = format!("lease `{name}` was not had within {span}");
                Err(Error::new(ErrorKind::Timeout, message).into())
            })
    }

    fn start(&self, held: &LeaseGuard, holder: String) -> io::Result<Process> {
        let environment = [
            ("LEASE_NAME", self.named.name.clone()),
            ("LEASE_TOKEN", held.token().to_string()),
            ("LEASE_HOLDER", holder),
        ];
        // A process group of its own that read from the terminal would be stopped.
        let stdin = if io::stdin().is_terminal() {
            Stdio::null()
        } else {
            Stdio::inherit()
        };
        let groups = Groups::guarded(self.grace());
        Process::start(&self.command, environment, stdin, &groups)
    }

    /// Returns how long a command has from SIGTERM to SIGKILL.
    fn grace(&self) -> Duration {
        (self.duration / 5).min(LONGEST_GRACE)
    }

    /// Sees the command through to its end, be it early.
    async fn attend(
        &self,
        held: &LeaseGuard,
        mut process: Process,
        interrupts: &mut Interrupts,
    ) -> io::Result<Ended> {
        let grace = self.grace();
        let (mut told, mut lost, mut interrupted) = (false, false, false);
        let kill = tokio::time::sleep(FAR);
        tokio::pin!(kill);
        loop {
            let ending = async {
                match told || lost {
                    true => process.wait_for_all().await,
                    false => process.wait_for_group().await,
                }
            };
            tokio::select! {
                biased;
                _ = held.lost(), if !lost => {
                    lost = true;
                    process.tell(Number::KILL);
                }
                () = held.ends_within(grace), if !told => {
                    told = true;
                    process.tell(Number::TERM);
                    // As long as it was told; renewed or not, it has to end.
                    kill.as_mut().reset(Instant::now() + grace);
                }
                status = ending => {
                    let lost = told || lost;
                    return Ok(Ended { status: status?, lost });
                }
                () = &mut kill, if told && !lost => {
                    lost = true;
                    process.tell(Number::KILL);
                }
                signal = interrupts.next() => {
                    process.tell(if interrupted { Number::KILL } else { number(signal) });
                    interrupted = true;
                }
            }
        }
    }

    /// Tells that the lease was lost, or was about to be.
    async fn lose(&self, held: LeaseGuard) -> Exit {
        let why = if held.is_held() {
            let late = tokio::time::timeout(RELEASE_LATE, held.release()).await;
            let name = &self.named.name;
            let why = format!("lease `{name}` could not be renewed in time");
            match late {
                Ok(Ok(())) => format!("{why}, and was released"),
                _ => why,
            }
        } else {
            held.lost().await.to_string()
        };
        let name = self.command.first().map(|name| name.to_string_lossy());
        let name = name.unwrap_or_default();
        output::note(format_args!("error: {why}; `{name}` was ended"));
        Exit::LOST
    }
}

/// Waits for the lease, and says who has it after a while.
async fn patiently(lease: &Lease) -> reveille::Result<LeaseGuard> {
    let acquiring = lease.acquire();
    tokio::pin!(acquiring);
    let telling = async {
        tokio::time::sleep(PATIENCE).await;
        if let Ok(Some(state)) = lease.state().await
            && state.held
        {
            let (name, holder) = (lease.name(), state.holder);
            output::note(format_args!(
                "lease `{name}` is held by `{holder}`; waiting"
            ));
        }
    };
    tokio::select! {
        held = &mut acquiring => return held,
        () = telling => {}
    }
    acquiring.await
}

/// Releases the lease; where that fails it ends by itself.
async fn give_back(held: LeaseGuard) {
    if let Err(error) = held.release().await {
        output::note(error);
    }
}

/// Returns who we are, for people.
fn this_process() -> String {
    let system = rustix::system::uname();
    // Well below the limit of a holder's name, whatever the machine is called.
    let host = system.nodename().to_string_lossy();
    let plain = host.chars().filter(char::is_ascii_graphic).take(64);
    format!("{}-{}", plain.collect::<String>(), std::process::id())
}

fn number(signal: Signal) -> Number {
    match signal {
        Signal::Interrupt => Number::INT,
        Signal::Terminate => Number::TERM,
    }
}
