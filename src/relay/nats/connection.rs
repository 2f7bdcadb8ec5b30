//! One connection to NATS, with the two subscriptions of a life.

use std::{sync::Arc, time::Duration};

use async_nats::{Client, ConnectOptions, ServerAddr, Subscriber, connection::State};
use bytes::Bytes;
use futures_util::{
    StreamExt as _,
    stream::{Select, select},
};
use tokio::{
    sync::{Notify, mpsc},
    time::timeout,
};

use super::{
    NatsConfig,
    config::shown,
    events::{Events, Kind},
    fault,
    options::{CONNECT_TIMEOUT, options},
    publisher::NatsPublisher,
    self_test::{ended, self_test},
    subjects::{NatsMessage, Subjects},
};
use crate::{base::task::Scope, error::Result, types::cluster::LifeId};

/// A connection to NATS. It connects again without end until it is closed.
///
/// Messages of one subject arrive in the order in which they were published on one connection. The
/// client holds at most 512 messages of a subscription and drops what comes above.
#[derive(Debug)]
pub(crate) struct NatsConnection {
    publisher: NatsPublisher,
    incoming: Select<Subscriber, Subscriber>,
    /// Runs the task that logs the reason of failed attempts.
    _scope: Scope,
}

/// The limit for the attempts of the start, with slow name servers: the relay then starts without
/// the broker.
const START_LIMIT: Duration = Duration::from_secs(5);
/// The limit for writing the last messages.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

impl NatsConnection {
    /// Connects. If no server can be reached, that is logged, and the connection is made later.
    ///
    /// # Errors
    /// `Invalid` with the setting that breaks a rule or does not fit the server; `Denied` if NATS
    /// refuses the login or a subject.
    pub(crate) async fn connect(config: &NatsConfig, life: LifeId) -> Result<Self> {
        config.check()?;
        let servers = config.parsed_servers()?;
        let names: Vec<_> = servers.iter().map(shown).collect();
        let subjects = Subjects::new(&config.name, life);
        let (events, refusals) = Events::new(names.join(","), subjects.cluster.clone());
        let events = Arc::new(events);
        let options = options(config, &events).await?;
        let start = Start {
            config,
            servers,
            options,
            events: &events,
            subjects: &subjects,
            life,
        };
        let client = start.client(refusals).await?;
        let all = client
            .subscribe(subjects.all.clone())
            .await
            .map_err(ended)?;
        let own = client
            .subscribe(subjects.own.clone())
            .await
            .map_err(ended)?;
        if client.connection_state() == State::Connected {
            // The two commands leave the channel, whose room is for messages.
            let _ = timeout(CONNECT_TIMEOUT, client.flush()).await;
        }
        let scope = Scope::new();
        let (config, servers, options) = (config.clone(), start.servers, start.options);
        scope.spawn(log_failures(Arc::clone(&events), config, options, servers));
        Ok(Self {
            publisher: NatsPublisher::new(client, subjects, events),
            incoming: select(all, own),
            _scope: scope,
        })
    }

    /// Returns a handle that publishes.
    pub(crate) fn publisher(&self) -> NatsPublisher {
        self.publisher.clone()
    }

    /// Publishes to all relays; see [`NatsPublisher::publish`].
    pub(crate) fn publish(&self, message: Bytes) -> bool {
        self.publisher.publish(message)
    }

    /// Returns the count of connects; see [`NatsPublisher::connects`].
    pub(crate) fn connects(&self) -> u64 {
        self.publisher.connects()
    }

    /// Returns how often the client has dropped received messages.
    pub(crate) fn dropped(&self) -> u64 {
        self.publisher.events().count(Kind::SlowConsumer)
    }

    /// Ends a connection that the client takes for a good one, so that it makes another.
    pub(crate) fn replace(&self) {
        self.publisher.replace();
    }

    /// Returns a signal: it is given when the client has connected.
    pub(crate) fn connected(&self) -> Arc<Notify> {
        Arc::clone(&self.publisher.events().connected)
    }

    /// Returns the next message; `None` only after the client has ended.
    ///
    /// # Cancel safety
    /// A dropped call takes no message.
    pub(crate) async fn next(&mut self) -> Option<NatsMessage> {
        let message = self.incoming.next().await?;
        Some(self.publisher.subjects().read(message))
    }

    /// Writes the messages that wait, for at most a second, and closes the connection.
    pub(crate) async fn close(self) {
        let client = self.publisher.client();
        let last = async {
            client.flush().await.map_err(ended)?;
            client.drain().await.map_err(ended)
        };
        if self.publisher.is_connected() {
            // A connection that breaks now has lost them.
            let _ = timeout(CLOSE_LIMIT, last).await;
        }
    }
}

impl Drop for NatsConnection {
    fn drop(&mut self) {
        self.publisher.events().close();
    }
}

/// What the start of a connection needs.
struct Start<'c> {
    config: &'c NatsConfig,
    servers: Vec<ServerAddr>,
    options: ConnectOptions,
    events: &'c Events,
    subjects: &'c Subjects,
    life: LifeId,
}

impl Start<'_> {
    /// Returns a client: connected and tested, or still trying to connect.
    async fn client(&self, mut refusals: mpsc::Receiver<String>) -> Result<Client> {
        let first = self.options.clone().connect(self.servers.as_slice());
        let away = match timeout(START_LIMIT, first).await {
            Ok(Ok(client)) => {
                self.test(&client, &mut refusals).await?;
                return Ok(client);
            }
            Ok(Err(_)) => {
                let reason = fault::reason(self.config, &self.options, &self.servers);
                match timeout(START_LIMIT, reason).await {
                    Ok(reason) => reason?.unwrap_or_else(|| "the first attempt failed".to_owned()),
                    Err(_) => "no answer within 5 s".to_owned(),
                }
            }
            Err(_) => "no answer within 5 s".to_owned(),
        };
        // Its line of the log stands for those of the next minute.
        self.events.count_only(Kind::AttemptFailed);
        tracing::warn!(reason = %away, "NATS cannot be reached; the relay tries again");
        let again = self.options.clone().retry_on_initial_connect();
        again.connect(self.servers.as_slice()).await.map_err(ended)
    }

    async fn test(&self, client: &Client, refusals: &mut mpsc::Receiver<String>) -> Result<()> {
        if !self_test(client, self.subjects, self.life, refusals).await? {
            tracing::warn!("own messages of NATS do not return within 2 s");
        }
        Ok(())
    }
}

/// Logs why attempts to connect fail, each time that [`Events`] asks for it.
async fn log_failures(
    events: Arc<Events>,
    config: NatsConfig,
    options: ConnectOptions,
    servers: Vec<ServerAddr>,
) {
    loop {
        events.failed.notified().await;
        let reason = match fault::reason(&config, &options, &servers).await {
            // The client connects at its next attempt.
            Ok(None) => continue,
            Ok(Some(reason)) => reason,
            Err(fault) => fault.to_string(),
        };
        tracing::warn!(%reason, "NATS cannot be reached; the relay tries again");
    }
}
