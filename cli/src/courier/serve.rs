//! `courier serve`: hosts the queues of a directory, without a relay.

use std::{net::SocketAddr, path::PathBuf};

use reveille::{Client, NodeConfig, QueueNode, QueueNodeConfig};

use crate::{
    exit::{Exit, Usage},
    service::{self, ServiceArgs},
    settings::Settings,
    signals,
    target::with_scheme,
    values,
};

/// Host the queues of a directory: exchange messages with other machines
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille courier serve /var/lib/queues
  reveille courier serve /var/lib/queues --listen 10.0.0.5:7610 --insecure
  reveille courier serve /var/lib/queues --relay http://127.0.0.1:7600

One process hosts a file. `reveille serve --queues DIR` does the same in the process of a relay. Without \
--relay, messages that another process sends are found within a second, and listeners have to poll.

SIGTERM or Ctrl-C ends the host gracefully, within --grace. A second signal ends it at once.")]
pub(crate) struct Serve {
    /// The directory of the queues
    #[arg(value_name = "DIR")]
    place: PathBuf,
    /// The address for other machines: IP:PORT, localhost:PORT, or :PORT (on loopback)
    #[arg(long, env = "REVEILLE_QUEUES_LISTEN", value_name = "ADDRESS", value_parser = values::address, default_value_t = QueueNodeConfig::default().listen)]
    listen: SocketAddr,
    /// The relay whose listeners are woken: http://HOST:PORT or HOST:PORT [default: none]
    #[arg(long, env = "REVEILLE_RELAY", value_name = "URL")]
    relay: Option<String>,
    #[command(flatten)]
    service: ServiceArgs,
}

const LOG: &str = "info";

impl Serve {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let mut config = self.config(settings)?;
        let mut running = self.service.start(LOG)?;
        signals::raise_open_files();
        let relay = self.relay.as_deref().map(with_scheme);
        if let Some(relay) = &relay {
            config.relay = Some(Client::with_config(relay, self.service.client()?)?);
        }
        let node = Box::pin(QueueNode::start(config))
            .await
            .map_err(service::not_started)?;
        tracing::info!(
            listen = %node.address(),
            queues = %node.manager().path().display(),
            relay,
            version = env!("CARGO_PKG_VERSION"),
            "reveille hosts queues"
        );
        let signal = running.signal(|| node.reload_access()).await;
        let grace = self.service.grace;
        tracing::info!(%grace, "shutting down; a second signal ends it at once");
        Ok(running.finish(node.shutdown(grace.0), signal).await)
    }

    fn config(&self, settings: &Settings) -> Result<QueueNodeConfig, Usage> {
        let service = &self.service;
        let mut limits = NodeConfig::default();
        settings.limits.apply(&mut limits);
        service.limit(&mut limits.limits);
        Ok(QueueNodeConfig {
            queues: service.queues(&self.place, settings)?,
            listen: self.listen,
            tls: service.tls(self.listen)?,
            access: service.access()?,
            limits: limits.limits,
            ..QueueNodeConfig::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        serve: Serve,
    }

    fn config(typed: &[&str]) -> Result<QueueNodeConfig, Usage> {
        let directory = tempfile::tempdir().expect("a directory");
        let place = directory.path().to_str().expect("text");
        let command = Command::try_parse_from([&["serve", place], typed].concat());
        command.expect("parsed").serve.config(&Settings::default())
    }

    #[test]
    fn other_machines_are_served_in_plain_text_only_with_insecure() {
        let open = ["--listen", "0.0.0.0:7610"];
        let error = config(&open).expect_err("open").to_string();
        assert!(error.starts_with("--listen: 0.0.0.0:7610"), "{error}");
        assert!(config(&[&open[..], &["--insecure"]].concat()).is_ok());
    }

    #[test]
    fn it_listens_on_its_own_port_and_needs_no_relay() {
        let config = config(&[]).expect("valid");
        assert_eq!(config.listen.to_string(), "127.0.0.1:7610");
        assert!(config.relay.is_none());
    }
}
