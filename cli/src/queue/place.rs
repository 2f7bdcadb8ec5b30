//! The queues of a directory: arguments, and opening their file.

use std::path::{Path, PathBuf};

use reveille::{Error, ErrorKind, courier::QueueManager};

use crate::{output::Format, queue_settings, settings::Settings};

/// The queues of a directory.
#[derive(Debug, clap::Args)]
pub(super) struct PlaceArgs {
    /// The directory of the queues, or their file
    #[arg(value_name = "DIR")]
    place: PathBuf,
}

/// The output format.
#[derive(Debug, clap::Args)]
pub(super) struct OutputArgs {
    /// The output format [default: table]
    #[arg(short, long, env = "REVEILLE_OUTPUT", value_name = "FORMAT")]
    output: Option<Format>,
}

impl PlaceArgs {
    /// Opens the existing file.
    pub(super) async fn open(&self, settings: &Settings) -> Result<QueueManager, Error> {
        open_existing(&self.place, settings).await
    }

    /// Opens the file, and creates it if it is missing.
    pub(super) async fn create(&self, settings: &Settings) -> Result<QueueManager, Error> {
        let file = queue_settings::file(&self.place);
        if !self.place.exists() {
            let place = self.place.display();
            let message = format!("queues: there is no directory `{place}`: create it first");
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        QueueManager::open(file, settings.queues.manager()).await
    }
}

impl OutputArgs {
    pub(super) fn format(&self, settings: &Settings) -> Format {
        self.output.or(settings.output).unwrap_or_default()
    }
}

/// Opens the queue file of a directory, or the file itself. Does not create a file.
pub(super) async fn open_existing(
    place: &Path,
    settings: &Settings,
) -> Result<QueueManager, Error> {
    let file = queue_settings::file(place);
    if !place.exists() {
        let message = format!("queues: there is no directory `{}`", place.display());
        return Err(Error::new(ErrorKind::NotFound, message));
    }
    let opened = QueueManager::open_existing(file, settings.queues.manager()).await;
    opened.map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            let message = format!("{error}: `queue serve` and `queue send --create` create it");
            Error::new(ErrorKind::NotFound, message)
        }
        _ => error,
    })
}
