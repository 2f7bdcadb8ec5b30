//! The guard: commands end with their listener.

use std::path::Path;

use super::*;

/// Returns whether a process runs. A process that has ended but is not reaped does not run.
fn is_alive(process: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.trim()));
    stat.is_ok_and(|stat| {
        !stat
            .rsplit_once(')')
            .is_some_and(|(_, rest)| rest.starts_with(" Z"))
    })
}

/// Returns the guard process of a `listen` process.
fn guard_of(parent: u32) -> Option<String> {
    let processes = fs::read_dir("/proc").expect("Linux").flatten();
    let mut names = processes.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.find(|name| {
        let read = |file: &str| fs::read_to_string(format!("/proc/{name}/{file}"));
        let of = read("status").is_ok_and(|status| status.contains(&format!("PPid:\t{parent}\n")));
        of && is_alive(name) && read("cmdline").is_ok_and(|line| line.contains("guard"))
    })
}

#[tokio::test]
async fn a_listener_that_is_killed_takes_its_commands_and_their_children_with_it() {
    let place = Place::new().await;
    let script = "trap '' TERM; sleep 60 & echo $! > child; echo $$ > pid.new; mv pid.new pid; \
                  sleep 60; :";
    let mut dying = place.listen(&["--no-relay"], script);
    place.put(&[b"job"]).await;
    until("it runs", async || !place.written("pid").is_empty()).await;
    let (command, child) = (place.written("pid"), place.written("child"));
    assert!(is_alive(&command) && is_alive(&child));
    dying.child.kill().await.expect("killed");
    until("both have ended", async || {
        !is_alive(&command) && !is_alive(&child)
    })
    .await;
}

/// Returns whether a process has this working directory.
fn is_in_use(directory: &Path) -> bool {
    let processes = fs::read_dir("/proc").expect("Linux").flatten();
    let mut places = processes.filter_map(|entry| fs::read_link(entry.path().join("cwd")).ok());
    places.any(|place| place == directory)
}

/// Each command first kills its listener, before the guard gets the command's group number.
#[tokio::test]
async fn a_listener_that_is_killed_while_it_starts_a_command_takes_that_with_it() {
    for _ in 0..10 {
        let place = Place::new().await;
        place.put(&[b"job"]).await;
        let script = "kill -KILL $PPID; sleep 60; :";
        let killed = place.listen(&["--no-relay"], script).ends().await;
        assert_eq!(killed.code, None, "{:?}", killed.events);
        until("the command has ended", async || {
            !is_in_use(place.home.path())
        })
        .await;
    }
}

#[tokio::test]
async fn a_guard_that_was_killed_is_replaced_and_gets_all_running_groups() {
    let (relay, place) = (Binary::serve().await, Place::new().await);
    let url = relay.url();
    let script = "n=$(cat); echo $$ > $n.new; mv $n.new $n; exec sleep 60";
    let mut dying = place.listen(&["--relay", &url, "--max-tasks", "2"], script);
    dying.tells("mode", "pushed").await;
    let listener = dying.child.id().expect("it runs");
    let runs = async |name: &str| {
        place.put(&[name.as_bytes()]).await;
        relay.run(&["notify", "local/orders"]).await;
        until("it runs", async || !place.written(name).is_empty()).await;
    };
    runs("one").await;
    let guard = guard_of(listener).expect("a guard");
    signal("KILL", &guard);
    until("it is gone", async || !is_alive(&guard)).await;
    assert!(
        is_alive(&place.written("one")),
        "the end of a guard ends no command"
    );
    runs("two").await;
    until("another guard", async || guard_of(listener).is_some()).await;
    dying.child.kill().await.expect("killed");
    for name in ["one", "two"] {
        let command = place.written(name);
        until(name, async || !is_alive(&command)).await;
    }
}
