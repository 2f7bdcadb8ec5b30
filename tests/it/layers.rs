//! The layers of docs/internal/architecture.md: a module imports from lower ones only, and a pure module
//! neither tokio nor a store.

use crate::sources::{Source, read};

/// From the lowest up; modules of one layer do not import each other, but for the base.
const LAYERS: [&str; 12] = [
    "error base Error ErrorKind Result planted",
    "types",
    "wire backend/sqlite backend/azure console",
    "relay/hub relay/link client/session listener/scaling",
    "relay/cluster",
    "store relay/auth relay/runtime",
    "queue coordination/flag coordination/lease coordination/unique_id",
    "client coordination/release coordination/sweep listener relay/nats",
    "courier",
    "relay/server",
    "relay/console",
    "relay/node",
];
/// Stand above the layers, or declare modules only.
const ANYWHERE: &str = "lib testing backend coordination relay";
/// Compiled for tests or the fuzzer only.
const TESTS: [&str; 5] = ["tests", "sim", "concurrency", "contract", "fuzz_targets"];
/// Take time and randomness as arguments, and do no I/O.
const PURE: [&str; 11] = [
    "relay/hub",
    "relay/link",
    "relay/cluster",
    "client/session",
    "listener/agent/central",
    "listener/agent/machine",
    "listener/scaling",
    "coordination/flag/entry",
    "coordination/flag/registry",
    "coordination/lease/machine",
    "coordination/sweep/document",
];

/// What a pure module may not import.
const IO: [&str; 3] = ["base/task", "backend", "store"];

fn is_in(path: &str, module: &str) -> bool {
    let rest = path.strip_prefix(module);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the module of a path by its first part, or by two of them in a wing with several modules.
fn module(path: &str) -> String {
    let mut ends = path.match_indices('/').map(|(at, _)| &path[..at]);
    let (first, second) = (ends.next().unwrap_or(path), ends.next().unwrap_or(path));
    let known = layer(second).is_some() && path.contains('/');
    if known { second } else { first }.to_owned()
}

fn layer(module: &str) -> Option<usize> {
    let has = |modules: &str| modules.split(' ').any(|name| name == module);
    LAYERS.into_iter().position(has)
}

/// Returns the code without comments and without the tests at its end.
fn code(source: &Source) -> String {
    let text = &source.text;
    let end = text.find("mod tests {").unwrap_or(text.len());
    let code = |line: &&str| !line.trim_start().starts_with("//");
    let lines: Vec<&str> = text[..end].lines().filter(code).collect();
    lines.join(" ")
}

/// Reads a tree such as `a::{b, c::d as e}` into paths such as `a/b`; returns the text behind it.
fn flatten<'t>(prefix: &str, tree: &'t str, paths: &mut Vec<String>) -> &'t str {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let (path, mut rest) = tree.split_at(tree.find(|c| !is_path(c)).unwrap_or(tree.len()));
    let path = format!("{prefix}{}", path.replace("::", "/"));
    if !rest.starts_with('{') {
        paths.push(path);
        return rest.trim_start_matches(|c| is_path(c) || c == ' ');
    }
    while !rest.starts_with('}') {
        rest = flatten(&path, rest[1..].trim_start(), paths);
    }
    &rest[1..]
}

/// Returns the paths in this crate that a file's code names, such as `base/task/Scope`.
fn named(path: &str, code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        if !code[..at].ends_with('$') {
            flatten("", &code[at + "crate::".len()..], &mut paths);
        }
    }
    for (at, _) in code.match_indices("super::") {
        let (mut above, mut rest) = (path, &code[at..]);
        while let Some(next) = rest.strip_prefix("super::") {
            rest = next;
            above = above.rsplit_once('/').map_or("", |(above, _)| above);
        }
        if !code[..at].ends_with("super::") {
            flatten(&format!("{above}/"), rest, &mut paths);
        }
    }
    paths.retain(|path| !path.is_empty() && !path.ends_with('/'));
    let of = |path: &String| path.trim_start_matches('/').to_owned();
    paths.iter().map(of).collect()
}

#[test]
fn a_module_imports_from_lower_layers_only_and_a_pure_one_does_no_io() {
    let (mut faults, mut imports) = (Vec::new(), 0);
    for source in read("src") {
        let path = source.path["src/".len()..].trim_end_matches(".rs");
        let own = module(path);
        let is_test = path.split('/').any(|part| TESTS.contains(&part));
        if is_test || ANYWHERE.split(' ').any(|name| name == own) {
            continue;
        }
        let code = code(&source);
        let below = layer(&own);
        let pure = PURE.iter().find(|pure| is_in(path, pure));
        for named in named(path, &code) {
            imports += 1;
            let other = module(&named);
            let in_base = below == Some(0) && layer(&other) == below;
            let lower = layer(&other).is_some() && layer(&other) < below;
            let io = IO.iter().any(|io| is_in(&named, io)) && pure.is_some();
            if io || !(other == own || lower || in_base) {
                faults.push(format!("{path} imports `{named}`"));
            }
        }
        for name in ["tokio", "object_store", "rusqlite"] {
            if pure.is_some() && code.contains(name) {
                faults.push(format!("{path} is pure, and names `{name}`"));
            }
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
    assert!(imports > 1000, "only {imports} imports were read");
}
