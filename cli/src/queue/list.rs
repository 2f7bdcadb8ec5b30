//! `queue list`: the queues of a file.

use std::path::{Path, PathBuf};

use reveille::{
    QueueAddress,
    queue::{SqliteQueue, WorkQueue as _},
};
use serde::Serialize;

use crate::{
    exit::Exit,
    output::{Format, Row},
    settings::Settings,
};

pub(super) const AFTER_HELP: &str = "\
Example:
  reveille queue list jobs.db

DEPTH counts hidden messages too. The queues that a relay knows are listed by `reveille queues`.";

#[derive(Debug, clap::Args)]
pub(super) struct List {
    /// The file: a path, or `sqlite:PATH`
    #[arg(value_name = "FILE")]
    file: String,
    /// The output format [default: table]
    #[arg(short, long, env = "REVEILLE_OUTPUT", value_name = "FORMAT")]
    output: Option<Format>,
}

#[derive(Debug, Serialize)]
struct ListRow {
    url: String,
    depth: u64,
}

impl List {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let path = self.path();
        let mut rows = Vec::new();
        for name in SqliteQueue::names(&path).await? {
            let address = QueueAddress::new("local", &name)?;
            let queue = SqliteQueue::open(&path, address).await?;
            rows.push(ListRow {
                url: format!("sqlite:{}?queue={name}", path.display()),
                depth: queue.depth().await?,
            });
        }
        let format = self.output.or(settings.output).unwrap_or_default();
        format.list(&rows)?;
        Ok(Exit::OK)
    }

    /// Accepts the URL of a queue of the file, too.
    fn path(&self) -> PathBuf {
        let file = self.file.strip_prefix("sqlite:").unwrap_or(&self.file);
        let path = match Path::new(file).exists() {
            true => file,
            false => file.split('?').next().unwrap_or(file),
        };
        path.into()
    }
}

impl Row for ListRow {
    const HEADERS: &'static [&'static str] = &["QUEUE", "DEPTH"];

    fn cells(&self) -> Vec<String> {
        vec![self.url.clone(), self.depth.to_string()]
    }
}
