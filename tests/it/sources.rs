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

/// Reads every file below `directory` whose name ends in one of the endings.
pub(crate) fn read(directory: &str, endings: &[&str]) -> Vec<Source> {
    let mut found = Vec::new();
    visit(&root().join(directory), endings, &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(!found.is_empty(), "nothing below {directory}");
    found
}

fn visit(directory: &Path, endings: &[&str], found: &mut Vec<Source>) {
    for entry in fs::read_dir(directory).expect("a directory that can be read") {
        let path = entry.expect("an entry that can be read").path();
        if path.is_dir() {
            visit(&path, endings, found);
            continue;
        }
        let relative = path.strip_prefix(root()).expect("below the root");
        let relative = relative.to_str().expect("a plain name").to_owned();
        if endings.iter().any(|ending| relative.ends_with(ending)) {
            let text = fs::read_to_string(&path).expect("text");
            found.push(Source {
                path: relative,
                text,
            });
        }
    }
}

impl Source {
    /// Returns whether the whole file is compiled for tests only.
    pub(crate) fn is_test(&self) -> bool {
        let mut parts = self.path.split(['/', '.']);
        parts.any(|part| {
            matches!(
                part,
                "tests" | "sim" | "concurrency" | "contract" | "fuzz_targets"
            )
        })
    }

    /// Returns whether the file's header says that its module is pure.
    pub(crate) fn is_pure(&self) -> bool {
        let header = self.text.lines().take_while(|line| line.starts_with("//!"));
        let mut words = header.flat_map(|line| line.split(|c: char| !c.is_alphanumeric()));
        words.any(|word| word.eq_ignore_ascii_case("pure"))
    }

    /// Returns the code without comments and without the tests at its end.
    pub(crate) fn code(&self) -> String {
        let end = ["\n#[cfg(test)]\nmod ", "\n#[cfg(all(test"]
            .iter()
            .filter_map(|mark| self.text.find(mark))
            .find(|at| self.text[*at..].contains("\n}"))
            .unwrap_or(self.text.len());
        let code = |line: &&str| !line.trim_start().starts_with("//");
        let lines: Vec<&str> = self.text[..end].lines().filter(code).collect();
        lines.join("\n")
    }
}

/// Returns all paths that the code names in its `use` lines, each in full.
pub(crate) fn used(code: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find("use ") {
        let line_start = rest[..at].rfind('\n').map_or(0, |newline| newline + 1);
        let before = rest[line_start..at].trim();
        let tail = &rest[at + "use ".len()..];
        let Some(end) = tail.find(';') else { break };
        if before.is_empty() || before.starts_with("pub") {
            let tree: String = tail[..end].split_whitespace().collect::<Vec<_>>().join(" ");
            // A relative path at a top-level file's margin starts at the crate.
            let nested = rest[line_start..at].starts_with(' ');
            let prefix = if nested { "nested::" } else { "" };
            flatten(&tree, prefix, &mut all);
        }
        rest = &tail[end..];
    }
    all
}

fn flatten(tree: &str, prefix: &str, all: &mut Vec<String>) {
    let tree = tree.trim();
    let Some((head, group)) = tree.split_once('{') else {
        if !tree.is_empty() {
            let path = tree.split(" as ").next().unwrap_or(tree);
            all.push(format!("{prefix}{path}"));
        }
        return;
    };
    let group = group.trim_end().strip_suffix('}').unwrap_or(group);
    let prefix = format!("{prefix}{}", head.trim());
    let (mut depth, mut start) = (0, 0);
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                flatten(&group[start..at], &prefix, all);
                start = at + 1;
            }
            _ => {}
        }
    }
    flatten(&group[start..], &prefix, all);
}

#[test]
fn use_lines_are_read_in_full() {
    let code = "use std::{fmt, time::{Duration, Instant}};\npub use a::b as c;\n";
    assert_eq!(
        used(code),
        [
            "std::fmt",
            "std::time::Duration",
            "std::time::Instant",
            "a::b"
        ]
    );
}
