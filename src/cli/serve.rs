//! `serve`: the relay, until it is told to stop.

use std::{fmt, net::SocketAddr, str::FromStr, time::Duration};

use reveille::{Node, NodeConfig, RelayConfig, duration};
use serde::Deserialize;

use super::{
    exit::{Exit, Failed, Usage},
    log, output,
    settings::Settings,
    signals,
    store::default_store,
    usage,
};

/// Run the relay
#[derive(Debug, Default, clap::Args)]
#[command(after_help = "\
Example:
  reveille serve
  reveille serve --listen 127.0.0.1:7600 --store sqlite:/var/lib/reveille/reveille.db --log json
  AZURE_STORAGE_CONNECTION_STRING=... reveille serve --store az://flags

The container or bucket must be there. Its account and credential come from the environment, by the \
names that each cloud's own tools read: AZURE_STORAGE_*, AWS_*, GOOGLE_*.
  reveille serve --listen 10.0.0.5:7600 --insecure --max-connections-per-address 1000
  reveille serve --admin-listen 10.0.0.5:7601 --insecure --admin-host relay.internal

--max-connections: each connection is an open file. The limit on open files is raised as far as it \
may be; 128 files stay in reserve, and a quarter of the rest, at most 256, is for connections that \
have sent nothing yet. /readyz says where the relay is full.

--max-connections-per-address: a client has one connection for its calls and one for each 256 of its \
streams, and those it has left for their silence until their last stream ends. Clients behind one \
address, as of a NAT or a proxy, share its limit; an IPv6 /64 network is one address.

--admin-host: by IP address and as localhost the admin port can be asked always.

SIGTERM or Ctrl-C ends it gracefully, within --grace; a second one ends it at once.

The log never holds the relay up: lines that stderr does not take are dropped and counted. \
RUST_LOG sets what is logged, as in RUST_LOG=reveille=debug.")]
pub(super) struct Args {
    /// Where gRPC is served: IP:PORT, localhost:PORT, or :PORT, which is on loopback too
    /// [default: 127.0.0.1:7600]
    #[arg(long, env = "REVEILLE_LISTEN", value_name = "ADDRESS", value_parser = address)]
    listen: Option<SocketAddr>,
    /// Where health and metrics are served, or `off` [default: 127.0.0.1:7601]
    #[arg(long, env = "REVEILLE_ADMIN_LISTEN", value_name = "ADDRESS")]
    admin_listen: Option<AdminListen>,
    /// Names, comma-separated, by which the admin port may be asked, beside IP addresses and localhost
    #[arg(long, env = "REVEILLE_ADMIN_HOST", value_name = "NAMES", value_delimiter = ',', value_parser = host_name)]
    admin_host: Vec<String>,
    /// Where flags are kept: sqlite:PATH, memory:, az://CONTAINER[/PREFIX], s3://BUCKET[/PREFIX],
    /// gs://BUCKET[/PREFIX] [default: a file in the user's data directory]
    #[arg(long, env = "REVEILLE_STORE", value_name = "URL")]
    store: Option<String>,
    /// How often each flag that is waited for is read, in case another relay or somebody by hand
    /// wrote it; 0 is never [default: 10s]
    #[arg(long, env = "REVEILLE_FLAG_REFRESH", value_name = "D", allow_hyphen_values = true, value_parser = refresh)]
    flag_refresh: Option<Duration>,
    /// The relay's name [default: relay]
    #[arg(long, env = "REVEILLE_RELAY_ID", value_name = "NAME")]
    relay_id: Option<String>,
    /// How long streams may take to end at shutdown [default: 10s]
    #[arg(long, env = "REVEILLE_GRACE", value_name = "D", allow_hyphen_values = true, value_parser = duration::parse)]
    grace: Option<Duration>,
    /// Forget a queue that nobody listens to and nobody has notified for this long [default: 1h]
    #[arg(long, env = "REVEILLE_FORGET_AFTER", value_name = "D", allow_hyphen_values = true, value_parser = duration::parse)]
    forget_after: Option<Duration>,
    /// Ask one listener of each queue to look where none did for this long; 0 is never [default: 60s]
    #[arg(long, env = "REVEILLE_SENTINEL", value_name = "D", allow_hyphen_values = true, value_parser = duration::parse)]
    sentinel: Option<Duration>,
    /// Connections at one time; further ones wait [default: 100000]
    #[arg(
        long,
        env = "REVEILLE_MAX_CONNECTIONS",
        value_name = "N",
        allow_negative_numbers = true, value_parser = usage::positive::<usize>
    )]
    max_connections: Option<usize>,
    /// Connections at one time of one address; further ones are closed; 0 is no limit [default: no
    /// limit where it listens on loopback, else 256]
    #[arg(
        long,
        env = "REVEILLE_MAX_CONNECTIONS_PER_ADDRESS",
        value_name = "N",
        allow_negative_numbers = true
    )]
    max_connections_per_address: Option<usize>,
    /// Queues remembered at one time, about 500 bytes each; the longest idle one without listeners
    /// gives way to a new one [default: 1000000]
    #[arg(
        long,
        env = "REVEILLE_MAX_QUEUES",
        value_name = "N",
        allow_negative_numbers = true, value_parser = usage::positive::<usize>
    )]
    max_queues: Option<usize>,
    /// Queues that all subscriptions together are attached to, at most 430 bytes each [default: 2000000]
    #[arg(
        long,
        env = "REVEILLE_MAX_CURSORS",
        value_name = "N",
        allow_negative_numbers = true, value_parser = usage::positive::<usize>
    )]
    max_cursors: Option<usize>,
    /// The same for one subscription [default: 1000000]
    #[arg(
        long,
        env = "REVEILLE_MAX_CURSORS_PER_STREAM",
        value_name = "N",
        allow_negative_numbers = true, value_parser = usage::positive::<usize>
    )]
    max_cursors_per_stream: Option<usize>,
    /// Delayed wake-ups that publishers may set; further ones are refused [default: 1000000]
    #[arg(
        long,
        env = "REVEILLE_MAX_TIMERS",
        value_name = "N",
        allow_negative_numbers = true, value_parser = usage::positive::<usize>
    )]
    max_timers: Option<usize>,
    /// Flags that may be set at one time; further ones are refused [default: 10000]
    #[arg(
        long,
        env = "REVEILLE_MAX_FLAGS",
        value_name = "N",
        allow_negative_numbers = true, value_parser = usage::positive::<usize>
    )]
    max_flags: Option<usize>,
    /// Distinct flags that may be watched at one time; further ones are refused [default: 10000]
    #[arg(
        long,
        env = "REVEILLE_MAX_WATCHED_FLAGS",
        value_name = "N",
        allow_negative_numbers = true, value_parser = usage::positive::<usize>
    )]
    max_watched_flags: Option<usize>,
    /// Serve plain text to other machines, too
    #[arg(long, env = "REVEILLE_INSECURE")]
    insecure: bool,
    /// How the log is written [default: text]
    #[arg(long, env = "REVEILLE_LOG", value_name = "FORMAT")]
    log: Option<LogFormat>,
}

/// Where the admin port is; `off`: nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AdminListen(pub(super) Option<SocketAddr>);

/// How the log is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One object a line
    Json,
}

/// What is meant.
#[derive(Debug)]
struct Plan {
    node: NodeConfig,
    /// `None`: the default file, whose directory is made where it is missing.
    store: Option<String>,
    grace: Duration,
    log: LogFormat,
}

/// Long enough for listeners to report; below the 30 s after which Kubernetes kills.
const GRACE: Duration = Duration::from_secs(10);

/// A store that is away is logged by what asks it. Its client would log each try besides.
const LOG: &str = "info,object_store=error";

/// Below it a relay would do little else than read.
const SHORTEST_REFRESH: Duration = Duration::from_millis(100);

impl Args {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let plan = self.resolve(settings)?;
        let _flushed = log::start_lossy(LOG, plan.log)?;
        let mut interrupts = signals::Interrupts::listen()?;
        let open_files = signals::raise_open_files();
        let mut config = plan.node;
        config.store = match plan.store {
            Some(url) => url,
            None => default_store()?,
        };
        let node = Box::pin(Node::start(config)).await.map_err(|error| {
            let usage = error.kind() == reveille::ErrorKind::Invalid;
            let text = output::one_line(&anyhow::Error::new(error));
            if usage {
                anyhow::Error::new(Usage(text))
            } else {
                anyhow::Error::new(Failed(text))
            }
        })?;
        announce(&node, open_files);

        let signal = interrupts.next().await;
        let grace = duration::Span(plan.grace);
        tracing::info!(%grace, "shutting down; a second signal ends it at once");
        tokio::select! {
            () = node.shutdown(plan.grace) => {
                tracing::info!("stopped");
                Ok(Exit::OK)
            }
            again = interrupts.next() => {
                tracing::warn!(first = ?signal, "ended at once");
                Ok(again.exit())
            }
        }
    }

    fn resolve(self, settings: &Settings) -> Result<Plan, Usage> {
        let file = &settings.serve;
        let defaults = NodeConfig::default();
        let listen = self.listen.or(file.listen).unwrap_or(defaults.listen);
        let admin_listen = match self.admin_listen.or(file.admin_listen) {
            Some(AdminListen(stated)) => stated,
            None => defaults.admin_listen,
        };
        let insecure = self.insecure || file.insecure.unwrap_or_default();
        for (flag, address) in [("listen", Some(listen)), ("admin-listen", admin_listen)] {
            if let Some(address) = address.filter(|address| !address.ip().is_loopback())
                && !insecure
            {
                return Err(Usage(format!(
                    "--{flag}: {address} is open to other machines, and this relay speaks plain \
                     text: listen on a loopback address, or say --insecure"
                )));
            }
        }
        let relay = RelayConfig::default();
        macro_rules! setting {
            ($defaults:ident.$name:ident) => {
                self.$name.or(file.$name).unwrap_or($defaults.$name)
            };
        }
        Ok(Plan {
            node: NodeConfig {
                relay: RelayConfig {
                    relay_id: self
                        .relay_id
                        .or_else(|| file.relay_id.clone())
                        .unwrap_or(relay.relay_id),
                    forget_after: setting!(relay.forget_after),
                    sentinel_interval: self
                        .sentinel
                        .or(file.sentinel)
                        .unwrap_or(relay.sentinel_interval),
                    max_queues: setting!(relay.max_queues),
                    max_cursors: setting!(relay.max_cursors),
                    max_cursors_per_stream: setting!(relay.max_cursors_per_stream),
                    max_timers: setting!(relay.max_timers),
                    ..relay
                },
                listen,
                admin_listen,
                max_connections: setting!(defaults.max_connections),
                max_connections_per_address: self
                    .max_connections_per_address
                    .or(file.max_connections_per_address),
                admin_hosts: match self.admin_host.is_empty() {
                    true => file.admin_host.clone().unwrap_or_default(),
                    false => self.admin_host,
                },
                log_lines_dropped: Some(log::dropped_lines),
                flag_refresh: setting!(defaults.flag_refresh),
                max_flags: setting!(defaults.max_flags),
                max_watched_flags: setting!(defaults.max_watched_flags),
                ..defaults
            },
            store: self.store.or_else(|| file.store.clone()),
            grace: self.grace.or(file.grace).unwrap_or(GRACE),
            log: self.log.or(file.log).unwrap_or_default(),
        })
    }
}

impl FromStr for AdminListen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self(None));
        }
        address(text)
            .map(|address| Self(Some(address)))
            .map_err(|rule| format!("{rule}, or `off`"))
    }
}

impl fmt::Display for AdminListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => write!(f, "http://{address}"),
            None => f.write_str("off"),
        }
    }
}

/// Reads where to listen. A port alone is on loopback: nothing is opened to other machines unless
/// their address is written.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    let port = text.strip_prefix("localhost:");
    let port = port.or_else(|| text.strip_prefix(':'));
    let local = port.and_then(|port| port.parse().ok());
    let local = local.map(|port: u16| SocketAddr::from(([127, 0, 0, 1], port)));
    local
        .or_else(|| text.parse().ok())
        .ok_or_else(|| "must be IP:PORT, localhost:PORT or :PORT".to_owned())
}

/// Reads a host's name, without a port.
pub(super) fn host_name(text: &str) -> Result<String, String> {
    let letter = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    match !text.is_empty() && text.chars().all(letter) {
        true => Ok(text.to_owned()),
        false => Err("must be a host's name, without a port, as in relay.internal".to_owned()),
    }
}

/// Reads an interval of readings; zero is never, and otherwise there is a pause between them.
pub(super) fn refresh(text: &str) -> Result<Duration, String> {
    let span = duration::parse(text).map_err(|error| error.to_string())?;
    match span.is_zero() || span >= SHORTEST_REFRESH {
        true => Ok(span),
        false => Err("must be 0 or at least 100ms".to_owned()),
    }
}

fn announce(node: &Node, open_files: Option<u64>) {
    tracing::info!(
        relay = %node.url(),
        admin = %AdminListen(node.admin_address()),
        store = %node.store(),
        epoch = node.epoch(),
        max_connections = node.max_connections(),
        version = env!("CARGO_PKG_VERSION"),
        open_files,
        "reveille serves"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::settings::ServeSettings;

    #[test]
    fn flags_go_before_the_file_and_the_file_before_defaults() {
        let file = ServeSettings {
            relay_id: Some("file".to_owned()),
            grace: Some(Duration::from_secs(3)),
            ..ServeSettings::default()
        };
        let settings = Settings {
            serve: file,
            ..Settings::default()
        };
        let typed = Args {
            relay_id: Some("flag".to_owned()),
            ..Args::default()
        };
        let plan = typed.resolve(&settings).expect("a good plan");
        assert_eq!(plan.node.relay.relay_id, "flag");
        assert_eq!(plan.grace, Duration::from_secs(3));
        assert_eq!(plan.node.relay.sentinel_interval, Duration::from_secs(60));
        assert_eq!(plan.node.listen.port(), 7600);
        assert_eq!(plan.node.admin_listen.map(|at| at.port()), Some(7601));
    }

    #[test]
    fn addresses_to_listen_on_are_read_as_people_write_them() {
        for (text, read) in [
            ("127.0.0.1:7600", Some("127.0.0.1:7600")),
            ("[::1]:7600", Some("[::1]:7600")),
            (":7600", Some("127.0.0.1:7600")),
            ("localhost:7600", Some("127.0.0.1:7600")),
            ("7600", None),
            (":", None),
            ("localhost", None),
            ("relay.internal:7600", None),
            (":70000", None),
        ] {
            let read: Option<SocketAddr> = read.map(|text| text.parse().expect("an address"));
            assert_eq!(address(text).ok(), read, "{text}");
        }
        assert_eq!("off".parse(), Ok(AdminListen(None)));
        let admin = AdminListen(Some(SocketAddr::from(([127, 0, 0, 1], 7601))));
        assert_eq!(":7601".parse(), Ok(admin));
        assert!("nowhere".parse::<AdminListen>().is_err());
    }

    #[test]
    fn other_machines_are_served_in_plain_text_only_where_that_is_said() {
        let open = |insecure| Args {
            listen: Some(SocketAddr::from(([0, 0, 0, 0], 7600))),
            insecure,
            ..Args::default()
        };
        let refused = open(false).resolve(&Settings::default());
        let error = refused.expect_err("open").to_string();
        assert!(error.starts_with("--listen: 0.0.0.0:7600"), "{error}");
        assert!(open(true).resolve(&Settings::default()).is_ok());
    }
}
