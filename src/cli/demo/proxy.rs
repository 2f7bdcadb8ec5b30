//! A wire that can be cut: forwards one port to the relay, and stops when told.

use std::net::SocketAddr;

use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

/// A forwarded port. Ends with its handle.
#[derive(Debug)]
pub(super) struct Proxy {
    address: SocketAddr,
    cut: watch::Sender<bool>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    /// Forwards a free port to `target`, written HOST:PORT.
    pub(super) async fn start(target: String) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (cut, mut state) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    changed = state.changed() => match changed {
                        Ok(()) if *state.borrow() => connections.abort_all(),
                        Ok(()) => {}
                        Err(_) => return,
                    },
                    accepted = listener.accept() => {
                        let Ok((stream, _)) = accepted else { continue };
                        if !*state.borrow() {
                            connections.spawn(forward(stream, target.clone()));
                        }
                    }
                }
            }
        });
        Ok(Self {
            address,
            cut,
            _tasks: tasks,
        })
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Breaks every connection, and takes no new one until it is mended.
    pub(super) fn cut(&self) {
        self.cut.send_replace(true);
    }

    pub(super) fn mend(&self) {
        self.cut.send_replace(false);
    }
}

async fn forward(mut from: TcpStream, target: String) {
    if let Ok(mut to) = TcpStream::connect(target).await {
        // Either end may go whenever it likes.
        let _ = from.set_nodelay(true).and_then(|()| to.set_nodelay(true));
        let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
    }
}
