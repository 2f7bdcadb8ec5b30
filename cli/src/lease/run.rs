//! `lease run`: runs a command while the lease is held, and never longer.

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
use crate::{
    child::{self, Process, ProcessGroups},
    exit::{Exit, Failed},
    output,
    signals::Interrupts,
    target::WARN_AFTER,
};

/// Wait for a lease, and run a command while holding it
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille lease run billing --store az://leases -- ./bill
  reveille lease run billing --store sqlite:/srv/shared.db --duration 30s --timeout 10m -- ./bill

The command's environment has LEASE_NAME, LEASE_HOLDER and LEASE_TOKEN, a number that grows with \
every holder. Send the token with every write of the command, and let the receiver refuse lower \
tokens: a process that was suspended may continue for a moment without its lease.

The lease is renewed while the command runs. If a renewal fails, the command gets SIGTERM a fifth of \
the duration (at most 30s) before the lease is lost. It is killed when the lease is lost, before \
another process can acquire it. If `lease run` itself is killed by SIGKILL, the command gets SIGTERM \
at once, and SIGKILL a fifth of the duration later.

The command runs in its own process group. Its standard input is passed on unless it is a terminal. \
Ctrl-C and SIGTERM are forwarded to the command, and a second one kills it. Then the lease is \
released.

Ends with the exit code of the command (128 + N if signal N ended it), with 7 if the lease was lost, \
and with 6 if the lease was not acquired within --timeout.")]
pub(super) struct Args {
    #[command(flatten)]
    named: Named,
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

/// How a run ended.
struct Ended {
    status: ExitStatus,
    /// The command was ended because the lease was lost or about to be.
    lost: bool,
}

/// Time-out for releasing a lease that was about to be lost. After it the lease expires by itself.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);
/// The default grace period of Kubernetes.
const MAX_GRACE: Duration = Duration::from_secs(30);

impl Args {
    pub(super) async fn run(self, interrupts: &mut Interrupts) -> anyhow::Result<Exit> {
        child::check_exists(&self.command)?;
        let mut config = LeaseConfig {
            duration: self.duration,
            holder: self.holder.clone().unwrap_or_else(this_process),
            ..LeaseConfig::default()
        };
        config.poll = config.poll.min(self.duration / 5);
        let holder = config.holder.clone();
        let waiting = self.within(async {
            let lease = self.named.open(config).await?;
            let held = acquire(&lease).await?;
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
                release(held).await;
                let name = self.command.first().map(|name| name.to_string_lossy());
                let name = name.unwrap_or_default();
                return Err(Failed(format!("`{name}` cannot be run: {error}")).into());
            }
        };
        let ended = self.supervise(&held, process, interrupts).await?;
        if ended.lost {
            return Ok(self.on_lost(held).await);
        }
        release(held).await;
        Ok(Exit::of_command(ended.status))
    }

    /// Runs `acquiring`, which opens the store and waits for the lease, within --timeout.
    async fn within<T>(
        &self,
        acquiring: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        let Some(timeout) = self.timeout else {
            return acquiring.await;
        };
        tokio::time::timeout(timeout, acquiring)
            .await
            .unwrap_or_else(|_| {
                let (name, span) = (&self.named.name, duration::Span(timeout));
                let message = format!("lease `{name}` was not acquired within {span}");
                Err(Error::new(ErrorKind::Timeout, message).into())
            })
    }

    fn start(&self, held: &LeaseGuard, holder: String) -> io::Result<Process> {
        let environment = [
            ("LEASE_NAME", self.named.name.clone()),
            ("LEASE_TOKEN", held.token().to_string()),
            ("LEASE_HOLDER", holder),
        ];
        // The system stops a background process group that reads from the terminal.
        let stdin = if io::stdin().is_terminal() {
            Stdio::null()
        } else {
            Stdio::inherit()
        };
        let groups = ProcessGroups::guarded(self.grace());
        Process::start(&self.command, environment, stdin, &groups)
    }

    /// Returns the time from SIGTERM to SIGKILL.
    fn grace(&self) -> Duration {
        (self.duration / 5).min(MAX_GRACE)
    }

    /// Waits for the command's end, forwards signals, and ends it if the lease is about to be lost.
    async fn supervise(
        &self,
        held: &LeaseGuard,
        mut process: Process,
        interrupts: &mut Interrupts,
    ) -> io::Result<Ended> {
        let grace = self.grace();
        let (mut terminated, mut lost) = (false, false);
        let (mut interrupted, mut killed) = (false, false);
        let kill = tokio::time::sleep(Duration::MAX);
        tokio::pin!(kill);
        loop {
            let ending = async {
                match terminated || lost || killed {
                    true => process.wait_and_kill_group().await,
                    false => process.wait_for_group().await,
                }
            };
            tokio::select! {
                biased;
                _ = held.lost(), if !lost => {
                    lost = true;
                    process.signal(Number::KILL);
                }
                () = held.ends_within(grace), if !terminated => {
                    terminated = true;
                    process.signal(Number::TERM);
                    // The command must end now, even if a renewal succeeds later.
                    kill.as_mut().reset(Instant::now() + grace);
                }
                status = ending => {
                    let lost = terminated || lost;
                    return Ok(Ended { status: status?, lost });
                }
                () = &mut kill, if terminated && !lost => {
                    lost = true;
                    process.signal(Number::KILL);
                }
                signal = interrupts.next() => {
                    killed = interrupted;
                    process.signal(if killed { Number::KILL } else { child::number(signal) });
                    interrupted = true;
                }
            }
        }
    }

    /// Prints that the lease was lost or was about to be. In the second case also releases it.
    async fn on_lost(&self, held: LeaseGuard) -> Exit {
        let reason = if held.is_held() {
            let released = tokio::time::timeout(RELEASE_TIMEOUT, held.release()).await;
            let name = &self.named.name;
            let reason = format!("lease `{name}` could not be renewed in time");
            match released {
                Ok(Ok(())) => format!("{reason}, and was released"),
                _ => reason,
            }
        } else {
            held.lost().await.to_string()
        };
        let name = self.command.first().map(|name| name.to_string_lossy());
        let name = name.unwrap_or_default();
        output::note(format_args!("error: {reason}; `{name}` was ended"));
        Exit::LEASE_LOST
    }
}

/// Waits for the lease. After [`WARN_AFTER`], prints its holder.
async fn acquire(lease: &Lease) -> reveille::Result<LeaseGuard> {
    let acquiring = lease.acquire();
    tokio::pin!(acquiring);
    let note_holder = async {
        tokio::time::sleep(WARN_AFTER).await;
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
        () = note_holder => {}
    }
    acquiring.await
}

/// Releases the lease. If that fails, the lease expires by itself.
async fn release(held: LeaseGuard) {
    if let Err(error) = held.release().await {
        output::note(error);
    }
}

/// Returns host name and process id as the holder's name.
fn this_process() -> String {
    let system = rustix::system::uname();
    // Cut, so that any host name stays well below the limit of a holder's name.
    let host = system.nodename().to_string_lossy();
    let plain = host.chars().filter(char::is_ascii_graphic).take(64);
    format!("{}-{}", plain.collect::<String>(), std::process::id())
}
