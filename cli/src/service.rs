//! What `serve` and `courier serve` have in common: their arguments, and their life between signals.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use reveille::{AccessFiles, ClientConfig, ErrorKind, QueuesConfig, ServerTls, duration::Span};
use tokio::signal::unix::{self, SignalKind};
use tracing_appender::non_blocking::WorkerGuard;

use super::{
    credential::CredentialArgs,
    exit::{Exit, Failed, Usage},
    limits::LimitArgs,
    log, output,
    queue_settings::HostArgs,
    settings::Settings,
    signals::{self, Interrupts, Signal},
    tls::{ClientTlsArgs, ServerTlsArgs},
    values::{self, LogFormat},
};

#[derive(Debug, Clone, clap::Args)]
pub(super) struct ServiceArgs {
    /// How long connections may take to end at shutdown, after the streams
    // Long enough for listeners to report. A single relay ends before the 30 s after which Kubernetes
    // kills by default.
    #[arg(
        long,
        env = "REVEILLE_GRACE",
        value_name = "D",
        default_value = "10s",
        hide_short_help = true
    )]
    pub(super) grace: Span,
    #[command(flatten)]
    pub(super) limits: LimitArgs,
    #[command(flatten)]
    host: HostArgs,
    #[command(flatten)]
    tls: ServerTlsArgs,
    #[command(flatten)]
    client_tls: ClientTlsArgs,
    #[command(flatten)]
    credential: CredentialArgs,
    /// Only known callers may call: the rules, and the files of tokens and keys that they name; see
    /// `reveille auth --help` [default: every caller may do everything]
    #[arg(
        long,
        env = "REVEILLE_AUTH",
        value_name = "FILE",
        help_heading = "Access"
    )]
    auth: Option<PathBuf>,
    /// Append denials, changes of flags, rules and tokens, and drains to this file, one JSON object a
    /// line
    #[arg(
        long,
        env = "REVEILLE_AUDIT_LOG",
        value_name = "FILE",
        help_heading = "Access",
        hide_short_help = true
    )]
    audit_log: Option<PathBuf>,
    /// Serve other machines in plain text, without TLS
    #[arg(long, env = "REVEILLE_INSECURE", hide_short_help = true)]
    pub(super) insecure: bool,
    /// The format of the log
    #[arg(
        long,
        env = "REVEILLE_LOG",
        value_name = "FORMAT",
        default_value = "text"
    )]
    log: LogFormat,
}

/// A running service: its signals and its log.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) interrupts: Interrupts,
    /// By which an operator asks for the files of access to be read again.
    hangup: Option<unix::Signal>,
    _flushed: WorkerGuard,
}

impl ServiceArgs {
    /// Starts the log, and listens to signals.
    pub(super) fn start(&self, default_log: &str) -> io::Result<Service> {
        let reloads = self.auth.is_some();
        Ok(Service {
            _flushed: log::start_lossy(default_log, self.log),
            interrupts: Interrupts::of_service(reloads)?,
            hangup: reloads
                .then(|| unix::signal(SignalKind::hangup()))
                .transpose()?,
        })
    }

    /// Returns the files of access control.
    pub(super) fn access(&self) -> Result<Option<AccessFiles>, Usage> {
        match (self.auth.clone(), self.audit_log.clone()) {
            (Some(rules), audit_log) => Ok(Some(AccessFiles { rules, audit_log })),
            (None, None) => Ok(None),
            (None, Some(_)) => Err(Usage(
                "--audit-log: without --auth no caller is known; set --auth".to_owned(),
            )),
        }
    }

    /// Returns the TLS of the port at this address.
    pub(super) fn tls(&self, listen: SocketAddr) -> Result<Option<ServerTls>, Usage> {
        let tls = self.tls.config()?;
        let plain = Some(listen).filter(|_| tls.is_none());
        values::check_open("listen", plain, self.insecure)?;
        Ok(tls)
    }

    pub(super) fn has_client_certificate(&self) -> bool {
        self.client_tls.cert.is_some()
    }

    /// Returns the configuration of the clients of other machines.
    pub(super) fn client(&self) -> Result<ClientConfig, Usage> {
        Ok(ClientConfig {
            tls: self
                .client_tls
                .config()
                .map_err(|error| Usage(error.to_string()))?,
            credential: self.credential.resolve(),
            insecure: self.insecure,
            ..ClientConfig::default()
        })
    }

    /// Returns the queues at `place`, which the process hosts.
    pub(super) fn queues(&self, place: &Path, settings: &Settings) -> Result<QueuesConfig, Usage> {
        self.host.config(place, &settings.queues, &self.client()?)
    }
}

impl Service {
    /// Waits for a signal that ends the service, and reads the files of access again at each SIGHUP. A
    /// file system that hangs delays no other signal.
    pub(super) async fn signal<F>(&mut self, reload: impl Fn() -> F + Send + Sync) -> Signal
    where
        F: Future<Output = reveille::Result<bool>> + Send,
    {
        let Self {
            interrupts, hangup, ..
        } = self;
        let reloading = async {
            loop {
                signals::hang_up(hangup).await;
                match reload().await {
                    Ok(true) => {}
                    Ok(false) => tracing::info!("the rules have not changed"),
                    Err(error) => {
                        let error = output::one_line(&anyhow::Error::new(error));
                        tracing::error!(%error, "what the files of access said before stays in use");
                    }
                }
            }
        };
        tokio::select! {
            signal = interrupts.next() => signal,
            never = reloading => never,
        }
    }

    /// Waits for the end of a shutdown, which a further signal cuts short.
    pub(super) async fn finish(
        &mut self,
        shutdown: impl Future<Output = ()>,
        first: Signal,
    ) -> Exit {
        tokio::select! {
            () = shutdown => stopped(),
            again = self.interrupts.next() => {
                tracing::warn!(?first, "ended at once");
                again.exit()
            }
        }
    }
}

pub(super) fn stopped() -> Exit {
    tracing::info!("stopped");
    Exit::OK
}

/// A refusal by the broker has the code of a denial; any other failure of the start has the code 1.
pub(super) fn not_started(error: reveille::Error) -> anyhow::Error {
    let kind = error.kind();
    let is_of_cluster = error.message().starts_with("cluster: ");
    let error = anyhow::Error::new(error);
    match kind {
        ErrorKind::Invalid => Usage(output::one_line(&error)).into(),
        ErrorKind::Denied if is_of_cluster => error,
        _ => Failed(output::one_line(&error)).into(),
    }
}
