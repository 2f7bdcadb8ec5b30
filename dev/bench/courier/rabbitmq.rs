//! Two nodes of RabbitMQ with shovels from A to B.
//!
//! All queues are durable, all messages persistent. A send ends with the publisher confirm. The
//! shovel acknowledges a message at A when B has confirmed it. The consumer acknowledges up to 32
//! messages at once.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use futures_util::{FutureExt as _, StreamExt as _};
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, Consumer,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
        ConfirmSelectOptions, QueueDeclareOptions,
    },
    types::FieldTable,
};
use tokio::sync::{Mutex, mpsc};

use super::{
    machines::{Handled, Machines, Target, freeze},
    rabbitmq_node::{NameServer, Node, NodeSettings, free_port},
};
use crate::usage::Usage;

/// Two nodes, a publisher at A and a consumer at B.
pub(super) struct RabbitMq {
    publisher: Channel,
    /// Counts the messages of B.
    counter: Channel,
    /// The connections to A and B.
    connections: [Connection; 2],
    /// Locked for reading the usage and for the end, never during a send.
    processes: Mutex<Processes>,
}

struct Processes {
    a: Node,
    b: Node,
    names: NameServer,
}

/// The queue of A without a consumer.
const LOCAL: &str = "local";
/// The queue of A that a shovel empties, and the queue of B.
const OUT: &str = "out";
const IN: &str = "in";
/// The same with a queue of B without a consumer.
const STORED_OUT: &str = "stored-out";
const STORED: &str = "stored";
/// Number of unacknowledged messages of the shovel (its default) and of the consumer.
const PREFETCH: u16 = 1000;
/// Maximum number of messages that the consumer acknowledges at once.
const BATCH: u32 = 32;
/// The delivery mode of a message that the server stores on the disk.
const PERSISTENT: u8 = 2;

impl RabbitMq {
    pub(super) async fn start(
        directory: &Path,
        handled: mpsc::UnboundedSender<Handled>,
    ) -> Result<Self> {
        let names = NameServer::start(&directory.join("epmd")).await?;
        let (port_a, port_b) = (free_port()?, free_port()?);
        let (directory_a, directory_b) = (directory.join("a"), directory.join("b"));
        let a = NodeSettings {
            name: "courier-a",
            directory: &directory_a,
            port: port_a,
            config: shovels(port_a, port_b),
        };
        let b = NodeSettings {
            name: "courier-b",
            directory: &directory_b,
            port: port_b,
            config: "[].\n".to_owned(),
        };
        // B first, so that the shovel finds it.
        let b = Node::start(&b, &names).await?;
        let a = Node::start(&a, &names).await?;
        let connection_b = connect(port_b).await?;
        let consumer = consumer(&connection_b).await?;
        let counter = connection_b.create_channel().await?;
        declare(&counter, STORED).await?;
        tokio::spawn(async move {
            // The bench sees the end of the channel.
            if let Err(error) = consume(consumer, handled).await {
                tracing::warn!("the consumer has ended: {error:#}");
            }
        });
        let connection_a = connect(port_a).await?;
        Ok(Self {
            publisher: publisher(&connection_a).await?,
            counter,
            connections: [connection_a, connection_b],
            processes: Mutex::new(Processes { a, b, names }),
        })
    }
}

#[async_trait]
impl Machines for RabbitMq {
    async fn send(&self, target: Target, body: Vec<u8>) -> Result<()> {
        let queue = match target {
            Target::Local => LOCAL,
            Target::Remote => OUT,
            Target::Stored => STORED_OUT,
        };
        let options = BasicPublishOptions {
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        let properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
        let sent = self
            .publisher
            .basic_publish("".into(), queue.into(), options, &body, properties)
            .await?;
        let confirmed = sent.await?;
        let stored = confirmed.is_ack() && confirmed.take_message().is_none();
        ensure!(stored, "RabbitMQ has not stored a message");
        Ok(())
    }

    async fn freeze(&self, frozen: bool) -> Result<()> {
        freeze(self.processes.lock().await.b.pid(), frozen)
    }

    async fn stored(&self) -> Result<u64> {
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let declared = self
            .counter
            .queue_declare(STORED.into(), options, FieldTable::default());
        Ok(declared.await?.message_count().into())
    }

    async fn usage(&self) -> [Usage; 3] {
        let processes = self.processes.lock().await;
        [processes.a.usage(), processes.b.usage(), Usage::own()]
    }

    async fn stop(&self) {
        for connection in &self.connections {
            // A connection that has failed needs no end.
            let _ = connection.close(200, "".into()).await;
        }
        let mut processes = self.processes.lock().await;
        processes.a.stop().await;
        processes.b.stop().await;
        processes.names.stop().await;
    }
}

/// Returns the settings of a node with two static shovels.
fn shovels(from: u16, to: u16) -> String {
    let shovels = [("courier", OUT, IN), ("stored", STORED_OUT, STORED)];
    let shovels = shovels.map(|(name, source, target)| shovel(name, (from, source), (to, target)));
    format!(
        "[{{rabbitmq_shovel, [{{shovels, [{}]}}]}}].\n",
        shovels.join(",\n")
    )
}

fn shovel(name: &str, from: (u16, &str), to: (u16, &str)) -> String {
    let ((from, source), (to, target)) = (from, to);
    format!(
        r#"{{{name}, [
  {{source, [{{protocol, amqp091}}, {{uris, ["amqp://127.0.0.1:{from}"]}},
    {{declarations, [{{'queue.declare', [{{queue, <<"{source}">>}}, durable]}}]}},
    {{queue, <<"{source}">>}}, {{prefetch_count, {PREFETCH}}}]}},
  {{destination, [{{protocol, amqp091}}, {{uris, ["amqp://127.0.0.1:{to}"]}},
    {{declarations, [{{'queue.declare', [{{queue, <<"{target}">>}}, durable]}}]}},
    {{publish_fields, [{{exchange, <<>>}}, {{routing_key, <<"{target}">>}}]}},
    {{publish_properties, [{{delivery_mode, {PERSISTENT}}}]}}]}},
  {{ack_mode, on_confirm}}, {{reconnect_delay, 1}}]}}"#
    )
}

async fn connect(port: u16) -> Result<Connection> {
    let uri = format!("amqp://127.0.0.1:{port}/%2f");
    let connected = Connection::connect(&uri, ConnectionProperties::default()).await;
    connected.with_context(|| format!("rabbitmq-server at {uri} cannot be reached"))
}

async fn publisher(connection: &Connection) -> Result<Channel> {
    let channel = connection.create_channel().await?;
    declare(&channel, LOCAL).await?;
    declare(&channel, OUT).await?;
    declare(&channel, STORED_OUT).await?;
    let confirms = ConfirmSelectOptions::default();
    channel.confirm_select(confirms).await?;
    Ok(channel)
}

async fn consumer(connection: &Connection) -> Result<Consumer> {
    let channel = connection.create_channel().await?;
    declare(&channel, IN).await?;
    let limit = BasicQosOptions::default();
    channel.basic_qos(PREFETCH, limit).await?;
    let options = BasicConsumeOptions::default();
    let arguments = FieldTable::default();
    let consumer = channel.basic_consume(IN.into(), "bench".into(), options, arguments);
    Ok(consumer.await?)
}

async fn declare(channel: &Channel, queue: &str) -> Result<()> {
    let options = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    let declared = channel.queue_declare(queue.into(), options, FieldTable::default());
    declared.await?;
    Ok(())
}

async fn consume(mut consumer: Consumer, handled: mpsc::UnboundedSender<Handled>) -> Result<()> {
    let multiple = BasicAckOptions { multiple: true };
    while let Some(delivery) = consumer.next().await {
        let mut last = delivery?;
        for count in 1.. {
            if handled.send(Handled::now(&last.data)?).is_err() {
                return Ok(());
            }
            if count == BATCH {
                break;
            }
            match consumer.next().now_or_never() {
                Some(Some(delivery)) => last = delivery?,
                _ => break,
            }
        }
        last.ack(multiple).await?;
    }
    Ok(())
}
