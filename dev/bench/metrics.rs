//! A relay's metrics, and other answers of its admin port.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// The relay's metrics at one moment, as OpenMetrics text.
#[derive(Debug)]
pub(crate) struct Metrics(String);

/// Time-out of a read: a relay that is busy for seconds answers late.
const TIMEOUT: Duration = Duration::from_secs(120);

impl Metrics {
    /// Reads the metrics of the admin port at this address.
    pub(crate) async fn read(admin: &str) -> Result<Self> {
        get(admin, "/metrics").await.map(Self)
    }

    /// Returns the value of a counter or a gauge, by its name in the text.
    pub(crate) fn value(&self, name: &str) -> Option<u64> {
        let mut lines = self.0.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(of, _)| *of == name)?.1.trim().parse().ok()
    }
}

/// Reads the answer to a request, with its head.
pub(crate) async fn get(admin: &str, path: &str) -> Result<String> {
    let read = async {
        let mut answer = String::new();
        let mut connection = request(admin, path).await?;
        connection.read_to_string(&mut answer).await?;
        anyhow::Ok(answer)
    };
    let answer = tokio::time::timeout(TIMEOUT, read).await;
    let answer = answer.context("the admin port does not answer")??;
    ensure!(
        answer.starts_with("HTTP/1.1 200 "),
        "the admin port answered {:?}",
        answer.lines().next().unwrap_or_default()
    );
    Ok(answer)
}

/// Sends a request on a connection of its own.
pub(crate) async fn request(admin: &str, path: &str) -> Result<TcpStream> {
    let mut connection = TcpStream::connect(admin).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).await?;
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_by_its_whole_name() {
        let text = "# TYPE reveille_wakes counter\nreveille_wakes_total 12\nreveille_queues 3\n";
        let metrics = Metrics(text.to_owned());
        assert_eq!(metrics.value("reveille_wakes_total"), Some(12));
        assert_eq!(metrics.value("reveille_queues"), Some(3));
        assert_eq!(metrics.value("reveille_wakes"), None);
    }
}
