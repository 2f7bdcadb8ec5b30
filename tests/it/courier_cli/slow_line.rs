//! A slow line between two machines.

use std::time::Duration;

use reveille::courier::{QueueManager, QueueManagerConfig};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::{Machine, file};
use crate::support::until;

/// Bytes of a second.
const RATE: u32 = 20 * 1024;
/// Bytes that the line carries at a time.
const PIECE: usize = 1024;

/// Starts a line to an address that carries `RATE` in each direction; returns its own address.
async fn slow_line(to: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let Ok(far) = TcpStream::connect(&to).await else {
                continue;
            };
            let ((near_read, near_write), (far_read, far_write)) =
                (near.into_split(), far.into_split());
            tokio::spawn(carry(near_read, far_write));
            tokio::spawn(carry(far_read, near_write));
        }
    });
    address
}

async fn carry(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
    let mut piece = [0; PIECE];
    loop {
        let read = match from.read(&mut piece).await {
            Ok(0) | Err(_) => return,
            Ok(read) => read,
        };
        let bytes = u32::try_from(read).expect("a piece");
        tokio::time::sleep(Duration::from_secs(1) * bytes / RATE).await;
        if to.write_all(&piece[..read]).await.is_err() {
            return;
        }
    }
}

/// An offer takes longer than the deadline of any other request, and bytes of it arrive all the time.
#[tokio::test]
async fn a_backlog_moves_over_a_line_of_20_kib_a_second() {
    let berlin = Machine::hosted(&[]).await;
    berlin.create("orders").await;
    let line = slow_line(berlin.address.clone()).await;
    let mut rome = Machine::new();
    let manager = QueueManager::open(file(&rome), QueueManagerConfig::default());
    let manager = manager.await.expect("opened");
    let to = manager.destination(&format!("reveille://{line}/orders"));
    let to = to.expect("a destination");
    let mut transaction = manager.begin();
    for _ in 0..140 {
        transaction.send(&to, vec![b'x'; 1_024]).expect("sent");
    }
    transaction.commit().await.expect("committed");
    drop(manager);
    rome.host(&[]).await;
    until("the messages are visible there", async || {
        rome.destination_status().await["confirmed"] == 140
    })
    .await;
    assert!(!rome.log().contains("WARN"), "{}", rome.log());
}
