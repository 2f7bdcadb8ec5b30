//! The temporary directory of a benchmark.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// A new directory below the system's temporary one. Deleted when it is dropped.
#[derive(Debug)]
pub(super) struct Directory(PathBuf);

impl Directory {
    pub(super) fn new() -> Result<Self> {
        let name = format!(
            "reveille-bench-{}-{:08x}",
            std::process::id(),
            fastrand::u32(..)
        );
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path)
            .with_context(|| format!("{} cannot be created", path.display()))?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
