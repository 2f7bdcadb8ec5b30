//! The rules of docs/protocol.md and the invariants of docs/reliability.md: each number that is cited
//! has its heading, and each test, fault and file that the pages name exists; those of
//! docs/cluster.md as well.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use crate::sources::{Source, read, root};

const PROTOCOL: &str = "docs/protocol.md";
const RELIABILITY: &str = "docs/reliability.md";
const CLUSTER: &str = "docs/cluster.md";
/// The rules that the protocol had when its page was written. More may follow, none goes.
const RULES: u32 = 23;

/// Returns the numbers that a text cites with this letter: `R8`, not `xR8`, `R8x` or `R800`.
fn cited(letter: char, text: &str) -> Vec<u32> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (at, _) in text.match_indices(letter) {
        let (before, rest) = (&text[..at], &text[at + letter.len_utf8()..]);
        let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
        let digits = &rest[..end];
        let alone = !before.chars().next_back().is_some_and(is_word);
        let number = digits.bytes().all(|digit| digit.is_ascii_digit());
        if alone && number && (1..=2).contains(&digits.len()) && !digits.starts_with('0') {
            found.push(digits.parse().expect("two digits"));
        }
    }
    found
}

/// Returns the sections of a page whose headings are `### R8: ...`, by their numbers, in their order.
fn sections(letter: char, page: &str) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    for section in page.split("\n#").skip(1) {
        let title = section.trim_start_matches(['#', ' ']);
        let name = title.split_once(": ").map(|(name, _)| name);
        let number = name.and_then(|name| name.strip_prefix(letter)?.parse().ok());
        if let Some(number) = number {
            found.push((number, section.to_owned()));
        }
    }
    found
}

/// Returns the names in backticks of the lines that have this label.
fn named(label: &str, page: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in page.lines() {
        if let Some((_, names)) = line.split_once(label) {
            found.extend(names.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    found
}

fn page(path: &str) -> String {
    fs::read_to_string(root().join(path)).expect(path)
}

fn everything() -> Vec<Source> {
    let mut all = Vec::new();
    for directory in ["src", "tests", "examples", "docs", "proto"] {
        all.extend(read(directory, &[".rs", ".py", ".md", ".proto"]));
    }
    for path in ["README.md", "CHANGELOG.md"] {
        let (path, text) = (path.to_owned(), page(path));
        all.push(Source { path, text });
    }
    all
}

#[test]
fn every_rule_and_invariant_that_is_cited_has_its_heading() {
    let (mut cites, mut missing) = (0, BTreeMap::new());
    let sources = everything();
    for (letter, home) in [('R', PROTOCOL), ('I', RELIABILITY)] {
        let headings: BTreeSet<u32> = sections(letter, &page(home))
            .into_iter()
            .map(|(number, _)| number)
            .collect();
        for source in &sources {
            for number in cited(letter, &source.text) {
                cites += 1;
                if !headings.contains(&number) {
                    let heading = format!("{home}: no heading `{letter}{number}: `");
                    let first = || source.path.clone();
                    missing.entry(heading).or_insert_with(first);
                }
            }
        }
    }
    assert!(
        missing.is_empty(),
        "with the first file that cites it: {missing:#?}"
    );
    assert!(cites > 100, "only {cites} found");
}

#[test]
fn every_rule_says_what_it_prevents_and_where_it_is_kept_and_tested() {
    let sections = sections('R', &page(PROTOCOL));
    let numbers: Vec<u32> = sections.iter().map(|(number, _)| *number).collect();
    let last = numbers.last().copied().unwrap_or_default().max(RULES);
    assert_eq!(numbers, (1..=last).collect::<Vec<_>>(), "each rule once");
    for (number, section) in &sections {
        for part in ["\nPrevents:\n* t0: ", "\n- Code: `", "\n- Tested by: `"] {
            assert!(section.contains(part), "rule {number} lacks {part:?}");
        }
    }
}

#[test]
fn every_invariant_has_one_heading_and_its_tests() {
    let sections = sections('I', &page(RELIABILITY));
    assert!(sections.len() > 10, "{sections:?}");
    assert!(sections.is_sorted_by_key(|(number, _)| *number), "in order");
    let distinct: BTreeSet<_> = sections.iter().map(|(number, _)| number).collect();
    assert_eq!(distinct.len(), sections.len(), "each once");
    for (number, section) in &sections {
        assert!(section.contains("Tested by: `"), "invariant {number}");
    }
}

#[test]
fn every_test_fault_and_file_that_the_pages_name_exists() {
    let rust: Vec<Source> = ["src", "tests"]
        .iter()
        .flat_map(|directory| read(directory, &[".rs"]))
        .collect();
    let faults = page("src/base/fault.rs");
    let mut missing = Vec::new();
    for path in [PROTOCOL, RELIABILITY, CLUSTER] {
        let text = page(path);
        for name in named("Tested by: ", &text) {
            let function = format!("fn {name}(");
            let exists = match name.contains('/') {
                true => root().join(&name).exists(),
                false => rust.iter().any(|source| source.text.contains(&function)),
            };
            if !exists {
                missing.push(format!("{path}: no test `{name}`"));
            }
        }
        for name in named("Planted faults: ", &text) {
            if !faults.contains(&format!("\n    {name},\n")) {
                missing.push(format!("{path}: no fault `{name}`"));
            }
        }
        for line in text.lines().filter_map(|line| line.split_once("- Code: ")) {
            let code = missing_code(line.1).into_iter();
            missing.extend(code.map(|what| format!("{path}: no {what}")));
        }
    }
    assert!(missing.is_empty(), "\n{}", missing.join("\n"));
}

/// Returns the files of a line that do not exist, and the functions that do not stand in theirs: a
/// line names files, each with some of its functions in parentheses.
fn missing_code(line: &str) -> Vec<String> {
    let (mut file, mut missing) = ("", Vec::new());
    for name in line.split('`').skip(1).step_by(2) {
        if name.contains('/') {
            file = name;
            if !root().join(file).exists() {
                missing.push(format!("file `{file}`"));
            }
        } else if let Ok(text) = fs::read_to_string(root().join(file))
            && !text.contains(&format!("fn {name}"))
        {
            missing.push(format!("`{name}` in `{file}`"));
        }
    }
    missing
}

#[test]
fn a_number_is_cited_by_itself_only() {
    let text = "R8: busy (R14, R16), `R2`; not xR3, R3x, R_3, R03, R123 or I18.";
    assert_eq!(cited('R', text), [8, 14, 16, 2]);
    assert_eq!(cited('I', text), [18]);
    let page = "# Page\n### R1: A title\ntext R2\n### R2 and others: text\n## R4: Another\n";
    let found: Vec<u32> = sections('R', page)
        .iter()
        .map(|(number, _)| *number)
        .collect();
    assert_eq!(found, [1, 4]);
}
