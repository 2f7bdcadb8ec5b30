//! The store of each verb: users share it, and a read-only verb creates none.

use crate::{
    binary::{reveille, stderr, stdout},
    support::within,
};

#[tokio::test]
async fn ids_and_leases_have_no_store_of_one_user() {
    let home = tempfile::tempdir().expect("a directory");
    for typed in [
        &["ids", "next", "orders"][..],
        &["lease", "run", "billing", "--", "true"],
        &["lease", "show", "billing"],
    ] {
        let mut command = reveille(&home, typed);
        let output = within("its end", command.output())
            .await
            .expect("it starts");
        let complaint = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{typed:?}: {complaint}");
        assert!(complaint.contains("--store: "), "{complaint}");
        assert!(complaint.contains("REVEILLE_STORE"), "{complaint}");
    }
    let left: Vec<_> = std::fs::read_dir(home.path()).expect("listed").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn the_store_of_a_verb_is_typed_or_of_the_file() {
    let home = tempfile::tempdir().expect("a directory");
    let file = home.path().join("reveille.toml");
    std::fs::write(&file, "store = \"sqlite:of-the-file.db\"\n").expect("written");
    let file = file.to_str().expect("a plain path");
    let mut command = reveille(&home, &["--config", file, "ids", "next", "orders"]);
    command.current_dir(home.path());
    let output = within("its end", command.output())
        .await
        .expect("it starts");
    let complaint = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{complaint}");
    assert_eq!(stdout(&output), "0\n");
    assert_eq!(complaint, "");
    assert!(home.path().join("of-the-file.db").exists());

    let run = [
        "lease",
        "run",
        "billing",
        "--store",
        "sqlite:typed.db",
        "--",
        "true",
    ];
    let mut command = reveille(&home, &run);
    command.current_dir(home.path());
    let output = within("its end", command.output())
        .await
        .expect("it starts");
    let complaint = stderr(&output);
    assert!(
        complaint.contains("lease `billing` in sqlite:typed.db is held, token 1"),
        "{complaint}"
    );
}

#[tokio::test]
async fn a_read_only_verb_makes_no_database() {
    let home = tempfile::tempdir().expect("a directory");
    let (store, queue) = ("sqlite:typo.db", "sqlite:typo.db?queue=orders");
    for typed in [
        &["wait", "go", "--store", store, "--timeout", "5s"][..],
        &["flag", "get", "go", "--store", store],
        &["flag", "list", "--store", store],
        &["leash", "go", "--store", store],
        &["lease", "show", "billing", "--store", store],
        &["queue", "get", queue],
        &["queue", "peek", queue],
        &["queue", "depth", queue],
        &["queue", "purge", queue],
        &["queue", "put", queue, "a body"],
    ] {
        let mut command = reveille(&home, typed);
        command.current_dir(home.path());
        let output = within("its end", command.output())
            .await
            .expect("it starts");
        let complaint = stderr(&output);
        assert_eq!(output.status.code(), Some(5), "{typed:?}: {complaint}");
        assert!(complaint.contains("typo.db"), "{typed:?}: {complaint}");
        let left = std::fs::read_dir(home.path()).expect("listed").count();
        assert_eq!(left, 0, "{typed:?} has made a file");
    }
}
