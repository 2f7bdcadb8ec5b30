//! The store of a verb: the typed one, else the store that all users of the machine share.
//!
//! Ids and leases are useless if two users have two stores without knowing it. So no default lies
//! in a user's home directory, and a store that was not typed is printed.

use std::path::{Path, PathBuf};

use super::{
    exit::{Failed, Usage},
    output, values,
};

/// The store of a verb, as typed.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct StoreArgs {
    /// The store that all users of the name share: sqlite:PATH, or in a build with
    /// `--features full` az://CONTAINER, s3://BUCKET or gs://BUCKET
    /// [default: /var/lib/reveille/reveille.db if an operator has created that directory]
    #[arg(long, env = "REVEILLE_STORE", value_name = "URL")]
    store: Option<String>,
}

/// The directory of the machine's shared store. Its mode decides which users may write there.
const MACHINE_DIRECTORY: &str = "/var/lib/reveille";

impl StoreArgs {
    /// Returns the URL of a store that outlives this command and that other users of the machine share.
    /// Prints the machine's default.
    pub(super) fn resolve(&self) -> Result<String, Usage> {
        self.resolve_in(Path::new(MACHINE_DIRECTORY))
    }

    fn resolve_in(&self, machine: &Path) -> Result<String, Usage> {
        match self.store.as_deref() {
            Some(url) => {
                values::refuse_memory("--store: a store", "sqlite:PATH", url)?;
                Ok(url.to_owned())
            }
            None if machine.is_dir() => {
                let url = format!("sqlite:{}", machine.join("reveille.db").display());
                output::note(format_args!("store: {url} (this machine's default)"));
                Ok(url)
            }
            None => Err(Usage(format!(
                "--store: no store is named, and ids and leases are shared through a store: pass \
                 --store sqlite:PATH, set REVEILLE_STORE, or create the directory {} for all users \
                 of this machine",
                machine.display()
            ))),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_store_is_stated_or_the_machines() {
        let directory = tempfile::tempdir().expect("a directory");
        let machine = directory.path();
        let stated = StoreArgs {
            store: Some("sqlite:/srv/shared.db".to_owned()),
        };
        let url = stated.resolve_in(machine).expect("stated");
        assert_eq!(url, "sqlite:/srv/shared.db");
        let url = StoreArgs::default()
            .resolve_in(machine)
            .expect("the machine's");
        assert_eq!(url, format!("sqlite:{}/reveille.db", machine.display()));
        let missing = machine.join("missing");
        let error = StoreArgs::default().resolve_in(&missing).expect_err("none");
        assert!(error.to_string().contains("REVEILLE_STORE"), "{error}");
        assert!(!missing.exists());
    }
}
