//! SQLite files as operators treat them: copied, moved, replaced, mounted, and out of space.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Output, Stdio},
};

use tempfile::TempDir;
use tokio::process::Command;

use crate::{
    binary::{Binary, reveille, stderr, stdout},
    support::{get, until, within},
};

/// Runs a verb to its end, and returns its output; it must succeed.
async fn done(home: &TempDir, arguments: &[&str]) -> String {
    let output = run(home, arguments).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    stdout(&output)
}

async fn run(home: &TempDir, arguments: &[&str]) -> Output {
    let mut command = reveille(home, arguments);
    let output = within("the end", command.current_dir(home.path()).output()).await;
    output.expect("it starts")
}

/// Copies the file alone, as a backup without SQLite's knowledge does, and returns the copy's URL.
fn copy_alone(file: &Path) -> String {
    let copy = file.with_extension("copy");
    fs::copy(file, &copy).expect("copied");
    format!("sqlite:{}", copy.display())
}

/// Copies a file that programs use, as docs/operations.md says.
fn back_up(from: &Path, to: &Path) {
    let file = rusqlite::Connection::open(from).expect("open");
    let copied = file.execute("VACUUM INTO ?1", [to.to_string_lossy()]);
    copied.expect("copied");
}

fn log_of(file: &Path) -> PathBuf {
    let mut log = file.as_os_str().to_owned();
    log.push("-wal");
    log.into()
}

fn url_of(file: &Path) -> String {
    format!("sqlite:{}", file.display())
}

#[tokio::test]
async fn a_copy_of_a_relays_file_after_sigterm_has_all_flags() {
    let mut relay = Binary::serve().await;
    let unleash = relay.run(&["unleash", "fleet"]).await;
    assert_eq!(unleash.status.code(), Some(0), "{}", stderr(&unleash));
    assert!(log_of(&relay.store()).exists(), "the relay has it open");
    assert!(relay.terminate().await.success(), "{}", relay.log());
    assert!(!log_of(&relay.store()).exists());
    let home = tempfile::tempdir().expect("a directory");
    let copy = copy_alone(&relay.store());
    let flags = done(&home, &["flag", "list", "--store", &copy]).await;
    assert!(flags.contains("fleet"), "{flags}");
}

#[tokio::test]
async fn a_copy_after_any_verb_is_complete() {
    let home = tempfile::tempdir().expect("a directory");
    let file = home.path().join("shared.db");
    let store = url_of(&file);
    assert_eq!(
        done(&home, &["ids", "next", "orders", "--store", &store]).await,
        "0\n"
    );
    let copy = copy_alone(&file);
    assert_eq!(
        done(&home, &["ids", "next", "orders", "--store", &copy]).await,
        "1\n"
    );
    done(&home, &["unleash", "fleet", "--store", &store]).await;
    let flags = done(&home, &["flag", "list", "--store", &copy_alone(&file)]).await;
    assert!(flags.contains("fleet"), "{flags}");
    done(
        &home,
        &["lease", "run", "job", "--store", &store, "--", "true"],
    )
    .await;
    let lease = done(
        &home,
        &["lease", "show", "job", "--store", &copy_alone(&file)],
    )
    .await;
    assert!(lease.contains("job"), "{lease}");
    let queues = home.path().join("jobs.db");
    let queue = |url: &str| format!("{url}?queue=orders");
    let url = queue(&url_of(&queues));
    done(&home, &["queue", "put", &url, "tea", "--create"]).await;
    let copy = queue(&copy_alone(&queues));
    assert_eq!(done(&home, &["queue", "depth", &copy]).await, "1\n");
    let handles = ["listen", &url, "--no-relay", "--until-empty", "--", "true"];
    done(&home, &handles).await;
    let copy = queue(&copy_alone(&queues));
    assert_eq!(done(&home, &["queue", "depth", &copy]).await, "0\n");
}

#[tokio::test]
async fn a_backup_of_a_file_in_use_is_restored_on_another_machine() {
    let mut relay = Binary::serve().await;
    assert!(relay.run(&["unleash", "before"]).await.status.success());
    let home = tempfile::tempdir().expect("a directory");
    let (from, copy) = (relay.store(), home.path().join("copy.db"));
    back_up(&from, &copy);
    assert!(relay.run(&["unleash", "after"]).await.status.success());
    // As docs/operations.md says: end all programs, remove the log, put the copy in its place.
    assert!(relay.terminate().await.success());
    for suffix in ["-wal", "-shm"] {
        _ = fs::remove_file(format!("{}{suffix}", from.display()));
    }
    fs::copy(copy, &from).expect("restored");
    relay.start().await;
    let flags = stdout(&relay.run(&["flag", "list"]).await);
    assert!(
        flags.contains("before") && !flags.contains("after"),
        "{flags}"
    );
}

#[tokio::test]
async fn a_relay_whose_file_is_replaced_says_so_and_acknowledges_no_flag() {
    let relay = Binary::serve().await;
    assert!(relay.run(&["unleash", "before"]).await.status.success());
    let other = relay.store().with_extension("other");
    fs::copy(relay.store(), &other).expect("copied");
    fs::rename(&other, relay.store()).expect("replaced");
    let unleash = relay.run(&["unleash", "fleet"]).await;
    assert_eq!(unleash.status.code(), Some(3), "{}", stderr(&unleash));
    assert!(
        stderr(&unleash).contains("was replaced"),
        "{}",
        stderr(&unleash)
    );
    let (code, body) = get(relay.admin(), "/readyz/store").await;
    assert_eq!(code, 503);
    assert!(body.contains("was replaced"), "{body}");
}

#[tokio::test]
async fn a_lease_ends_when_its_file_is_removed() {
    let home = tempfile::tempdir().expect("a directory");
    let file = home.path().join("shared.db");
    let store = url_of(&file);
    let hold = ["lease", "run", "job", "--store", &store, "--duration", "6s"];
    let command = ["--", "sh", "-c", "touch runs; exec sleep 600"];
    let mut holder = reveille(&home, &[&hold[..], &command].concat());
    holder.current_dir(home.path()).stderr(Stdio::piped());
    let holder = holder.spawn().expect("it starts");
    until("it runs", async || home.path().join("runs").exists()).await;
    fs::remove_file(&file).expect("removed");
    let output = within("its end", holder.wait_with_output()).await;
    let output = output.expect("it ended");
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("was moved or deleted"),
        "{}",
        stderr(&output)
    );
}

#[tokio::test]
async fn a_listener_whose_file_is_replaced_says_so() {
    let home = tempfile::tempdir().expect("a directory");
    let file = home.path().join("jobs.db");
    let url = format!("{}?queue=orders", url_of(&file));
    done(&home, &["queue", "create", &url]).await;
    let mut listen = reveille(&home, &["listen", &url, "--no-relay", "--", "true"]);
    listen.current_dir(home.path());
    let log = home.path().join("listen.log");
    listen.stderr(fs::File::create(&log).expect("a file"));
    let mut listen = listen.spawn().expect("it starts");
    let told = || fs::read_to_string(&log).expect("a log");
    until("it listens", async || !told().is_empty()).await;
    let other = file.with_extension("other");
    back_up(&file, &other);
    fs::rename(&other, &file).expect("replaced");
    until("it says so", async || told().contains("was replaced")).await;
    assert!(listen.try_wait().expect("a status").is_none(), "{}", told());
    listen.kill().await.expect("killed");
}

#[tokio::test]
async fn no_verb_but_create_makes_a_queue_file() {
    let home = tempfile::tempdir().expect("a directory");
    let url = "sqlite:jobs.db?queue=orders";
    for verb in [
        &["listen", url, "--no-relay", "--", "true"][..],
        &["queue", "put", url, "tea"],
        &["queue", "depth", url],
    ] {
        let output = run(&home, verb).await;
        assert_eq!(
            output.status.code(),
            Some(5),
            "{verb:?}: {}",
            stderr(&output)
        );
        let told = stderr(&output);
        assert!(
            told.contains("does not exist") && told.contains("--create"),
            "{told}"
        );
    }
    assert!(!home.path().join("jobs.db").exists());
    fs::write(home.path().join("jobs.db.damaged-1"), []).expect("written");
    let create = ["listen", url, "--create", "--no-relay", "--", "true"];
    let output = run(&home, &create).await;
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    assert!(stderr(&output).contains("set aside"), "{}", stderr(&output));
    assert!(!home.path().join("jobs.db").exists());
}

/// Runs a verb in a shell, after a line of it.
async fn run_after(home: &TempDir, line: &str, arguments: &[&str]) -> Output {
    let verb = reveille(home, arguments);
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &format!("{line}; exec \"$@\""), "sh"])
        .arg(verb.as_std().get_program())
        .args(arguments)
        .current_dir(home.path());
    within("the end", shell.output()).await.expect("it starts")
}

#[tokio::test]
async fn a_new_file_is_its_owners_under_any_umask_and_a_groups_after_chmod() {
    let home = tempfile::tempdir().expect("a directory");
    let mode = |file: &Path| fs::metadata(file).expect("a file").permissions().mode() & 0o777;
    for mask in ["0000", "0277"] {
        let store = format!("sqlite:{mask}.db");
        let next = ["ids", "next", "orders", "--store", &store];
        let output = run_after(&home, &format!("umask {mask}"), &next).await;
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(mode(&home.path().join(format!("{mask}.db"))), 0o600);
    }
    // docs/operations.md: two users of one group.
    let file = home.path().join("0000.db");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o660)).expect("chmod");
    let store = url_of(&file);
    let hold = ["lease", "run", "job", "--store", &store];
    let command = [
        "--",
        "sh",
        "-c",
        "stat -c %a 0000.db-wal 0000.db-shm > modes",
    ];
    done(&home, &[&hold[..], &command].concat()).await;
    let modes = fs::read_to_string(home.path().join("modes")).expect("modes");
    assert_eq!(modes, "660\n660\n");
}

#[tokio::test]
async fn the_limit_on_the_size_of_files_is_an_error_and_not_the_end() {
    let home = tempfile::tempdir().expect("a directory");
    done(&home, &["queue", "create", "sqlite:jobs.db?queue=orders"]).await;
    let body = "x".repeat(60_000);
    let put = ["queue", "put", "sqlite:jobs.db?queue=orders", &body, &body];
    // In blocks of 512 or 1,024 bytes.
    let output = run_after(&home, "ulimit -f 100", &put).await;
    let told = stderr(&output);
    assert!(matches!(output.status.code(), Some(1 | 3)), "{output:?}");
    assert!(told.contains("ulimit -f"), "{told}");
    let depth = ["queue", "depth", "sqlite:jobs.db?queue=orders"];
    assert_eq!(done(&home, &depth).await, "0\n");
}
