//! Bad input of `tests/run`: one line that says what to do, and the exit code 2, before anything runs.

use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use crate::sources::root;

/// Returns the only line on stderr.
#[track_caller]
fn refused(arguments: &[&str], path: Option<&Path>) -> String {
    let mut command = Command::new(tool("bash"));
    command.arg("tests/run").args(arguments).current_dir(root());
    command.env_remove("CC");
    if let Some(path) = path {
        command.env("PATH", path);
    }
    let output = command.output().expect("bash starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(output.stdout.is_empty());
    stderr.into_owned()
}

fn tool(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").expect("a path");
    let mut found = std::env::split_paths(&path).map(|directory| directory.join(name));
    found.find(|file| file.exists()).expect(name)
}

#[test]
fn an_unknown_flag_is_named() {
    for (arguments, part) in [
        (&["--fast"][..], "unknown flag --fast: tests/run --help"),
        (&["--full", "-x"], "unknown flag -x"),
        (&["--seeds"], "--seeds needs a number"),
        (&["--seeds", "many"], "--seeds needs a number"),
    ] {
        let line = refused(arguments, None);
        assert!(line.contains(part), "{line}");
    }
}

#[test]
fn a_missing_tool_is_named_with_what_to_install() {
    const TOOLS: [(&str, &str); 5] = [
        ("cargo", "install Rust"),
        ("python3", "install Python"),
        ("node", "install Node.js"),
        ("npm", "install npm"),
        ("cc", "install a C compiler"),
    ];
    for (missing, advice) in TOOLS {
        let path = tempfile::tempdir().expect("a directory");
        let others = TOOLS.map(|(name, _)| name).into_iter().chain(["dirname"]);
        for name in others.filter(|name| *name != missing) {
            symlink(tool(name), path.path().join(name)).expect("linked");
        }
        let line = refused(&[], Some(path.path()));
        assert!(
            line.contains(&format!("no `{missing}` is on the PATH: {advice}")),
            "{line}"
        );
    }
}
