//! The queue manager: a file of queues, its settings, and its signals.
//!
//! Holds the shared state. The operations stand in files of their subjects: `transaction`,
//! `notifying`, `retention`, `hosting`, `status`, `dead_letters`.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{sync::watch, time::Instant};

use super::{
    config::{OUTGOING_QUEUE, QueueManagerConfig},
    hosting::HostLock,
    message::Destination,
    recovery::ProcessLock,
    retention::Awake,
};
use crate::{
    backend::sqlite::{Database, Missing, open_to_write},
    base::{sync::lock, task::Scope},
    error::{Error, Result},
    queue::{
        SqliteQueue,
        sqlite::{PutObserver, schema::SCHEMA},
    },
    types::{Notifier, QueueAddress},
};

/// A file of queues with transactions. Clones share the file's thread.
///
/// Messages are sent and received inside transactions only. There is no other method:
///
/// ```compile_fail,E0599
/// # async fn send(manager: reveille::courier::QueueManager) -> reveille::Result<()> {
/// let orders = manager.destination("orders")?;
/// manager.send(&orders, "tea").await?;
/// # Ok(())
/// # }
/// ```
///
/// ```compile_fail,E0599
/// # async fn receive(manager: reveille::courier::QueueManager) -> reveille::Result<()> {
/// manager.receive("orders").await?;
/// # Ok(())
/// # }
/// ```
///
/// ```
/// # async fn send(manager: reveille::courier::QueueManager) -> reveille::Result<()> {
/// let mut transaction = manager.begin();
/// if let Some(order) = transaction.receive("orders").await? {
///     let invoices = manager.destination("reveille://billing:7600/invoices")?;
///     transaction.send(&invoices, order.body)?;
/// }
/// transaction.commit().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct QueueManager {
    pub(super) shared: Arc<Shared>,
}

/// The state that all clones share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) database: Database,
    pub(super) config: QueueManagerConfig,
    /// The file's random id; the name of this machine in the hand-over.
    pub(super) file_id: [u8; 16],
    /// Gives queues of the file.
    template: SqliteQueue,
    pub(super) notifier: OnceLock<Arc<dyn Notifier>>,
    /// Held by the task that notifies the relay.
    pub(super) notifying: tokio::sync::Mutex<()>,
    /// A task waits to notify the relay. It will see all commits of before.
    pub(super) notifies: AtomicBool,
    /// The queues that the relay has refused, by their rows, and when they are tried again.
    pub(super) refused: Mutex<HashMap<i64, Instant>>,
    /// Set until the relay was told of messages to other machines.
    pub(super) outgoing_unnotified: AtomicBool,
    /// Set if a transaction of the caller has sent to another machine.
    pub(super) sent_in: AtomicBool,
    outgoing: watch::Sender<u64>,
    /// By next machine, the number of sends until the waiting messages are counted again: a count reads
    /// all of them.
    pub(super) outgoing_room: Mutex<HashMap<String, u64>>,
    pub(super) awake: Mutex<Awake>,
    pub(super) scope: Scope,
    /// Taken by the first receive.
    process: Mutex<Option<ProcessLock>>,
    /// Dropped last: another process may host the file from then on.
    pub(super) host: OnceLock<HostLock>,
}

impl QueueManager {
    /// Opens the file, and creates it if it is missing; its directory must exist.
    ///
    /// # Errors
    /// One line with the file's path and the reason. [`ErrorKind::Conflict`](crate::ErrorKind::Conflict)
    /// if the file is missing because it was damaged and set aside, unless
    /// [`QueueManagerConfig::allow_new_file`] is set.
    pub async fn open(path: impl Into<PathBuf>, config: QueueManagerConfig) -> Result<Self> {
        let missing = match config.allow_new_file {
            true => Missing::CreateAnyway,
            false => Missing::Create,
        };
        Self::open_or(missing, path.into(), config).await
    }

    /// Opens the file if it is there.
    ///
    /// # Errors
    /// As [`QueueManager::open`], and [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is
    /// no file.
    pub async fn open_existing(
        path: impl Into<PathBuf>,
        config: QueueManagerConfig,
    ) -> Result<Self> {
        Self::open_or(Missing::Refuse, path.into(), config).await
    }

    async fn open_or(missing: Missing, path: PathBuf, config: QueueManagerConfig) -> Result<Self> {
        let config = config.checked()?;
        let database = Database::open(target_of(path), SCHEMA, missing).await?;
        let file_id = database
            .run(|connection| connection.query_row("SELECT id FROM identity", (), |row| row.get(0)))
            .await?;
        let address = QueueAddress::new(&config.account, OUTGOING_QUEUE)?;
        let shared = Shared {
            template: SqliteQueue::with_database(database.clone(), address).await?,
            database,
            config,
            file_id,
            notifier: OnceLock::new(),
            notifying: tokio::sync::Mutex::default(),
            notifies: AtomicBool::new(false),
            refused: Mutex::default(),
            outgoing_unnotified: AtomicBool::new(false),
            sent_in: AtomicBool::new(false),
            outgoing: watch::Sender::new(0),
            outgoing_room: Mutex::default(),
            awake: Mutex::new(Awake::new()),
            scope: Scope::new(),
            process: Mutex::new(None),
            host: OnceLock::new(),
        };
        let shared = Arc::new(shared);
        Ok(Self { shared })
    }

    /// Sets the notifier that wakes the listeners of a relay after each commit. The first one is
    /// kept. Without a notifier, the process that hosts the file notifies within a second.
    #[must_use]
    pub fn with_notifier(self, notifier: Arc<dyn Notifier>) -> Self {
        // A second notifier is ignored, as the documentation says.
        let _ = self.shared.notifier.set(notifier);
        self
    }

    /// Returns a queue of the file. A put notifies the relay as a transaction does.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the name breaks the rule for names, or is reserved.
    pub fn queue(&self, name: &str) -> Result<SqliteQueue> {
        check_not_reserved(name)?;
        let queue = self.shared.template.another(self.shared.address(name)?);
        let observer: Arc<dyn PutObserver> = Arc::clone(&self.shared) as _;
        Ok(queue.observed_by(observer))
    }

    /// Returns the destination of an alias, of `QUEUE@ALIAS`, of a queue's name, or of
    /// `reveille://HOST:PORT/QUEUE`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the text is none of these.
    pub fn destination(&self, text: &str) -> Result<Destination> {
        self.shared.config.destination(text)
    }

    /// Returns the settings.
    pub fn config(&self) -> &QueueManagerConfig {
        &self.shared.config
    }

    /// Returns the file's path.
    pub fn path(&self) -> &Path {
        self.shared.database.path()
    }

    /// Returns the 16 random bytes that identify the file and its copies.
    pub fn file_id(&self) -> [u8; 16] {
        self.shared.file_id
    }

    /// Opens a connection to the file for the application's own tables, with the settings that
    /// durability needs. Its transactions take the write lock when they begin: one that began with a read
    /// could not write any more after a commit of another process.
    ///
    /// # Errors
    /// As [`QueueManager::open`]. Blocks for some milliseconds.
    pub fn connect(&self) -> Result<rusqlite::Connection> {
        let mut connection = open_to_write(self.path(), SCHEMA)?;
        connection.set_transaction_behavior(rusqlite::TransactionBehavior::Immediate);
        Ok(connection)
    }

    /// Returns a receiver that changes when this process has committed messages to other machines.
    pub fn outgoing(&self) -> watch::Receiver<u64> {
        self.shared.outgoing.subscribe()
    }

    pub(crate) fn database(&self) -> &Database {
        &self.shared.database
    }
}

impl Shared {
    /// Returns the id under which this process receives messages.
    pub(super) fn process_id(&self) -> Result<[u8; 16]> {
        let mut process = lock(&self.process);
        if let Some(process) = &*process {
            return Ok(process.id);
        }
        let acquired = ProcessLock::acquire(self.database.path())?;
        Ok(process.insert(acquired).id)
    }

    pub(super) fn address(&self, queue: &str) -> Result<QueueAddress> {
        QueueAddress::new(&self.config.account, queue)
    }

    /// Signals messages to other machines, within the process and by the relay.
    pub(super) fn signal_outgoing(&self) {
        self.outgoing_unnotified.store(true, Ordering::Release);
        self.outgoing
            .send_modify(|count| *count = count.wrapping_add(1));
    }
}

/// Returns the file that a symbolic link leads to: locks and damaged files stand beside it, where all
/// programs look for them.
pub(super) fn target_of(path: PathBuf) -> PathBuf {
    if path.is_symlink() {
        path.canonicalize().unwrap_or(path)
    } else {
        path
    }
}

/// Refuses the name of the queue that only signals.
pub(super) fn check_not_reserved(queue: &str) -> Result<()> {
    if queue == OUTGOING_QUEUE {
        let rule = format_args!("`{OUTGOING_QUEUE}` is reserved");
        Err(Error::invalid("queue", rule))
    } else {
        Ok(())
    }
}
