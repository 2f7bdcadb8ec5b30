//! The store that a verb stands on: what was typed, else the user's own file.

use std::path::PathBuf;

use super::{
    exit::{Failed, Usage},
    settings::Settings,
};

/// Which store.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct StoreArgs {
    /// The store: sqlite:PATH, az://CONTAINER, s3://BUCKET or gs://BUCKET [default: as of `serve`, a
    /// file in the user's data directory]
    #[arg(long, env = "REVEILLE_STORE", value_name = "URL")]
    store: Option<String>,
}

impl StoreArgs {
    /// Returns the URL of a store that outlives this command.
    pub(super) fn resolve(&self, settings: &Settings) -> anyhow::Result<String> {
        let stated = self.store.clone().or_else(|| settings.serve.store.clone());
        match stated {
            Some(url) if url == "memory:" => {
                let rule = "--store: a store in memory ends with this command: name a file";
                Err(Usage(rule.to_owned()).into())
            }
            Some(url) => Ok(url),
            None => Ok(default_store()?),
        }
    }
}

/// Returns the URL of the store in the user's data directory, which is made where it is missing.
pub(super) fn default_store() -> Result<String, Failed> {
    let none = || Failed("no data directory is known for this user: say --store".to_owned());
    let directory: PathBuf = dirs::data_dir().ok_or_else(none)?.join("reveille");
    std::fs::create_dir_all(&directory).map_err(|error| {
        let shown = directory.display();
        Failed(format!("data directory `{shown}` cannot be made: {error}"))
    })?;
    Ok(format!(
        "sqlite:{}",
        directory.join("reveille.db").display()
    ))
}
