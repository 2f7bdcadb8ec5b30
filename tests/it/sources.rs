//! The project's own files, as the tests that check its shape read them.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A source file, by its path below the project's root.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Returns the project's root.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Reads every Rust file below `directory`.
pub(crate) fn read(directory: &str) -> Vec<Source> {
    let mut found = Vec::new();
    visit(&root().join(directory), &mut found);
    assert!(!found.is_empty(), "nothing below {directory}");
    found
}

fn visit(directory: &Path, found: &mut Vec<Source>) {
    for entry in fs::read_dir(directory).expect("a directory that can be read") {
        let path = entry.expect("an entry that can be read").path();
        if path.is_dir() {
            visit(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let relative = path.strip_prefix(root()).expect("below the root");
            found.push(Source {
                path: relative.to_str().expect("a plain name").to_owned(),
                text: fs::read_to_string(&path).expect("text"),
            });
        }
    }
}
