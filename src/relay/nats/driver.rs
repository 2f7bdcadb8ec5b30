//! The task of a relay in a cluster: passes messages between the broker and the machine.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{
    NatsConnection, NatsMessage,
    calls::{PeerCalls, add_acknowledgements},
    connection::NatsPublisher,
    events::Kind,
};
use crate::{
    base::task::Scope,
    coordination::flag::Flags,
    error::{Error, ErrorKind, Result},
    relay::{
        link::Output,
        runtime::{ClusterRunner, PeerService, Relay},
    },
    wire::peer_request_from_wire,
};

/// The task of a relay in a cluster. Drop ends it at once.
#[derive(Debug)]
pub(crate) struct ClusterDriver {
    leaving: CancellationToken,
    left: CancellationToken,
    failed: CancellationToken,
    _scope: Scope,
}

struct Driver {
    connection: NatsConnection,
    publisher: NatsPublisher,
    calls: PeerCalls,
    runner: ClusterRunner,
    flags: Flags,
    /// Messages that the client has dropped, when they were last counted.
    dropped: u64,
    leaving: CancellationToken,
    has_left: bool,
}

impl ClusterDriver {
    /// Starts the task. The machine has not sent anything yet.
    pub(crate) fn start(
        connection: NatsConnection,
        relay: &Relay,
        runner: ClusterRunner,
        flags: Flags,
        service: Arc<dyn PeerService>,
    ) -> Self {
        let [leaving, left, failed] = std::array::from_fn(|_| CancellationToken::new());
        let publisher = connection.publisher();
        relay.set_peer_transport(Arc::new(publisher.clone()));
        let calls = PeerCalls::new(publisher.clone(), service);
        let acknowledgements = add_acknowledgements(relay.clone(), flags.clone());
        let driver = Driver {
            connection,
            publisher,
            calls,
            runner,
            flags,
            dropped: 0,
            leaving: leaving.clone(),
            has_left: false,
        };
        let scope = Scope::new();
        scope.spawn(acknowledgements);
        // Without this task the relay is cut off, so its end is a failure of the relay.
        let (end, failure) = (left.clone().drop_guard(), failed.clone());
        scope.spawn(async move {
            let guard = failure.drop_guard();
            if driver.run().await.is_ok() {
                guard.disarm();
            }
            drop(end);
        });
        Self {
            leaving,
            left,
            failed,
            _scope: scope,
        }
    }

    /// Waits until the relay must end, because it cannot be in the cluster any more.
    pub(crate) async fn failed(&self) -> Error {
        self.failed.cancelled().await;
        let message = "cluster: this relay can be in it no more; the log has the reason";
        Error::new(ErrorKind::Internal, message)
    }

    /// C15: waits until the last causes are confirmed, and tells the other relays that this one
    /// leaves.
    pub(crate) async fn leave(&self) {
        self.leaving.cancel();
        self.left.cancelled().await;
    }
}

impl Driver {
    async fn run(mut self) -> Result<()> {
        let leaving = self.leaving.clone();
        loop {
            tokio::select! {
                () = leaving.cancelled() => break,
                ended = self.step() => ended?,
            }
        }
        self.runner.run(|node, now, _| node.begin_leaving(now));
        self.take_outputs()?;
        while !self.has_left {
            self.step().await?;
        }
        self.connection.close().await;
        Ok(())
    }

    /// Waits for the next message or the next deadline.
    async fn step(&mut self) -> Result<()> {
        let connected = Arc::clone(&self.publisher.events.connected);
        let flags = self.flags.clone();
        tokio::select! {
            message = self.connection.next() => match message {
                Some(NatsMessage::All(bytes)) => {
                    // C7: read after the message was taken, so it counts the message's connection.
                    let connects = self.publisher.connects();
                    let taken = self
                        .runner
                        .run(|node, now, _| node.on_message(&bytes, connects, now));
                    if let Err(error) = taken {
                        self.note_bad_message(&error);
                    }
                }
                Some(NatsMessage::Ask { reply_to, request }) => {
                    match peer_request_from_wire(&request) {
                        Ok(call) => self.calls.answer(reply_to, call),
                        Err(error) => self.refuse(&error),
                    }
                }
                Some(NatsMessage::ForeignReply) => {
                    self.refuse(&Error::invalid("reply", "must be a subject of this cluster"));
                }
                None => {
                    tracing::error!("the client of NATS has ended");
                    return Err(ended());
                }
            },
            () = flags.written() => {
                self.runner.run(|node, _, _| node.note_flags_written());
                self.tick();
            }
            () = connected.notified() => self.tick(),
            () = self.runner.due() => self.tick(),
        }
        self.take_outputs()
    }

    fn tick(&mut self) {
        let connects = self.publisher.connects();
        self.runner
            .run(|node, now, rng| node.on_tick(connects, now, rng));
    }

    fn take_outputs(&mut self) -> Result<()> {
        let dropped = self.publisher.events.count(Kind::SlowConsumer);
        if dropped != std::mem::replace(&mut self.dropped, dropped) {
            self.runner.run(|node, _, _| node.link_mut().on_drop());
        }
        while let Some(output) = self.runner.run(|node, _, _| node.next_output()) {
            match output {
                Output::Publish(bytes) => {
                    if !self.publisher.publish(bytes.clone()) {
                        self.runner.run(|node, now, _| node.unsent(&bytes, now));
                    }
                }
                Output::Replace => self.publisher.replace(),
                Output::ReadFlags => self.flags.refresh_soon(),
                Output::Warn(text) => tracing::warn!("{text}"),
                Output::Left { told } => {
                    if !told {
                        tracing::warn!(
                            "the last wake-ups were not confirmed: the other relays check their \
                             queues when they miss this one"
                        );
                    }
                    self.has_left = true;
                }
                Output::End => {
                    tracing::error!(
                        "another machine runs this life of the relay: it is a copy of this one; \
                         this relay ends"
                    );
                    return Err(ended());
                }
            }
        }
        Ok(())
    }

    /// Drops a message that is none for the machine.
    fn refuse(&mut self, error: &Error) {
        self.runner.run(|node, _, _| node.count_refused());
        self.note_bad_message(error);
    }

    fn note_bad_message(&self, error: &Error) {
        let text = format_args!("a message of the cluster is dropped: {error}");
        self.publisher.events.note(Kind::BadMessage, text);
    }
}

fn ended() -> Error {
    Error::new(ErrorKind::Internal, "the cluster's task has ended")
}
