//! Messages of queues: those to store, from the command line or the standard input, and those that
//! were read as JSON, for `queue get` and `queue peek`.

use std::{io, time::SystemTime};

use anyhow::Context as _;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, stdin};

use super::output::{self, Format};

/// The messages to store.
#[derive(Debug, clap::Args)]
pub(super) struct Bodies {
    /// The messages; without any, each line of the standard input is a message
    #[arg(value_name = "BODY")]
    bodies: Vec<String>,
    /// Take the bytes of the standard input as one message
    #[arg(long, conflicts_with = "bodies")]
    stdin: bool,
}

/// Bytes of the input that are read at one time.
const BUFFER: usize = 1 << 20;

impl Bodies {
    /// Returns all messages.
    pub(super) async fn read(&self) -> anyhow::Result<Vec<Vec<u8>>> {
        let mut all = Vec::new();
        let add = async |bodies| {
            all.extend(bodies);
            Ok(())
        };
        self.each(BUFFER, add).await?;
        Ok(all)
    }

    /// Passes the messages on, `most` at a time, and those of a slow input as soon as they are read.
    pub(super) async fn each(
        &self,
        most: usize,
        mut pass: impl AsyncFnMut(Vec<Vec<u8>>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        const UNREAD: &str = "the standard input cannot be read";
        if !self.bodies.is_empty() {
            for bodies in self.bodies.chunks(most) {
                pass(bodies.iter().map(|body| body.clone().into()).collect()).await?;
            }
            return Ok(());
        }
        let mut input = BufReader::with_capacity(BUFFER, stdin());
        if self.stdin {
            let mut body = Vec::new();
            input.read_to_end(&mut body).await.context(UNREAD)?;
            return pass(vec![body]).await;
        }
        let (mut lines, mut passed) = (Vec::new(), 0);
        loop {
            let mut line = Vec::new();
            let read = input.read_until(b'\n', &mut line).await;
            if read.with_context(|| format!("{UNREAD} beyond line {passed}"))? == 0 {
                return Ok(());
            }
            line.pop_if(|last| *last == b'\n');
            lines.push(line);
            if lines.len() == most || !input.buffer().contains(&b'\n') {
                passed += lines.len();
                pass(std::mem::take(&mut lines)).await?;
            }
        }
    }
}

/// Returns a message as JSON, with its body twice: as text, or null if it is not UTF-8, and all bytes.
pub(super) fn row(id: &dyn ToString, body: &[u8], dequeue_count: u32, at: SystemTime) -> Value {
    json!({
        "message_id": id.to_string(),
        "body": std::str::from_utf8(body).ok(),
        "body_base64": BASE64_STANDARD.encode(body),
        "bytes": body.len(),
        "dequeue_count": dequeue_count,
        "inserted_at": output::time(at),
    })
}

/// Writes messages. In a table a body is its first line.
pub(super) fn list(format: Format, mut rows: Vec<Value>) -> io::Result<()> {
    const COLUMNS: &str = "message_id body bytes dequeue_count inserted_at";
    if format == Format::Table {
        for row in &mut rows {
            let cut = first_line(row["body"].as_str().unwrap_or("(not text)"));
            row["body"] = cut.into();
        }
    }
    format.rows(COLUMNS, &rows)
}

fn first_line(body: &str) -> String {
    const SHOWN: usize = 60;
    let line = body.lines().next().unwrap_or_default();
    let mut cut: String = line.chars().take(SHOWN).collect();
    if cut.len() < body.len() {
        cut.push('…');
    }
    cut
}
