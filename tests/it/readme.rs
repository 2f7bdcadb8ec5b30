//! Every snippet of the README and of the guides is run: shell and Python blocks here, in order,
//! against the real relay in a directory of their own; Rust blocks are documentation tests of the
//! library.

use std::{env, fs, path::Path};

use reveille::testing::TestRelay;
use tokio::process::Command;

use crate::{
    binary::free_address,
    python::{python, run, stubs},
    sources::root,
};

/// Returns a page's blocks in the given languages, in order.
pub(crate) fn blocks(page: &str, languages: &[&str]) -> Vec<(String, String)> {
    let text = fs::read_to_string(root().join(page)).expect("a page");
    let mut found = Vec::new();
    let mut parts = text.split("\n```");
    parts.next();
    while let (Some(block), _) = (parts.next(), parts.next()) {
        let (language, body) = block.split_once('\n').expect("a language and a body");
        if languages.contains(&language) {
            found.push((language.to_owned(), body.to_owned()));
        }
    }
    found
}

/// Replaces the fixed ports of the cluster's snippet, which other tests may use at the same time.
fn with_free_ports(snippet: &str) -> String {
    let ports = ["4222", "7701", "7702", "7703"];
    // A free port must not contain one that is replaced after it.
    let new = || {
        std::iter::repeat_with(free_address)
            .find(|new| !ports.iter().any(|port| new.ends_with(port)))
    };
    ports.into_iter().fold(snippet.to_owned(), |snippet, port| {
        let free = new().expect("endless");
        let (_, free) = free.rsplit_once(':').expect("a port");
        snippet.replace(port, free)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn its_shell_and_python_snippets_run() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut script = "set -eu\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n".to_owned();
    let pages = [
        "README.md",
        "docs/toolbox.md",
        "docs/languages.md",
        "docs/cluster.md",
    ];
    let blocks: Vec<_> = pages
        .iter()
        .flat_map(|page| blocks(page, &["sh", "python"]))
        .collect();
    assert!(blocks.len() >= 4, "{} blocks", blocks.len());
    for (number, (language, body)) in blocks.iter().enumerate() {
        if language == "python" {
            let name = format!("snippet_{number}.py");
            fs::write(directory.path().join(&name), body).expect("written");
            script.push_str(&format!("PYTHONPATH=. python3 {name}\n"));
        } else {
            script.push_str(&with_free_ports(body));
            script.push('\n');
        }
    }
    let (listen, binary) = (free_address(), Path::new(env!("CARGO_BIN_EXE_reveille")));
    let python = python();
    let mut shell = shell(&script, &[binary, &python], directory.path());
    shell
        .env("REVEILLE_LISTEN", &listen)
        .env("REVEILLE_RELAY", format!("http://{listen}"))
        .env("RELAY", &listen);
    let stdout = run(&mut shell, "the README's snippets").await;
    for expected in [
        "read orders until it is empty: CATCH_UP",
        "released",
        "handled second job",
        "released by the store",
        "handled job of a table",
        "first mail",
        "second order",
        "bill with token 1",
        "read acct/orders until",
        "sent first letter",
        "sent second letter",
    ] {
        assert!(stdout.contains(expected), "no {expected:?} in\n{stdout}");
    }
}

/// Returns a shell at home in a directory, which finds these programs first.
fn shell(script: &str, programs: &[&Path], home: &Path) -> Command {
    let known = env::var_os("PATH").unwrap_or_default();
    let first = programs
        .iter()
        .map(|program| program.parent().expect("a directory").to_owned());
    let path = env::join_paths(first.chain(env::split_paths(&known)));
    let mut shell = Command::new("bash");
    shell
        .args(["-c", script])
        .current_dir(home)
        .env("PATH", path.expect("plain paths"))
        .env("HOME", home)
        .env("XDG_DATA_HOME", home)
        .env("REVEILLE_ADMIN_LISTEN", free_address());
    shell
}

#[tokio::test(flavor = "multi_thread")]
async fn the_recipe_for_a_certificate_serves_clients() {
    let directory = tempfile::tempdir().expect("a directory");
    let recipe = blocks("docs/security.md", &["sh"]).into_iter();
    let mut recipe = recipe.filter(|(_, body)| body.contains("openssl"));
    let (_, recipe) = recipe.next().expect("a recipe");
    let listen = free_address();
    let (_, port) = listen.rsplit_once(':').expect("a port");
    let script = format!(
        "set -eu\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{}\n\
         reveille notify acct/orders --relay https://127.0.0.1:{port} --ca relay.pem\n",
        recipe.replace("7600", port)
    );
    let binary = Path::new(env!("CARGO_BIN_EXE_reveille"));
    let mut shell = shell(&script, &[binary], directory.path());
    let stdout = run(&mut shell, "the recipe").await;
    assert!(stdout.contains("acct/orders"), "{stdout}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_outbox_in_python_runs() {
    let directory = tempfile::tempdir().expect("a directory");
    let relay = TestRelay::start().await.expect("a relay");
    let (_, script) = blocks("docs/outbox.md", &["python"]).remove(0);
    let stubs = stubs().await;
    let mut python = Command::new(python());
    python
        .args(["-c", &script])
        .current_dir(directory.path())
        .env("PYTHONPATH", stubs.path())
        .env(
            "RELAY",
            relay.node().expect("it runs").address().to_string(),
        );
    let stdout = run(&mut python, "the outbox").await;
    assert!(stdout.contains("put ['order 1']"), "{stdout}");
    assert!(stdout.contains("left in the outbox: 0"), "{stdout}");
}

#[test]
fn its_rust_snippets_and_those_of_the_guides_are_documentation_tests() {
    let library = fs::read_to_string(root().join("src/lib.rs")).expect("the library");
    for (page, count) in [
        ("docs/languages.md", 2),
        ("docs/polling.md", 2),
        ("docs/outbox.md", 1),
        ("docs/flags.md", 1),
    ] {
        assert!(library.contains(&format!("include_str!(\"../{page}\")")));
        assert!(blocks(page, &["rust"]).len() >= count, "{page}");
    }
}
