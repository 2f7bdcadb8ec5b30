//! The directory of a demo.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// A temporary directory, removed at the end.
pub(super) struct Home(PathBuf);

impl Home {
    pub(super) fn new() -> anyhow::Result<Self> {
        let name = reveille::ListenerId::unique("reveille-demo")?;
        let path = std::env::temp_dir().join(name.as_str());
        std::fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // A failure to remove a temporary directory is ignored.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
