//! The shape of the sources: layers, headers, sizes, and names that have one place only.

use std::collections::BTreeMap;

use crate::sources::{Source, read, used};

/// The layers of docs/architecture.md, from the lowest up. A module imports from lower ones only. A
/// wing with several modules is named with the module.
const LAYERS: [(&str, &[&str]); 11] = [
    (
        "base",
        &[
            "error",
            "base/backoff",
            "base/causes",
            "base/clock",
            "base/duration",
            "base/eviction",
            "base/fault",
            "base/fnv",
            "base/histogram",
            "base/https",
            "base/log_limiter",
            "base/memory",
            "base/network",
            "base/request_error",
            "base/secret",
            "base/sync",
            "base/task",
            "base/text",
        ],
    ),
    ("types", &["types"]),
    (
        "tools",
        &["wire", "backend/sqlite", "backend/azure", "console"],
    ),
    (
        "cores",
        &[
            "relay/hub",
            "relay/link",
            "client/session",
            "listener/scaling",
        ],
    ),
    ("joined cores", &["relay/cluster"]),
    ("stores", &["store", "relay/auth", "relay/runtime"]),
    (
        "on stores",
        &[
            "queue",
            "coordination/flag",
            "coordination/lease",
            "coordination/unique_id",
        ],
    ),
    (
        "drivers",
        &[
            "client",
            "coordination/release",
            "coordination/sweep",
            "listener",
            "relay/nats",
        ],
    ),
    ("between machines", &["courier"]),
    ("edges", &["relay/server"]),
    ("assembly", &["relay/node", "testing"]),
];
/// May look across: they put parts together for tests.
const ACROSS: [&str; 2] = ["sim", "testing"];
/// The binaries: the public API only.
const BINARY: [&str; 1] = ["bench"];
/// The error is named through the crate's root as often as through its module.
const OF_ERROR: [&str; 3] = ["Error", "ErrorKind", "Result"];
/// Base modules that the others of the base stand on.
const OF_BASE: [&str; 3] = ["error", "base/clock", "base/sync"];

const LONGEST_FILE: usize = 450;

/// Wings that only declare their modules.
const DECLARATIONS: [&str; 4] = ["base", "backend", "coordination", "relay"];

/// Returns the module of a path's first two parts: of a wing with several modules, the second part
/// names one.
fn module_of<'p>(mut parts: impl Iterator<Item = &'p str>) -> String {
    let first = parts.next().unwrap_or_default().to_owned();
    let both = parts.next().map(|second| format!("{first}/{second}"));
    both.filter(|both| level(both).is_some()).unwrap_or(first)
}

fn module(source: &Source) -> String {
    let path = source.path.strip_prefix("src/").unwrap_or(&source.path);
    module_of(path.trim_end_matches(".rs").split('/'))
}

fn level(module: &str) -> Option<usize> {
    LAYERS
        .iter()
        .position(|(_, modules)| modules.contains(&module))
}

/// Returns the modules of this crate that a file names.
fn named(source: &Source) -> Vec<String> {
    let code = source.code();
    let mut paths = used(&code);
    // Paths that stand in the code itself.
    for (at, _) in code.match_indices("crate::") {
        if !code[..at].ends_with('$') {
            let end = code[at..].find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
            let path = &code[at..at + end.unwrap_or(code.len() - at)];
            // What ends here is a group of a `use` line, which was read above.
            if !path.ends_with("::") {
                paths.push(path.to_owned());
            }
        }
    }
    // Where `super` is the crate, or a wing.
    let module = module(source);
    let above = match (source.path.matches('/').count(), module.split_once('/')) {
        (1, _) => Some(String::new()),
        (2, Some((wing, _))) => Some(format!("{wing}::")),
        _ => None,
    };
    let mut modules: Vec<String> = paths
        .iter()
        .filter_map(|path| match path.strip_prefix("crate::") {
            Some(path) => Some(path.to_owned()),
            None => Some(format!(
                "{}{}",
                above.as_ref()?,
                path.strip_prefix("super::")?
            )),
        })
        .map(|path| module_of(path.split("::")))
        .filter(|name| !name.is_empty() && name != "*")
        .map(|name| match OF_ERROR.contains(&name.as_str()) {
            true => "error".to_owned(),
            false => name,
        })
        .collect();
    modules.sort();
    modules.dedup();
    modules
}

#[test]
fn a_module_imports_from_lower_layers_only() {
    let mut faults = Vec::new();
    for source in read("src", &[".rs"]) {
        let module = module(&source);
        let module = module.as_str();
        let declares = DECLARATIONS.contains(&module) || module == "lib";
        if source.is_test() || declares || BINARY.contains(&module) {
            continue;
        }
        let Some(own) = level(module) else {
            faults.push(format!("{}: `{module}` stands in no layer", source.path));
            continue;
        };
        for other in named(&source) {
            let within = other == module
                || ACROSS.contains(&module)
                || (own == 0 && OF_BASE.contains(&other.as_str()) && !OF_BASE.contains(&module));
            match level(&other) {
                Some(layer) if layer < own || within => {}
                Some(_) => faults.push(format!("{}: imports `{other}`", source.path)),
                // A macro, or a word that lib.rs exports: name its module instead.
                None if other == "planted" || within => {}
                None => faults.push(format!("{}: `{other}` is of no layer", source.path)),
            }
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn a_pure_module_imports_neither_tokio_nor_a_store() {
    const REFUSED: [&str; 4] = ["tokio", "object_store", "rusqlite", "reveille::store"];
    let sources = read("src", &[".rs"]);
    // A module's header holds for the files in its folder.
    let pure: Vec<&str> = sources
        .iter()
        .filter(|source| source.is_pure())
        .map(|source| source.path.trim_end_matches(".rs"))
        .collect();
    let cores = LAYERS.iter().find(|(layer, _)| *layer == "cores");
    for core in cores.expect("a layer of the cores").1 {
        let path = format!("src/{core}");
        assert!(pure.contains(&&*path), "{path}: its header says not `pure`");
    }
    let mut faults = Vec::new();
    for source in sources.iter().filter(|source| !source.is_test()) {
        let is_below = |pure: &&str| {
            let rest = source.path.strip_prefix(*pure);
            rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        };
        let Some(pure) = pure.iter().find(|pure| is_below(pure)) else {
            continue;
        };
        let code = source.code();
        let refused = REFUSED.into_iter().filter(|name| code.contains(name));
        let modules = named(source).into_iter().filter(|module| {
            module == "store" || module.starts_with("backend/") || module == "base/task"
        });
        for name in refused.map(str::to_owned).chain(modules) {
            faults.push(format!("{}: `{name}`, but {pure}.rs is pure", source.path));
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn the_operators_tool_knows_no_benchmark() {
    let mut faults = Vec::new();
    for source in read("src", &[".rs"]) {
        if !matches!(module(&source).as_str(), "main" | "cli") {
            continue;
        }
        let code = source.code();
        if code.contains("bench") || code.contains("async_nats::") {
            faults.push(source.path);
        }
    }
    assert!(faults.is_empty(), "{faults:?}");
}

#[test]
fn every_file_opens_with_what_it_promises() {
    let missing: Vec<_> = ["src", "tests", "examples"]
        .iter()
        .flat_map(|directory| read(directory, &[".rs"]))
        .filter(|source| !source.text.starts_with("//! "))
        .map(|source| source.path)
        .collect();
    assert!(missing.is_empty(), "no `//!` at the top: {missing:?}");
}

#[test]
fn no_file_is_long() {
    let long: BTreeMap<_, _> = read("src", &[".rs"])
        .into_iter()
        .filter(|source| !source.is_test())
        .map(|source| {
            let lines = source.code().lines().count();
            (source.path, lines)
        })
        .filter(|(_, lines)| *lines > LONGEST_FILE)
        .collect();
    assert!(
        long.is_empty(),
        "longer than {LONGEST_FILE} lines: {long:?}"
    );
}

#[test]
fn time_is_read_by_the_clock_only() {
    let mut faults = Vec::new();
    for source in read("src", &[".rs"]) {
        let module = module(&source);
        if module == "base/clock" || BINARY.contains(&module.as_str()) {
            continue;
        }
        let code = source.code();
        let mut paths = used(&code);
        if code.contains("std::time::Instant") {
            paths.push("std::time::Instant".to_owned());
        }
        if paths.iter().any(|path| path == "std::time::Instant") {
            faults.push(source.path);
        }
    }
    assert!(faults.is_empty(), "use tokio's clock: {faults:?}");
}

#[test]
fn tasks_are_spawned_in_one_place() {
    // A database's writer and the audit log's writer are threads; the binaries run helpers.
    const ALLOWED: [&str; 5] = ["base/task", "backend/sqlite", "relay/auth", "cli", "bench"];
    const SPAWNS: [&str; 7] = [
        "tokio::spawn",
        "tokio::task::spawn",
        "task::spawn(",
        "task::spawn_blocking",
        "task::spawn_local",
        "thread::spawn",
        "thread::Builder",
    ];
    let mut faults = Vec::new();
    for source in read("src", &[".rs"]) {
        if source.is_test() || ALLOWED.contains(&module(&source).as_str()) {
            continue;
        }
        let code = source.code();
        let named = used(&code).join("\n");
        for spawn in SPAWNS {
            if code.contains(spawn) || named.contains(spawn) {
                faults.push(format!("{}: {spawn}", source.path));
            }
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn statuses_stay_on_the_wire() {
    const ALLOWED: [&str; 4] = ["wire", "relay/server", "client", "fuzz_targets"];
    let faults: Vec<_> = read("src", &[".rs"])
        .into_iter()
        .filter(|source| !ALLOWED.contains(&module(source).as_str()))
        .filter(|source| {
            let code = source.code();
            code.contains("tonic::Status") || used(&code).iter().any(|path| path == "tonic::Status")
        })
        .map(|source| source.path)
        .collect();
    assert!(faults.is_empty(), "{faults:?}");
}

#[test]
fn no_file_names_the_machine_it_was_written_on() {
    let mut faults = Vec::new();
    let homes = ["home", "root", "work", "Users"].map(|name| format!("/{name}/"));
    for directory in ["src", "proto", "tests", "examples", "docs"] {
        for source in read(directory, &[".rs", ".proto", ".py", ".md", "/run"]) {
            for (number, line) in source.text.lines().enumerate() {
                let named = homes.iter().any(|home| {
                    line.match_indices(home.as_str()).any(|(at, _)| {
                        // A part of a longer path or of an address is not a machine's own.
                        let before = line[..at].chars().next_back();
                        before.is_none_or(|c| !(c.is_alphanumeric() || "/.:}_-".contains(c)))
                    })
                });
                if named {
                    faults.push(format!("{}:{}: {line}", source.path, number + 1));
                }
            }
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}
