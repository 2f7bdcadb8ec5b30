//! Each test, planted fault and file exists that the pages of docs/internal name.

use std::fs;

use crate::sources::{Source, read, root};

/// Returns the lines with this label, each as its names in backticks.
fn named<'p>(label: &str, page: &'p str) -> Vec<Vec<&'p str>> {
    let lines = page.lines().filter_map(|line| line.split_once(label));
    lines
        .map(|(_, names)| names.split('`').skip(1).step_by(2).collect())
        .collect()
}

#[test]
fn every_test_fault_and_file_that_the_pages_name_exists() {
    let text_of = |path: &str| fs::read_to_string(root().join(path)).unwrap_or_default();
    let rust: Vec<Source> = ["src", "tests", "dev"].into_iter().flat_map(read).collect();
    let faults = text_of("src/base/fault.rs");
    let mut missing = Vec::new();
    for path in ["protocol-rules", "cluster-rules", "evidence"] {
        let path = format!("docs/internal/{path}.md");
        let page = text_of(&path);
        let tests = named("Tested by: ", &page).concat();
        assert!(!tests.is_empty(), "{path} names no test");
        for name in tests {
            let function = format!("fn {name}(");
            let exists = match name.contains('/') {
                true => root().join(name).exists(),
                false => rust.iter().any(|source| source.text.contains(&function)),
            };
            if !exists {
                missing.push(format!("{path}: no test `{name}`"));
            }
        }
        for name in named("Planted faults: ", &page).concat() {
            if !faults.contains(&format!("\n    {name},\n")) {
                missing.push(format!("{path}: no fault `{name}`"));
            }
        }
        for line in named("- Code: ", &page) {
            // A line names files, each followed by some of its functions.
            let mut file = "";
            for name in line {
                let exists = match name.contains('/') {
                    true => {
                        file = name;
                        root().join(file).exists()
                    }
                    false => text_of(file).contains(&format!("fn {name}")),
                };
                if !exists {
                    missing.push(format!("{path}: no `{name}` in `{file}`"));
                }
            }
        }
    }
    assert!(missing.is_empty(), "\n{}", missing.join("\n"));
}
