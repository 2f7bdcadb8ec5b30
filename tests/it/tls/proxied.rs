//! A proxy that ends TLS in front of a relay that serves plain text, and copies the bytes.

use reveille::{Notification, testing::TestRelay};
use tokio::net::{TcpListener, TcpStream};

use super::{Authority, client};
use crate::support::{listening, queue, within, woken};

#[tokio::test]
async fn a_proxy_may_end_tls() {
    let home = tempfile::tempdir().expect("a directory");
    let authority = Authority::new("proxies");
    let files = authority.write(home.path(), "proxy", authority.server());
    let acceptor = files.acceptor();
    let relay = TestRelay::start().await.expect("a relay");
    let target = relay.node().expect("it runs").address();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("https://{}", listener.local_addr().expect("bound"));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut front = acceptor.accept(stream).await.expect("a handshake");
                let mut back = TcpStream::connect(target).await.expect("it listens");
                let _ = tokio::io::copy_bidirectional(&mut front, &mut back).await;
            });
        }
    });
    let client = client(&url, files.client(None));
    let mut wakes = client
        .subscribe(listening("worker", &["acct/orders"]))
        .expect("options");
    woken(&mut wakes).await;
    let publisher = client.publisher("test");
    let notified = publisher.notify(Notification::new(queue("acct/orders")));
    within("an answer", notified).await.expect("counted");
    assert_eq!(woken(&mut wakes).await.notifications, 1);
}
