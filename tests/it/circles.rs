//! No file imports one that imports it in turn, over however many others.

use std::collections::{BTreeMap, BTreeSet};

use crate::sources::{Source, read, used};

/// The files that each file imports, by the paths of their modules.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// Returns the module of a file: `relay/hub/core`.
fn module(source: &Source) -> String {
    let path = source.path.strip_prefix("src/").unwrap_or(&source.path);
    path.trim_end_matches(".rs").to_owned()
}

/// Returns the file that a path in `module` names, as far as there is a file of that name.
fn file(module: &str, path: &str, files: &BTreeSet<String>) -> Option<String> {
    let mut names = path.split("::").peekable();
    let mut at: Vec<&str> = match names.peek()? {
        &"crate" => Vec::new(),
        &"super" | &"self" => module.split('/').collect(),
        _ => return None,
    };
    while let Some(name) = names.next_if(|name| matches!(*name, "crate" | "super" | "self")) {
        if name == "super" {
            at.pop();
        }
    }
    for name in names {
        at.push(name);
        if !files.contains(&at.join("/")) {
            at.pop();
            break;
        }
    }
    let found = at.join("/");
    files.contains(&found).then_some(found)
}

/// Returns what each file imports. A module may name what stands in the files of its own folder.
fn imports(sources: &[Source]) -> Imports {
    let files: BTreeSet<String> = sources.iter().map(module).collect();
    let of = |source: &Source| {
        let module = module(source);
        let below = format!("{module}/");
        let paths = used(&source.code());
        let named = paths.iter().filter_map(|path| file(&module, path, &files));
        let others = named.filter(|name| *name != module && !name.starts_with(&below));
        (module.clone(), others.collect())
    };
    sources.iter().map(of).collect()
}

/// Returns a path from a file back to itself, if there is one.
fn circle(start: &str, imports: &Imports) -> Option<Vec<String>> {
    let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
    let mut waiting = vec![start];
    while let Some(at) = waiting.pop() {
        for next in imports.get(at).into_iter().flatten() {
            if next == start {
                let mut path = vec![start.to_owned()];
                let mut step = at;
                while step != start {
                    path.insert(1, step.to_owned());
                    step = came_from[step];
                }
                return Some(path);
            }
            if !came_from.contains_key(next.as_str()) {
                came_from.insert(next, at);
                waiting.push(next);
            }
        }
    }
    None
}

/// The simulation is a world and its inhabitants, which know each other.
#[test]
fn no_file_imports_itself_over_others() {
    let sources: Vec<Source> = read("src", &[".rs"])
        .into_iter()
        .filter(|source| !source.is_test())
        .collect();
    let imports = imports(&sources);
    let edges: usize = imports.values().map(BTreeSet::len).sum();
    assert!(edges > 500, "only {edges} imports were read");
    let circles: BTreeSet<_> = imports
        .keys()
        .filter_map(|start| circle(start, &imports))
        .map(|path| path.join(" -> "))
        .collect();
    assert!(circles.is_empty(), "{circles:#?}");
}

#[test]
fn a_circle_of_three_is_found() {
    let source = |path: &str, text: &str| Source {
        path: path.to_owned(),
        text: text.to_owned(),
    };
    let sources = [
        source("src/a.rs", "use crate::b::x::Name;\n"),
        source("src/b.rs", "mod x;\n"),
        source("src/b/x.rs", "use super::y::{self, Other};\n"),
        source("src/b/y.rs", "use crate::{a, std::fmt};\n"),
    ];
    let found = circle("a", &imports(&sources)).expect("a circle");
    assert_eq!(found, ["a", "b/x", "b/y"]);
}
