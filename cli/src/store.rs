//! The store of ids and leases, and that of a relay where none is named.
//!
//! Ids and leases are useless if two users have two stores without knowing it, so they have no default.

use std::path::PathBuf;

use super::{
    exit::{Failed, Usage},
    values,
};

/// The store of a verb, as typed.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct StoreArgs {
    /// The store that all users of the name share: sqlite:PATH, or in a build with
    /// `--features full` az://CONTAINER, s3://BUCKET or gs://BUCKET
    #[arg(long, env = "REVEILLE_STORE", value_name = "URL")]
    store: Option<String>,
}

impl StoreArgs {
    /// Returns the URL of a store that outlives this command.
    pub(super) fn resolve(&self) -> Result<&str, Usage> {
        let rule = "--store: ids and leases are shared through a store: pass --store sqlite:PATH, or \
                    set REVEILLE_STORE";
        let url = self
            .store
            .as_deref()
            .ok_or_else(|| Usage(rule.to_owned()))?;
        values::refuse_memory("--store: a store", "sqlite:PATH", url)?;
        Ok(url)
    }
}

/// Returns the URL of the relay's default store in the user's data directory. Creates the directory
/// if it is missing.
pub(super) fn default_store() -> Result<String, Failed> {
    let none = || Failed("this user has no data directory: pass --store".to_owned());
    let directory: PathBuf = dirs::data_dir().ok_or_else(none)?.join("reveille");
    std::fs::create_dir_all(&directory).map_err(|error| {
        let shown = directory.display();
        Failed(format!(
            "data directory `{shown}` cannot be created: {error}"
        ))
    })?;
    Ok(format!(
        "sqlite:{}",
        directory.join("reveille.db").display()
    ))
}
