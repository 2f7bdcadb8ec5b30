//! `serve`: the relay, until a signal stops it.

use std::{net::SocketAddr, path::PathBuf};

use bytesize::ByteSize;
use reveille::{ConsoleMode, Node, NodeConfig, RelayConfig, duration::Span};

use super::{
    cluster::{self, ClusterArgs},
    exit::{Exit, Usage},
    log, output,
    service::{self, ServiceArgs},
    settings::Settings,
    signals,
    store::default_store,
    values::{self, AdminListen},
};

/// Run the relay
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille serve
  reveille serve --listen 127.0.0.1:7600 --store sqlite:/var/lib/reveille/reveille.db --log json
  reveille serve --listen 10.0.0.5:7600 --tls-cert relay.pem --tls-key relay.key
  reveille serve --queues /var/lib/queues
  reveille serve --listen 10.0.0.5:7600 --tls-cert relay.pem --tls-key relay.key --relay-id relay-1 \
    --store az://flags --cluster nats://broker:4222 --cluster-name prod

SIGTERM, Ctrl-C or `reveille drain` ends the relay gracefully, within --drain and --grace together. In \
a cluster the hand-over of timers and the last messages may take 25 s more. A further signal ends it at \
once. RUST_LOG sets the log level, as in RUST_LOG=reveille=debug.

More in docs: configuration.md, toolbox.md (--store), limits.md (connections and memory), security.md \
(--auth), cluster.md.")]
pub(super) struct Args {
    /// The address of the gRPC port: IP:PORT, localhost:PORT, or :PORT (on loopback)
    #[arg(long, env = "REVEILLE_LISTEN", value_name = "ADDRESS", value_parser = values::address, default_value_t = NodeConfig::default().listen)]
    listen: SocketAddr,
    /// The address of the admin port (console, health and metrics), or `off`
    #[arg(long, env = "REVEILLE_ADMIN_LISTEN", value_name = "ADDRESS", value_parser = values::admin_address, default_value = "127.0.0.1:7601")]
    admin_listen: AdminListen,
    /// Host names that requests to the admin port may use, comma-separated; IP addresses and
    /// localhost are always allowed
    #[arg(
        long,
        env = "REVEILLE_ADMIN_HOST",
        value_name = "NAMES",
        value_delimiter = ',',
        value_parser = values::host_name
    )]
    admin_host: Vec<String>,
    /// The page on the admin port: `off`; `read` shows only; `act` also sets and clears flags, notifies
    /// and drains [default: act on loopback or with --auth, else read]
    #[arg(long, env = "REVEILLE_CONSOLE", value_name = "MODE", value_parser = values::console_mode)]
    console: Option<ConsoleMode>,
    /// Where flags are kept: sqlite:PATH, memory:, az://CONTAINER[/PREFIX], s3://BUCKET[/PREFIX],
    /// gs://BUCKET[/PREFIX] [default: a file in the user's data directory]
    #[arg(long, env = "REVEILLE_STORE", value_name = "URL")]
    store: Option<String>,
    /// The relay's name [default: relay; in a cluster the host's name and four random digits]
    #[arg(long, env = "REVEILLE_RELAY_ID", value_name = "NAME")]
    relay_id: Option<String>,
    /// At shutdown streams end one after another within this time, so that their clients move to
    /// other relays spread over it; 0 is at once [default: 10s in a cluster, else 0]
    #[arg(long, env = "REVEILLE_DRAIN", value_name = "D")]
    drain: Option<Span>,
    /// Ask one listener to check its queue if no listener did for this long; 0 is never
    #[arg(long, env = "REVEILLE_SENTINEL", value_name = "D", default_value_t = Span(RelayConfig::default().sentinel_interval))]
    sentinel: Span,
    /// Host the queues of this existing directory: move their messages to other machines, and take
    /// messages over on the gRPC port
    #[arg(long, env = "REVEILLE_QUEUES", value_name = "DIR")]
    queues: Option<PathBuf>,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    service: ServiceArgs,
}

/// The callers of an unreachable store or broker log it. Their clients would also log each attempt.
const LOG: &str = "info,object_store=error,async_nats=off";

impl Args {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let mut config = self.config(settings)?;
        let mut service = self.service.start(LOG)?;
        let open_files = signals::raise_open_files();
        if config.store.is_empty() {
            config.store = default_store()?;
        }
        let drain = Span(config.relay.drain);
        let node = Box::pin(Node::start(config))
            .await
            .map_err(service::not_started)?;
        announce(&node, open_files);

        let signal = tokio::select! {
            signal = service.signal(|| node.reload_access()) => Some(signal),
            () = node.drain_requested() => None,
            failure = node.failed() => return Err(failure.into()),
        };
        let relay = node.relay().clone();
        let grace = self.service.grace;
        let shutdown = node.shutdown(grace.0);
        tokio::pin!(shutdown);
        let signal = match signal {
            Some(signal) => signal,
            None => tokio::select! {
                () = &mut shutdown => return Ok(service::stopped()),
                signal = service.interrupts.next() => signal,
            },
        };
        // A caller's drain may have a later end than a supervisor waits for.
        relay.drain();
        tracing::info!(?signal, %drain, %grace, "shutting down; a further signal ends it at once");
        Ok(service.finish(shutdown, signal).await)
    }

    fn config(&self, settings: &Settings) -> Result<NodeConfig, Usage> {
        let service = &self.service;
        let cluster = self.cluster.config()?;
        let is_member = cluster.is_some();
        let tls = service.tls(self.listen)?;
        values::check_open("admin-listen", self.admin_listen, service.insecure)?;
        if self.queues.is_none() && service.client.cert.is_some() {
            output::note("--cert: only for --queues; the relay's own certificate is --tls-cert");
        }
        let mut node = NodeConfig {
            listen: self.listen,
            tls,
            access: service.access()?,
            admin_listen: self.admin_listen,
            admin_hosts: self.admin_host.clone(),
            console: self.console,
            log_lines_dropped: Some(log::dropped_lines),
            queues: match &self.queues {
                Some(place) => Some(service.queues(place, settings)?),
                None => None,
            },
            #[cfg(feature = "nats")]
            cluster,
            store: self.store.clone().unwrap_or_default(),
            ..NodeConfig::default()
        };
        settings.limits.apply(&mut node);
        service.limit(&mut node.limits);
        let relay = &mut node.relay;
        settings.savings.apply(relay);
        relay.sentinel_interval = self.sentinel.0;
        if is_member {
            (relay.drain, relay.relay_id) = (cluster::DRAIN, cluster::relay_id());
        }
        if let Some(Span(drain)) = self.drain {
            relay.drain = drain;
        }
        if let Some(id) = &self.relay_id {
            relay.relay_id.clone_from(id);
        }
        Ok(node)
    }
}

fn announce(node: &Node, open_files: Option<u64>) {
    let queues = node.queues();
    let admin = node.admin_address();
    let admin = admin.map_or_else(|| "off".to_owned(), |at| format!("http://{at}"));
    tracing::info!(
        relay = %node.url(),
        admin,
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
    use std::time::Duration;

    use clap::Parser as _;

    use super::*;
    use crate::{Cli, Verb};

    fn config(typed: &[&str]) -> Result<NodeConfig, Usage> {
        let typed = [&["reveille", "serve"], typed].concat();
        match Cli::try_parse_from(typed).expect("parsed").verb {
            Verb::Serve(args) => args.config(&Settings::default()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn without_flags_the_defaults_of_the_library_hold() {
        let node = config(&[]).expect("valid");
        assert_eq!(node.relay.relay_id, "relay");
        assert_eq!(node.relay.sentinel_interval, Duration::from_secs(60));
        assert_eq!(node.listen.port(), 7600);
        assert_eq!(node.admin_listen.map(|at| at.port()), Some(7601));
        assert_eq!(node.relay.drain, Duration::ZERO);
    }

    #[test]
    fn other_machines_are_served_in_plain_text_only_with_insecure() {
        let open = ["--listen", "0.0.0.0:7600"];
        let error = config(&open).expect_err("open").to_string();
        assert!(error.starts_with("--listen: 0.0.0.0:7600"), "{error}");
        assert!(config(&[&open[..], &["--insecure"]].concat()).is_ok());
    }
}
