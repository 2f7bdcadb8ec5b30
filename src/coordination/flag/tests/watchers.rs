//! The watchers of a flag, as operators see them.

use crate::types::Drain;
use std::{sync::Arc, task::Waker, time::Duration};

use super::{
    super::{Flags, FlagsConfig, WatchStream, WatchersQuery},
    at, forever, listener, name,
};
use crate::{
    base::clock::Tick,
    store::MemoryStore,
    types::{StreamAction, StreamLifecycle},
};

fn flags() -> Flags {
    Flags::new(Arc::new(MemoryStore::new()), FlagsConfig::default())
}

/// Returns the watchers of `go` as `listener*streams`, with `+` if it has acknowledged.
fn shown(flags: &Flags) -> Vec<String> {
    let query = WatchersQuery {
        flag: Some(name("go")),
        after: None,
        count: 100,
    };
    let page = flags.list_watchers(&query).into_iter();
    let entry = page.map(|view| {
        let mark = if view.acknowledged { "+" } else { "" };
        format!("{}*{}{mark}", view.listener, view.streams)
    });
    entry.collect()
}

#[tokio::test]
async fn the_list_marks_the_listeners_that_have_acknowledged() {
    let flags = flags();
    let go = name("go");
    let watch = |id: &str| flags.watch(&go, listener(id), false, at(0));
    let (one, two) = (watch("node-1"), watch("node-2"));
    drop(watch("node-3"));
    let observer = flags.watch(&go, listener("cli"), true, at(0));
    let (set, _) = flags.unleash(&go, &forever(), at(0)).await.expect("set");
    one.ack(set.generation).expect("counted");
    let again = watch("node-1");
    assert_eq!(shown(&flags), ["node-1*2+", "node-2*1"]);
    // No listener has acknowledged the next generation.
    flags.leash(&go, at(0)).await.expect("leash");
    flags.unleash(&go, &forever(), at(1)).await.expect("set");
    drop(again);
    assert_eq!(shown(&flags), ["node-1*1", "node-2*1"]);
    drop((one, two, observer));
    assert_eq!(shown(&flags), [""; 0]);
}

#[tokio::test]
async fn listeners_are_listed_by_flag_and_name_page_by_page() {
    let flags = flags();
    let watch = |flag: &str, id: &str| flags.watch(&name(flag), listener(id), false, at(0));
    let _watches = [watch("go", "b"), watch("go", "a"), watch("at", "z")];
    let page = |flag: Option<&str>, after: Option<(&str, &str)>, count| {
        let query = WatchersQuery {
            flag: flag.map(name),
            after: after.map(|(flag, id)| (name(flag), listener(id))),
            count,
        };
        let views = flags.list_watchers(&query).into_iter();
        let entry = views.map(|view| format!("{}/{}", view.flag, view.listener));
        entry.collect::<Vec<_>>()
    };
    assert_eq!(page(None, None, 9), ["at/z", "go/a", "go/b"]);
    assert_eq!(page(None, Some(("go", "a")), 9), ["go/b"]);
    assert_eq!(page(Some("go"), Some(("at", "z")), 1), ["go/a"]);
}

#[tokio::test]
async fn a_stream_that_has_sent_goodbye_is_not_shown() {
    let flags = flags();
    let go = name("go");
    let first = flags.watch(&go, listener("node-1"), false, at(0));
    let (start, second) = (Tick::default(), Duration::from_secs(1));
    let mut rng = fastrand::Rng::with_seed(1);
    let lifecycle = StreamLifecycle::new(second, 3600 * second, start, &mut rng);
    let mut feed = WatchStream::new(first, lifecycle);
    let goodbye = feed.next(start, Some(Drain::at_once(start)), Waker::noop());
    assert!(matches!(goodbye, StreamAction::Send(_)), "{goodbye:?}");
    let _again = flags.watch(&go, listener("node-1"), false, at(0));
    assert_eq!(shown(&flags), ["node-1*1"]);
}
