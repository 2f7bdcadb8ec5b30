//! The project's prose is plain technical English: words that name no actor are refused.

use std::fs;

use crate::sources::{Source, read, root};

/// A caller, a listener or a node has a name; so has what it does.
const REFUSED: [&str; 13] = [
    "whoever",
    "whatever",
    "somebody",
    "nobody",
    "everybody",
    "one that",
    "what is",
    "what was",
    "all the same",
    "besides",
    "meanwhile",
    "of its own",
    "without a word",
];

/// Places that keep such a word: the file, a part of its line, and the reason.
const ALLOWED: [(&str, &str, &str); 0] = [];

/// Returns the lines of a file that hold one of the words, which may be broken over two lines.
fn refused(source: &Source) -> Vec<String> {
    let lines: Vec<&str> = source.text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let next = lines.get(at + 1).map_or("", |next| {
            next.trim_start_matches(['/', '!', ' ', '#', '*'])
        });
        let both = format!("{line} {next}").to_lowercase();
        let begins = |word: &str| {
            both.match_indices(word).any(|(start, _)| {
                let end = start + word.len();
                let letter = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
                start < line.len()
                    && !letter(both[..start].chars().next_back())
                    && !letter(both[end..].chars().next())
            })
        };
        let is_allowed = ALLOWED
            .iter()
            .any(|(path, part, _)| source.path == *path && line.contains(part));
        if let Some(word) = REFUSED
            .iter()
            .find(|word| begins(word))
            .filter(|_| !is_allowed)
        {
            found.push(format!(
                "{}:{}: {word:?} in {}",
                source.path,
                at + 1,
                line.trim()
            ));
        }
    }
    found
}

#[test]
fn words_that_name_no_actor_are_not_used() {
    let mut sources = read("src", &[".rs"]);
    sources.extend(read("docs", &[".md"]));
    sources.extend(read("proto", &[".proto"]));
    let readme = fs::read_to_string(root().join("README.md")).expect("the README");
    sources.push(Source {
        path: "README.md".to_owned(),
        text: readme,
    });
    let found: Vec<_> = sources.iter().flat_map(refused).collect();
    assert!(
        found.is_empty(),
        "{} places:\n{}",
        found.len(),
        found.join("\n")
    );
}
