//! `serve`: the relay, until a signal stops it.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use bytesize::ByteSize;
use reveille::{AccessFiles, ErrorKind, Node, NodeConfig, RelayConfig, duration};

use super::{
    cluster::{self, ClusterArgs},
    credential::CredentialArgs,
    exit::{Exit, Failed, Usage},
    limits::LimitArgs,
    log, output,
    queue_settings::HostArgs,
    settings::Settings,
    signals,
    store::default_store,
    tls::{ClientTlsArgs, ServerTlsArgs},
    usage,
    values::{self, AdminListen, LogFormat},
};

/// Run the relay
#[derive(Debug, Default, clap::Args)]
#[command(after_help = "\
Example:
  reveille serve
  reveille serve --listen 127.0.0.1:7600 --store sqlite:/var/lib/reveille/reveille.db --log json
  AZURE_STORAGE_CONNECTION_STRING=... reveille serve --store az://flags

The container or bucket must exist. Its account and credential come from the variables that each \
cloud's own tools read: AZURE_STORAGE_*, AWS_*, GOOGLE_*. az://, s3://, gs:// and --cluster need a \
build with `--features full`.
  reveille serve --listen 10.0.0.5:7600 --tls-cert relay.pem --tls-key relay.key
  reveille serve --listen 10.0.0.5:7600 --insecure --max-connections-per-address 1000
  reveille serve --admin-listen 10.0.0.5:7601 --insecure --admin-host relay.internal
  reveille serve --queues /var/lib/queues --queues-name berlin
  reveille serve --listen 10.0.0.5:7600 --tls-cert relay.pem --tls-key relay.key --relay-id relay-1 \
    --store az://flags --cluster nats://broker:4222 --cluster-name prod

--max-connections: each connection is an open file. The relay raises its limit on open files as far \
as the system allows. 128 files stay in reserve. A quarter of the rest, at most 256, is for \
connections that have not sent anything yet. /readyz reports a relay that is full.

--max-connections-per-address: a client has one connection for its calls and one for each 256 of its \
streams. A connection that the client gave up as silent counts until its last stream ends. Clients \
behind one address, such as a NAT or a proxy, share its limit. An IPv6 /64 network is one address.

--max-memory: from seven eighths of it on, the relay refuses new connections, streams, queues and \
timers; open streams and known queues go on. \
docs/limits.md computes what the other limits take.

--admin-host: the admin port always accepts its IP addresses and localhost as the host name.

--auth: the rules and all files that they name are read again every ten seconds, and at once on \
SIGHUP. A file that cannot be read or breaks a rule leaves in use what it said before; the others are \
applied.

--cluster: without it the relay needs no broker and connects to none. All relays of a cluster share \
one store; `memory:` is refused. The login must be permitted to publish and subscribe on \
reveille1.NAME.>, and no other login should be. The files are read once, at the start. A broker that \
cannot be reached is tried again without end. docs/cluster.md describes the cluster.

SIGTERM, Ctrl-C or `reveille drain` ends the relay gracefully, within --drain and --grace together. In \
a cluster the hand-over of timers and the last messages may take 25 s more. A further signal ends it at \
once.

The log never blocks the relay: lines that stderr does not take are dropped and counted. \
RUST_LOG sets the log level, as in RUST_LOG=reveille=debug.")]
pub(super) struct Args {
    /// The address of the gRPC port: IP:PORT, localhost:PORT, or :PORT (on loopback)
    /// [default: 127.0.0.1:7600]
    #[arg(long, env = "REVEILLE_LISTEN", value_name = "ADDRESS", value_parser = values::address)]
    listen: Option<SocketAddr>,
    /// The address of the admin port (console, health and metrics), or `off` [default: 127.0.0.1:7601]
    #[arg(long, env = "REVEILLE_ADMIN_LISTEN", value_name = "ADDRESS")]
    admin_listen: Option<AdminListen>,
    /// Host names that requests to the admin port may use, comma-separated; IP addresses and
    /// localhost are always allowed
    #[arg(long, env = "REVEILLE_ADMIN_HOST", value_name = "NAMES", value_delimiter = ',', value_parser = values::host_name)]
    admin_host: Vec<String>,
    /// What the page on the admin port may do [default: act on loopback or with --auth, else read]
    #[arg(long, env = "REVEILLE_CONSOLE", value_name = "MODE")]
    console: Option<values::Console>,
    /// Where flags are kept: sqlite:PATH, memory:, az://CONTAINER[/PREFIX], s3://BUCKET[/PREFIX],
    /// gs://BUCKET[/PREFIX] [default: a file in the user's data directory]
    #[arg(long, env = "REVEILLE_STORE", value_name = "URL")]
    store: Option<String>,
    /// How often the relay looks in the store for changes of watched flags, as a relay or a person may
    /// have written it; 0 is never [default: 10s]
    #[arg(long, env = "REVEILLE_FLAG_REFRESH", value_name = "D", allow_hyphen_values = true, value_parser = values::refresh)]
    flag_refresh: Option<Duration>,
    /// The relay's name [default: relay; in a cluster the host's name and four random digits]
    #[arg(long, env = "REVEILLE_RELAY_ID", value_name = "NAME")]
    relay_id: Option<String>,
    /// How long connections may take to end at shutdown, after the streams [default: 10s]
    #[arg(long, env = "REVEILLE_GRACE", value_name = "D", allow_hyphen_values = true, value_parser = duration::parse)]
    grace: Option<Duration>,
    /// At shutdown streams end one after another within this time, so that their clients move to
    /// other relays spread over it; 0 is at once [default: 10s in a cluster, else 0]
    #[arg(long, env = "REVEILLE_DRAIN", value_name = "D", allow_hyphen_values = true, value_parser = duration::parse)]
    drain: Option<Duration>,
    /// Forget a queue that had no listener and no notification for this long; in a cluster
    /// at least 60s [default: 1h]
    #[arg(long, env = "REVEILLE_FORGET_AFTER", value_name = "D", allow_hyphen_values = true, value_parser = duration::parse)]
    forget_after: Option<Duration>,
    /// Ask one listener to check its queue if no listener did for this long; 0 is never
    /// [default: 60s]
    #[arg(long, env = "REVEILLE_SENTINEL", value_name = "D", allow_hyphen_values = true, value_parser = duration::parse)]
    sentinel: Option<Duration>,
    /// How often a listener that polls would read its queue, for the reads that sleeping saves
    /// [default: 1s]
    #[arg(long, env = "REVEILLE_ASSUMED_POLL", value_name = "D", allow_hyphen_values = true, value_parser = duration::parse)]
    assumed_poll: Option<Duration>,
    /// The price of a million reads, for the cost that sleeping saves [default: 0.04]
    #[arg(
        long,
        env = "REVEILLE_PRICE_PER_MILLION",
        value_name = "PRICE",
        allow_negative_numbers = true
    )]
    price_per_million: Option<f64>,
    /// The currency of the price [default: USD]
    #[arg(long, env = "REVEILLE_CURRENCY", value_name = "NAME")]
    currency: Option<String>,
    #[command(flatten)]
    limits: LimitArgs,
    /// Maximum number of queues in memory, about 500 bytes each, 620 in a cluster; a new queue
    /// replaces the longest idle one without listeners [default: 1000000]
    #[arg(
        long,
        env = "REVEILLE_MAX_QUEUES",
        help_heading = "Limits",
        value_name = "N",
        allow_negative_numbers = true, value_parser = usage::positive::<usize>
    )]
    max_queues: Option<usize>,
    /// Maximum number of queues that all subscriptions together are attached to, at most 430 bytes
    /// each, 680 in a group [default: 2000000]
    #[arg(
        long,
        env = "REVEILLE_MAX_CURSORS",
        help_heading = "Limits",
        value_name = "N",
        allow_negative_numbers = true, value_parser = usage::positive::<usize>
    )]
    max_cursors: Option<usize>,
    /// Maximum number of queues that one subscription is attached to [default: 1000000]
    #[arg(
        long,
        env = "REVEILLE_MAX_CURSORS_PER_STREAM",
        help_heading = "Limits",
        value_name = "N",
        allow_negative_numbers = true, value_parser = usage::positive::<usize>
    )]
    max_cursors_per_stream: Option<usize>,
    /// Maximum number of delayed wake-ups of publishers; further ones are refused [default:
    /// 1000000]
    #[arg(
        long,
        env = "REVEILLE_MAX_TIMERS",
        help_heading = "Limits",
        value_name = "N",
        allow_negative_numbers = true, value_parser = usage::positive::<usize>
    )]
    max_timers: Option<usize>,
    /// Maximum number of groups of all queues; further ones are refused [default: 200000]
    #[arg(
        long,
        env = "REVEILLE_MAX_GROUPS",
        help_heading = "Limits",
        value_name = "N",
        allow_negative_numbers = true, value_parser = usage::positive::<usize>
    )]
    max_groups: Option<usize>,
    /// Maximum number of flags that are set; further ones are refused [default: 10000]
    #[arg(
        long,
        env = "REVEILLE_MAX_FLAGS",
        help_heading = "Limits",
        value_name = "N",
        allow_negative_numbers = true, value_parser = usage::positive::<usize>
    )]
    max_flags: Option<usize>,
    /// Maximum number of distinct flags that are watched; further ones are refused [default: 10000]
    #[arg(
        long,
        env = "REVEILLE_MAX_WATCHED_FLAGS",
        help_heading = "Limits",
        value_name = "N",
        allow_negative_numbers = true, value_parser = usage::positive::<usize>
    )]
    max_watched_flags: Option<usize>,
    /// Serve reflection, with which tools read the services of the gRPC port: on or off [default: on]
    #[arg(long, env = "REVEILLE_REFLECTION", value_name = "SWITCH", value_parser = clap::builder::BoolishValueParser::new())]
    reflection: Option<bool>,
    /// Host the queues of this existing directory: move their messages to other machines, and take
    /// messages over on the gRPC port
    #[arg(long, env = "REVEILLE_QUEUES", value_name = "DIR")]
    queues: Option<PathBuf>,
    #[command(flatten)]
    host: HostArgs,
    #[command(flatten)]
    tls: ServerTlsArgs,
    #[command(flatten)]
    client_tls: ClientTlsArgs,
    #[command(flatten)]
    credential: CredentialArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
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
    insecure: bool,
    /// The format of the log [default: text]
    #[arg(long, env = "REVEILLE_LOG", value_name = "FORMAT")]
    log: Option<LogFormat>,
}

/// The arguments merged with the configuration file and the defaults.
#[derive(Debug)]
struct Resolved {
    node: NodeConfig,
    /// `None`: the default file. Its directory is created if it is missing.
    store: Option<String>,
    grace: Duration,
    log: LogFormat,
}

/// Long enough for listeners to report. A single relay ends before the 30 s after which Kubernetes
/// kills by default.
const GRACE: Duration = Duration::from_secs(10);

/// The callers of an unreachable store or broker log it. Their clients would also log each attempt.
const LOG: &str = "info,object_store=error,async_nats=off";

impl Args {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let resolved = self.resolve(settings)?;
        let _flushed = log::start_lossy(LOG, resolved.log)?;
        let reloads = resolved.node.access.is_some();
        let mut interrupts = signals::Interrupts::of_service(reloads)?;
        let mut hangups = signals::Hangups::listen(reloads)?;
        let open_files = signals::raise_open_files();
        let mut config = resolved.node;
        let drain = config.relay.drain;
        config.store = match resolved.store {
            Some(url) => url,
            None => default_store()?,
        };
        let node = Box::pin(Node::start(config)).await.map_err(not_started)?;
        announce(&node, open_files);

        let signal = tokio::select! {
            signal = interrupts.next() => Some(signal),
            () = node.drain_requested() => None,
            failure = node.failed() => return Err(failure.into()),
            never = reload_at(&mut hangups, async || node.reload_access().await) => never,
        };
        let relay = node.relay().clone();
        let shutdown = node.shutdown(resolved.grace);
        tokio::pin!(shutdown);
        let signal = match signal {
            Some(signal) => signal,
            None => tokio::select! {
                () = &mut shutdown => return Ok(stopped()),
                signal = interrupts.next() => signal,
            },
        };
        // A caller's drain may have a later end than a supervisor waits for.
        relay.drain();
        let (drain, grace) = (duration::Span(drain), duration::Span(resolved.grace));
        tracing::info!(?signal, %drain, %grace, "shutting down; a further signal ends it at once");
        tokio::select! {
            () = &mut shutdown => Ok(stopped()),
            again = interrupts.next() => {
                tracing::warn!(first = ?signal, "ended at once");
                Ok(again.exit())
            }
        }
    }

    fn resolve(self, settings: &Settings) -> Result<Resolved, Usage> {
        let file = &settings.serve;
        let defaults = NodeConfig::default();
        let listen = self.listen.or(file.listen).unwrap_or(defaults.listen);
        let admin_listen = match self.admin_listen.or(file.admin_listen) {
            Some(AdminListen(stated)) => stated,
            None => defaults.admin_listen,
        };
        let insecure = self.insecure || file.insecure.unwrap_or_default();
        let tls = self.tls.resolve(file.tls())?;
        let rules = self.auth.or_else(|| file.auth.clone());
        let audit_log = self.audit_log.or_else(|| file.audit_log.clone());
        let access = access(rules, audit_log)?;
        let cluster = self.cluster.resolve(file.cluster())?;
        let plain = Some(listen).filter(|_| tls.is_none());
        values::check_open("listen", plain, insecure)?;
        values::check_open("admin-listen", admin_listen, insecure)?;
        let queues = self
            .queues
            .as_deref()
            .or_else(|| settings.queues.directory());
        let queues = match queues {
            Some(place) => {
                let tls = self.client_tls.resolve(&settings.tls);
                let credential = self.credential.resolve(settings);
                let queues = self.host.resolve(place, &settings.queues, &tls, credential);
                let mut queues = queues?;
                queues.host.insecure = insecure;
                Some(queues)
            }
            None => {
                if let Some(flag) = self.client_tls.typed() {
                    return Err(Usage(format!(
                        "--{flag}: the certificate by which --queues connects to other machines: you \
                         mean --tls-{flag}, the relay's own"
                    )));
                }
                None
            }
        };
        let relay = RelayConfig::default();
        macro_rules! setting {
            ($defaults:ident.$name:ident) => {
                self.$name.or(file.$name).unwrap_or($defaults.$name)
            };
        }
        Ok(Resolved {
            node: NodeConfig {
                relay: RelayConfig {
                    relay_id: self
                        .relay_id
                        .or_else(|| file.relay_id.clone())
                        .unwrap_or_else(|| match cluster.is_some() {
                            true => cluster::relay_id(),
                            false => relay.relay_id,
                        }),
                    drain: cluster::drain_span(self.drain.or(file.drain), cluster.is_some()),
                    forget_after: setting!(relay.forget_after),
                    sentinel_interval: self
                        .sentinel
                        .or(file.sentinel)
                        .unwrap_or(relay.sentinel_interval),
                    assumed_poll: setting!(relay.assumed_poll),
                    price_per_million: setting!(relay.price_per_million),
                    currency: self
                        .currency
                        .or_else(|| file.currency.clone())
                        .unwrap_or(relay.currency),
                    max_queues: setting!(relay.max_queues),
                    max_cursors: setting!(relay.max_cursors),
                    max_cursors_per_stream: setting!(relay.max_cursors_per_stream),
                    max_timers: setting!(relay.max_timers),
                    max_groups: setting!(relay.max_groups),
                    ..relay
                },
                listen,
                tls,
                access,
                admin_listen,
                limits: self.limits.resolve(file)?,
                reflection: setting!(defaults.reflection),
                admin_hosts: match self.admin_host.is_empty() {
                    true => file.admin_host.clone().unwrap_or_default(),
                    false => self.admin_host,
                },
                console: self.console.or(file.console).map(Into::into),
                log_lines_dropped: Some(log::dropped_lines),
                flag_refresh: setting!(defaults.flag_refresh),
                max_flags: setting!(defaults.max_flags),
                max_watched_flags: setting!(defaults.max_watched_flags),
                queues,
                #[cfg(feature = "nats")]
                cluster,
                ..defaults
            },
            store: self.store.or_else(|| file.store.clone()),
            grace: self.grace.or(file.grace).unwrap_or(GRACE),
            log: self.log.or(file.log).unwrap_or_default(),
        })
    }
}

/// A refusal by the broker has the code of a denial; any other failure of the start has the code 1.
fn not_started(error: reveille::Error) -> anyhow::Error {
    let kind = error.kind();
    let is_of_cluster = error.message().starts_with("cluster: ");
    let error = anyhow::Error::new(error);
    match kind {
        ErrorKind::Invalid => Usage(output::one_line(&error)).into(),
        ErrorKind::Denied if is_of_cluster => error,
        _ => Failed(output::one_line(&error)).into(),
    }
}

fn stopped() -> Exit {
    tracing::info!("stopped");
    Exit::OK
}

/// Reads the files again at each SIGHUP, and logs what has changed. Never ends. A file system that
/// hangs delays no other signal: the caller drops this at the first one.
pub(super) async fn reload_at<T>(
    hangups: &mut signals::Hangups,
    reload: impl AsyncFn() -> reveille::Result<bool>,
) -> T {
    loop {
        hangups.next().await;
        match reload().await {
            Ok(true) => {}
            Ok(false) => tracing::info!("the rules have not changed"),
            Err(error) => {
                let error = output::one_line(&anyhow::Error::new(error));
                tracing::error!(%error, "what the files of access said before stays in use");
            }
        }
    }
}

/// Returns the files of access control.
pub(super) fn access(
    rules: Option<PathBuf>,
    audit_log: Option<PathBuf>,
) -> Result<Option<AccessFiles>, Usage> {
    match (rules, audit_log) {
        (Some(rules), audit_log) => Ok(Some(AccessFiles { rules, audit_log })),
        (None, None) => Ok(None),
        (None, Some(_)) => Err(Usage(
            "--audit-log: without --auth no caller is known; set --auth".to_owned(),
        )),
    }
}

fn announce(node: &Node, open_files: Option<u64>) {
    let queues = node.queues();
    tracing::info!(
        relay = %node.url(),
        admin = %AdminListen(node.admin_address()),
        console = node.console_url(),
        store = %node.store(),
        queues = queues.map(|queues| tracing::field::display(queues.path().display())),
        epoch = node.epoch(),
        max_connections = node.max_connections(),
        max_memory = node.max_memory().map(|max| tracing::field::display(ByteSize(max).display().iec())),
        version = env!("CARGO_PKG_VERSION"),
        open_files,
        "reveille serves"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::ServeSettings;

    #[test]
    fn flags_override_the_file_and_the_file_overrides_defaults() {
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
        let resolved = typed.resolve(&settings).expect("valid settings");
        assert_eq!(resolved.node.relay.relay_id, "flag");
        assert_eq!(resolved.grace, Duration::from_secs(3));
        assert_eq!(
            resolved.node.relay.sentinel_interval,
            Duration::from_secs(60)
        );
        assert_eq!(resolved.node.listen.port(), 7600);
        assert_eq!(resolved.node.admin_listen.map(|at| at.port()), Some(7601));
    }

    #[test]
    fn other_machines_are_served_in_plain_text_only_with_insecure() {
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
