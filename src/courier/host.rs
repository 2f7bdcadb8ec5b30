//! The process that hosts a queue file: it moves messages to other machines, takes them over from
//! other machines, notifies the relay, and maintains the file.
//!
//! One process hosts a file. Applications of the same machine open the file on their own and commit
//! transactions; the relay's wake-ups tell the host of their messages, and a look into the file once
//! a second finds the messages of a process that died before its notification. Each next machine
//! has its own task and back-off, so that a machine that is away delays no other.

mod file;
mod hop;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    QueueManager,
    handover::{Policy, ReceiverSession, SenderRights, outgoing::end_crashed},
};
use crate::{
    base::{clock::Clock, log_limiter::LogLimiter, sync::lock, task::Scope},
    client::{ClientTls, Credential},
    error::Result,
    queue::sqlite::clock::{self, machine_time},
    types::WakeStream,
    wire::proto::{HandOverRequest, HandOverResponse},
};

/// The configuration of a [`Host`].
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// TLS to other machines. Default: plain text.
    pub tls: Option<ClientTls>,
    /// What this machine shows to other machines. Default: none.
    ///
    /// It goes to the machines of routes and aliases only, because every sender of this machine may
    /// name other ones.
    pub credential: Credential,
    /// Send the credential in plain text to other machines, in a network that encrypts by itself.
    pub insecure: bool,
    /// How often the host reads the file for messages of which it was not told. Default: 1 s.
    pub interval: Duration,
    /// The longest time to connect to another machine. Default: 5 s.
    pub connect_timeout: Duration,
    /// The longest wait between two attempts to reach a machine; the waits are random and grow from
    /// 200 ms. Default: 15 s.
    pub max_backoff: Duration,
}

/// A hosted queue file. Its tasks end when it is dropped; [`Host::shutdown`] waits for them.
#[derive(Debug)]
pub struct Host {
    shared: Arc<Shared>,
    scope: Scope,
    /// The tasks of the next machines.
    hops: Arc<Scope>,
}

/// What the tasks of a host share.
#[derive(Debug)]
pub(crate) struct Shared {
    manager: QueueManager,
    config: HostConfig,
    /// The file may have new messages to move.
    changed: Notify,
    /// The file may have new messages of which the relay must be notified.
    unnotified: Notify,
    policy: Arc<Policy>,
    clock: Clock,
    errors: Mutex<LogLimiter<2>>,
    /// The connections to next machines. They end in order when it is closed.
    connections: TaskTracker,
    /// Cancelled when the host ends.
    ending: CancellationToken,
    figures: HostFigures,
}

/// What a host counts from time to time.
#[derive(Debug, Default)]
pub(crate) struct HostFigures {
    pub(crate) dead_letters: AtomicU64,
    /// Messages that wait for other machines.
    pub(crate) outgoing: AtomicU64,
}

/// The receiving side of one connection from another machine. Each answer is sent when its step is on the
/// disk. The rules are those of [`ReceiverSession`]. After an error the stream must end; the sender connects
/// again.
#[derive(Debug)]
pub(crate) struct ReceivingStream {
    shared: Arc<Shared>,
    session: ReceiverSession,
}

/// Kinds of the log limiter.
const ERROR_OF_FILE: usize = 0;
const ERROR_OF_RELAY: usize = 1;

/// A known machine is contacted this often without messages. It may hold messages that need a
/// confirmation: its file, or this one, may have been restored from an older copy.
const GREETING_INTERVAL: Duration = Duration::from_secs(3600);
/// The longest wait for the connections' end.
const ENDING: Duration = Duration::from_secs(2);
/// How often old history is removed.
const MAINTENANCE: Duration = Duration::from_secs(10);
/// The pause between two steps of maintenance.
const MAINTENANCE_GAP: Duration = Duration::from_millis(20);

impl Default for HostConfig {
    fn default() -> Self {
        Self {
            tls: None,
            credential: Credential::default(),
            insecure: false,
            interval: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(5),
            max_backoff: Duration::from_secs(15),
        }
    }
}

impl Host {
    /// Starts to host the file of `manager`, which [`QueueManager::host`] has opened.
    ///
    /// `wakes` are wake-ups for the address [`QueueManager::outgoing_address`], by which other
    /// processes of this machine announce messages to other machines; without them, such a message
    /// waits for up to [`HostConfig::interval`].
    ///
    /// # Errors
    /// The error of the file.
    pub async fn start(
        manager: QueueManager,
        config: HostConfig,
        wakes: Option<Box<dyn WakeStream>>,
    ) -> Result<Self> {
        // Connections of an earlier process have ended.
        manager.database().write(end_crashed).await?;
        manager.recover().await?;
        let clock = Clock::new();
        let shared = Arc::new(Shared {
            figures: HostFigures::default(),
            changed: Notify::new(),
            unnotified: Notify::new(),
            policy: Arc::new(Policy {
                own: manager.file_id(),
                config: manager.config().clone(),
            }),
            manager,
            config,
            clock,
            errors: Mutex::new(LogLimiter::new(Duration::from_secs(10))),
            connections: TaskTracker::new(),
            ending: CancellationToken::new(),
        });
        let scope = Scope::new();
        let hops = Arc::new(Scope::new());
        scope.spawn(Arc::clone(&shared).dispatch(Arc::clone(&hops)));
        scope.spawn(Arc::clone(&shared).notify());
        scope.spawn(Arc::clone(&shared).maintain());
        if let Some(wakes) = wakes {
            scope.spawn(Arc::clone(&shared).follow(wakes));
        }
        scope.spawn(Arc::clone(&shared).follow_own_sends());
        Ok(Self {
            shared,
            scope,
            hops,
        })
    }

    /// Returns the hosted queues.
    pub fn manager(&self) -> &QueueManager {
        &self.shared.manager
    }

    /// Returns what was counted at the last maintenance.
    pub(crate) fn figures(&self) -> &HostFigures {
        &self.shared.figures
    }

    /// Returns a new receiving side of a connection from another machine.
    pub(crate) fn receiving(&self) -> ReceivingStream {
        let connection = fastrand::u128(..).to_be_bytes();
        ReceivingStream {
            session: ReceiverSession::new(connection, Arc::clone(&self.shared.policy)),
            shared: Arc::clone(&self.shared),
        }
    }

    /// Ends the connections in order, so that the file knows which messages the other machines may
    /// have; then ends the tasks, and waits for them.
    pub async fn shutdown(&self) {
        self.shared.ending.cancel();
        self.shared.connections.close();
        // A connection that is too slow is treated as after a crash.
        let _ = tokio::time::timeout(ENDING, self.shared.connections.wait()).await;
        self.scope.shutdown().await;
        self.hops.shutdown().await;
    }
}

impl Shared {
    /// Keeps a task for each next machine with messages.
    async fn dispatch(self: Arc<Self>, scope: Arc<Scope>) {
        let mut hops: HashMap<String, Arc<Notify>> = HashMap::new();
        let mut recovered = Instant::now();
        let mut greeted = None::<Instant>;
        loop {
            let greets = greeted.is_none_or(|at| at.elapsed() >= GREETING_INTERVAL);
            match self.hops(greets).await {
                Ok(names) => {
                    // A task that has ended has dropped its signal.
                    hops.retain(|_, changed| Arc::strong_count(changed) > 1);
                    for name in names {
                        let start =
                            |name: &String| hop::start(Arc::clone(&self), name, &scope, greets);
                        hops.entry(name).or_insert_with_key(start).notify_one();
                    }
                    if greets {
                        greeted = Some(Instant::now());
                    }
                }
                Err(error) => self.report(ERROR_OF_FILE, &error, "the queue file cannot be read"),
            }
            if recovered.elapsed() >= self.config.interval {
                recovered = Instant::now();
                if let Err(error) = self.manager.recover().await {
                    let text = "messages of dead processes stay hidden";
                    self.report(ERROR_OF_FILE, &error, text);
                }
            }
            tokio::select! {
                () = self.changed.notified() => {}
                () = tokio::time::sleep(self.config.interval) => {}
            }
        }
    }

    /// Returns the next machines with messages, by the present routes, and if `greets` all known ones.
    async fn hops(&self, greets: bool) -> Result<Vec<String>> {
        self.manager.choose_hops().await?;
        let mut names = self.manager.hops_with_messages().await?;
        if greets {
            names.extend(self.manager.known_hops().await?);
        }
        Ok(names)
    }

    /// Notifies the relay of new messages. A slow relay delays no hand-over.
    async fn notify(self: Arc<Self>) {
        loop {
            if let Err(error) = self.manager.notify_pending().await {
                self.report(
                    ERROR_OF_RELAY,
                    &error,
                    "the relay was not notified of messages",
                );
            }
            tokio::select! {
                () = self.unnotified.notified() => {}
                () = tokio::time::sleep(self.config.interval) => {}
            }
        }
    }

    /// The file may have new messages.
    fn file_changed(&self) {
        self.changed.notify_one();
        self.unnotified.notify_one();
    }

    async fn maintain(self: Arc<Self>) {
        let mut known = 0;
        loop {
            if let Ok((dead_letters, outgoing)) = self.manager.count_waiting().await {
                if dead_letters > known {
                    tracing::warn!(
                        path = %self.manager.path().display(),
                        count = dead_letters,
                        "messages could not be delivered: see `reveille courier dead`"
                    );
                }
                known = dead_letters;
                let figures = &self.figures;
                figures.dead_letters.store(dead_letters, Ordering::Relaxed);
                figures.outgoing.store(outgoing, Ordering::Relaxed);
            }
            // With more to do: go on soon, but let other writers in.
            let pause = match self.manager.maintain().await {
                Ok(true) => MAINTENANCE_GAP,
                Ok(false) => MAINTENANCE,
                Err(error) => {
                    self.report(ERROR_OF_FILE, &error, "the queue file cannot be maintained");
                    MAINTENANCE
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Passes on the signal of commits in this process.
    async fn follow_own_sends(self: Arc<Self>) {
        let mut sends = self.manager.outgoing();
        while sends.changed().await.is_ok() {
            self.changed.notify_one();
        }
    }

    /// Passes on wake-ups.
    async fn follow(self: Arc<Self>, mut wakes: Box<dyn WakeStream>) {
        while let Some(wake) = wakes.next().await {
            match wake {
                Ok(_) => self.changed.notify_one(),
                Err(error) => {
                    self.report(ERROR_OF_RELAY, &error, "the relay refuses wake-ups");
                    if !wakes.ask_again(Duration::from_secs(30)) {
                        return;
                    }
                }
            }
        }
    }

    #[cold]
    fn report(&self, kind: usize, error: &crate::Error, text: &'static str) {
        if let Some(times) = lock(&self.errors).count(kind, self.clock.now()) {
            let path = self.manager.path().display();
            tracing::warn!(%path, times, %error, text);
        }
    }
}

impl ReceivingStream {
    /// Handles a request of a sender, and returns the answer.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a request that breaks a rule;
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if the sender has opened another stream; the
    /// error of the queue file. The stream must end then.
    ///
    /// # Cancel safety
    /// A cancelled call may have taken effect; the stream must end.
    pub(crate) async fn handle(
        &mut self,
        request: HandOverRequest,
        rights: SenderRights,
    ) -> Result<HandOverResponse> {
        let mut session = self.session.clone();
        let handled = self.shared.manager.database().write(move |transaction| {
            // Exactly: confirmed messages are read in the order of their times.
            let times = (clock::advance_exactly(transaction)?, machine_time());
            let answer = session.on_request(transaction, &rights, times, request)?;
            Ok((session, answer))
        });
        let (session, answer) = handled.await?;
        // Messages may have become visible, or may go to the next machine.
        self.shared.file_changed();
        self.session = session;
        Ok(answer)
    }
}
