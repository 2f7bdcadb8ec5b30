//! `console`: where the relay's page is.

use std::net::SocketAddr;

use anyhow::Context as _;
use serde_json::json;

use super::{exit::Exit, target::TargetArgs};

/// Print the URL of the relay's console, the page for operators
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille console
  reveille console --open
  reveille console --relay https://relay-1:7600 --url https://console.example

Where callers must be known, the URL has a code that stands for this caller's token. It opens the page \
once, within a minute.

The page is on the admin port, by default on loopback. For a relay on another machine, forward the \
port, as with `ssh -L 7601:127.0.0.1:7601 HOST`.")]
pub(super) struct Args {
    /// Open the page in a browser
    #[arg(long)]
    open: bool,
    /// The URL by which browsers reach the admin port [default: its address]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    #[command(flatten)]
    target: TargetArgs,
}

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let target = self.target.resolve();
        let client = target.client()?;
        let place = target.within(client.console()).await?;
        let base = match &self.url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => match place.address.parse::<SocketAddr>()? {
                all if all.ip().is_unspecified() => format!("http://localhost:{}", all.port()),
                address => format!("http://{address}"),
            },
        };
        let url = match &*place.code {
            "" => format!("{base}/"),
            code => format!("{base}/#code={code}"),
        };
        let row = json!({ "url": url });
        target.format.object(&row, || url.clone())?;
        if self.open {
            let opening = tokio::process::Command::new(OPENER).arg(url).status();
            let opened = opening.await.context("the browser cannot be run")?;
            anyhow::ensure!(opened.success(), "`{OPENER}` failed: open the URL by hand");
        }
        Ok(Exit::OK)
    }
}

/// The program that opens a URL.
const OPENER: &str = match cfg!(target_os = "macos") {
    true => "open",
    false => "xdg-open",
};
