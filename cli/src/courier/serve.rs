//! `courier serve`: hosts the queues of a directory, without a relay.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use reveille::{Client, ClientConfig, ErrorKind, QueueNode, QueueNodeConfig, duration};

use crate::{
    credential::CredentialArgs,
    exit::{Exit, Failed, Usage},
    limits::LimitArgs,
    log, output,
    queue_settings::HostArgs,
    serve::{access, reload_at},
    settings::Settings,
    signals,
    target::with_scheme,
    tls::{ClientTlsArgs, ServerTlsArgs},
    values::{self, LogFormat},
};

pub(super) const AFTER_HELP: &str = "\
Example:
  reveille courier serve /var/lib/queues
  reveille courier serve /var/lib/queues --listen 10.0.0.5:7610 --insecure --queues-name berlin
  reveille courier serve /var/lib/queues --listen 10.0.0.5:7610 --tls-cert berlin.pem \
    --tls-key berlin.key --tls-client-ca machines.pem --queues-tls --ca machines.pem \
    --cert berlin.pem --key berlin.key
  reveille courier serve /var/lib/queues --relay http://127.0.0.1:7600

Moves the messages of DIR/queues.db to other machines, and takes messages of other machines over. \
The file is created if it is missing; the directory must exist. One process hosts a file. `reveille \
serve --queues DIR` does the same in the process of a relay. Without --auth every process that can \
connect may send messages to the queues.

--relay: listeners of that relay are woken when a message arrives. Without it, messages that \
another process sends are found within a second, and listeners have to poll.

SIGTERM or Ctrl-C ends the host gracefully, within --grace. A second signal ends it at once.";

#[derive(Debug, Default, clap::Args)]
pub(super) struct Serve {
    /// The directory of the queues [default: `directory` in [queues] of the configuration file]
    #[arg(value_name = "DIR")]
    place: Option<PathBuf>,
    /// The address for other machines: IP:PORT, localhost:PORT, or :PORT (on loopback)
    /// [default: 127.0.0.1:7610]
    #[arg(long, env = "REVEILLE_QUEUES_LISTEN", value_name = "ADDRESS", value_parser = values::address)]
    listen: Option<SocketAddr>,
    /// The relay whose listeners are woken: http://HOST:PORT or HOST:PORT [default: none]
    #[arg(long, env = "REVEILLE_RELAY", value_name = "URL")]
    relay: Option<String>,
    #[command(flatten)]
    host: HostArgs,
    /// How long connections may take to end at shutdown [default: 10s]
    #[arg(long, env = "REVEILLE_GRACE", value_name = "D", allow_hyphen_values = true, value_parser = duration::parse)]
    grace: Option<Duration>,
    #[command(flatten)]
    tls: ServerTlsArgs,
    #[command(flatten)]
    client_tls: ClientTlsArgs,
    #[command(flatten)]
    credential: CredentialArgs,
    /// Only known machines may hand messages over: the rules, and the files of tokens and keys that
    /// they name; see `reveille auth --help` [default: every machine may]
    #[arg(
        long,
        env = "REVEILLE_AUTH",
        value_name = "FILE",
        help_heading = "Access"
    )]
    auth: Option<PathBuf>,
    /// Append denials to this file, one JSON object a line
    #[arg(
        long,
        env = "REVEILLE_AUDIT_LOG",
        value_name = "FILE",
        help_heading = "Access"
    )]
    audit_log: Option<PathBuf>,
    #[command(flatten)]
    limits: LimitArgs,
    /// Serve other machines in plain text, without TLS
    #[arg(long, env = "REVEILLE_INSECURE")]
    insecure: bool,
    /// The format of the log [default: text]
    #[arg(long, env = "REVEILLE_LOG", value_name = "FORMAT")]
    log: Option<LogFormat>,
}

/// The arguments merged with the configuration file and the defaults.
#[derive(Debug)]
struct Resolved {
    node: QueueNodeConfig,
    relay: Option<String>,
    /// The configuration of the relay's client.
    client: ClientConfig,
    grace: Duration,
    log: LogFormat,
}

const GRACE: Duration = Duration::from_secs(10);
const LOG: &str = "info";

impl Serve {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let resolved = self.resolve(settings)?;
        let _flushed = log::start_lossy(LOG, resolved.log)?;
        let reloads = resolved.node.access.is_some();
        let mut interrupts = signals::Interrupts::of_service(reloads)?;
        let mut hangups = signals::Hangups::listen(reloads)?;
        signals::raise_open_files();
        let mut config = resolved.node;
        config.relay = match &resolved.relay {
            Some(relay) => Some(Client::with_config(relay, resolved.client)?),
            None => None,
        };
        let node = Box::pin(QueueNode::start(config)).await.map_err(|error| {
            let is_usage = error.kind() == ErrorKind::Invalid;
            let text = output::one_line(&anyhow::Error::new(error));
            match is_usage {
                true => anyhow::Error::new(Usage(text)),
                false => anyhow::Error::new(Failed(text)),
            }
        })?;
        tracing::info!(
            listen = %node.address(),
            queues = %node.manager().path().display(),
            relay = resolved.relay,
            version = env!("CARGO_PKG_VERSION"),
            "reveille hosts queues"
        );
        let signal = tokio::select! {
            signal = interrupts.next() => signal,
            never = reload_at(&mut hangups, async || node.reload_access().await) => never,
        };
        let grace = duration::Span(resolved.grace);
        tracing::info!(%grace, "shutting down; a second signal ends it at once");
        tokio::select! {
            () = node.shutdown(resolved.grace) => {
                tracing::info!("stopped");
                Ok(Exit::OK)
            }
            again = interrupts.next() => {
                tracing::warn!(first = ?signal, "ended at once");
                Ok(again.exit())
            }
        }
    }

    fn resolve(self, settings: &Settings) -> Result<Resolved, Usage> {
        let defaults = QueueNodeConfig::default();
        let listen = self.listen.unwrap_or(defaults.listen);
        let insecure = self.insecure || settings.serve.insecure.unwrap_or_default();
        let tls = self.tls.resolve(settings.serve.tls())?;
        let files = self.client_tls.resolve(&settings.tls);
        values::check_open("listen", Some(listen).filter(|_| tls.is_none()), insecure)?;
        let rules = self.auth.or_else(|| settings.serve.auth.clone());
        let audit_log = self.audit_log.or_else(|| settings.serve.audit_log.clone());
        let access = access(rules, audit_log)?;
        let place = self
            .place
            .as_deref()
            .or_else(|| settings.queues.directory());
        let Some(place) = place else {
            let text = "DIR: state the directory of the queues, or `directory` in [queues] of the \
                        configuration file";
            return Err(Usage(text.to_owned()));
        };
        let relay = self.relay.or_else(|| settings.relay.clone());
        let credential = self.credential.resolve(settings);
        let queues = self
            .host
            .resolve(place, &settings.queues, &files, credential.clone());
        let mut queues = queues?;
        queues.host.insecure = insecure;
        Ok(Resolved {
            node: QueueNodeConfig {
                queues,
                listen,
                tls,
                access,
                limits: self.limits.resolve(&settings.serve)?,
                ..defaults
            },
            relay: relay.map(with_scheme),
            client: ClientConfig {
                tls: files.config().map_err(|error| Usage(error.to_string()))?,
                credential,
                insecure,
                ..ClientConfig::default()
            },
            grace: self.grace.or(settings.serve.grace).unwrap_or(GRACE),
            log: self.log.or(settings.serve.log).unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serve(place: PathBuf) -> Serve {
        Serve {
            place: Some(place),
            ..Serve::default()
        }
    }

    #[test]
    fn other_machines_are_served_in_plain_text_only_with_insecure() {
        let directory = tempfile::tempdir().expect("a directory");
        let open = |insecure| Serve {
            listen: Some(SocketAddr::from(([0, 0, 0, 0], 7610))),
            insecure,
            ..serve(directory.path().to_owned())
        };
        let refused = open(false).resolve(&Settings::default());
        let error = refused.expect_err("open").to_string();
        assert!(error.starts_with("--listen: 0.0.0.0:7610"), "{error}");
        assert!(open(true).resolve(&Settings::default()).is_ok());
    }

    #[test]
    fn it_listens_on_its_own_port_and_needs_no_relay() {
        let directory = tempfile::tempdir().expect("a directory");
        let resolved = serve(directory.path().to_owned()).resolve(&Settings::default());
        let resolved = resolved.expect("valid");
        assert_eq!(resolved.node.listen.to_string(), "127.0.0.1:7610");
        assert_eq!(resolved.relay, None);
        let error = Serve::default().resolve(&Settings::default());
        let error = error.expect_err("no directory").to_string();
        assert!(error.starts_with("DIR:"), "{error}");
    }
}
