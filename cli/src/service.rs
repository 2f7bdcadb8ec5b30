//! What `serve` and `courier serve` have in common: their arguments, and their life between signals.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use bytesize::ByteSize;
use reveille::{
    AccessFiles, ClientConfig, ErrorKind, QueuesConfig, ServerLimits, ServerTls,
    courier::{HostConfig, QueueManagerConfig},
    duration::Span,
};
use tokio::signal::unix::{self, SignalKind};
use tracing_appender::non_blocking::WorkerGuard;

use super::{
    credential::ClientArgs,
    exit::{Exit, Failed, Usage},
    log, output,
    settings::{self, Settings},
    signals::{self, Interrupts, Signal},
    values,
};

const LIMITS: &str = "Limits";
const TLS: &str = "TLS";

#[derive(Debug, Clone, clap::Args)]
pub(super) struct ServiceArgs {
    /// How long connections may take to end at shutdown, after the streams
    // Long enough for listeners to report. A single relay ends before the 30 s after which Kubernetes
    // kills by default.
    #[arg(long, env = "REVEILLE_GRACE", value_name = "D", default_value = "10s")]
    pub(super) grace: Span,
    /// Maximum number of connections; further ones wait [default: 100000 on loopback, else 10000]
    #[arg(long, env = "REVEILLE_MAX_CONNECTIONS", value_name = "N", value_parser = values::positive::<usize>, help_heading = LIMITS)]
    max_connections: Option<usize>,
    /// Maximum number of connections of one address; further ones are closed; 0 is no limit
    /// [default: no limit on loopback, else 256]
    #[arg(long, env = "REVEILLE_MAX_CONNECTIONS_PER_ADDRESS", value_name = "N", help_heading = LIMITS)]
    max_connections_per_address: Option<usize>,
    /// Maximum resident memory, such as 512MiB; near it, new streams and queues are refused; 0 is no limit
    /// [default: three quarters of the machine's or the container's]
    #[arg(long, env = "REVEILLE_MAX_MEMORY", value_name = "SIZE", help_heading = LIMITS)]
    max_memory: Option<ByteSize>,
    /// Reach other machines over TLS, with --ca, --cert and --key
    #[arg(long, env = "REVEILLE_QUEUES_TLS", help_heading = "TLS")]
    queues_tls: bool,
    /// Begin with empty queues if the queue file is missing because it was damaged and set aside
    #[arg(long, env = "REVEILLE_ALLOW_NEW_FILE")]
    allow_new_file: bool,
    /// Serve TLS with this certificate and its chain, in PEM; it is read again when it changes
    #[arg(long, env = "REVEILLE_TLS_CERT", value_name = "FILE", help_heading = TLS)]
    tls_cert: Option<PathBuf>,
    /// The key of --tls-cert, in PEM
    #[arg(long, env = "REVEILLE_TLS_KEY", value_name = "FILE", help_heading = TLS)]
    tls_key: Option<PathBuf>,
    /// Refuse clients without a certificate of one of these authorities, in PEM
    #[arg(long, env = "REVEILLE_TLS_CLIENT_CA", value_name = "FILE", help_heading = TLS)]
    tls_client_ca: Option<PathBuf>,
    #[command(flatten)]
    pub(super) client: ClientArgs,
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
        help_heading = "Access"
    )]
    audit_log: Option<PathBuf>,
    /// Serve other machines in plain text, without TLS
    #[arg(long, env = "REVEILLE_INSECURE")]
    pub(super) insecure: bool,
    /// The format of the log
    #[arg(
        long,
        env = "REVEILLE_LOG",
        value_name = "FORMAT",
        value_parser = ["text", "json"],
        default_value = "text"
    )]
    log: String,
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
            _flushed: log::start_lossy(default_log, self.log == "json"),
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

    /// Returns the TLS of the port at this address; `None` is plain text.
    pub(super) fn tls(&self, listen: SocketAddr) -> Result<Option<ServerTls>, Usage> {
        let client_ca = self.tls_client_ca.clone();
        match (self.tls_cert.clone(), self.tls_key.clone()) {
            (Some(certificate), Some(key)) => Ok(Some(ServerTls {
                certificate,
                key,
                client_ca,
            })),
            (None, None) if client_ca.is_none() => {
                values::check_open("listen", Some(listen), self.insecure)?;
                Ok(None)
            }
            (None, _) => Err(Usage("--tls-cert: must be set for TLS".to_owned())),
            (Some(_), None) => Err(Usage("--tls-key: must be set with --tls-cert".to_owned())),
        }
    }

    /// Returns the configuration of the clients of other machines.
    pub(super) fn client(&self) -> Result<ClientConfig, Usage> {
        let config = self.client.config(self.insecure);
        config.map_err(|error| Usage(error.to_string()))
    }

    /// Returns the queues at `place`, a directory or the file, which the process hosts.
    pub(super) fn queues(&self, place: &Path, from: &Settings) -> Result<QueuesConfig, Usage> {
        let path = settings::queue_file(place).map_err(|error| Usage(error.to_string()))?;
        let client = self.client()?;
        Ok(QueuesConfig {
            path,
            manager: QueueManagerConfig {
                allow_new_file: self.allow_new_file,
                ..from.queues.manager()
            },
            host: HostConfig {
                tls: self.queues_tls.then_some(client.tls),
                credential: client.credential,
                insecure: client.insecure,
                ..HostConfig::default()
            },
        })
    }

    /// Adds the limits of the arguments to those of the file.
    pub(super) fn limit(&self, limits: &mut ServerLimits) {
        limits.max_connections = self.max_connections;
        limits.max_connections_per_address = self.max_connections_per_address;
        limits.max_memory = match self.max_memory {
            Some(ByteSize(0)) => None,
            Some(ByteSize(stated)) => Some(stated),
            None => ServerLimits::memory_of_machine()
                .map(|all| (all - all / 4).max(ServerLimits::LEAST_MEMORY)),
        };
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
                if let Err(error) = reload().await {
                    let error = output::one_line(&anyhow::Error::new(error));
                    tracing::error!(%error, "what the files of access said before stays in use");
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

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use reveille::ClientTls;

    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        service: ServiceArgs,
    }

    fn service(typed: &[&str]) -> ServiceArgs {
        let command = Command::try_parse_from([&["serve"], typed].concat());
        command.expect("parsed").service
    }

    #[test]
    fn the_memory_of_the_machine_is_the_default_limit() {
        let applied = |typed: &[&str]| {
            let mut limits = ServerLimits::default();
            service(typed).limit(&mut limits);
            limits.max_memory
        };
        let machine = ServerLimits::memory_of_machine();
        assert_eq!(applied(&[]), machine.map(|all| all - all / 4));
        assert_eq!(applied(&["--max-memory", "0"]), None);
        assert_eq!(applied(&["--max-memory", "1GiB"]), Some(1 << 30));
    }

    #[test]
    fn flags_reach_the_host_of_the_queues() {
        let directory = tempfile::tempdir().expect("a directory");
        let typed = ["--queues-tls", "--allow-new-file"];
        let (service, settings) = (service(&typed), Settings::default());
        let config = service.queues(directory.path(), &settings).expect("valid");
        assert_eq!(config.path, directory.path().join("queues.db"));
        assert_eq!(config.host.tls, Some(ClientTls::default()));
        assert!(config.manager.allow_new_file);
        let missing = service.queues(Path::new("/no/such/place"), &settings);
        let error = missing.expect_err("missing").to_string();
        assert!(error.contains("no directory `/no/such/place`"), "{error}");
    }
}
